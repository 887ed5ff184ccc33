"""Schedules as people write them, in Python and in files, and what there is to know and ask about stored ones."""
