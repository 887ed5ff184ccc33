"""Queues as people write them, in Python and in files, and what is asked of stored ones."""
