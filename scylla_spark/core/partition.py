"""What a dispatcher holds of one partition while it owns it, and how far it is in taking it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from scylla_spark.core.fact import NO_FENCE, Fact, Fence, FenceLog
from scylla_spark.core.key import TaskKey
from scylla_spark.core.lane import Lane
from scylla_spark.core.memory import Ended
from scylla_spark.core.wire import Command

CLOCK_MARGIN_US = 5_000_000  # clocks of two dispatchers differ by less


BEFORE_ALL = TaskKey(-1, "", "")  # less than any key


class PartitionState(StrEnum):
    """Steps of a take, in order, and the way out."""

    READING = "reading"  # `outcomes` up to the end noted at the assignment
    FENCING = "fencing"  # own fence sent, not read back
    LOADING = "loading"  # fenced; scan or tail not complete
    ACTIVE = "active"  # releases tasks
    DRAINING = "draining"  # revoked; lets what runs finish
    DROPPED = "dropped"


READING, FENCING, LOADING, ACTIVE, DRAINING, DROPPED = PartitionState

ALL_FOLDED_US = 1 << 62  # later than any task


class Mark(NamedTuple):
    """How far the tables are, for one partition: next offsets of both topics, and the fence that holds at the second.

    Attributes:
        resigned: the holder of that fence stopped cleanly.
        folded_until_us: tasks due before this stand in `tasks` alone, later ones also in `deferred`; microseconds since the epoch.
        closed_hour: in all hours below, every task has its completion …
        open_hours: … except in these.
        appended_us: append time of the last record of `tasks` below tasks_offset; 0: none yet.
    """

    tasks_offset: int = 0
    outcomes_offset: int = 0
    fence: Fence = NO_FENCE
    resigned: bool = True
    folded_until_us: int = ALL_FOLDED_US
    closed_hour: int = 0
    open_hours: tuple[int, ...] = ()
    appended_us: int = 0


def stored_mark(row: Mapping[str, Any]) -> Mark:
    """The mark in a row of `progress`, instants as microseconds; only what concerns the row's own topic is set in it."""
    fence = Fence(row["epoch"] or 0, row["nonce"] or "")
    if row["topic"] != "tasks":
        return Mark(0, row["next_offset"], fence, row["resigned"] is not False)
    folded = row["folded_until"]
    return Mark(
        row["next_offset"],
        folded_until_us=ALL_FOLDED_US if folded is None else folded,
        closed_hour=row["closed_hour"] or 0,
        open_hours=tuple(row["open_hours"] or ()),
        appended_us=row["appended_at"] or 0,
    )


def joined(marks: Mapping[tuple[str, int], Mark]) -> dict[int, Mark]:
    """The marks of both topics of each partition in one: partition → mark."""
    found: dict[int, Mark] = {}
    for (topic, number), mark in marks.items():
        known = found.get(number, Mark())
        about_outcomes, about_tasks = (known, mark) if topic == "tasks" else (mark, known)
        found[number] = about_tasks._replace(
            outcomes_offset=about_outcomes.outcomes_offset,
            fence=about_outcomes.fence,
            resigned=about_outcomes.resigned,
        )
    return found


class Partition:
    """State of one owned partition; rebuilt from the tables and the two logs at every take."""

    def __init__(self, number: int, mark: Mark, now: int) -> None:
        self.number = number
        self.state = READING
        self.log = FenceLog(mark.fence)
        self.log.resigned = mark.resigned
        self.mark = mark
        self.tasks_position = mark.tasks_offset
        self.outcomes_position = mark.outcomes_offset
        self.tasks_end: int | None = None
        self.outcomes_end: int | None = None
        self.scanned = False
        self.horizon_us = 0
        self.complete_us = -1  # the tables were scanned up to this scheduled time
        self.unscanned: list[Lane] = []  # their heads are due, but lie past complete_us
        self.far_before = -1  # far_offset when the horizon was last raised
        self.far_offset = -1  # newest tail record dropped because it lies past the horizon
        self.unloaded: frozenset[int] = (
            frozenset()
        )  # hashes of lanes of which the tables hold tasks, but none was loaded
        self.mine: Fence | None = None
        self.cautious = False
        self.lanes: dict[str, Lane] = {}
        self.loaded = 0  # tasks in them …
        self.payload_chars = 0  # … and how large their payloads are together
        self.ended = Ended(now + CLOCK_MARGIN_US)
        self.cancelled: dict[TaskKey, int] = {}  # offset of the cancel; -1 if it was read from the tables
        self.ending: set[TaskKey] = set()  # keys without a loaded task whose completion is being written
        self.told: dict[
            TaskKey, None
        ] = {}  # cancelled keys that an owner, this or an earlier one, may have ended already
        self.early_cancels: list[Command] = []  # seen before the partition was active
        self.early_facts: dict[
            TaskKey, tuple[int, Fact]
        ] = {}  # offset and newest attempt, seen before the task was loaded
        self.lookups: dict[TaskKey, list[Command]] = {}  # cancels that wait for an answer of the tables
        self.outbox: deque[Fact] = deque()
        self.send_by_us = 1 << 62  # the outbox, at the latest
        self.sending = False
        self.unrecorded: dict[tuple[TaskKey, int, str], tuple[Fact, int]] = {}
        self.in_flight = 0
        self.overflow: list[
            tuple[int, Lane]
        ] = []  # (stamp, lane) that were ready while the partition was full or stalled
        self.stalled = False  # at the last tick the oldest unrecorded fact was too old
        self.drain_by_us = 0

    @property
    def deciding(self) -> bool:
        """Whether facts may be written: fenced, and not left."""
        return self.state in (LOADING, ACTIVE, DRAINING)

    def oldest_unrecorded_us(self, now: int) -> int:
        """Age of the oldest fact that was decided but not read back."""
        return now - next(iter(self.unrecorded.values()))[1] if self.unrecorded else 0

    def lane(self, ordering_id: str) -> Lane:
        """The lane, made if need be; cut before its first task if its tasks were left in the tables."""
        lane = self.lanes.get(ordering_id)
        if lane is None:
            lane = self.lanes[ordering_id] = Lane(self, ordering_id)
            if self.unloaded and hash(ordering_id) in self.unloaded:
                lane.cut(BEFORE_ALL)
        return lane

    def left(self, key: TaskKey) -> bool:
        """Whether earlier tasks of the key's lane were left in the tables."""
        return bool(self.unloaded) and hash(key.ordering_id) in self.unloaded
