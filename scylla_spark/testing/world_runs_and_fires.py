"""What a world writes down: what its handlers were called for, and what its planner decided."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import Failure


class HandlerRun(NamedTuple):
    """One attempt of a task, as a handler had it; written down when it begins, and anew if it is killed.

    Attributes:
        key: of the task.
        handler: its name.
        queue: of the task.
        payload: as the handler was given it.
        attempt: its number, from 1.
        started_at: when it began, on virtual time.
        finished_at: when it ends: later than it began if `World.takes` says so.
        outcome: succeeded, failed, aborted, timed_out or yielded.
        result: what the handler returned.
        error: why it did not succeed.
    """

    key: TaskKey
    handler: str
    queue: str
    payload: Any
    attempt: int
    started_at: datetime
    finished_at: datetime
    outcome: str
    result: Any = None
    error: Failure | None = None


class Fire(NamedTuple):
    """One decision about a schedule: why something ran, or did not.

    Attributes:
        schedule: its name.
        planned_at: the time that was decided about; None: there was none.
        decided_at: when, on virtual time.
        verdict: launched, skipped, waiting, missed, obsolete, failed; late, overdue, silent.
        why: the reason, in words; empty for what was launched.
    """

    schedule: str
    planned_at: datetime | None
    decided_at: datetime
    verdict: str
    why: str
