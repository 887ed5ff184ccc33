"""The definitions of queues that are in force (those that were put, and else those of the settings), and their scan budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from scylla_spark.core.queues.definition import QueueDefinition, read_queue

Changes = Mapping[str, QueueDefinition | None]
"""Name → definition that was put; None: it was deleted."""


class StartValues(Protocol):
    """What the settings say of one queue."""

    def definition(self, name: str) -> Mapping[str, Any]:
        """Its definition in JSON types."""


def start_definitions(queues: Mapping[str, StartValues]) -> dict[str, QueueDefinition]:
    """The start values of the settings, by name of the queue.

    Raises:
        ArgumentError: they contradict themselves.
    """
    return {name: read_queue(queue.definition(name)) for name, queue in queues.items()}


class QueuesInForce:
    """What is in force of each queue. One thread changes it, any may read.

    Args:
        start: in force for queues of which nothing was put.
    """

    def __init__(self, start: Mapping[str, QueueDefinition]) -> None:
        self._start = dict(start)
        self._now: Mapping[str, QueueDefinition] = self._start

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

    def of(self, queue: str) -> QueueDefinition | None:
        """What is in force of a queue; None: it is not listed, and has no limits."""
        return self._now.get(queue)

    def all(self) -> Mapping[str, QueueDefinition]:
        """What is in force, by name of the queue."""
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
