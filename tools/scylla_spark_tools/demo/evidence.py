"""What the checks of the demo look at: what was planned, what the receiver saw, and what the tables say. Plain rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import SUCCEEDED
from scylla_spark.testing.history import OK, Enqueue, Run


class Want(NamedTuple):
    """What must become of a key.

    Attributes:
        acked_us: when Kafka had acknowledged its first record.
        outcome: how it must end.
        attempts: how many attempts must begin.
        value: what the delivering attempt must carry; None where none delivers.
        reported: whether its attempts reach the receiver.
        on_spark: whether its handler runs on Spark.
        extra: fields that must be kept with it, as they are.
    """

    acked_us: int
    outcome: str = SUCCEEDED
    attempts: int = 1
    value: str | None = None
    reported: bool = True
    on_spark: bool = False
    extra: Mapping[str, Any] | None = None


class Completion(NamedTuple):
    """A row of `completions`."""

    key: TaskKey
    outcome: str
    attempt: int
    finished_us: int


class Wait(NamedTuple):
    """A row of `attempts` that did not end its task: the next attempt may not start before `next_us`."""

    key: TaskKey
    attempt: int
    next_us: int


class Reject(NamedTuple):
    """A row of `rejected`."""

    partition: int
    offset: int
    reason: str


class Intended(NamedTuple):
    """What the schedules must run.

    Attributes:
        seconds: planned times of the one that fires each second, microseconds since the epoch.
        moment_us: the time at which the one fires that waits for a time or the table.
        version: the last version of the table; each after 0 belongs to one run of each schedule that watches it.
    """

    seconds: tuple[int, ...]
    moment_us: int
    version: int


class ScheduledRun(NamedTuple):
    """A row of `completions` whose task a schedule has launched.

    Attributes:
        schedule: its name.
        planned_us: the time that names the run, microseconds since the epoch.
        outcome: how it ended.
        versions: of the table, that it was told to own: after the first, up to the second.
    """

    schedule: str
    planned_us: int
    outcome: str = SUCCEEDED
    versions: tuple[int, int] | None = None


@dataclass(slots=True)
class History:
    """All that the checks look at.

    Attributes:
        wanted: accepted key → what must become of it.
        intended: what the schedules must run.
        visits: the attempts, as the receiver saw them: from the handler's first stamp to the last sign of life.
        refused: (partition, offset) → (reason, what was sent) of every bad record.
        stored: key → its unknown fields, one entry per row of `tasks`.
        runs: what the schedules ran; their tasks stand in no other attribute.
    """

    wanted: dict[TaskKey, Want]
    intended: Intended
    visits: list[Run] = field(default_factory=list)
    completions: list[Completion] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    refused: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)
    rejects: list[Reject] = field(default_factory=list)
    stored: list[tuple[TaskKey, Mapping[str, Any]]] = field(default_factory=list)
    runs: list[ScheduledRun] = field(default_factory=list)

    def sent(self) -> list[Enqueue]:
        """The accepted keys as enqueues; when the demo began to send each is not kept."""
        return [Enqueue(key, OK, 0, want.acked_us, want.attempts) for key, want in self.wanted.items()]


def visits(events: Iterable[Mapping[str, Any]]) -> list[Run]:
    """The attempts in the receiver's log; two runs of one attempt stay apart by their start."""
    found: dict[tuple[TaskKey, int, int], Run] = {}
    for event in events:
        key, attempt, start = TaskKey(*event["key"]), event["attempt"], event["started_us"]
        known = found.get((key, attempt, start))
        end = max(event["arrived_us"], known.end if known else 0)
        delivered = event["state"] == "done" or (known is not None and bool(known.ok))
        call = str(event.get("pid") or "")
        found[key, attempt, start] = Run(key, attempt, 0, start, end, delivered, event["value"], call=call)
    return list(found.values())
