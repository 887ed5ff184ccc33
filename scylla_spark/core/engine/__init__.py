"""The engine of a dispatcher: decides what runs when, and what has become of it. Pure; it never meets the planner."""
