"""Handlers of the workers of acceptance tests: those of the dispatchers that know nothing of Spark."""

from tests.acceptance.journal_handlers import errand, misbehave, work

__all__ = ["errand", "misbehave", "work"]
