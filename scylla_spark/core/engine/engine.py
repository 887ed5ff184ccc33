"""The engine: decides what runs when, in which order, and what has become of it.

A pure state machine: every input is a method call with `now`, every effect an action of `take_actions`. It knows no Spark, no
Kafka, no thread and no clock; the shell around it (`services.dispatch.dispatcher`) carries out the actions and reports back.
All inputs are idempotent offers: a record, row or fact may come twice, late or out of order.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from scylla_spark.core.engine import action
from scylla_spark.core.engine.bounds import HandlerPolicy, Limits
from scylla_spark.core.engine.cancels import Cancels
from scylla_spark.core.engine.expiry import Expiry
from scylla_spark.core.engine.expiry_timers import ExpiryTimers
from scylla_spark.core.engine.external_rate_limits import Hold, RateLimits
from scylla_spark.core.engine.fact_recorder import Recorder
from scylla_spark.core.engine.feed import Feed
from scylla_spark.core.engine.follow_ups import FollowUpsOfRuns
from scylla_spark.core.engine.judging import Judging
from scylla_spark.core.engine.lane import Entry
from scylla_spark.core.engine.leases.book import LeaseBook
from scylla_spark.core.engine.leases.leasing import Leasing
from scylla_spark.core.engine.leases.ready_for_workers import PullQueues
from scylla_spark.core.engine.leases.worker_calls import Leases
from scylla_spark.core.engine.leases.worker_session import EndedLease, Lease, WorkerSession
from scylla_spark.core.engine.outbox import NEVER
from scylla_spark.core.engine.outcomes import Outcomes
from scylla_spark.core.engine.own_defects import Defects
from scylla_spark.core.engine.ownership import Ownership
from scylla_spark.core.engine.partition import Partition
from scylla_spark.core.engine.queue import Gate, Gates, QueueLimits
from scylla_spark.core.engine.queue_changes import QueueChanges
from scylla_spark.core.engine.ready import Place, ReadyLanes
from scylla_spark.core.engine.release import Release
from scylla_spark.core.engine.runs import Run, Runs
from scylla_spark.core.engine.shares_of_children import Shares
from scylla_spark.core.engine.state import EngineState
from scylla_spark.core.engine.unique_names import UniqueNames
from scylla_spark.core.engine.unloading import Unloading
from scylla_spark.core.engine.waiting import Waiting
from scylla_spark.core.leases.messages import Call, Scarcity
from scylla_spark.core.records.command import Command
from scylla_spark.core.records.fact import Fence, OutcomeRecord, Unreadable
from scylla_spark.core.tables.progress import Basis, Mark, Tenure
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.handler_durations import HandlerDurations
from scylla_spark.core.tasks.key import Name, TaskKey
from scylla_spark.core.tasks.output import OutputLink
from scylla_spark.core.tasks.state import NO_HANDLER
from scylla_spark.core.tasks.stored_records import Bearer, Known, ScanRow
from scylla_spark.core.tasks.task import Failure, Outcome


class Engine:
    """All lanes of the partitions that this process owns: every input, and the part that decides on it.

    Args:
        policy_of: how a command's handler wants to be run.
        limits: bounds.
        rng: source of back-off jitter and nonces.
        queues: limits of queues by name; others have none.
    """

    def __init__(
        self,
        policy_of: Callable[[Command], HandlerPolicy],
        limits: Limits,
        rng: random.Random,
        queues: Mapping[str, QueueLimits] | None = None,
    ) -> None:
        self._ticked_us = 0  # what was to be done by then has had its turn
        state = EngineState(policy_of, limits, rng)
        gates = Gates(queues or {})
        ready, pulls = ReadyLanes(gates), PullQueues(gates)
        expiries = ExpiryTimers(state)
        rates = RateLimits(state)
        waiting = Waiting(state, gates, ready, pulls, expiries=expiries, rates=rates)
        recorder = Recorder(state)
        judging = Judging(state, recorder, rates)
        book = LeaseBook(state, gates, waiting, recorder=recorder, judging=judging)
        defects = Defects(state, waiting, recorder)
        durations = HandlerDurations()
        shares = Shares(durations)
        runs = Runs(state, waiting, recorder, shares)
        names = UniqueNames(state, waiting, recorder)
        cancels = Cancels(state, waiting, recorder, book, runs, names)
        ownership = Ownership(state, gates, waiting, cancels, runs, book, names, rates)
        unloading = Unloading(state, gates, waiting, rates)
        release = Release(
            state,
            ready,
            waiting=waiting,
            cancels=cancels,
            runs=runs,
            recorder=recorder,
            defects=defects,
            rates=rates,
            shares=shares,
            durations=durations,
        )
        self._state, self._gates, self._ready, self._pulls, self._waiting = state, gates, ready, pulls, waiting
        self._recorder, self._defects, self._cancels, self._runs = recorder, defects, cancels, runs
        self._names, self._rates, self._shares = names, rates, shares
        self._ownership, self._unloading, self._release = ownership, unloading, release
        self._expiries, self._expiry = expiries, Expiry(state, expiries, cancels, defects)
        self._leasing = Leasing(state, gates, pulls, waiting=waiting, cancels=cancels, book=book, rates=rates)
        self._book, self._leases = book, Leases(state, book, self._leasing)
        self._queue_changes = QueueChanges(state, gates, ready, pulls, waiting=waiting, runs=runs, book=book)
        self._feed = Feed(
            state,
            waiting=waiting,
            cancels=cancels,
            ownership=ownership,
            unloading=unloading,
            defects=defects,
            book=book,
            names=names,
        )
        self._outcomes = Outcomes(
            state,
            waiting=waiting,
            runs=runs,
            judging=judging,
            follow_ups=FollowUpsOfRuns(state, runs, recorder),
            book=book,
            ownership=ownership,
            defects=defects,
            durations=durations,
            names=names,
        )

    # -- time -------------------------------------------------------------------------------------------------------------

    def tick(self, now: int, room: Mapping[str, int], *, start_by_us: int) -> None:
        """Releases what is due, as far as the executors have room and membership is certain, and sends what was decided.

        Args:
            now: microseconds since the epoch.
            room: executor → how many more calls it wants.
            start_by_us: boot clock until which membership is certain; 0: it is not.
        """
        self._ticked_us = now
        self._waiting.fire(now)
        if self._unloading.choked or self._unloading.pressed:
            self._unloading.relieve(now)
        self._expiry.end_due(now)
        self._release.readmit(now)
        for partition in list(self._state.partitions.values()):
            self._ownership.leave_if_drained(partition, now)
        if start_by_us:
            for executor in self._ready.executors():
                most = 0 if executor == NO_HANDLER else room.get(executor, NEVER)
                self._release.release(executor, most, now, start_by_us=start_by_us)
        self._leases.tick(now, may_start=start_by_us > 0)
        self._recorder.flush(now)

    def next_wake(self) -> int:
        """Returns when `tick` has something to do next, microseconds since the epoch; a far instant if nothing is planned."""
        return min(
            self._expiries.next_us(),
            self._ready.next_us(self._ticked_us),
            self._recorder.next_us(),
            self._runs.next_look_us(),
            self._leases.next_us(self._ticked_us),
            self._waiting.next_us(),  # last, since the others may have let go of what was not to start any more
        )

    def take_actions(self) -> list[action.Action]:
        """Returns what the shell is asked to do since the last time, in order."""
        return self._state.take_actions()

    # -- partitions -------------------------------------------------------------------------------------------------------

    def assign(self, number: int, mark: Mark, now: int) -> Tenure:
        """The group gave us a partition; see `Ownership.assign`."""
        return self._ownership.assign(number, mark, now)

    def noted_end(self, tenure: Tenure, outcomes_end: int, now: int) -> None:
        """Where `outcomes` ended at the assignment; see `Ownership.noted_end`."""
        self._ownership.noted_end(tenure, outcomes_end, now)

    def confirmed(self, tenure: Tenure, fence: Fence, tasks_end: int, now: int) -> None:
        """The answer to `Confirm`; see `Ownership.confirmed`."""
        self._ownership.confirmed(tenure, fence, tasks_end, now)

    def revoke(self, number: int, now: int) -> None:
        """The group takes a partition away; see `Ownership.revoke`."""
        self._ownership.revoke(number, now)

    def drop(self, number: int) -> None:
        """A partition is somebody else's already; see `Ownership.drop`."""
        self._ownership.drop(number)

    def doubt(self, now: int) -> None:
        """Something is amiss, such as a step of the clock; see `Ownership.doubt`."""
        self._ownership.doubt(now)

    def fence_again(self, tenure: Tenure, fence: Fence, now: int) -> None:
        """A fence is not to count; see `Ownership.fence_again`."""
        self._ownership.fence_again(tenure, fence, now)

    # -- queues -----------------------------------------------------------------------------------------------------------

    def put_queue(self, queue: str, limits: QueueLimits | None, _now: int) -> None:
        """The limits of a queue have changed; see `QueueChanges.put`."""
        self._queue_changes.put(queue, limits)

    def reconsider(self, queue: str, now: int) -> None:
        """Who runs tasks of a queue has changed, as `policy_of` says; see `QueueChanges.reconsider`."""
        self._queue_changes.reconsider(queue, now)

    # -- the two feeds, and answers of the tables -------------------------------------------------------------------------

    def commands(self, tenure: Tenure, commands: Iterable[Command], next_offset: int, now: int) -> None:
        """Records of `tasks`; see `Feed.commands`."""
        self._feed.commands(tenure, commands, next_offset, now)

    def raise_horizon(self, tenure: Tenure, until_us: int) -> int:
        """A scan is about to be made; see `Feed.raise_horizon`."""
        return self._feed.raise_horizon(tenure, until_us)

    def rows(self, tenure: Tenure, rows: Iterable[ScanRow], basis: Basis, now: int, *, whole: bool = True) -> None:
        """Part of a scan; see `Feed.rows`."""
        self._feed.rows(tenure, rows, basis, now, whole=whole)

    def scanned(
        self,
        tenure: Tenure,
        until_us: int,
        cuts: Mapping[str, TaskKey],
        mark: Mark,
        now: int,
        unloaded: frozenset[int] | None = None,
    ) -> bool:
        """A scan is complete; see `Feed.scanned`."""
        return self._feed.scanned(tenure, until_us, cuts, mark, now, unloaded)

    def reloaded(
        self,
        tenure: Tenure,
        ordering_id: str,
        rows: Sequence[ScanRow],
        basis: Basis,
        now: int,
        *,
        more: bool,
        last: bool = True,
    ) -> None:
        """The answer to `Reload`; see `Feed.reloaded`."""
        self._feed.reloaded(tenure, ordering_id, rows, basis, now, more=more, last=last)

    def remember_cancelled(self, tenure: Tenure, keys: Iterable[TaskKey]) -> None:
        """Cancelled keys of the tables; see `Cancels.remember_cancelled`."""
        self._cancels.remember_cancelled(tenure, keys)

    def looked_up(self, tenure: Tenure, answers: Mapping[TaskKey, Known], basis: Basis, now: int) -> None:
        """The answer to `Lookup`; see `Cancels.looked_up`."""
        self._cancels.looked_up(tenure, answers, basis, now)

    def named(
        self, tenure: Tenure, names: Collection[Name] | None, found: Sequence[Bearer], basis: Basis, now: int
    ) -> None:
        """The answer to `AskNames`; see `UniqueNames.answered`."""
        self._names.answered(tenure, names, found, basis, now)

    # -- workers ----------------------------------------------------------------------------------------------------------

    def call(self, call: Call, now: int, *, certain: bool) -> None:
        """A worker calls; see `Leases.call`."""
        self._leases.call(call, now, certain=certain)

    def hurry(self, numbers: Iterable[int], now: int) -> None:
        """These calls are to be answered now; see `Leases.hurry`."""
        self._leases.hurry(numbers, now)

    def hang_up(self, numbers: Iterable[int]) -> None:
        """Nobody hears the answers to these calls; see `Leases.hang_up`."""
        self._leases.hang_up(numbers)

    def cut_off(self, now: int) -> None:
        """A process of the API is gone, with all that it was about to tell workers and to hear of them."""
        self._book.bear_with(now)

    def listened(self, number: int) -> None:
        """The answer to `Listen`; see `LeaseBook.listened`."""
        self._book.listened(number)

    def order(self, worker: str, order: str) -> bool:
        """A worker is to drain or to stop; see `Leases.order`."""
        return self._leases.order(worker, order)

    def leave(self, worker: str, session: str, now: int) -> int:
        """A session of a worker ends; see `Leases.leave`."""
        return self._leases.leave(worker, session, now)

    def lease_output(self, token: str, link: OutputLink | None, now: int) -> dict[str, Any] | str:
        """An attempt leaves a file behind; see `LeaseReports.output`."""
        return self._leases.output(token, link, now)

    # -- runs, and the log of outcomes ------------------------------------------------------------------------------------

    def handed(self, ids: Iterable[int], now: int) -> None:
        """Invocations were handed to an executor; see `Runs.handed`."""
        self._runs.handed(ids, now)

    def asks_who_runs(self, now: int) -> bool:
        """Returns True if `running` is to be told: something was handed over longer than a second ago and has no start fact."""
        return self._runs.next_look_us() <= now

    def running(self, began_us: Mapping[int, int], now: int) -> None:
        """What executors have begun; see `Runs.running`."""
        self._runs.running(began_us, now)

    def noted(self, notes: Mapping[int, WorkNote], began_us: Mapping[int, int], now: int) -> None:
        """What handlers say of their work; see `Runs.noted`."""
        self._runs.noted(notes, began_us, now)

    def finished(self, outcomes: Iterable[Outcome], now: int) -> None:
        """What executors report; see `Outcomes.finished`."""
        self._outcomes.finished(outcomes, now)

    def followed_up(self, number: int, failure: Failure | None, now: int) -> None:
        """The answer to `SendFollowUps`; see `Outcomes.followed_up`."""
        self._outcomes.followed_up(number, failure, now)

    def sent(self, tenure: Tenure, fence: Fence, *, ok: bool, now: int) -> None:
        """The answer to `Send` or `SendFence`; see `Ownership.sent`."""
        self._ownership.sent(tenure, fence, ok=ok, now=now)

    def outcome_records(
        self, tenure: Tenure, records: Iterable[tuple[int, OutcomeRecord | Unreadable]], next_offset: int, now: int
    ) -> None:
        """Records of `outcomes`; see `Outcomes.read`."""
        self._outcomes.read(tenure, records, next_offset, now)

    def landed(self, tenure: Tenure, offset: int, record: OutcomeRecord, now: int) -> None:
        """Where a record of `Send` stands; see `Outcomes.landed`."""
        self._outcomes.landed(tenure, offset, record, now)

    def has_read(self, tenure: Tenure, next_offset: int) -> bool:
        """Returns True if `outcomes` was read up to there, or nobody here needs it any more. Any thread may ask."""
        partition = self._state.held(tenure)
        return partition is None or partition.outcomes_position >= next_offset

    def flush(self, now: int) -> None:
        """Sends what was decided; see `Recorder.flush`."""
        self._recorder.flush(now)

    # -- what can be seen -------------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Returns where this process serves its state; stands in its fences."""
        return self._ownership.address

    @address.setter
    def address(self, address: str) -> None:
        self._ownership.address = address

    @property
    def limits(self) -> Limits:
        """The bounds."""
        return self._state.limits

    @property
    def partitions(self) -> Mapping[int, Partition]:
        """The partitions that are held, or being taken or left, by number."""
        return self._state.partitions

    @property
    def leases(self) -> Iterable[Lease]:
        """Returns what workers have."""
        return self._book.all()

    def ended_leases(self) -> list[EndedLease]:
        """The leases that have ended since the last call, as far as they are kept."""
        found = list(self._book.over)
        self._book.over.clear()
        return found

    def due(self) -> Iterator[Place]:
        """The lanes whose head is due and waits for an executor or a worker, in no order."""
        yield from (place for place in self._ready.places() if not place.void)
        yield from self._pulls.places()

    def lease_of(self, entry: Entry) -> Lease | None:
        """The lease of a task."""
        return self._book.of(entry)

    @property
    def sessions(self) -> Iterable[WorkerSession]:
        """The workers that have called."""
        return self._leases.sessions

    def scarcity(self, queue: str, now: int) -> Scarcity:
        """Returns what a queue has for workers here."""
        return self._leasing.scarcity(queue, now)

    @property
    def runs(self) -> Mapping[int, Run]:
        """Returns what executors have, by invocation id."""
        return self._runs.by_id

    @property
    def counts(self) -> Counter[str]:
        """Events since the start by name, for metrics."""
        return self._state.counts

    @property
    def held_bytes(self) -> int:
        """Returns how much all partitions hold in memory, about."""
        return self._state.meter.bytes

    @property
    def choked(self) -> bool:
        """So much is held, and is about to start, that the tail should wait. Any thread may ask."""
        return self._unloading.choked

    def held(self, tenure: Tenure) -> Partition | None:
        """The partition, if it is still held as it was then."""
        return self._state.held(tenure)

    def policy(self, command: Command) -> HandlerPolicy:
        """Returns how a task is run here, by its handler and its queue."""
        return self._state.policy_of(command)

    def executor_of(self, command: Command) -> str:
        """The name of what runs a task; see `Waiting.executor_of`."""
        return self._waiting.executor_of(command)

    def leaves_children(self, command: Command) -> bool:
        """Returns True if the queue of a task holds all children that it may, so that the task leaves the free ones to other queues."""
        return self._shares.refuses(command, self.policy(command), self.gate(command.queue))

    def held_children(self, executor: str) -> dict[str, int]:
        """Queue → children of an executor that its tasks hold, those of quick handlers apart."""
        return self._shares.held(executor)

    @property
    def full_shares(self) -> Iterable[tuple[str, str]]:
        """Executors and queues of which tasks hold all children that they may."""
        return self._shares.full

    def waiting_for(self, executor: str) -> Iterator[Place]:
        """The lanes whose head is due and waits for an executor, in no order; NO_HANDLER: those that nothing here runs."""
        return self._ready.of(executor)

    def gate(self, queue: str) -> Gate:
        """Returns what may start of a queue here."""
        return self._gates.of(queue)

    def rate_limit(self, command: Command, now: int) -> Hold | None:
        """The rate limit that a task has to wait for; None: none."""
        return self._rates.of(command, now)

    def held_up(self, partition: Partition) -> str:
        """Returns why nothing of a partition starts now, whatever its queue; nothing if it may."""
        return self._release.held_up(partition)

    def take_defects(self) -> list[tuple[TaskKey, Exception]]:
        """Defects of ours that were met since the last time, with the task that each has ended."""
        return self._defects.take()
