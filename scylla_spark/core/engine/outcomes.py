"""What becomes of tasks that ran: outcomes are judged into facts, and facts count once they are read back."""

from __future__ import annotations

from collections.abc import Iterable

from scylla_spark import failpoint
from scylla_spark.core.engine.defects import Defects
from scylla_spark.core.engine.fact_recorder import LINGER_US, Recorder
from scylla_spark.core.engine.lane import (
    CLOSING,
    DECIDED,
    IDLE,
    LOOKUP,
    RECORDING,
    RUNNING,
    STARTING,
    WAITING,
    Entry,
    Lane,
)
from scylla_spark.core.engine.ownership import Ownership
from scylla_spark.core.engine.partition import DROPPED, Partition
from scylla_spark.core.engine.runs import Run, Runs
from scylla_spark.core.engine.state import EngineState
from scylla_spark.core.engine.waiting import Waiting
from scylla_spark.core.fact import TOO_LATE, Fact, OutcomeRecord, Unreadable
from scylla_spark.core.handler_durations import HandlerDurations
from scylla_spark.core.task import CANCELLED, FAILED, NOT_STARTED, STARTED, TIMED_OUT, YIELDED, Outcome
from scylla_spark.core.tenure import Tenure
from scylla_spark.errors import VersionError


class Outcomes:
    """Judges what executors report, and applies what stands in the log.

    Args:
        state: of the engine.
        waiting: where lanes go on.
        runs: what executors have.
        recorder: writes facts.
        ownership: fences that stand in the log.
        defects: of ours, that a fact meets.
        durations: how long tasks of each handler take.
    """

    def __init__(
        self,
        state: EngineState,
        *,
        waiting: Waiting,
        runs: Runs,
        recorder: Recorder,
        ownership: Ownership,
        defects: Defects,
        durations: HandlerDurations,
    ) -> None:
        self._state = state
        self._waiting = waiting
        self._runs = runs
        self._recorder = recorder
        self._ownership = ownership
        self._defects = defects
        self._durations = durations

    def finished(self, outcomes: Iterable[Outcome], now: int) -> None:
        """What executors report."""
        for outcome in outcomes:
            run = self._runs.end(outcome.id)
            if run is None:
                continue  # of a partition that was dropped
            run.lane.out -= 1
            if outcome.outcome == NOT_STARTED:
                run.lane.put_back(run.entry)
            else:
                self._decide(run, outcome, now)
            self._go_on(run.partition, run.lane, now)

    def _decide(self, run: Run, outcome: Outcome, now: int) -> None:
        self._durations.note(run.invocation.handler, outcome.finished_us - outcome.started_us)
        fact = self._judge(run, outcome)
        run.entry.stage = CLOSING if fact.terminal else DECIDED
        if fact.terminal and run.gate.limits.replay:
            run.lane.let_go(run.entry)
        waited_for = run.lane.waits(now + LINGER_US)
        self._recorder.record(run.partition, fact, now, now if waited_for else now + LINGER_US)

    def _judge(self, run: Run, outcome: Outcome) -> Fact:
        """The fact that an outcome becomes: the end, or when the next attempt may start."""
        invocation, entry = run.invocation, run.entry
        yielded = outcome.outcome == YIELDED
        already = entry.attempt >= invocation.attempt  # its start fact has counted
        used = entry.used + (0 if already else 1) - (1 if yielded else 0)
        verdict, next_us = outcome.outcome, None
        soonest = outcome.finished_us + self._state.limits.least_wait_us
        if verdict in (FAILED, TIMED_OUT, YIELDED):
            if entry.cancelled:
                verdict = CANCELLED
            elif yielded:
                next_us = max(soonest, outcome.finished_us + outcome.after_ms * 1000)
            elif not outcome.final and run.retry.allows(used):
                next_us = max(soonest, outcome.finished_us + run.retry.wait_us(used + 1, self._state.rng))
            else:
                verdict = FAILED
                self._state.counts["retries_exhausted"] += 0 if outcome.final else 1
        self._state.counts[f"attempts_{outcome.outcome}"] += 1
        asked = entry.requests[0] if verdict == CANCELLED and entry.requests else None
        return Fact(
            entry.key, invocation.attempt, verdict, outcome.started_us, outcome.finished_us, invocation.planned_us, used,
            next_us, outcome.result, outcome.failure, asked,
        )  # fmt: skip

    def read(
        self, tenure: Tenure, records: Iterable[tuple[int, OutcomeRecord | Unreadable]], next_offset: int, now: int
    ) -> None:
        """Records of one `outcomes` partition in offset order; what was read before is passed over.

        Raises:
            VersionError: a record counts that a newer version wrote.
        """
        partition = self._state.held(tenure)
        if partition is None:
            return
        for offset, record in records:
            if offset < partition.outcomes_position:
                continue
            if isinstance(record, Unreadable):
                self._state.counts["facts_unreadable"] += 1  # ingest keeps it in `rejected`
            elif partition.log.admit(record):
                self._counts(partition, record, offset, now)
                if partition.state is DROPPED:
                    return
        partition.outcomes_position = max(partition.outcomes_position, next_offset)
        self._ownership.fence_if_read(partition, now)
        self._ownership.leave_if_drained(partition, now)

    def _counts(self, partition: Partition, record: OutcomeRecord, offset: int, now: int) -> None:
        if record.kind == "newer":
            raise VersionError(
                f"Partition {partition.number} of `outcomes` holds facts of a newer version at offset {offset}.",
                hint="Upgrade this dispatcher; nothing is lost, and it goes on from where the tables are.",
            )
        if record.kind == "fence":
            self._ownership.fence_read(partition, record.fence, now)
        for fact in record.facts:
            try:
                if failpoint.armed:
                    failpoint.reach("engine.fact", fact.key.uniqueness_key)
                self._apply(partition, fact, offset, now)
            except Exception as error:
                self._defects.note(fact.key, error)

    def _apply(self, partition: Partition, fact: Fact, offset: int, now: int) -> None:
        """A fact counts."""
        partition.outbox.recorded(fact)
        if fact.outcome == TOO_LATE:
            return
        lane = partition.lanes.get(fact.key.ordering_id)
        entry = lane.find(fact.key) if lane is not None else None
        if fact.terminal:
            self._note_end(partition, fact, offset, now)
        if lane is not None and entry is not None:
            self._advance(partition, lane, entry, fact, now)
        elif not fact.terminal:
            partition.note_early(offset, fact)

    def _note_end(self, partition: Partition, fact: Fact, offset: int, now: int) -> None:
        key = fact.key
        near = key.time_us <= partition.horizon_us  # a later scan of what is far will tell that it has ended
        partition.ended.add(key, offset, now, until_us=key.time_us if near else 0)
        partition.ending.discard(key)
        if partition.early_facts:
            partition.forget_early(key)
        if partition.cancelled or partition.told:
            partition.forget_cancels([key])
        self._state.counts[f"completed_{fact.outcome}"] += 1

    def _advance(self, partition: Partition, lane: Lane, entry: Entry, fact: Fact, now: int) -> None:
        """A loaded task is as far as the fact says, and its lane goes on."""
        starting = entry is lane.active and lane.state is STARTING
        if fact.terminal:
            lane.remove(fact.key)
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
            self._waiting.settle(partition, lane, now)
        elif lane.state in (RUNNING, RECORDING):
            self._go_on(partition, lane, now)

    def _go_on(self, partition: Partition, lane: Lane, now: int) -> None:
        """A lane whose released tasks have ended, or whose fact counts, does the next thing."""
        if lane.held:
            lane.state = RUNNING if lane.out else RECORDING
        else:
            lane.state = WAITING
            self._waiting.settle(partition, lane, now)
