"""The engine played over a past window of the tables, under other limits."""
