"""A workplace in this process."""

from __future__ import annotations

from collections.abc import Mapping

from scylla_spark.executors.handler_registry import Handler
from scylla_spark.executors.local.attempt_spans import Spans
from scylla_spark.worker.lease import Lease
from scylla_spark.worker.run_lease import work


class HerePlace:
    """Runs handlers in the thread that asks for it.

    Args:
        handlers: by name.
        spans: makes a span of each attempt; None: nobody asks for them.
    """

    def __init__(self, handlers: Mapping[str, Handler], spans: Spans | None = None) -> None:
        self._handlers = handlers
        self._spans = spans

    def open(self) -> None:
        """Nothing is to be made ready."""

    def work(self, lease: Lease) -> None:
        """Runs the handler of a lease; who has lost it is told by its context, and may go on all the same."""
        work(self._handlers, lease, self._spans)

    def close(self) -> None:
        """A thread cannot be ended: what it still does comes to nothing when the process ends."""
