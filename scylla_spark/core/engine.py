"""The engine: decides what runs when, in which order, and what has become of it.

A pure state machine: every input is a method call with `now`, every effect an action in `actions`. It knows no Spark, no
Kafka, no thread and no clock; the shell around it (`services.dispatch`) carries out the actions and reports back.
All inputs are idempotent offers: a record, row or fact may come twice, late or out of order.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from scylla_spark.core import action
from scylla_spark.core.fact import TOO_LATE, Fact, Fence, OutcomeRecord, encode_facts, encode_fence, encode_resign
from scylla_spark.core.key import TaskKey
from scylla_spark.core.lane import IDLE, Entry, Lane, LaneState
from scylla_spark.core.partition import Mark, Partition, PartitionState
from scylla_spark.core.task import (
    ABORTED,
    CANCELLED,
    FAILED,
    NOT_STARTED,
    STARTED,
    SUCCEEDED,
    TIMED_OUT,
    YIELDED,
    Failure,
    Invocation,
    Outcome,
    Retry,
)
from scylla_spark.core.wire import Command

LONG_RUN_US = 1_000_000  # what runs longer gets a start fact
REMEMBER_US = 60_000_000  # how long ended keys are remembered at least
_NEVER = 1 << 62


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


class Engine:
    """All lanes of the partitions that this process owns.

    Args:
        terms: what a command's handler asks for.
        limits: bounds.
        rng: source of back-off jitter and nonces.
        address: where this process serves its state; stands in its fences.
    """

    def __init__(self, terms: Callable[[Command], Terms], limits: Limits, rng: random.Random, address: str = "") -> None:
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

    # -- taking and leaving a partition -------------------------------------------------------------------------------

    def assign(self, number: int, mark: Mark, now: int) -> None:
        """The group gave us a partition; the shell begins to feed both logs from the mark, and scans it."""
        self._discard(number)
        self.partitions[number] = Partition(number, mark, now)

    def noted_end(self, number: int, outcomes_end: int, now: int) -> None:
        """Where `outcomes` ended at the assignment; once read up to there, the fence is sent."""
        partition = self.partitions.get(number)
        if partition is not None:
            partition.outcomes_end = outcomes_end
            self._fence_if_read(partition, now)

    def confirmed(self, number: int, tasks_end: int, now: int) -> None:
        """Membership was confirmed after the fence stood; nothing is released before `tasks` is read up to `tasks_end`."""
        partition = self.partitions.get(number)
        if partition is not None and partition.tasks_end is None:
            partition.tasks_end = tasks_end
            self._activate_if_loaded(partition, now)

    def revoke(self, number: int, now: int) -> None:
        """The group takes a partition away: release stops; `Left` follows when all is recorded or the time is over."""
        partition = self.partitions.get(number)
        if partition is None:
            self.actions.append(action.Left(number, True))
        elif partition.state is PartitionState.ACTIVE:
            partition.state = PartitionState.DRAINING
            partition.drain_by_us = now + self.limits.drain_us
            self._leave_if_drained(partition, now)
        elif partition.state is not PartitionState.DRAINING:
            self.drop(number)

    def drop(self, number: int) -> None:
        """The partition was lost: forget it at once; what runs is killed and not recorded."""
        if self._discard(number):
            self.counts["partitions_dropped"] += 1
            self.actions.append(action.Left(number, False))

    def _discard(self, number: int) -> bool:
        partition = self.partitions.pop(number, None)
        if partition is None:
            return False
        partition.state = PartitionState.DROPPED
        self._kill(partition)
        for key in [key for key, run in self.runs.items() if run.partition is partition]:
            del self.runs[key]
        return True

    def _fence_if_read(self, partition: Partition, now: int) -> None:
        reading = partition.state is PartitionState.READING
        if reading and partition.outcomes_end is not None and partition.outcomes_position >= partition.outcomes_end:
            partition.cautious = not partition.log.resigned
            self._fence(partition, now)

    def _fence(self, partition: Partition, now: int) -> None:
        partition.state = PartitionState.FENCING
        partition.tasks_end = None
        partition.mine = Fence(partition.log.fence.epoch + 1, f"{self._rng.getrandbits(64):016x}")
        self.actions.append(action.SendFence(partition.number, encode_fence(partition.mine, self.address, now)))

    def _activate_if_loaded(self, partition: Partition, now: int) -> None:
        if partition.state is not PartitionState.LOADING or not partition.scanned:
            return
        if partition.tasks_end is None or partition.tasks_position < partition.tasks_end:
            return
        partition.state = PartitionState.ACTIVE
        self.counts["partitions_taken"] += 1
        early, partition.early_cancels = partition.early_cancels, []
        for command in early:
            self._cancel(partition, command, now)
        for lane in list(partition.lanes.values()):
            for entry in [entry for entry in lane.entries.values() if entry.cancelled and not entry.closing]:
                if entry is not lane.active and entry.verified:
                    self._close_cancelled(partition, entry, now)
            self._settle(partition, lane, now)

    def _leave_if_drained(self, partition: Partition, now: int) -> None:
        if partition.state is not PartitionState.DRAINING:
            return
        if not partition.in_flight and not partition.unrecorded:
            del self.partitions[partition.number]
            partition.state = PartitionState.DROPPED
            assert partition.mine is not None
            self.actions.append(action.Send(partition.number, [encode_resign(partition.mine)]))
            self.actions.append(action.Left(partition.number, True))
        elif now >= partition.drain_by_us + self.limits.drain_us:
            self.drop(partition.number)
        elif now >= partition.drain_by_us:
            self._kill(partition)

    def _kill(self, partition: Partition) -> None:
        for executor in {run.executor for run in self.runs.values() if run.partition is partition}:
            ids = [key for key, run in self.runs.items() if run.partition is partition and run.executor == executor]
            self.actions.append(action.Kill(executor, ids))

    # -- feeds: offers of tasks -----------------------------------------------------------------------------------------

    def commands(self, number: int, commands: Iterable[Command], next_offset: int, now: int) -> None:
        """The tail: commands of one partition in offset order; `next_offset` is the position after them."""
        partition = self.partitions.get(number)
        if partition is None:
            return
        for command in commands:
            if command.kind == "cancel":
                partition.cancelled[command.key] = command.offset
                if partition.state is PartitionState.ACTIVE:
                    self._cancel(partition, command, now)
                else:
                    partition.early_cancels.append(command)
            else:
                self._offer(partition, command, now)
        partition.tasks_position = max(partition.tasks_position, next_offset)
        self._activate_if_loaded(partition, now)

    def raise_horizon(self, number: int, until_us: int) -> int:
        """Lets the tail keep tasks up to `until_us`; returns the offset that a scan up to there must cover (-1: none)."""
        partition = self.partitions[number]
        partition.horizon_us = max(partition.horizon_us, until_us)
        return partition.far_offset

    def rows(self, number: int, rows: Iterable[ScanRow], now: int) -> None:
        """Part of a scan: open tasks of one partition; `scanned` follows after the last part."""
        partition = self.partitions.get(number)
        if partition is not None:
            cautious = partition.cautious and not partition.scanned
            for row in rows:
                self._offer_row(partition, row, now, cautious=cautious)

    def scanned(self, number: int, until_us: int, cuts: Mapping[str, TaskKey], mark: Mark, now: int) -> None:
        """A scan of the tables is complete.

        Args:
            number: partition.
            until_us: latest scheduled time that was scanned; tasks due later wait for the next scan, which may hold earlier ones.
            cuts: ordering id → last key read, for lanes of which the tables hold more.
            mark: progress that was read before the tables were.
            now: microseconds since the epoch.
        """
        partition = self.partitions.get(number)
        if partition is None:
            return
        partition.scanned = True
        partition.complete_us = max(partition.complete_us, until_us)
        covered, partition.mark = partition.mark, mark
        for ordering_id, frontier in cuts.items():
            lane = partition.lane(ordering_id)
            if lane.frontier is None:
                lane.cut(frontier)
                self._settle(partition, lane, now)
        partition.ended.forget(mark.outcomes_offset, now - REMEMBER_US)
        old = [key for key, offset in partition.cancelled.items() if key.time_us < now - REMEMBER_US and offset < covered.tasks_offset]
        for key in old:
            del partition.cancelled[key]
            partition.told.pop(key, None)
        if partition.state is PartitionState.ACTIVE:
            if not any(lane.reloading for lane in partition.lanes.values()):  # its rows may be older than any mark
                partition.early_facts = {key: known for key, known in partition.early_facts.items() if known[0] >= covered.outcomes_offset}
            unscanned, partition.unscanned = partition.unscanned, []
            for lane in unscanned:
                self._settle(partition, lane, now)
        self._activate_if_loaded(partition, now)

    def remember_cancelled(self, number: int, keys: Iterable[TaskKey]) -> None:
        """Cancelled keys of the tables, loaded at a take: a later record of such a key must not run."""
        partition = self.partitions.get(number)
        if partition is None:
            return
        for key in keys:
            partition.cancelled.setdefault(key, -1)
            partition.told[key] = None
            lane = partition.lanes.get(key.ordering_id)
            entry = lane.find(key) if lane is not None else None
            if entry is not None:
                entry.cancelled = True

    def reloaded(self, number: int, ordering_id: str, rows: Sequence[ScanRow], *, more: bool, now: int) -> None:
        """The answer to `Reload`; `more` says that the tables hold further tasks of the lane."""
        partition = self.partitions.get(number)
        lane = partition.lanes.get(ordering_id) if partition is not None else None
        if partition is None or lane is None or not lane.reloading:
            return
        lane.reloading = False
        missed, lane.missed = lane.missed, False
        last = rows[-1].command.key if rows else lane.frontier
        lane.cut(last if more or missed else None)
        for row in rows:
            self._offer_row(partition, row, now, cautious=False)
        self._settle(partition, lane, now)

    def _offer(self, partition: Partition, command: Command, now: int) -> None:
        key = command.key
        if key in partition.ended or key in partition.cancelled:
            self.counts["offers_ended"] += 1
            return
        lane = partition.lanes.get(key.ordering_id)
        entry = lane.find(key) if lane is not None else None
        if entry is not None:
            if command.offset > entry.data.offset:
                entry.data = command  # from the next attempt on
                if lane is not None and lane.state in IDLE:
                    self._settle(partition, lane, now)
        elif key.time_us > partition.horizon_us:
            partition.far_offset = command.offset
        else:
            self._insert(partition, Entry(command, verified=False), now)

    def _offer_row(self, partition: Partition, row: ScanRow, now: int, *, cautious: bool) -> None:
        key = row.command.key
        if key in partition.ended:
            return
        lane = partition.lane(key.ordering_id)
        lane.cautious = lane.cautious or (cautious and key.time_us <= now)
        entry = lane.find(key)
        if entry is None:
            if lane.frontier is not None and key > lane.frontier:
                lane.missed = lane.missed or lane.reloading
                return
            entry = Entry(row.command, verified=True, attempt=row.attempt, used=row.used, next_us=row.next_us)
            self._insert(partition, entry, now)
        else:
            entry.verified = True
            if row.command.offset > entry.data.offset:
                entry.data = row.command
            if row.attempt > entry.attempt:
                entry.attempt, entry.used, entry.next_us = row.attempt, row.used, max(row.next_us, key.time_us)
        if (row.cancelled or key in partition.cancelled) and not entry.cancelled:
            self._cancel_entry(partition, lane, entry, row.command._replace(request_id=None), now)

    def _insert(self, partition: Partition, entry: Entry, now: int) -> None:
        _, fact = partition.early_facts.get(entry.key, (0, None))
        if fact is not None and fact.attempt > entry.attempt:
            entry.attempt, entry.used = fact.attempt, fact.used
            entry.next_us = max(entry.next_us, fact.next_us or 0)
        lane = partition.lane(entry.key.ordering_id)
        lane.add(entry)
        if lane.state in IDLE:
            self._settle(partition, lane, now)

    # -- cancelling -----------------------------------------------------------------------------------------------------

    def _cancel(self, partition: Partition, command: Command, now: int) -> None:
        key = command.key
        lane = partition.lanes.get(key.ordering_id)
        entry = lane.find(key) if lane is not None else None
        if key in partition.ended:
            self._answer(partition, command, now)
        elif lane is not None and entry is not None:
            self._cancel_entry(partition, lane, entry, command, now)
        elif self._surely_new(partition, command):
            partition.told[key] = None
            self._cancel_unknown(partition, command, now)
        else:
            self._look_up_for(partition, command)

    def _surely_new(self, partition: Partition, command: Command) -> bool:
        """Whether no earlier owner can have ended the key because of this record: it is later than our fence, and not due before."""
        replayed = partition.tasks_end is None or command.offset < partition.tasks_end
        return not replayed and command.key.time_us >= partition.ended.since_us and command.key not in partition.told

    def _look_up_for(self, partition: Partition, command: Command) -> None:
        partition.told[command.key] = None
        waiting = partition.lookups.setdefault(command.key, [])
        waiting.append(command)
        if len(waiting) == 1:
            self.actions.append(action.Lookup(partition.number, [command.key]))

    def _cancel_unknown(self, partition: Partition, command: Command, now: int) -> None:
        """Ends a key of which no task is loaded; once, however many cancels there are."""
        self._record(partition, Fact(command.key, 0, CANCELLED, finished_us=now, request_id=command.request_id), now)

    def _cancel_entry(self, partition: Partition, lane: Lane, entry: Entry, command: Command, now: int) -> None:
        entry.cancelled = True
        entry.request_id = command.request_id
        under_way = entry is lane.active and lane.state in (LaneState.RUNNING, LaneState.RECORDING, LaneState.STARTING)
        if under_way:
            self._answer(partition, command, now)
        elif partition.state is PartitionState.ACTIVE and not entry.closing:
            if not entry.verified and not self._surely_new(partition, command):
                self._look_up_for(partition, command)
                return
            self._close_cancelled(partition, entry, now)
            if lane.state in IDLE:
                self._settle(partition, lane, now)

    def _close_cancelled(self, partition: Partition, entry: Entry, now: int) -> None:
        entry.closing = True
        fact = Fact(entry.key, entry.attempt, CANCELLED, finished_us=now, used=entry.used, request_id=entry.request_id)
        self._record(partition, fact, now)

    def _answer(self, partition: Partition, command: Command, now: int) -> None:
        if command.request_id is not None:
            self._record(partition, Fact(command.key, 0, TOO_LATE, finished_us=now, request_id=command.request_id), now)

    def looked_up(self, number: int, answers: Mapping[TaskKey, Known], now: int) -> None:
        """The answer to `Lookup`: what the tables hold of each key."""
        partition = self.partitions.get(number)
        if partition is None:
            return
        for key, known in answers.items():
            done = known.ended or key in partition.ended
            lane = partition.lanes.get(key.ordering_id)
            entry = lane.find(key) if lane is not None else None
            for command in partition.lookups.pop(key, []):
                if done:
                    self._answer(partition, command, now)
                elif lane is None or entry is None:
                    self._cancel_unknown(partition, command, now)
            if lane is None or entry is None:
                continue
            entry.verified = True
            if known.attempt > entry.attempt:
                entry.attempt, entry.used, entry.next_us = known.attempt, known.used, max(known.next_us, key.time_us)
            if done:
                lane.remove(key)
            elif entry.cancelled and not entry.closing and entry is not lane.active:
                self._close_cancelled(partition, entry, now)
            if lane.state is LaneState.LOOKUP and lane.active in (entry, None):
                lane.state = LaneState.WAITING
            self._settle(partition, lane, now)

    # -- lanes ----------------------------------------------------------------------------------------------------------

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
        heappush(self._ready.setdefault(executor, []), (-head.data.priority, head.next_us, self._sequence, lane.stamp, lane))

    def _reload_if_low(self, partition: Partition, lane: Lane) -> None:
        if lane.frontier is not None and not lane.reloading and len(lane.entries) <= self.limits.lane_depth // 2:
            lane.reloading = True
            self.actions.append(action.Reload(partition.number, lane.ordering_id, lane.frontier))

    def next_wake(self) -> int:
        """When the next timer is due, microseconds since the epoch; a far instant if there is none."""
        timers = self._timers
        while timers and timers[0][2] != timers[0][3].stamp:
            heappop(timers)
        due = timers[0][0] if timers else _NEVER
        while self._long and self._long[0][1] not in self.runs:
            heappop(self._long)
        return min(due, self._long[0][0]) if self._long else due

    def tick(self, now: int, room: Mapping[str, int], *, may_start: bool) -> None:
        """Releases what is due, as far as the executors have room and membership is certain."""
        timers = self._timers
        while timers and timers[0][0] <= now:
            _, _, stamp, lane = heappop(timers)
            if stamp == lane.stamp and lane.partition.state is not PartitionState.DROPPED:
                self._settle(lane.partition, lane, now)
        self._note_long_runs(now)
        for partition in list(self.partitions.values()):
            if partition.overflow and not self._full(partition, now):
                overflow, partition.overflow = partition.overflow, []
                for stamp, lane in overflow:
                    if stamp == lane.stamp and lane.active is not None:
                        self._make_ready(lane, lane.active, now)
            self._leave_if_drained(partition, now)
        if may_start:
            for executor in list(self._ready):
                self._release(executor, room.get(executor, _NEVER), now)
        self.flush(now)

    def _full(self, partition: Partition, now: int) -> bool:
        return partition.in_flight >= self.limits.max_in_flight or partition.oldest_unrecorded_us(now) > self.limits.stall_us

    def _release(self, executor: str, room: int, now: int) -> None:
        heap = self._ready[executor]
        batch: list[Invocation] = []
        while heap and len(batch) < room:
            _, _, _, stamp, lane = heappop(heap)
            partition = lane.partition
            if stamp != lane.stamp or partition.state is not PartitionState.ACTIVE:
                continue
            if self._full(partition, now):
                partition.overflow.append((stamp, lane))
                continue
            invocation = self._prepare(partition, lane, executor, now)
            if invocation is not None:
                batch.append(invocation)
        if batch:
            self.actions.append(action.Release(executor, batch))

    def _prepare(self, partition: Partition, lane: Lane, executor: str, now: int) -> Invocation | None:
        """The invocation of a ready lane's head, or None where something else has to come first."""
        entry = lane.active
        assert entry is not None
        if not entry.verified and not self._fresh(partition, entry):
            lane.state = LaneState.LOOKUP
            self.actions.append(action.Lookup(partition.number, [entry.key]))
            return None
        terms = self._terms(entry.data)
        retry = Retry.from_ms(*entry.data.retry) if entry.data.retry is not None else terms.retry
        if entry.cancelled or not retry.allows(entry.used):
            lane.state = LaneState.RECORDING
            self._close_unrun(partition, entry, now)
            return None
        if entry.announced == entry.attempt > 0:
            return self._start(partition, lane, entry, terms, retry, executor, entry.attempt)
        if lane.cautious:
            lane.cautious = False
            lane.state = LaneState.STARTING
            attempt = entry.attempt + 1
            self._record(partition, Fact(entry.key, attempt, STARTED, now, planned_us=entry.next_us, used=entry.used + 1), now)
            return None
        return self._start(partition, lane, entry, terms, retry, executor, entry.attempt + 1)

    def _start(
        self, partition: Partition, lane: Lane, entry: Entry, terms: Terms, retry: Retry, executor: str, attempt: int
    ) -> Invocation:
        self._sequence += 1
        data = entry.data
        assert partition.mine is not None
        invocation = Invocation(
            self._sequence, entry.key, attempt, partition.mine.epoch, data.handler or "", data.queue, data.payload,
            data.priority, entry.next_us, data.timeout_ms or terms.timeout_ms,
        )  # fmt: skip
        lane.state = LaneState.RUNNING
        self.runs[self._sequence] = Run(partition, lane, entry, invocation, executor, retry)
        partition.in_flight += 1
        return invocation

    def _fresh(self, partition: Partition, entry: Entry) -> bool:
        return entry.key.time_us >= partition.ended.since_us and entry.key not in partition.told

    def _close_unrun(self, partition: Partition, entry: Entry, now: int) -> None:
        if entry.cancelled:
            self._close_cancelled(partition, entry, now)
            return
        failure = Failure("attempts_exhausted", f"{entry.used} attempts were begun and none came to an end.")
        self.counts["retries_exhausted"] += 1
        self._record(partition, Fact(entry.key, entry.attempt, FAILED, finished_us=now, used=entry.used, failure=failure), now)

    # -- outcomes and facts ---------------------------------------------------------------------------------------------

    def started(self, ids: Iterable[int], now: int) -> None:
        """The shell handed these invocations over; those still running after a second get a start fact."""
        for number in ids:
            heappush(self._long, (now + LONG_RUN_US, number))

    def _note_long_runs(self, now: int) -> None:
        while self._long and self._long[0][0] <= now:
            run = self.runs.get(heappop(self._long)[1])
            if run is not None and run.partition.deciding and run.entry.attempt < run.invocation.attempt:
                fact = Fact(
                    run.entry.key, run.invocation.attempt, STARTED, now - LONG_RUN_US,
                    planned_us=run.invocation.planned_us, used=run.entry.used + 1,
                )  # fmt: skip
                self._record(run.partition, fact, now)

    def finished(self, outcomes: Iterable[Outcome], now: int) -> None:
        """What executors report."""
        for outcome in outcomes:
            run = self.runs.pop(outcome.id, None)
            if run is None:
                continue  # of a partition that was dropped
            run.partition.in_flight -= 1
            if outcome.outcome == NOT_STARTED:
                run.lane.state = LaneState.WAITING
                self._settle(run.partition, run.lane, now)
                continue
            run.lane.state = LaneState.RECORDING
            self._record(run.partition, self._judge(run, outcome), now)

    def _judge(self, run: Run, outcome: Outcome) -> Fact:
        """The fact that an outcome becomes: the end, or when the next attempt may start."""
        invocation, entry = run.invocation, run.entry
        yielded = outcome.outcome == YIELDED
        already = entry.attempt >= invocation.attempt  # its start fact has counted
        used = entry.used + (0 if already else 1) - (1 if yielded else 0)
        verdict, next_us = outcome.outcome, None
        if verdict in (FAILED, TIMED_OUT, YIELDED):
            if entry.cancelled:
                verdict = CANCELLED
            elif yielded:
                next_us = outcome.finished_us + outcome.after_ms * 1000
            elif run.retry.allows(used):
                next_us = outcome.finished_us + run.retry.wait_us(used + 1, self._rng)
            else:
                verdict = FAILED
                self.counts["retries_exhausted"] += 1
        self.counts[f"attempts_{outcome.outcome}"] += 1
        return Fact(
            entry.key, invocation.attempt, verdict, outcome.started_us, outcome.finished_us, invocation.planned_us, used,
            next_us, outcome.result, outcome.failure, entry.request_id if verdict == CANCELLED else None,
        )  # fmt: skip

    def _record(self, partition: Partition, fact: Fact, now: int) -> None:
        identity = (fact.key, fact.attempt, fact.outcome)
        if identity not in partition.unrecorded:
            partition.outbox.append(fact)
            partition.unrecorded[identity] = (fact, now)

    def flush(self, now: int) -> None:
        """Sends what was decided, one group per partition at a time."""
        for partition in self.partitions.values():
            if partition.outbox and not partition.sending and partition.deciding and partition.mine is not None:
                partition.sending = True
                records = encode_facts(partition.mine, partition.outbox)
                partition.outbox.clear()
                self.actions.append(action.Send(partition.number, records))

    def sent(self, number: int, *, ok: bool, now: int) -> None:
        """A send was acknowledged, or its fate is unknown: then a new fence decides what stands."""
        partition = self.partitions.get(number)
        if partition is None:
            return
        partition.sending = False
        if not ok:
            self.counts["ambiguous_sends"] += 1
            self._fence(partition, now)

    def outcome_records(self, number: int, records: Iterable[tuple[int, OutcomeRecord | None]], next_offset: int, now: int) -> None:
        """Records of one `outcomes` partition in offset order; None for an unreadable one."""
        partition = self.partitions.get(number)
        if partition is None:
            return
        for offset, record in records:
            if record is None or not partition.log.admit(record):
                continue
            if record.kind == "fence":
                self._fence_read(partition, record.fence, now)
                if partition.state is PartitionState.DROPPED:
                    return
            for fact in record.facts:
                self._apply(partition, fact, offset, now)
        partition.outcomes_position = max(partition.outcomes_position, next_offset)
        self._fence_if_read(partition, now)
        self._leave_if_drained(partition, now)

    def _fence_read(self, partition: Partition, fence: Fence, now: int) -> None:
        if fence == partition.mine:
            partition.state = PartitionState.DRAINING if partition.drain_by_us else PartitionState.LOADING
            partition.outbox.clear()
            partition.outbox.extend(fact for fact, _ in partition.unrecorded.values())
            self.actions.append(action.Confirm(partition.number))
        elif partition.mine is not None:
            self.counts["fenced_off"] += 1
            self.drop(partition.number)

    def _apply(self, partition: Partition, fact: Fact, offset: int, now: int) -> None:
        """A fact counts."""
        partition.unrecorded.pop((fact.key, fact.attempt, fact.outcome), None)
        if fact.outcome == TOO_LATE:
            return
        lane = partition.lanes.get(fact.key.ordering_id)
        entry = lane.find(fact.key) if lane is not None else None
        if fact.terminal:
            partition.ended.add(fact.key, offset, now)
            partition.early_facts.pop(fact.key, None)
            self.counts[f"completed_{fact.outcome}"] += 1
        if lane is None or entry is None:
            if not fact.terminal:
                partition.early_facts[fact.key] = (offset, fact)
            return
        was_active = entry is lane.active
        if fact.terminal:
            lane.remove(fact.key)
        else:
            entry.attempt, entry.used = max(entry.attempt, fact.attempt), fact.used
            entry.next_us = max(fact.next_us or 0, entry.key.time_us)
            if fact.outcome != STARTED:
                entry.announced = 0
        if lane.state in IDLE or (was_active and lane.state is LaneState.RECORDING and fact.outcome != STARTED):
            lane.state = LaneState.WAITING
            self._settle(partition, lane, now)
        elif was_active and lane.state is LaneState.STARTING:
            entry.announced = entry.attempt
            lane.state = LaneState.WAITING
            self._settle(partition, lane, now)


class Known(NamedTuple):
    """What the tables hold of a key: whether it has ended, and its latest attempt (0: none)."""

    ended: bool = False
    attempt: int = 0
    used: int = 0
    next_us: int = 0


class ScanRow(NamedTuple):
    """One open task as read from the tables.

    Attributes:
        cancelled: a cancel stands, but no completion yet.
        attempt: last recorded attempt; 0 if none.
        used: recorded attempts that count against the retry policy.
        next_us: earliest next start; 0 if none was recorded.
    """

    command: Command
    cancelled: bool = False
    attempt: int = 0
    used: int = 0
    next_us: int = 0


__all__ = ["ABORTED", "SUCCEEDED", "Engine", "Limits", "Run", "ScanRow", "Terms"]
