"""The floor of the engine: its state, and what every lane waits for."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heappush
from typing import NamedTuple

from scylla_spark.core import action
from scylla_spark.core.fact import TOO_LATE, Fact
from scylla_spark.core.key import TaskKey
from scylla_spark.core.lane import CLOSING, IDLE, PARKED, READY, RECORDING, WAITING, Entry, Lane
from scylla_spark.core.partition import ACTIVE, Meter, Partition, fact_bytes, identity_of
from scylla_spark.core.queue import FREE, Gate, QueueTerms
from scylla_spark.core.task import Invocation, Retry
from scylla_spark.core.tenure import Tenure
from scylla_spark.core.wire import Command

NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Terms:
    """How commands of one handler run: executor name ("" parks the lane), time limit, retry policy, and tasks per call."""

    executor: str
    timeout_ms: int
    retry: Retry
    max_batch: int = 1


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the engine.

    Attributes:
        max_in_flight: released and unfinished tasks per partition.
        lane_depth: tasks of a lane loaded at a time, at first; a reload is asked for at half of it.
        stall_us: release stops while the oldest unrecorded fact is older than this.
        drain_us: how long running tasks may finish after a revocation.
        partitions: how many the deployment has, over which limits of queues are shared out.
        max_unrecorded: release stops while so many facts of a partition were decided but not read back …
        max_unrecorded_bytes: … or facts whose texts take so many bytes.
        max_ended: release stops while so many ended keys of a partition wait for the tables to hold their completions.
        max_held_bytes: above this, what cannot start is left to the tables, and then the tail is to wait.
        least_wait_us: shortest wait between two attempts of a task, whatever its policy says.
    """

    max_in_flight: int = 1_000
    lane_depth: int = 200
    stall_us: int = 2_000_000
    drain_us: int = 10_000_000
    partitions: int = 1
    max_unrecorded: int = 20_000
    max_unrecorded_bytes: int = 64 * 1024 * 1024
    max_ended: int = 4_000_000
    max_held_bytes: int = 1 << 30
    least_wait_us: int = 100_000


_SOON_US, _LATE_US = 10_000_000, 60_000_000  # a lane reloaded again so soon gets twice as much, so late half as much …
_DEEPEST = 250  # … but never more than so many times the least

_UNLISTED = ""  # stands for all queues without limits of their own
MOST_PACES = 10_000

Ready = tuple[int, int, int, int, Lane]  # (-priority, planned, sequence, stamp, lane): the smallest starts first


class Run(NamedTuple):
    """An invocation under way."""

    partition: Partition
    lane: Lane
    entry: Entry
    invocation: Invocation
    executor: str
    gate: Gate
    retry: Retry


