"""Triggers on Kafka topics: what has come, and which records a run owns."""
