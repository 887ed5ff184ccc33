"""All tasks of one queue together: how many there are in which state, and the wish to end all that have not ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from scylla_spark.client.connection import Connection
from scylla_spark.clock import now_us
from scylla_spark.core.records.command import CANCEL, Command
from scylla_spark.core.tasks.filter import OneOf, TaskFilter
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.io.delta.queue_stats import QueueStats, counted
from scylla_spark.io.delta.task_pages import TaskPages
from scylla_spark.task_states import OPEN

_SENT_AT_ONCE: Final = 5_000


class Cleared(NamedTuple):
    """What became of a wish to clear a queue: how many open tasks it had, and how many cancels Kafka has acknowledged."""

    matched: int
    sent: int


class QueueTasks:
    """The tasks of a queue.

    Args:
        connection: to the deployment.
        pages: of its tables.
        name: of the queue.
    """

    def __init__(self, connection: Connection, pages: TaskPages, name: str) -> None:
        self._connection = connection
        self._pages = pages
        self._name = name

    def stats(self) -> QueueStats:
        """Counts the tasks by state, and those that were started, retried and completed."""
        wanted = TaskFilter((OneOf("queue", (self._name,)),))
        return counted(self._connection.readers, self._name, self._pages.frames(wanted, now=now_us()))

    def clear(self, grace_ms: int | None = None, *, dry_run: bool = False) -> Cleared:
        """Sends a cancel for each open task that the tables show; what comes meanwhile is left alone, and so is who waits for answers.

        Args:
            grace_ms: end what a dispatcher runs, too, after so long; None: leave it alone.
            dry_run: only count.

        Raises:
            UnreachableError: some cancels were not acknowledged; those that were, stand.
        """
        wanted = TaskFilter((OneOf("queue", (self._name,)), OneOf("state", tuple(OPEN))))
        found = list(self._pages.keys(wanted, now=now_us()))  # all first, so that it ends
        matched = sum(map(len, found))
        return Cleared(matched, 0 if dry_run else sum(self._cancel(some, grace_ms) for some in _parts(found)))

    def _cancel(self, keys: list[TaskKey], grace_ms: int | None) -> int:
        sender, now = self._connection.sender, now_us()
        commands = (Command(CANCEL, key, 0, enqueued_us=now, grace_ms=grace_ms) for key in keys)
        sender.finish([sender.begin(sender.record(one)) for one in commands])
        return len(keys)


def _parts(found: list[list[TaskKey]]) -> Iterator[list[TaskKey]]:
    for keys in found:
        for start in range(0, len(keys), _SENT_AT_ONCE):
            yield keys[start : start + _SENT_AT_ONCE]
