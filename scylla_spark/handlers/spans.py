"""Spans of attempts, for traces: what is told of an attempt, and the interface of what makes its span."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import FAILED, SUCCEEDED
from scylla_spark.handlers.messages import TaskRow, Verdict

VARIABLES: Final = "OTEL_*"
"""The environment variables that say what becomes of spans."""


class Attempt(NamedTuple):
    """What a span tells of an attempt.

    Attributes:
        handler: its name.
        key: of the task.
        queue: of the task.
        number: of the attempt, from 1.
        traceparent: trace and span in which the task was enqueued; None: in none.
        planned_us: when it could start at the earliest, microseconds since the epoch; 0: not known.
        started_us: wall clock.
    """

    handler: str
    key: TaskKey
    queue: str
    number: int
    traceparent: str | None
    planned_us: int
    started_us: int


class CallSpan(Protocol):
    """The span of one call of a handler; it has begun."""

    def enter(self) -> None:
        """Makes it the current span of this context."""

    def leave(self) -> None:
        """Undoes `enter`, in the same context."""

    def end(self, verdict: Verdict) -> None:
        """The call has ended."""


class Spans(Protocol):
    """Makes the spans of a process."""

    def begin(self, attempt: Attempt) -> CallSpan:
        """The span of a call for one task."""

    def begin_batch(self, attempts: Sequence[Attempt]) -> CallSpan:
        """The span of a call for several tasks."""


def whole(verdicts: Sequence[Verdict]) -> Verdict:
    """What a call for several tasks comes to: it has failed if one of them has, like the first of those.

    Args:
        verdicts: of the tasks.
    """
    return next((one._replace(outcome=FAILED) for one in verdicts if one.failure is not None), Verdict(SUCCEEDED))


def attempt_of(handler: str, row: TaskRow, started_us: int) -> Attempt:
    """What a span tells of the attempt of a row.

    Args:
        handler: its name.
        row: the task.
        started_us: wall clock.
    """
    key = TaskKey(row.time_us, row.ordering_id, row.uniqueness_key)
    return Attempt(handler, key, row.queue, row.attempt, row.traceparent, row.planned_us, started_us)
