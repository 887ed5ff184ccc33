"""Queues and their limits."""
