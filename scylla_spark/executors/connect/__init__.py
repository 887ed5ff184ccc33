"""Handlers in child processes that have a session of Spark Connect."""
