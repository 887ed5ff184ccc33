"""What the planner holds, and the log by whose changes it is made again after a restart."""
