"""Leases of tasks."""
