"""Ingest: the only writer of the tables."""
