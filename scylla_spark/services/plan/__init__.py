"""The planner of a process: fires schedules."""
