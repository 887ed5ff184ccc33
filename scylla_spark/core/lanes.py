"""The floor of the engine: its state, and what every lane waits for."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappush
from typing import NamedTuple

from scylla_spark.core import action
from scylla_spark.core.fact import TOO_LATE, Fact
from scylla_spark.core.lane import IDLE, Entry, Lane, LaneState
from scylla_spark.core.partition import Partition, PartitionState
from scylla_spark.core.task import Invocation, Retry
from scylla_spark.core.wire import Command

NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Terms:
    """How commands of one handler run: executor name ("" parks the lane), time limit and retry policy."""

    executor: str
    timeout_ms: int
    retry: Retry


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the engine.

    Attributes:
        max_in_flight: released and unfinished tasks per partition.
        lane_depth: tasks of a lane loaded at a time; a reload is asked for at half of it.
        stall_us: release stops while the oldest unrecorded fact is older than this.
        drain_us: how long running tasks may finish after a revocation.
    """

    max_in_flight: int = 1_000
    lane_depth: int = 200
    stall_us: int = 2_000_000
    drain_us: int = 10_000_000


class Run(NamedTuple):
    """An invocation under way."""

    partition: Partition
    lane: Lane
    entry: Entry
    invocation: Invocation
    executor: str
    retry: Retry


class LaneKeeper:
    """State of the engine and the lanes' waiting: timers, ready queues, reloads.

    Args:
        terms: what a command's handler asks for.
        limits: bounds.
        rng: source of back-off jitter and nonces.
        address: where this process serves its state; stands in its fences.
    """

    def __init__(
        self, terms: Callable[[Command], Terms], limits: Limits, rng: random.Random, address: str = ""
    ) -> None:
        self.partitions: dict[int, Partition] = {}
        self.actions: list[action.Action] = []
        self.counts: Counter[str] = Counter()
        self.runs: dict[int, Run] = {}
        self.limits = limits
        self.address = address
        self._terms = terms
        self._rng = rng
        self._timers: list[tuple[int, int, int, Lane]] = []
        self._ready: dict[str, list[tuple[int, int, int, int, Lane]]] = {}
        self._long: list[tuple[int, int]] = []  # (when a start fact is owed, invocation id)
        self._sequence = 0

    def _settle(self, partition: Partition, lane: Lane, now: int) -> None:
        """Decides what an idle lane waits for."""
        if lane.state not in IDLE:
            return
        lane.stamp += 1
        lane.active = None
        if partition.state is not PartitionState.ACTIVE:
            lane.state = LaneState.WAITING
            return
        self._reload_if_low(partition, lane)
        head = lane.head()
        if head is None:
            lane.state = LaneState.WAITING
            if lane.empty:
                partition.lanes.pop(lane.ordering_id, None)
        elif head.closing:
            lane.state, lane.active = LaneState.RECORDING, head
        elif head.next_us <= now:
            self._make_ready(lane, head, now)
        else:
            lane.state = LaneState.WAITING
            self._sequence += 1
            heappush(self._timers, (head.next_us, self._sequence, lane.stamp, lane))

    def _make_ready(self, lane: Lane, head: Entry, now: int) -> None:
        if head.key.time_us > lane.partition.complete_us:
            lane.state = LaneState.WAITING
            lane.partition.unscanned.append(lane)
            return
        executor = self._terms(head.data).executor
        if not executor and not head.cancelled:
            lane.state = LaneState.PARKED
            return
        lane.state, lane.active = LaneState.READY, head
        self._sequence += 1
        heappush(
            self._ready.setdefault(executor, []), (-head.data.priority, head.next_us, self._sequence, lane.stamp, lane)
        )

    def _reload_if_low(self, partition: Partition, lane: Lane) -> None:
        if lane.frontier is not None and not lane.reloading and len(lane.entries) <= self.limits.lane_depth // 2:
            lane.reloading = True
            self.actions.append(action.Reload(partition.number, lane.ordering_id, lane.frontier))

    def _insert(self, partition: Partition, entry: Entry, now: int) -> None:
        _, fact = partition.early_facts.get(entry.key, (0, None))
        if fact is not None and fact.attempt > entry.attempt:
            entry.attempt, entry.used = fact.attempt, fact.used
            entry.next_us = max(entry.next_us, fact.next_us or 0)
        lane = partition.lane(entry.key.ordering_id)
        lane.add(entry)
        if lane.state in IDLE:
            self._settle(partition, lane, now)

    def _fresh(self, partition: Partition, entry: Entry) -> bool:
        return entry.key.time_us >= partition.ended.since_us and entry.key not in partition.told

    def _record(self, partition: Partition, fact: Fact, now: int) -> None:
        identity = (fact.key, fact.attempt, fact.outcome)
        if identity not in partition.unrecorded:
            partition.outbox.append(fact)
            partition.unrecorded[identity] = (fact, now)

    def _answer(self, partition: Partition, command: Command, now: int) -> None:
        if command.request_id is not None:
            self._record(partition, Fact(command.key, 0, TOO_LATE, finished_us=now, request_id=command.request_id), now)
