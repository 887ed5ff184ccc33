"""The leases that workers have of the partitions held here: begun by a fact, kept alive by signs of life, ended by another fact.

A lease is *announced* while its fact is being written, *held* once that counts, and gone with the decision that ends it. What is
recorded of a lease outlives its owner: the next one adopts it, and gives it a whole new term.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from scylla_spark.core.engine import action
from scylla_spark.core.engine.bounds import retry_of
from scylla_spark.core.engine.fact_recorder import Recorder
from scylla_spark.core.engine.judging import Judging
from scylla_spark.core.engine.lane import IDLE, OPEN, RUNNING, STUB, Entry, Lane
from scylla_spark.core.engine.leases.worker_session import EndedLease, Lease, WorkerSession, leased_run
from scylla_spark.core.engine.outbox import NEVER, identity_of
from scylla_spark.core.engine.partition import ACTIVE, Partition
from scylla_spark.core.engine.queue import Gates
from scylla_spark.core.engine.runs import Run
from scylla_spark.core.engine.state import EngineState
from scylla_spark.core.engine.waiting import Waiting
from scylla_spark.core.leases.messages import CANCELLED as TASK_CANCELLED
from scylla_spark.core.leases.messages import OK, UNAVAILABLE
from scylla_spark.core.records.command import ENQUEUE, Command
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.task import CANCELLED, STARTED, SUCCEEDED, TIMED_OUT, YIELDED, Failure, Outcome

CONFIRM_US: Final = 2_000_000  # a worker says within this time that it got what it was given
_NEWS_US: Final = 1_000_000  # what a lease tells of itself is recorded so long after, with what is told meanwhile
_LOST_ANSWERS_US: Final = 10_000_000  # a task waits no longer that nobody has begun: it is the network that was away
_DEAF_US: Final = 30_000_000  # no longer than this is waited for what workers may have said
UNKNOWN_QUEUE: Final = ""
"""Of a stub, where the log names none: it goes by the gate of queues without limits, and no fact of it names one."""
_SLACK: Final = 1_024  # marks of ended leases that are kept before they are swept out
_COUNTED: Final = 10_000  # ended leases that wait to be counted
EXPIRED: Final = "lease_expired"
TOO_LONG: Final = "lease_too_long"
UNCONFIRMED: Final = "lease_unconfirmed"
_RAN_OUT: Final = frozenset({EXPIRED, TOO_LONG, UNCONFIRMED})  # kinds of failures of attempts whose worker fell silent
_REMEMBERED: Final = 100_000  # ended leases of which it is known how they ended


class _Waiters(NamedTuple):
    """Who waits for a fact of a partition: sessions, the statuses of their calls, and the places of the reports in these."""

    partition: Partition
    reports: list[tuple[WorkerSession, list[str], int]]


class LeaseBook:
    """All leases of the partitions that are held.

    Args:
        state: of the engine.
        gates: of the queues; a lease takes a slot.
        waiting: where lanes go on.
        recorder: writes starts and checkpoints.
        judging: makes facts of what ends leases.

    Attributes:
        news: sessions to which something has happened since they were looked at last.
        over: leases that ended lately, for who counts them; the newest that fit.
    """

    def __init__(
        self, state: EngineState, gates: Gates, waiting: Waiting, *, recorder: Recorder, judging: Judging
    ) -> None:
        self._state = state
        self._gates = gates
        self._waiting = waiting
        self._recorder = recorder
        self._judging = judging
        self._leases: dict[str, Lease] = {}
        self._of_entry: dict[Entry, Lease] = {}
        self._handed_over: dict[str, Lease] = {}  # digest → lease whose task ends with being handed over, being written
        self._ended: OrderedDict[str, str] = OrderedDict()  # digest → how; the oldest first
        self._reported: dict[str, _Waiters] = {}  # digest → who waits for the fact of its end
        self._deadlines: list[
            tuple[int, int, str]
        ] = []  # (when to look, number, digest); ended leases leave theirs behind
        self._heard_us = 0  # all that workers sent up to then was taken
        self._asks: tuple[int, int] | None = (
            None  # (number, when) of the question whether that is so, until it is answered
        )
        self._owed: dict[Lease, None] = {}  # whose note tells more than was recorded; the oldest first
        self._owed_by_us = NEVER
        self.news: dict[WorkerSession, None] = {}
        self.over: deque[EndedLease] = deque(maxlen=_COUNTED)

    def __len__(self) -> int:
        return len(self._leases)

    def all(self) -> Iterable[Lease]:
        """Every lease, in no order."""
        return self._leases.values()

    def of_queue(self, queue: str) -> list[Lease]:
        """The leases of a queue."""
        return [lease for lease in self._leases.values() if lease.run.invocation.queue == queue]

    def get(self, digest: str) -> Lease | None:
        """The lease whose token has that digest."""
        return self._leases.get(digest)

    def of(self, entry: Entry) -> Lease | None:
        """The lease of a task."""
        return self._of_entry.get(entry)

    def how_ended(self, digest: str) -> str | None:
        """The outcome of a lease that ended lately."""
        return self._ended.get(digest)

    # -- beginning --------------------------------------------------------------------------------------------------------

    def announce(self, lease: Lease, now: int) -> None:
        """A worker is to have a task: the fact of it is written, and when that counts, it is told."""
        run, note = lease.run, lease.note
        lease.number = self._state.next_number()
        self._hold(lease)
        run.gate.begin(run.lane.ordering_id, now)
        if lease.session is not None:
            lease.session.reserved += 1
        if note.lease_ms:
            self._recorder.record(run.partition, self._start_of(lease), now, now)
            return
        self._release(lease)  # it is handed over once, and has ended with that
        self._handed_over[lease.digest] = lease
        self._finish(lease, Outcome(0, SUCCEEDED, now, now), now)

    def _start_of(self, lease: Lease) -> Fact:
        run, note = lease.run, lease.note
        already = run.entry.attempt >= run.invocation.attempt
        fact = Fact(
            run.entry.key,
            run.invocation.attempt,
            STARTED,
            note.since_us,
            planned_us=run.invocation.planned_us,
            used=run.entry.used + (0 if already else 1),
            work=note,
        )
        return fact.of(run.entry.data)  # a next owner may have nothing else to go by, see `load_stubs`

    def _hold(self, lease: Lease) -> None:
        run = lease.run
        if run.lane.state in IDLE:
            run.lane.stamp += 1
            run.lane.active = None
            run.lane.state = RUNNING
        run.lane.take_in(run.entry)
        run.lane.hold(run.entry)
        self._leases[lease.digest] = self._of_entry[run.entry] = lease

    def recorded(self, fact: Fact, now: int) -> None:
        """A fact of a lease counts."""
        digest = fact.work.lease if fact.work is not None else None
        if digest is None:
            return
        lease = self._leases.get(digest) or self._handed_over.pop(digest, None)
        if lease is not None and not lease.held and fact.outcome in (STARTED, SUCCEEDED):
            self._begin(lease, now)
        elif lease is not None and lease in self._owed and self.is_closing(lease):
            self._write(lease, now)
        elif fact.outcome != STARTED:
            self._answer(digest, TASK_CANCELLED if fact.outcome == CANCELLED else OK)

    def _begin(self, lease: Lease, now: int) -> None:
        if lease.note.lease_ms:
            self._set_deadline(lease, now + CONFIRM_US)
        else:
            lease.token = ""
        if lease.session is not None:
            lease.session.granted(lease)
            self.news[lease.session] = None
        lease.held = True

    def adopt(self, partition: Partition, lane: Lane, entry: Entry, now: int) -> None:
        """A task that was loaded may have been leased by an earlier owner: then its worker keeps it for a whole new term."""
        if not entry.leased or entry.stage is not OPEN or entry.cancelled or partition.state is not ACTIVE:
            return
        note = entry.work
        assert note is not None
        assert note.lease is not None
        lease = Lease(self._run_of(partition, lane, entry), note, note.lease, None, None)
        self._hold(lease)
        lease.run.gate.take(lane.ordering_id)
        lease.held = lease.confirmed = True
        self._set_deadline(lease, now + note.lease_ms * 1000)
        self._state.counts["leases_adopted"] += 1

    def _run_of(self, partition: Partition, lane: Lane, entry: Entry) -> Run:
        data = entry.data
        retry = retry_of(data, self._state.policy_of(data))
        return leased_run(partition, lane, entry, entry.attempt, self._gates.of(data.queue), retry)

    def load_stubs(self, partition: Partition, now: int) -> None:
        """Tasks that the log says to be leased, and that are too far back in their lanes to be loaded, block these all the same.

        A stub stands for such a task until that is loaded, which is asked for at once, or the lease is over. Until then it goes by
        what the log says of the task: its queue and its handler.
        """
        for key, tried in list(partition.attempts.items()):
            known = tried.known
            if known.settled or known.work is None or known.work.lease is None:
                continue
            lane = partition.lane(key.ordering_id)
            if lane.find(key) is None:
                data = Command(ENQUEUE, key, STUB, tried.handler, tried.queue or UNKNOWN_QUEUE, tags=tried.tags)
                stub = Entry(data, verified=True, known=known)
                partition.forget_attempt(key)
                stub.cancelled = key in partition.cancelled
                lane.load(stub)
                if lane.frontier is not None:
                    self._waiting.settle(partition, lane, now)

    def overwrite(self, lane: Lane, entry: Entry, command: Command) -> None:
        """A newer enqueue of a task applies from the next attempt on; but a lease of a stub goes by the first that is read."""
        was_stub = entry.data.offset == STUB
        lane.overwrite(entry, command)
        lease = self._of_entry.get(entry) if was_stub else None
        if lease is None:
            return
        old = lease.run
        lease.run = self._run_of(old.partition, old.lane, entry)
        if lease.run.gate is not old.gate:
            self._waiting.let_in(old.gate.end(old.lane.ordering_id))
            lease.run.gate.take(old.lane.ordering_id)

    def deliver(self, lease: Lease, now: int) -> None:
        """A worker is being told of a lease; one without a session is taken at its word that it hears it."""
        if lease.session is not None and not lease.session.name:
            lease.session.held.pop(lease.digest, None)
            lease.session = None
            self.confirm(lease, now)
        elif not lease.confirmed:  # who said so before this answer, which comes again, need not say it once more
            self._set_deadline(lease, now + CONFIRM_US)

    def confirm(self, lease: Lease, now: int) -> None:
        """Its worker has got a lease; from now on it lasts as long as it should."""
        lease.confirmed = True
        lease.extend(now)
        self._set_deadline(lease, lease.deadline_us)

    def join(self, lease: Lease, session: WorkerSession) -> None:
        """A session keeps a lease from now on that was nobody's, or of an earlier session of its worker."""
        if lease.session is not None:
            lease.session.held.pop(lease.digest, None)
        lease.session, lease.confirmed = session, True
        session.held[lease.digest] = lease

    # -- keeping ----------------------------------------------------------------------------------------------------------

    def noted(self, lease: Lease, now: int) -> None:
        """The lease's note tells more than is recorded: that is owed until it is written, or the lease ends with its note."""
        self._owed[lease] = None
        self._owed_by_us = min(self._owed_by_us, now + _NEWS_US)

    def is_closing(self, lease: Lease) -> bool:
        """Returns True if its partition is being left, so that nothing more of it is recorded here but its end."""
        return bool(lease.run.partition.drain_by_us)

    def write_owed(self, now: int) -> None:
        """Records what has been owed for long enough, and with it whatever else is owed."""
        if self._owed_by_us > now:
            return
        for lease in list(self._owed):
            self._write(lease, now)
        self._owed_by_us = now + _NEWS_US if self._owed else NEVER

    def settle(self, partition: Partition, now: int) -> None:
        """The partition is being left: what is owed of it is recorded first."""
        for lease in [lease for lease in self._owed if lease.run.partition is partition]:
            self._write(lease, now)

    def _write(self, lease: Lease, now: int) -> None:
        """Records what is owed of a lease; where an earlier start fact of it does not count yet, that has to come first."""
        partition, fact = lease.run.partition, self._start_of(lease)
        if identity_of(fact) not in partition.outbox.unrecorded:
            del self._owed[lease]
            self._recorder.record(partition, fact, now, now)

    def doubt(self, now: int) -> None:
        """The clock was set: what was reckoned by it is reckoned anew."""
        self._heard_us, self._asks = 0, None
        self._owed_by_us = now if self._owed else NEVER
        for lease in self._leases.values():
            if lease.held:
                self._set_deadline(lease, now + (lease.note.lease_ms * 1000 if lease.confirmed else CONFIRM_US))

    def bear_with(self, now: int) -> None:
        """Workers were cut off: those that were just told of a lease have a whole term to say that they got it."""
        for lease in self._leases.values():
            if lease.held and not lease.confirmed:
                self._set_deadline(lease, now + max(lease.note.lease_ms * 1000, CONFIRM_US))

    def _set_deadline(self, lease: Lease, deadline_us: int) -> None:
        lease.deadline_us = deadline_us
        heappush(self._deadlines, (deadline_us, self._state.next_number(), lease.digest))
        if len(self._deadlines) > 4 * len(self._leases) + _SLACK:
            timed = (lease for lease in self._leases.values() if lease.deadline_us != NEVER)
            self._deadlines = [(lease.deadline_us, self._state.next_number(), lease.digest) for lease in timed]
            heapify(self._deadlines)

    def next_us(self) -> int:
        """Returns when a lease may run out, or something of one is to be recorded."""
        if not self._deadlines:
            return self._owed_by_us
        due_us = self._deadlines[0][0]
        waits = self._asks is not None and self._heard_us < due_us <= self._asks[1]
        return min(self._asks[1] + _DEAF_US if waits and self._asks is not None else due_us, self._owed_by_us)

    def expire(self, now: int) -> None:
        """Leases without a sign of life are over; those that were extended run on.

        That a worker was silent is known when all that had been sent by then was taken: calls may wait in a process of the API that
        had no time for them, or before this one.
        """
        while self._deadlines and self._deadlines[0][0] <= now:
            due_us, _, digest = self._deadlines[0]
            lease = self._leases.get(digest)
            is_over = lease is not None and lease.deadline_us <= due_us
            if is_over and self._heard_us < due_us and self._listens(now, due_us):
                return
            heappop(self._deadlines)
            if lease is not None and is_over:
                self._run_out(lease, now)
            elif lease is not None:
                heappush(self._deadlines, (lease.deadline_us, self._state.next_number(), lease.digest))

    def _listens(self, now: int, due_us: int) -> bool:
        """Returns True if it is to be waited for what workers may have said up to then; asks for it, if it was not asked for yet."""
        if self._asks is None or self._asks[1] < due_us:
            self._asks = self._state.next_number(), now
            self._state.ask(action.Listen(self._asks[0]))
        return now < self._asks[1] + _DEAF_US

    def listened(self, number: int) -> None:
        """All that workers had sent when that question was asked was taken; answers to older questions say nothing new."""
        if self._asks is not None and self._asks[0] == number:
            self._heard_us, self._asks = self._asks[1], None

    def _run_out(self, lease: Lease, now: int) -> None:
        note = lease.note
        if not lease.confirmed:
            said = f"Worker {note.worker!r} did not say that it got the task."
            self.give_back(lease, now, UNCONFIRMED, said, after_us=min(self._wait_us(lease), _LOST_ANSWERS_US))
            return
        over = now >= note.until_us
        said = "kept it as long as is allowed" if over else f"gave no sign of life for {note.lease_ms / 1000:g} s"
        how_far = f" Its last progress was {note.progress:g}." if note.progress is not None else ""
        failure = Failure(TOO_LONG if over else EXPIRED, f"Worker {note.worker!r} {said}.{how_far}")
        self._state.counts["leases_expired"] += 1
        wait_ms = self._wait_us(lease) // 1000
        self.end(lease, Outcome(0, TIMED_OUT, note.since_us, now, failure=failure, wait_ms=wait_ms), now)

    def _wait_us(self, lease: Lease) -> int:
        """Returns how long a task waits whose lease has run out: not at all, but by its policy if that of the attempt before had, too.

        A worker may die of anything, and then its task is not to wait. A task of which one worker after the other dies would be
        the head of its queue again and again, and take them from all others.
        """
        entry = lease.run.entry
        if entry.error is None or entry.error.kind not in _RAN_OUT:
            return 0
        return lease.run.retry.wait_us(entry.used + 1, self._state.rng)

    # -- ending -----------------------------------------------------------------------------------------------------------

    def end(self, lease: Lease, outcome: Outcome, now: int, *, tell: bool = True) -> None:
        """A lease is over; its fact is being written.

        Args:
            lease: that is announced or held.
            outcome: how it ended; its note is put in here.
            now: microseconds since the epoch.
            tell: its session has not ended it itself.
        """
        session = lease.session
        if tell and session is not None and lease.token and session.knows(lease):
            session.lost.append(lease.token)
        self._release(lease)
        if session is not None:
            session.let_go(lease)
            self.news[session] = None
        self._finish(lease, outcome, now)

    def _release(self, lease: Lease) -> None:
        del self._leases[lease.digest]
        del self._of_entry[lease.run.entry]
        self._owed.pop(lease, None)

    def _finish(self, lease: Lease, outcome: Outcome, now: int) -> None:
        run = lease.run
        if lease.confirmed or not lease.note.lease_ms:
            self.over.append(EndedLease(run.invocation, outcome, lease.number > 0))
        self._ended[lease.digest] = outcome.outcome
        if len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)
        run.lane.out -= 1
        self._waiting.let_in(run.gate.end(run.lane.ordering_id))
        outcome = self._judging.as_queue_says(run, outcome._replace(work=lease.note))
        self._judging.decide(run, outcome, now, linger=False)
        self._waiting.go_on(run.partition, run.lane, now)

    def give_back(self, lease: Lease, now: int, code: str, said: str, *, after_us: int = 0) -> None:
        """The task goes to somebody else, as if this lease had never been: it uses up no attempt.

        Args:
            lease: that is announced or held.
            now: microseconds since the epoch.
            code: why, as a stable code.
            said: why, in words.
            after_us: how long it waits first.
        """
        self._state.counts["leases_given_back"] += 1
        ended = Outcome(0, YIELDED, lease.note.since_us, now, failure=Failure(code, said), after_ms=after_us // 1000)
        self.end(lease, ended, now)

    def cancel(self, lease: Lease, requests: tuple[str, ...], now: int) -> None:
        """The task is cancelled: that ends it at once, and its worker hears of it."""
        entry, session = lease.run.entry, lease.session
        entry.cancelled = True
        entry.requests += requests
        if session is not None and lease.token and session.knows(lease):
            session.cancelled.append(lease.token)
        self.end(lease, Outcome(0, CANCELLED, lease.note.since_us, now), now)

    def report(self, lease: Lease, outcome: Outcome, session: WorkerSession, index: int, now: int) -> None:
        """A worker ends a lease; the report with that index in its call is answered once the fact counts."""
        self._reported[lease.digest] = _Waiters(lease.run.partition, [])
        self.wait_too(lease.digest, session, index)
        self.end(lease, outcome, now, tell=False)

    def is_being_reported(self, digest: str) -> bool:
        """Returns True if the fact of a reported end is being written."""
        return digest in self._reported

    def wait_too(self, digest: str, session: WorkerSession, index: int) -> None:
        """A report is answered once the fact of it counts; it may have come before."""
        self._reported[digest].reports.append((session, session.statuses, index))
        session.pending += 1

    def _answer(self, digest: str, status: str) -> None:
        waiters = self._reported.pop(digest, None)
        for session, statuses, index in waiters.reports if waiters is not None else ():
            session.settle(statuses, index, status)
            self.news[session] = None

    def give_up(self, partition: Partition) -> None:
        """The partition is somebody else's: its leases go on there, and whatever is being written nobody here hears of."""
        for lease in [lease for lease in self._leases.values() if lease.run.partition is partition]:
            self._release(lease)
            self._desert(lease)
            self._waiting.let_in(lease.run.gate.end(lease.run.lane.ordering_id))
        for lease in [lease for lease in self._handed_over.values() if lease.run.partition is partition]:
            del self._handed_over[lease.digest]
            self._desert(lease)
        for digest in [digest for digest, waiters in self._reported.items() if waiters.partition is partition]:
            self._ended.pop(digest, None)  # whether it did, the next owner knows
            self._answer(digest, UNAVAILABLE)

    def _desert(self, lease: Lease) -> None:
        if lease.session is not None:
            lease.session.let_go(lease)
            self.news[lease.session] = None
