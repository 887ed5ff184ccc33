"""The planner's decisions: when schedules fire, and what may be launched. Pure; it never meets the engine."""
