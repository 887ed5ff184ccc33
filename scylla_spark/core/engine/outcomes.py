"""What becomes of tasks that ran: outcomes are judged, and facts count once they are read back."""

from __future__ import annotations

from collections.abc import Iterable

from scylla_spark import failpoint
from scylla_spark.core.engine.follow_ups import FollowUpsOfRuns
from scylla_spark.core.engine.judging import Judging
from scylla_spark.core.engine.lane import (
    DECIDED,
    IDLE,
    LOOKUP,
    RECORDING,
    RUNNING,
    STARTING,
    STUB,
    WAITING,
    Entry,
    Lane,
)
from scylla_spark.core.engine.leases.book import LeaseBook
from scylla_spark.core.engine.own_defects import Defects
from scylla_spark.core.engine.ownership import Ownership
from scylla_spark.core.engine.partition import DROPPED, Partition, known_by
from scylla_spark.core.engine.runs import Runs
from scylla_spark.core.engine.state import EngineState
from scylla_spark.core.engine.unique_names import UniqueNames
from scylla_spark.core.engine.waiting import Waiting
from scylla_spark.core.records.fact import TOO_LATE, Fact, OutcomeRecord, Unreadable
from scylla_spark.core.tables.progress import Tenure
from scylla_spark.core.tasks.handler_durations import HandlerDurations
from scylla_spark.core.tasks.task import NOT_STARTED, STARTED, Failure, Outcome
from scylla_spark.errors import VersionError


class Outcomes:
    """Takes what executors report, and applies what stands in the log.

    Args:
        state: of the engine.
        waiting: where lanes go on.
        runs: what executors have.
        judging: makes facts of outcomes.
        follow_ups: what must be sent before outcomes count.
        book: of leases, which facts begin and end.
        ownership: fences that stand in the log.
        defects: of ours, that a fact meets.
        durations: how long tasks of each handler take.
        names: that are free once their task has ended.
    """

    def __init__(
        self,
        state: EngineState,
        *,
        waiting: Waiting,
        runs: Runs,
        judging: Judging,
        follow_ups: FollowUpsOfRuns,
        book: LeaseBook,
        ownership: Ownership,
        defects: Defects,
        durations: HandlerDurations,
        names: UniqueNames,
    ) -> None:
        self._state = state
        self._waiting = waiting
        self._runs = runs
        self._judging = judging
        self._follow_ups = follow_ups
        self._book = book
        self._ownership = ownership
        self._defects = defects
        self._durations = durations
        self._names = names

    def finished(self, outcomes: Iterable[Outcome], now: int) -> None:
        """What executors report."""
        for reported in outcomes:
            run = self._runs.by_id.get(reported.id)
            if run is None:
                continue  # of a partition that was dropped
            outcome = self._judging.as_queue_says(run, reported)
            if outcome.follow_ups and self._follow_ups.holds(outcome, now):
                continue
            self._runs.end(outcome.id)
            run.lane.out -= 1
            if outcome.outcome == NOT_STARTED:
                run.lane.put_back(run.entry)
            else:
                self._durations.note(run.invocation.handler, outcome.finished_us - outcome.started_us)
                self._judging.decide(run, outcome, now)
            self._waiting.go_on(run.partition, run.lane, now)

    def followed_up(self, number: int, failure: Failure | None, now: int) -> None:
        """What an attempt asked for is acknowledged, so that it counts; or it is not, and the attempt has failed.

        Args:
            number: id of the invocation.
            failure: why not.
            now: microseconds since the epoch.
        """
        outcome = self._follow_ups.ended(number, failure)
        if outcome is not None:
            self.finished([outcome], now)

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

    def landed(self, tenure: Tenure, offset: int, record: OutcomeRecord, now: int) -> None:
        """A record of ours is acknowledged, and stands at that offset: where all before it has been read, it has been read, too.

        What counts is decided by the log up to there, and all of that is known. Where something else stands between, the tail reads both.
        """
        partition = self._state.held(tenure)
        if partition is not None and partition.outcomes_position == offset:
            self.read(tenure, [(offset, record)], offset + 1, now)

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
            self._advance(partition, lane, entry, fact, offset, now)
        elif not fact.terminal:
            partition.note_fact(fact, offset)
        if fact.work is not None and fact.work.lease is not None:
            self._book.recorded(fact, now)
        elif fact.outcome == STARTED:
            self._follow_ups.recorded(fact, now)

    def _note_end(self, partition: Partition, fact: Fact, offset: int, now: int) -> None:
        key = fact.key
        near = key.time_us <= partition.horizon_us  # a later scan of what is far will tell that it has ended
        partition.ended.add(key, offset, now, until_us=key.time_us if near else 0)
        partition.ending.discard(key)
        if partition.names.after:
            self._names.know_more(partition, key)
        if partition.attempts:
            partition.forget_attempt(key)
        if partition.cancelled or partition.told:
            partition.forget_cancels([key])
        self._state.counts[f"completed_{fact.outcome}"] += 1

    def _advance(self, partition: Partition, lane: Lane, entry: Entry, fact: Fact, offset: int, now: int) -> None:
        """A loaded task is as far as the fact says, and its lane goes on."""
        starting = entry is lane.active and lane.state is STARTING
        if fact.terminal:
            lane.remove(fact.key)
            if lane.state is LOOKUP and lane.active is None:
                lane.state = WAITING  # a cancel ended what was being looked up
        else:
            lane.note_attempt(entry, known_by(fact, offset))
            if starting:
                entry.announced = entry.attempt
            elif fact.outcome != STARTED:
                entry.announced = 0
                if entry.stage is DECIDED and entry.data.offset == STUB:
                    lane.remove(fact.key)  # it is read when its turn comes
                    partition.note_fact(fact, offset)
                elif entry.stage is DECIDED:
                    lane.put_back(entry)
        if starting or lane.state in IDLE:
            lane.state = WAITING
            self._waiting.settle(partition, lane, now)
        elif lane.state in (RUNNING, RECORDING):
            self._waiting.go_on(partition, lane, now)
