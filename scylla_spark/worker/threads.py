"""A workplace in this process."""

from __future__ import annotations

from collections.abc import Mapping

from scylla_spark.executors.handler_registry import Handler
from scylla_spark.worker.lease import Lease
from scylla_spark.worker.run_lease import work


class HerePlace:
    """Runs handlers in the thread that asks for it.

    Args:
        handlers: by name.
    """

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers

    def open(self) -> None:
        """Nothing is to be made ready."""

    def work(self, lease: Lease) -> None:
        """Runs the handler of a lease; who has lost it is told by its context, and may go on all the same."""
        work(self._handlers, lease)

    def close(self) -> None:
        """A thread cannot be ended: what it still does comes to nothing when the process ends."""
