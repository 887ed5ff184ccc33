"""The engine: decides what runs when, in which order, and what has become of it.

A pure state machine: every input is a method call with `now`, every effect an action in `actions`. It knows no Spark, no
Kafka, no thread and no clock; the shell around it (`services.dispatch`) carries out the actions and reports back.
All inputs are idempotent offers: a record, row or fact may come twice, late or out of order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush

from scylla_spark.core import action
from scylla_spark.core.fact import TOO_LATE, Fact, OutcomeRecord, encode_facts
from scylla_spark.core.feed import Feeder
from scylla_spark.core.lane import IDLE, Entry, Lane, LaneState
from scylla_spark.core.lanes import NEVER, Run, Terms
from scylla_spark.core.partition import Partition, PartitionState
from scylla_spark.core.task import (
    CANCELLED,
    FAILED,
    NOT_STARTED,
    STARTED,
    TIMED_OUT,
    YIELDED,
    Failure,
    Invocation,
    Outcome,
    Retry,
)

LONG_RUN_US = 1_000_000  # what runs longer gets a start fact


class Engine(Feeder):
    """All lanes of the partitions that this process owns: releases what is due, judges outcomes, acts on facts that count."""

    def next_wake(self) -> int:
        """When the next timer is due, microseconds since the epoch; a far instant if there is none."""
        timers = self._timers
        while timers and timers[0][2] != timers[0][3].stamp:
            heappop(timers)
        due = timers[0][0] if timers else NEVER
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
                self._release(executor, room.get(executor, NEVER), now)
        self.flush(now)

    def _full(self, partition: Partition, now: int) -> bool:
        return (
            partition.in_flight >= self.limits.max_in_flight
            or partition.oldest_unrecorded_us(now) > self.limits.stall_us
        )

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
        announced = entry.announced == entry.attempt > 0
        if entry.cancelled or not (announced or retry.allows(entry.used)):
            lane.state = LaneState.RECORDING
            self._close_unrun(partition, entry, now)
            return None
        if announced:
            return self._start(partition, lane, entry, terms, retry, executor, entry.attempt)
        if lane.cautious:
            lane.cautious = False
            lane.state = LaneState.STARTING
            attempt = entry.attempt + 1
            self._record(
                partition, Fact(entry.key, attempt, STARTED, now, planned_us=entry.next_us, used=entry.used + 1), now
            )
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

    def _close_unrun(self, partition: Partition, entry: Entry, now: int) -> None:
        if entry.cancelled:
            self._close_cancelled(partition, entry, now)
            return
        failure = Failure("attempts_exhausted", f"{entry.used} attempts were begun and none came to an end.")
        self.counts["retries_exhausted"] += 1
        self._record(
            partition, Fact(entry.key, entry.attempt, FAILED, finished_us=now, used=entry.used, failure=failure), now
        )

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

    def outcome_records(
        self, number: int, records: Iterable[tuple[int, OutcomeRecord | None]], next_offset: int, now: int
    ) -> None:
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
