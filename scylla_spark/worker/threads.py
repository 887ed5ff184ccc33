"""A workplace in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from scylla_spark.handlers.log_lines import LineWriter
from scylla_spark.handlers.registry import Handler
from scylla_spark.handlers.spans import Spans
from scylla_spark.worker.attempt_lines import AttemptLines
from scylla_spark.worker.lease import Lease
from scylla_spark.worker.run_lease import work


class HerePlace:
    """Runs handlers in the thread that asks for it.

    Args:
        handlers: by name.
        spans: makes a span of each attempt; None: nobody asks for them.
        lines: hears what handlers print; None: nobody asks for their lines.
    """

    def __init__(
        self, handlers: Mapping[str, Handler], spans: Spans | None = None, lines: LineWriter | None = None
    ) -> None:
        self._handlers = handlers
        self._spans = spans
        self._lines = lines

    def open(self) -> None:
        """Nothing is to be made ready."""

    def work(self, lease: Lease) -> None:
        """Runs the handler of a lease; who has lost it is told by its context, and may go on all the same."""
        work(self._handlers, lease, self._spans, None if self._lines is None else _told(self._lines, lease))

    def close(self) -> None:
        """A thread cannot be ended: what it still does comes to nothing when the process ends."""


@contextmanager
def _told(writer: LineWriter, lease: Lease) -> Iterator[None]:
    """Yields what is written meanwhile goes to the logs of the attempt, and is there when this is left."""
    lines = AttemptLines(lease.tell_lines)
    try:
        with writer.by(lines.add):
            yield
    finally:
        lines.end()
