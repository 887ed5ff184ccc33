"""The engine: decides what runs when, in which order, and what has become of it.

A pure state machine: every input is a method call with `now`, every effect an action in `actions`. It knows no Spark, no
Kafka, no thread and no clock; the shell around it (`services.dispatch`) carries out the actions and reports back.
All inputs are idempotent offers: a record, row or fact may come twice, late or out of order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush

from scylla_spark import failpoint
from scylla_spark.core import action
from scylla_spark.core.fact import TOO_LATE, Fact, Fence, OutcomeRecord, Unreadable, encode_facts
from scylla_spark.core.lane import CLOSING, DECIDED, IDLE, LOOKUP, RECORDING, RUNNING, STARTING, WAITING, Lane
from scylla_spark.core.lanes import MOST_PACES, NEVER, Run
from scylla_spark.core.partition import DROPPED, Partition, fact_bytes, identity_of
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
from scylla_spark.core.tenure import Tenure
from scylla_spark.errors import VersionError

LONG_RUN_US = 1_000_000  # what runs longer gets a start fact
_LOOK_AGAIN_US = 500_000  # between two looks at what was handed over and has no start fact yet
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
        while self._handed and self._handed[0][1] not in self.runs:
            heappop(self._handed)
        due = min(due, self._next_gate_us(), *map(self._sends_from, self.partitions.values()))
        return min(due, self._handed[0][0]) if self._handed else due

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
        if self.choked or self.pressed:
            self._relieve(now)
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

    def handed(self, ids: Iterable[int], now: int) -> None:
        """The shell handed these invocations over; those still under way after a second may be long runs."""
        for number in ids:
            heappush(self._handed, (now + LONG_RUN_US, number))

    def asks_who_runs(self, now: int) -> bool:
        """Whether `running` is to be told: something was handed over longer than a second ago and has no start fact."""
        while self._handed and (self._handed[0][1] not in self.runs):
            heappop(self._handed)
        return bool(self._handed) and self._handed[0][0] <= now

    def running(self, began_us: Mapping[int, int], now: int) -> None:
        """What executors have begun, and when; what has run for a second gets a start fact. The rest waits in an executor.

        Args:
            began_us: invocation id → wall clock at which its handler began, microseconds since the epoch.
            now: microseconds since the epoch.
        """
        again: list[int] = []
        while self._handed and self._handed[0][0] <= now:
            number = heappop(self._handed)[1]
            run = self.runs.get(number)
            if run is None or run.entry.attempt >= run.invocation.attempt:
                continue  # it has ended, or its start is recorded
            began = began_us.get(number)
            if began is None or began > now - LONG_RUN_US or not run.partition.deciding:
                again.append(number)
                continue
            fact = Fact(
                run.entry.key, run.invocation.attempt, STARTED, began,
                planned_us=run.invocation.planned_us, used=run.entry.used + 1,
            )  # fmt: skip
            self._record(run.partition, fact, now, now + _LINGER_US)
            again.append(number)  # until it counts: a new fence may have cut it off
        for number in again:
            heappush(self._handed, (now + _LOOK_AGAIN_US, number))

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
        if len(self._pace) >= MOST_PACES:
            self._pace.clear()  # names come from data
        before = self._pace.get(handler, duration_us)
        self._pace[handler] = before + 0.2 * (min(duration_us, 10 * before + 1000) - before)

    def _judge(self, run: Run, outcome: Outcome) -> Fact:
        """The fact that an outcome becomes: the end, or when the next attempt may start."""
        invocation, entry = run.invocation, run.entry
        yielded = outcome.outcome == YIELDED
        already = entry.attempt >= invocation.attempt  # its start fact has counted
        used = entry.used + (0 if already else 1) - (1 if yielded else 0)
        verdict, next_us = outcome.outcome, None
        soonest = outcome.finished_us + self.limits.least_wait_us
        if verdict in (FAILED, TIMED_OUT, YIELDED):
            if entry.cancelled:
                verdict = CANCELLED
            elif yielded:
                next_us = max(soonest, outcome.finished_us + outcome.after_ms * 1000)
            elif run.retry.allows(used):
                next_us = max(soonest, outcome.finished_us + run.retry.wait_us(used + 1, self._rng))
            else:
                verdict = FAILED
                self.counts["retries_exhausted"] += 1
        self.counts[f"attempts_{outcome.outcome}"] += 1
        asked = entry.requests[0] if verdict == CANCELLED and entry.requests else None
        return Fact(
            entry.key, invocation.attempt, verdict, outcome.started_us, outcome.finished_us, invocation.planned_us, used,
            next_us, outcome.result, outcome.failure, asked,
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
                only = content if len(records) == 1 else None
                self.actions.append(action.Send(partition.tenure, partition.mine, records, only))

    def _sends_from(self, partition: Partition) -> int:
        """When the partition's next group of facts is sent, if nothing else happens before."""
        if not partition.outbox or partition.sending or not partition.deciding:
            return NEVER
        return 0 if partition.drain_by_us else max(partition.send_by_us, self._gather_until_us)

    def sent(self, tenure: Tenure, fence: Fence, *, ok: bool, now: int) -> None:
        """A send under that fence was acknowledged, or its fate is unknown: then a new fence decides what stands."""
        partition = self.held(tenure)
        if partition is None or partition.mine != fence:
            return
        partition.sending = False
        if not ok:
            self.counts["ambiguous_sends"] += 1
            self._fence(partition, now)

    def outcome_records(
        self, tenure: Tenure, records: Iterable[tuple[int, OutcomeRecord | Unreadable]], next_offset: int, now: int
    ) -> None:
        """Records of one `outcomes` partition in offset order; what was read before is passed over.

        Raises:
            VersionError: a record counts that a newer version wrote.
        """
        partition = self.held(tenure)
        if partition is None:
            return
        for offset, record in records:
            if offset < partition.outcomes_position:
                continue
            if isinstance(record, Unreadable):
                self.counts["facts_unreadable"] += 1  # ingest keeps it in `rejected`
            elif partition.log.admit(record):
                self._counts(partition, record, offset, now)
                if partition.state is DROPPED:
                    return
        partition.outcomes_position = max(partition.outcomes_position, next_offset)
        self._fence_if_read(partition, now)
        self._leave_if_drained(partition, now)

    def _counts(self, partition: Partition, record: OutcomeRecord, offset: int, now: int) -> None:
        if record.kind == "newer":
            raise VersionError(
                f"Partition {partition.number} of `outcomes` holds facts of a newer version at offset {offset}.",
                hint="Upgrade this dispatcher; nothing is lost, and it goes on from where the tables are.",
            )
        if record.kind == "fence":
            self._fence_read(partition, record.fence, now)
        for fact in record.facts:
            try:
                if failpoint.armed:
                    failpoint.reach("engine.fact", fact.key.uniqueness_key)
                self._apply(partition, fact, offset, now)
            except Exception as error:
                self._note_defect(fact.key, error)

    def _apply(self, partition: Partition, fact: Fact, offset: int, now: int) -> None:
        """A fact counts."""
        known = partition.unrecorded.pop(identity_of(fact), None)
        if known is not None and (fact.result is not None or fact.failure is not None):
            partition.unrecorded_bytes -= fact_bytes(known[0])
        if fact.outcome == TOO_LATE:
            return
        key = fact.key
        lane = partition.lanes.get(key.ordering_id)
        entry = lane.find(key) if lane is not None else None
        if fact.terminal:
            near = key.time_us <= partition.horizon_us  # a later scan of what is far will tell that it has ended
            partition.ended.add(key, offset, now, until_us=key.time_us if near else 0)
            partition.ending.discard(key)
            if partition.early_facts:
                partition.forget_early(key)
            if partition.cancelled or partition.told:
                partition.forget_cancels([key])
            self.counts[f"completed_{fact.outcome}"] += 1
        if lane is None or entry is None:
            if not fact.terminal:
                partition.note_early(offset, fact)
            return
        starting = entry is lane.active and lane.state is STARTING
        if fact.terminal:
            lane.remove(key)
            if lane.state is LOOKUP and lane.active is None:
                lane.state = WAITING  # a cancel ended what was being looked up
        else:
            entry.note_attempt(fact.attempt, fact.used, fact.next_us or 0)
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
