"""Routes of schedules, of the events that fire them, of their decisions, and of notification rules."""
