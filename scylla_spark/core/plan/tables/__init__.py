"""Watched Delta tables: their logs as foreign programs write them, and what is new in them for a trigger."""
