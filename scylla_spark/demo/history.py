"""What the checks of the demo look at: what was planned, what the receiver saw, and what the tables say. Plain rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scylla_spark.core.key import TaskKey
from scylla_spark.core.task import SUCCEEDED


class Want(NamedTuple):
    """What must become of a key.

    Attributes:
        acked_us: when Kafka had acknowledged its first record.
        outcome: how it must end.
        attempts: how many attempts must begin.
        value: what the delivering attempt must carry; None where none delivers.
        reported: whether its attempts reach the receiver.
        timed: whether its lateness is judged.
        extra: fields that must be kept with it, as they are.
    """

    acked_us: int
    outcome: str = SUCCEEDED
    attempts: int = 1
    value: str | None = None
    reported: bool = True
    timed: bool = True
    extra: Mapping[str, Any] | None = None


class Visit(NamedTuple):
    """One attempt, as the receiver saw it: from the handler's first stamp to the last sign of life."""

    key: TaskKey
    attempt: int
    started_us: int
    ended_us: int
    value: str
    delivered: bool
    pid: int = 0

    def shares_call(self, other: Visit) -> bool:
        """Whether both were in one call of a batch handler, which may hold consecutive tasks of a lane."""
        return self.pid != 0 and (self.pid, self.started_us) == (other.pid, other.started_us)


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


@dataclass(slots=True)
class History:
    """All that the checks look at.

    Attributes:
        wanted: accepted key → what must become of it.
        refused: (partition, offset) → (reason, what was sent) of every bad record.
        stored: key → its unknown fields, one entry per row of `tasks`.
    """

    wanted: dict[TaskKey, Want]
    visits: list[Visit] = field(default_factory=list)
    completions: list[Completion] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    refused: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)
    rejects: list[Reject] = field(default_factory=list)
    stored: list[tuple[TaskKey, Mapping[str, Any]]] = field(default_factory=list)

    def lanes(self) -> dict[str, list[Visit]]:
        """The visits of each lane, by start."""
        lanes: dict[str, list[Visit]] = {}
        for visit in sorted(self.visits, key=lambda visit: (visit.started_us, visit.ended_us)):
            lanes.setdefault(visit.key.ordering_id, []).append(visit)
        return lanes


def visits(events: Iterable[Mapping[str, Any]]) -> list[Visit]:
    """The attempts in the receiver's log; two runs of one attempt stay apart by their start."""
    found: dict[tuple[TaskKey, int, int], Visit] = {}
    for event in events:
        key = TaskKey(*event["key"])
        identity = (key, event["attempt"], event["started_us"])
        known = found.get(identity)
        ended = max(event["arrived_us"], known.ended_us if known else 0)
        delivered = event["state"] == "done" or (known is not None and known.delivered)
        found[identity] = Visit(*identity, ended, event["value"], delivered, event.get("pid", 0))
    return list(found.values())
