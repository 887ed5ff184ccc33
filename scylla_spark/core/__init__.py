"""Decisions: plain Python, given rows and the time; no Spark, no I/O, no clock."""