class LaneKeeper:
    """State of the engine and the lanes' waiting: timers, ready queues, reloads.

    Args:
        terms: what a command's handler asks for.
        limits: bounds.
        rng: source of back-off jitter and nonces.
        address: where this process serves its state; stands in its fences.
        queues: limits of queues by name; others have none.
    """

    def __init__(
        self,
        terms: Callable[[Command], Terms],
        limits: Limits,
        rng: random.Random,
        address: str = "",
        queues: Mapping[str, QueueTerms] | None = None,
    ) -> None:
        self.partitions: dict[int, Partition] = {}
        self.meter = Meter()
        self.choked = False  # so much is held, and is about to start, that the tail should wait
        self.actions: list[action.Action] = []
        self.counts: Counter[str] = Counter()
        self.defects: list[tuple[TaskKey, Exception]] = []  # what was set aside, for the shell to report
        self.runs: dict[int, Run] = {}
        self.limits = limits
        self.address = address
        self._terms = terms
        self._rng = rng
        self._timers: list[tuple[int, int, int, Lane]] = []
        self._queues = dict(queues or {})
        self._gates = {name: Gate(terms) for name, terms in self._queues.items()} | {_UNLISTED: Gate(FREE)}
        self._ready: dict[str, dict[str, list[Ready]]] = {}  # executor → queue → lanes whose head is due
        self._serial = 0  # of tenures
        self._handed: list[tuple[int, int]] = []  # (when to look whether it runs long, invocation id)
        self._pace: dict[str, float] = {}  # handler → how long its tasks take lately, microseconds
        self._start_by_us = 0
        self._gather_until_us = 0
        self._sequence = 0

    def held(self, tenure: Tenure) -> Partition | None:
        """The partition, if it is still held as it was then."""
        partition = self.partitions.get(tenure.partition)
        return partition if partition is not None and partition.tenure == tenure else None

    def _settle(self, partition: Partition, lane: Lane, now: int) -> None:
        """Decides what an idle lane waits for."""
        if lane.state not in IDLE:
            return
        lane.stamp += 1
        lane.active = None
        if partition.state is not ACTIVE:
            lane.state = WAITING
            return
        if lane.frontier is not None:
            lane.retreat()
            self._reload_if_low(partition, lane, now)
        head = lane.head()
        while head is not None and head.stage is CLOSING and self.gate(head.data.queue).terms.replay:
            lane.pass_over()
            head = lane.head()
        if head is None:
            lane.state = WAITING
            if lane.empty and partition.lanes.get(lane.ordering_id) is lane:  # not a later one of that name
                del partition.lanes[lane.ordering_id]
        elif head.stage is CLOSING:
            lane.state, lane.active = RECORDING, head
        elif head.next_us <= now:
            self._make_ready(lane, head, now)
        else:
            lane.state = WAITING
            self._sequence += 1
            heappush(self._timers, (head.next_us, self._sequence, lane.stamp, lane))

    def _make_ready(self, lane: Lane, head: Entry, now: int) -> None:
        if head.key.time_us > lane.partition.complete_us:
            lane.state = WAITING
            lane.partition.unscanned.append(lane)
            return
        executor = self._terms(head.data).executor
        if not executor and not head.cancelled:
            lane.state = PARKED
            return
        lane.state, lane.active = READY, head
        self._sequence += 1
        queues = self._ready.get(executor)
        if queues is None:
            queues = self._ready[executor] = {}
        name = head.data.queue if head.data.queue in self._queues else _UNLISTED
        heap = queues.get(name)
        if heap is None:
            heap = queues[name] = []
        heappush(heap, (-head.data.priority, head.next_us, self._sequence, lane.stamp, lane))

    def gate(self, queue: str) -> Gate:
        """What may start of a queue here; all queues without limits share one, since their names come from data."""
        return self._gates.get(queue) or self._gates[_UNLISTED]

    def _share_queues(self) -> None:
        """The set of held partitions has changed, and with it our share of what queues allow."""
        owned = frozenset(self.partitions)
        for gate in self._gates.values():
            gate.share(owned, self.limits.partitions)

    def _end_run(self, run: Run, now: int) -> None:
        """A released task is no longer under way, whatever became of it."""
        run.partition.in_flight -= 1
        self._let_in(run.gate.end(run.lane.ordering_id), now)

    def _let_in(self, waiting: tuple[int, Lane] | None, now: int) -> None:
        if waiting is not None and waiting[1].active is not None:
            self._make_ready(waiting[1], waiting[1].active, now)

    def _reload_if_low(self, partition: Partition, lane: Lane, now: int) -> None:
        least = self.limits.lane_depth
        if lane.frontier is None or lane.reloading or len(lane.entries) > max(lane.depth, least) // 2:
            return
        if lane.entries and self.meter.bytes > self.limits.max_held_bytes // 2:
            return  # it has something to go on with, and others need the room
        waited = now - lane.asked_us
        if waited < _SOON_US:  # it runs through what is read within seconds: a read costs much, a row little
            lane.depth = min(2 * lane.depth, _DEEPEST * least)
        elif waited > _LATE_US:
            lane.depth = max(lane.depth // 2, least)
        lane.asked_us, lane.reloading = now, True
        self.actions.append(
            action.Reload(
                partition.tenure, lane.ordering_id, lane.frontier, partition.horizon_us, lane.depth, lane.covers
            )
        )

    def _insert(self, partition: Partition, entry: Entry, now: int) -> None:
        early = partition.early_facts.get(entry.key) if partition.early_facts else None
        if early is not None:
            fact = early[1]
            entry.note_attempt(fact.attempt, fact.used, fact.next_us or 0)
        lane = partition.lane(entry.key.ordering_id)
        lane.add(entry)
        partition.loaded += 1
        partition.hold(entry.cost)
        if lane.state in IDLE:
            if lane.frontier is not None or lane.head() is entry:  # else it goes on waiting for the same
                self._settle(partition, lane, now)
        elif lane.state is RECORDING and partition.outbox and entry.next_us <= now:
            partition.send_by_us = 0

    def _fresh(self, partition: Partition, entry: Entry) -> bool:
        return entry.key.time_us >= partition.ended.since_us and entry.key not in partition.told

    def _record(self, partition: Partition, fact: Fact, now: int, by_us: int = 0) -> None:
        """Decides a fact; it is sent by that time at the latest, with others if there are any."""
        identity = identity_of(fact)
        if identity not in partition.unrecorded:
            partition.outbox.append(fact)
            partition.unrecorded[identity] = (fact, now)
            if fact.result is not None or fact.failure is not None:
                partition.unrecorded_bytes += fact_bytes(fact)
            partition.send_by_us = min(partition.send_by_us, by_us)

    def _answer(self, partition: Partition, key: TaskKey, request_id: str | None, now: int) -> None:
        """Tells the sender of a cancel that something else has ended the task, or will."""
        if request_id is not None:
            self._record(partition, Fact(key, 0, TOO_LATE, finished_us=now, request_id=request_id), now)
