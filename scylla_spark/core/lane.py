"""A lane: the loaded tasks of one ordering id, of which at most one is under way."""

from __future__ import annotations

from enum import StrEnum
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from scylla_spark.core.key import TaskKey
from scylla_spark.core.wire import Command

if TYPE_CHECKING:
    from scylla_spark.core.partition import Partition


class LaneState(StrEnum):
    """What the lane is doing; shown to people by `lane show` and `task explain`."""

    WAITING = "waiting"  # for the time of its head
    READY = "ready"  # due; waits for room
    LOOKUP = "lookup"  # asking the tables whether the head has already completed
    STARTING = "starting"  # the start fact must stand first
    RUNNING = "running"
    RECORDING = "recording"  # an outcome was decided and is being written
    PARKED = "parked"  # the head names no handler


IDLE = frozenset({LaneState.WAITING, LaneState.READY, LaneState.PARKED})


class Entry:
    """One open task as the dispatcher knows it.

    Attributes:
        key: identity.
        data: newest enqueue.
        attempt: number of the last recorded attempt.
        announced: number of an attempt whose start fact stands although it has not begun.
        used: recorded attempts that count against the retry policy.
        next_us: earliest start of the next attempt.
        verified: known not to be completed.
        cancelled: a cancel was seen; no further attempt starts.
        closing: its completion is being written though it never became active.
        request_id: of the cancel, if its sender waits.
    """

    __slots__ = (
        "announced",
        "attempt",
        "cancelled",
        "closing",
        "data",
        "key",
        "next_us",
        "request_id",
        "used",
        "verified",
    )

    def __init__(self, data: Command, *, verified: bool, attempt: int = 0, used: int = 0, next_us: int = 0) -> None:
        self.key = data.key
        self.data = data
        self.verified = verified
        self.attempt = attempt
        self.used = used
        self.next_us = max(next_us, data.key.time_us)
        self.announced = 0
        self.cancelled = False
        self.closing = False
        self.request_id: str | None = None


class Lane:
    """Loaded open tasks of one ordering id, in key order.

    Attributes:
        frontier: where the tables hold more of this lane than is loaded: the last loaded key; nothing beyond counts as loaded.
        beyond: arrivals past the frontier, kept until a reload reaches them.
        active: the entry that is ready or under way.
        stamp: grows whenever older timer and ready marks of this lane become void.
        missed: rows past the frontier were offered while a reload was under way, so its answer may be too old.
    """

    __slots__ = (
        "_heap", "active", "beyond", "cautious", "entries", "frontier", "missed", "ordering_id", "partition", "reloading", "stamp", "state",
    )  # fmt: skip

    def __init__(self, partition: Partition, ordering_id: str) -> None:
        self.partition = partition
        self.ordering_id = ordering_id
        self.entries: dict[TaskKey, Entry] = {}
        self.beyond: dict[TaskKey, Entry] = {}
        self.frontier: TaskKey | None = None
        self.state = LaneState.WAITING
        self.active: Entry | None = None
        self.stamp = 0
        self.cautious = False
        self.reloading = False
        self.missed = False
        self._heap: list[TaskKey] = []

    def add(self, entry: Entry) -> None:
        """Takes an open task; past the frontier it is only kept aside."""
        if self.frontier is not None and entry.key > self.frontier:
            self.beyond[entry.key] = entry
            return
        self.entries[entry.key] = entry
        heappush(self._heap, entry.key)

    def find(self, key: TaskKey) -> Entry | None:
        """The task, loaded or kept aside."""
        return self.entries.get(key) or self.beyond.get(key)

    def remove(self, key: TaskKey) -> None:
        """Forgets a task."""
        self.beyond.pop(key, None)
        entry = self.entries.pop(key, None)
        if entry is not None and entry is self.active:
            self.active = None

    def head(self) -> Entry | None:
        """The task with the smallest key."""
        heap, entries = self._heap, self.entries
        while heap:
            entry = entries.get(heap[0])
            if entry is not None:
                return entry
            heappop(heap)
        return None

    def cut(self, frontier: TaskKey | None) -> None:
        """Sets the frontier; tasks past it move aside, tasks kept aside up to it move in."""
        self.frontier = frontier
        if frontier is not None:
            for key in [key for key in self.entries if key > frontier and self.entries[key] is not self.active]:
                self.beyond[key] = self.entries.pop(key)
        for key in [key for key in self.beyond if frontier is None or key <= frontier]:
            self.add(self.beyond.pop(key))

    @property
    def empty(self) -> bool:
        """Nothing loaded, kept aside or left in the tables."""
        return not self.entries and not self.beyond and self.frontier is None
