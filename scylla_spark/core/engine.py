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
from scylla_spark.core.lane import CLOSING, DECIDED, IDLE, RECORDING, RUNNING, STARTING, WAITING, Lane
from scylla_spark.core.lanes import NEVER, Run
from scylla_spark.core.partition import DROPPED, Partition
from scylla_spark.core.release import Releaser
from scylla_spark.core.task import (
    CANCELLED,
    FAILED,
    NOT_STARTED,
    STARTED,
    TIMED_OUT,
    YIELDED,
    Outcome,
)

LONG_RUN_US = 1_000_000  # what runs longer gets a start fact
# A request costs as much as fifty tasks, so facts wait for others: after a large group for about as long as the work that it
# causes takes anyway, and where no task of the lane waits for them a little longer.
_GATHER_US = 20  # for each fact of the group before
_GATHER_MOST_US = 4_000
_LINGER_US = 50_000


class Engine(Releaser):
    """All lanes of the partitions that this process owns: releases what is due, judges outcomes, acts on facts that count."""

    def next_wake(self) -> int:
        """When the next timer is due, microseconds since the epoch; a far instant if there is none."""
        timers = self._timers
        while timers and timers[0][2] != timers[0][3].stamp:
            heappop(timers)
        due = timers[0][0] if timers else NEVER
        while self._long and self._long[0][1] not in self.runs:
            heappop(self._long)
        due = min(due, self._next_gate_us(), *map(self._sends_from, self.partitions.values()))
        return min(due, self._long[0][0]) if self._long else due

    def tick(self, now: int, room: Mapping[str, int], *, start_by_us: int) -> None:
        """Releases what is due, as far as the executors have room and membership is certain.

        Args:
            now: microseconds since the epoch.
            room: executor → how many more calls it wants.
            start_by_us: boot clock until which membership is certain; 0: it is not.
        """
        self._start_by_us = start_by_us
        timers = self._timers
        while timers and timers[0][0] <= now:
            _, _, stamp, lane = heappop(timers)
            if stamp == lane.stamp and lane.partition.state is not DROPPED:
                self._settle(lane.partition, lane, now)
        self._note_long_runs(now)
        for partition in list(self.partitions.values()):
            partition.stalled = partition.oldest_unrecorded_us(now) > self.limits.stall_us
            if partition.overflow and not self._full(partition):
                overflow, partition.overflow = partition.overflow, []
                for stamp, lane in overflow:
                    if stamp == lane.stamp and lane.active is not None:
                        self._make_ready(lane, lane.active, now)
            self._leave_if_drained(partition, now)
        if start_by_us:
            for executor in list(self._ready):
                self._release(executor, room.get(executor, NEVER), now)
        self.flush(now)

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
                self._record(run.partition, fact, now, now + _LINGER_US)

    def finished(self, outcomes: Iterable[Outcome], now: int) -> None:
        """What executors report."""
        for outcome in outcomes:
            run = self.runs.pop(outcome.id, None)
            if run is None:
                continue  # of a partition that was dropped
            self._end_run(run, now)
            run.lane.out -= 1
            if outcome.outcome == NOT_STARTED:
                run.lane.put_back(run.entry)
            else:
                self._note_pace(run.invocation.handler, outcome.finished_us - outcome.started_us)
                fact = self._judge(run, outcome)
                run.entry.stage = CLOSING if fact.terminal else DECIDED
                if fact.terminal and run.gate.terms.replay:
                    run.lane.let_go(run.entry)
                self._record(run.partition, fact, now, now if run.lane.waits(now + _LINGER_US) else now + _LINGER_US)
            self._go_on(run.partition, run.lane, now)

    def _go_on(self, partition: Partition, lane: Lane, now: int) -> None:
        """A lane whose released tasks have ended, or whose fact counts, does the next thing."""
        if lane.held:
            lane.state = RUNNING if lane.out else RECORDING
        else:
            lane.state = WAITING
            self._settle(partition, lane, now)

    def _note_pace(self, handler: str, duration_us: int) -> None:
        before = self._pace.get(handler, duration_us)
        self._pace[handler] = before + 0.2 * (min(duration_us, 10 * before + 1000) - before)

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
        pending = [partition for partition in self.partitions.values() if self._sends_from(partition) < NEVER]
        if any(self._sends_from(partition) <= now for partition in pending):
            decided = sum(len(partition.outbox) for partition in pending)
            self._gather_until_us = now + min(decided * _GATHER_US, _GATHER_MOST_US)
            for partition in pending:  # one request carries the groups of all
                assert partition.mine is not None
                partition.sending = True
                partition.send_by_us = NEVER
                records = encode_facts(partition.mine, partition.outbox)
                content = OutcomeRecord(partition.mine, "facts", tuple(partition.outbox))
                partition.outbox.clear()
                self.actions.append(action.Send(partition.number, records, content if len(records) == 1 else None))

    def _sends_from(self, partition: Partition) -> int:
        """When the partition's next group of facts is sent, if nothing else happens before."""
        if not partition.outbox or partition.sending or not partition.deciding:
            return NEVER
        return 0 if partition.drain_by_us else max(partition.send_by_us, self._gather_until_us)

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
                if partition.state is DROPPED:
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
        terminal = fact.terminal
        if terminal:
            partition.ended.add(fact.key, offset, now)
            partition.ending.discard(fact.key)
            partition.early_facts.pop(fact.key, None)
            self.counts[f"completed_{fact.outcome}"] += 1
        if lane is None or entry is None:
            if not terminal:
                partition.early_facts[fact.key] = (offset, fact)
            return
        starting = entry is lane.active and lane.state is STARTING
        if terminal:
            lane.remove(fact.key)
        else:
            entry.attempt, entry.used = max(entry.attempt, fact.attempt), fact.used
            entry.next_us = max(fact.next_us or 0, entry.key.time_us)
            if starting:
                entry.announced = entry.attempt
            elif fact.outcome != STARTED:
                entry.announced = 0
                if entry.stage is DECIDED:
                    lane.put_back(entry)
        if starting or lane.state in IDLE:
            lane.state = WAITING
            self._settle(partition, lane, now)
        elif lane.state in (RUNNING, RECORDING):
            self._go_on(partition, lane, now)
