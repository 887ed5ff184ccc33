"""What became of tasks that were enqueued together."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from scylla_spark.client.connection import Connection
from scylla_spark.client.tasks.enqueue_arguments import deadline_of
from scylla_spark.clock import boot_us
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.duration import duration_shown
from scylla_spark.errors import ArgumentError, SchedulerError, WaitTimeoutError


@dataclass(frozen=True, slots=True)
class Refused:
    """A task that was not sent: its place among those given, a stable reason code, and the reason in words."""

    index: int
    reason: str
    detail: str


def broken_off(error: Exception, keys: tuple[TaskKey, ...], refused: tuple[Refused, ...]) -> SchedulerError:
    """The error of a bulk that ended midway, with what was sent before; an error of ours keeps its class.

    Args:
        error: that ended it.
        keys: of the tasks that Kafka has acknowledged.
        refused: those that were not sent, and why.
    """
    sent = f"{len(keys)} tasks were sent before."
    fields = {"sent": len(keys), "keys": keys, "refused": refused}
    if isinstance(error, SchedulerError) and not isinstance(error, ArgumentError):  # that says that nothing was stored
        return type(error)(f"{error.message} {sent}", hint=error.hint, **error.fields | fields)
    hint = "Enqueueing them again with the same keys does no harm."
    return SchedulerError(f"{type(error).__name__}: {error}. {sent}", hint=hint, **fields)


class EnqueueResult:
    """What became of a bulk.

    Args:
        connection: through which it is awaited.
        sent: records acknowledged by Kafka.
        ends: partition → offset behind the last of them.
        refused: those that were not sent, and why.
        keys: of the tasks that were sent, in the order in which they were given; of a frame none.

    Attributes:
        sent: records acknowledged by Kafka.
        refused: those that were not sent, and why.
        keys: of the tasks that were sent, in the order in which they were given, for `Scheduler.task`; empty for frames, which have
            their keys as columns.
    """

    def __init__(
        self,
        connection: Connection,
        sent: int,
        ends: dict[int, int],
        refused: tuple[Refused, ...] = (),
        *,
        keys: tuple[TaskKey, ...] = (),
    ) -> None:
        self.sent = sent
        self.keys = keys
        self.refused = refused
        self._connection = connection
        self._ends = ends

    def __repr__(self) -> str:
        return f"EnqueueResult(sent={self.sent}, refused={len(self.refused)})"

    def wait(self, timeout: object = None) -> EnqueueResult:
        """Waits until everything sent is visible in Delta.

        Raises:
            WaitTimeoutError: it was not in time; nothing is lost.
        """
        deadline, pause = deadline_of(timeout), threading.Event()
        while behind := self._behind():
            if boot_us() >= deadline:
                raise WaitTimeoutError(
                    f"{behind} of the records sent are not in the tables after {duration_shown(timeout)}.",
                    hint='They are safe in Kafka. Check that ingest runs, or wait longer: wait(timeout="5m").',
                )
            pause.wait(0.2)
        return self

    def _behind(self) -> int:
        marks = self._connection.readers.marks()
        positions = {number: mark.tasks_offset for (topic, number), mark in marks.items() if topic == "tasks"}
        return sum(max(0, end - positions.get(number, 0)) for number, end in self._ends.items())
