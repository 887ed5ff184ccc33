"""The definitions of queues that are in force (those that were put, and else those of the settings), and their scan budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from scylla_spark.definitions.queue import Queue

Changes = Mapping[str, Queue | None]
"""Name → definition that was put; None: it was deleted."""


class QueuesInForce:
    """What is in force of each queue. One thread changes it, any may read.

    Args:
        start: in force for queues of which nothing was put.
    """

    def __init__(self, start: Mapping[str, Queue]) -> None:
        self._start = dict(start)
        self._now: Mapping[str, Queue] = self._start

    def put(self, changes: Changes) -> None:
        """Takes what was put and deleted."""
        now = dict(self._now)
        for name, definition in changes.items():
            found = definition if definition is not None else self._start.get(name)
            if found is not None:
                now[name] = found
            else:
                now.pop(name, None)
        self._now = now  # replaced, so that nobody reads half of it

    def of(self, queue: str) -> Queue | None:
        """Returns what is in force of a queue; None: it is not listed, and has no limits."""
        return self._now.get(queue)

    def all(self) -> Mapping[str, Queue]:
        """Returns what is in force, by name of the queue."""
        return self._now

    def listed(self) -> list[str]:
        """Names of the queues with values of their own."""
        return list(self._now)

    def paused(self) -> list[str]:
        """Names of those of which nothing starts."""
        return [name for name, definition in self._now.items() if definition.paused]


ROW_BYTES: Final = 1024  # of a task without its payload
MOST_BYTES: Final = 256 * 1024 * 1024  # of one queue's rows in one scan


class Budget(NamedTuple):
    """How much of each queue may be loaded.

    Attributes:
        rows: most tasks of a queue.
        most_bytes: most bytes of them, payloads included; the first task of a queue is kept whatever its size.
        listed: names of queues that have a budget of their own; all others, whose names come from data, share one.
        paused: names of queues of which nothing starts.
    """

    rows: int
    most_bytes: int = 1 << 62
    listed: Sequence[str] = ()
    paused: Sequence[str] = ()
