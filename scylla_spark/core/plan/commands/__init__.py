"""What is asked of the planner: the records of its topic, and what becomes of each kind."""
