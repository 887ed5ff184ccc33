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


class PartitionState(StrEnum):
    """Steps of a take, in order, and the way out."""

    READING = "reading"  # `outcomes` up to the end noted at the assignment
    FENCING = "fencing"  # own fence sent, not read back
    LOADING = "loading"  # fenced; scan or tail not complete
    ACTIVE = "active"  # releases tasks
    DRAINING = "draining"  # revoked; lets what runs finish
    DROPPED = "dropped"


class Mark(NamedTuple):
    """How far the tables are, for one partition: next offsets of both topics, and the fence that holds at the second.

    Attributes:
        resigned: the holder of that fence stopped cleanly.
    """

    tasks_offset: int = 0
    outcomes_offset: int = 0
    fence: Fence = NO_FENCE
    resigned: bool = True


def stored_mark(row: Mapping[str, Any]) -> Mark:
    """The mark in a row of `progress`; only the offset of the row's own topic is set in it."""
    tasks = row["topic"] == "tasks"
    offset = row["next_offset"]
    fence = Fence(row["epoch"] or 0, row["nonce"] or "")
    return Mark(offset if tasks else 0, 0 if tasks else offset, fence, row["resigned"] is not False)


class Partition:
    """State of one owned partition; rebuilt from the tables and the two logs at every take."""

    def __init__(self, number: int, mark: Mark, now: int) -> None:
        self.number = number
        self.state = PartitionState.READING
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
        self.far_offset = -1  # newest tail record dropped because it lies past the horizon
        self.mine: Fence | None = None
        self.cautious = False
        self.lanes: dict[str, Lane] = {}
        self.ended = Ended(now + CLOCK_MARGIN_US)
        self.cancelled: dict[TaskKey, int] = {}  # offset of the cancel; -1 if it was read from the tables
        self.told: dict[
            TaskKey, None
        ] = {}  # cancelled keys that an owner, this or an earlier one, may have ended already
        self.early_cancels: list[Command] = []  # seen before the partition was active
        self.early_facts: dict[
            TaskKey, tuple[int, Fact]
        ] = {}  # offset and newest attempt, seen before the task was loaded
        self.lookups: dict[TaskKey, list[Command]] = {}  # cancels that wait for an answer of the tables
        self.outbox: deque[Fact] = deque()
        self.sending = False
        self.unrecorded: dict[tuple[TaskKey, int, str], tuple[Fact, int]] = {}
        self.in_flight = 0
        self.overflow: list[
            tuple[int, Lane]
        ] = []  # (stamp, lane) that were ready while the partition was full or stalled
        self.drain_by_us = 0

    @property
    def deciding(self) -> bool:
        """Whether facts may be written: fenced, and not left."""
        return self.state in (PartitionState.LOADING, PartitionState.ACTIVE, PartitionState.DRAINING)

    def oldest_unrecorded_us(self, now: int) -> int:
        """Age of the oldest fact that was decided but not read back."""
        return now - next(iter(self.unrecorded.values()))[1] if self.unrecorded else 0

    def lane(self, ordering_id: str) -> Lane:
        """The lane, made if need be."""
        lane = self.lanes.get(ordering_id)
        if lane is None:
            lane = self.lanes[ordering_id] = Lane(self, ordering_id)
        return lane
