"""Calls of workers: what they report is judged, what they want is leased to them, and each call is answered once.

A lease is a fact before it is an answer. A call is answered when all that it reported stands in the log, and there is something to
give, something to tell, or no more time to wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final

from scylla_spark.core.engine import action
from scylla_spark.core.engine.bounds import LEASED, retry_of
from scylla_spark.core.engine.cancels import Cancels
from scylla_spark.core.engine.lane import LOOKUP, RECORDING, Entry
from scylla_spark.core.engine.lease_book import LeaseBook
from scylla_spark.core.engine.outbox import NEVER
from scylla_spark.core.engine.partition import ACTIVE, Partition
from scylla_spark.core.engine.pull_queue import PullPlace, PullQueues
from scylla_spark.core.engine.queue import Gate, Gates
from scylla_spark.core.engine.runs import Run
from scylla_spark.core.engine.state import EngineState
from scylla_spark.core.engine.waiting import Waiting
from scylla_spark.core.engine.worker_session import NOTHING_TOLD, Lease, WorkerSession
from scylla_spark.core.key import place_of
from scylla_spark.core.lease import (
    CANCELLED,
    ENDED,
    FOREIGN,
    LOST,
    OK,
    UNAVAILABLE,
    Answer,
    Call,
    Granted,
    Report,
    Scarcity,
    Sign,
    Want,
    digest_of_token,
    folded,
    new_token,
    partition_of_token,
)
from scylla_spark.core.task import ABORTED, FAILED, SUCCEEDED, YIELDED, Invocation, Outcome
from scylla_spark.core.task import CANCELLED as TASK_CANCELLED
from scylla_spark.core.work_note import WorkNote

SUPERSEDED: Final = "superseded"  # the session has called again
REPLACED: Final = "worker_replaced"  # another session calls itself by this worker's name
OUT_OF_ORDER: Final = "sequence_out_of_order"
MOST_ANSWER_BYTES: Final = 8 * 1024 * 1024  # of the payloads of one answer
_FORGET_US: Final = 600_000_000  # a session that holds nothing and does not call is forgotten after this
_ENDED_BY_REPORT: Final = frozenset({SUCCEEDED, FAILED, ABORTED, YIELDED})


class _Demand:
    """A want of a call that waits, and how many leases it has got."""

    __slots__ = ("got", "session", "want")

    def __init__(self, session: WorkerSession, want: Want) -> None:
        self.session = session
        self.want = want
        self.got = 0


class Leases:
    """What workers ask for, and what they are told.

    Args:
        state: of the engine.
        gates: of the queues.
        pulls: lanes that wait for a worker.
        waiting: where lanes go back to.
        cancels: ends cancelled heads.
        book: of leases.
    """

    def __init__(
        self,
        state: EngineState,
        gates: Gates,
        pulls: PullQueues,
        *,
        waiting: Waiting,
        cancels: Cancels,
        book: LeaseBook,
    ) -> None:
        self._state = state
        self._gates = gates
        self._pulls = pulls
        self._waiting = waiting
        self._cancels = cancels
        self._book = book
        self._sessions: dict[str, WorkerSession] = {}  # worker → its newest session
        self._replaced: dict[str, list[str]] = {}  # worker → names of its earlier sessions, the newest last
        self._demand: dict[str, dict[int, _Demand]] = {}  # queue → number of a want → it; the first first
        self._asked: dict[int, _Demand] = {}  # wants of one task by its key
        self._calls: dict[int, WorkerSession] = {}  # number of a call that waits → whose
        self._until: list[tuple[int, int]] = []  # (when a call is to be answered, its number)
        self._new: list[WorkerSession] = []  # called since the queues were looked at

    @property
    def sessions(self) -> Iterable[WorkerSession]:
        """The newest session of every worker."""
        return self._sessions.values()

    # -- calls ------------------------------------------------------------------------------------------------------------

    def call(self, call: Call, now: int, *, certain: bool) -> None:
        """A worker calls; `action.Answered` follows, once.

        Args:
            call: with all that it reports and wants.
            now: microseconds since the epoch.
            certain: that the partitions are ours still; else a worker would be told to hold what another owner has given away.
        """
        session = self._session_of(call) if certain else UNAVAILABLE
        if isinstance(session, str):
            self._state.ask(action.Answered(Answer(call.number, refusal=session)))
            return
        session.seen_us = now
        self._refuse(session, SUPERSEDED)
        if session.name and call.sequence == session.sequence:
            session.ask_again()  # the answer may have been lost: it is given again, as far as it still holds
        else:
            self._confirm(session, now)
        self._begin(session, call, now)
        self._answer_if_done(session, now)

    def _session_of(self, call: Call) -> WorkerSession | str:
        """The session of a call, made if it is new; or why it may not call."""
        if not call.session:
            return WorkerSession(call.worker, "")
        known = self._sessions.get(call.worker)
        if known is not None and known.name == call.session:
            return known if call.sequence >= known.sequence else OUT_OF_ORDER
        replaced = self._replaced.get(call.worker, [])
        if call.session in replaced:
            return REPLACED
        if known is not None:
            self._replaced[call.worker] = [*replaced[-7:], known.name]
            self._refuse(known, REPLACED)
        session = self._sessions[call.worker] = WorkerSession(call.worker, call.session)
        return session

    def _confirm(self, session: WorkerSession, now: int) -> None:
        """With its next call a session says that it got what the last answer told."""
        for lease in session.given:
            if self._book.get(lease.digest) is lease:
                self._book.confirm(lease, now)
        session.given, session.told = [], NOTHING_TOLD

    def _begin(self, session: WorkerSession, call: Call, now: int) -> None:
        session.sequence, session.pending = call.sequence, 0
        if call.about is not None:
            session.about = call.about
        for lease in session.held.values():
            if lease.confirmed:
                lease.extend(now)
        session.statuses = [OK] * (len(call.reports) + len(call.signs))
        self._wait(session, call)
        for index, report in enumerate(call.reports):
            session.statuses[index] = self._report(session, index, report, now)
        for index, sign in enumerate(call.signs, len(call.reports)):
            session.statuses[index] = self._sign(session, sign, now)
        if call.held is not None:
            self._compare(session, call.held, now)

    def _wait(self, session: WorkerSession, call: Call) -> None:
        session.call, session.looked = call, False
        self._calls[call.number] = session
        heappush(self._until, (call.until_us, call.number))
        coming = session.reserved + len(session.fresh)  # asked for by a call that this one takes the place of
        for want in call.wants:
            number, demand = self._state.next_number(), _Demand(session, want)
            demand.got = min(coming, want.most)
            coming -= demand.got
            if want.key is not None:
                self._asked[number] = demand
            else:
                self._demand.setdefault(want.queue, {})[number] = demand
        self._new.append(session)

    def hang_up(self, numbers: Iterable[int]) -> None:
        """Nobody hears the answers to these calls any more; what was leased for them is given back when it is not confirmed."""
        for number in numbers:
            session = self._calls.get(number)
            if session is not None:
                self._forget_call(session)

    def _refuse(self, session: WorkerSession, refusal: str) -> None:
        """The call that waits gets no other answer."""
        call = session.call
        if call is not None:
            self._forget_call(session)
            self._state.ask(action.Answered(Answer(call.number, refusal=refusal)))

    def _forget_call(self, session: WorkerSession) -> None:
        call = session.call
        if call is None:
            return
        session.call = None
        del self._calls[call.number]
        for want in call.wants:
            demands = self._asked if want.key is not None else self._demand.get(want.queue, {})
            for number in [number for number, demand in demands.items() if demand.session is session]:
                del demands[number]
            if want.key is None and not demands:
                self._demand.pop(want.queue, None)

    # -- what is reported -------------------------------------------------------------------------------------------------

    def _report(self, session: WorkerSession, index: int, report: Report, now: int) -> str:
        """Ends a lease, or says why not; the answer is given once the fact of it counts."""
        lease = self._found(session, report.token)
        if isinstance(lease, str):
            return self._again(session, index, report, lease)
        note = lease.note
        lease.note = note._replace(
            progress=1.0 if report.outcome == SUCCEEDED else note.progress,
            checkpoint=report.checkpoint if report.checkpoint is not None else note.checkpoint,
            metrics=report.metrics if report.metrics is not None else note.metrics,
        )
        yielded = report.outcome == YIELDED
        outcome = Outcome(
            0, report.outcome, note.since_us, now, report.result, report.failure,
            after_ms=(report.after_ms or 0) if yielded else 0, wait_ms=report.after_ms,
        )  # fmt: skip
        self._book.report(lease, outcome, session, index, now)
        return OK

    def _again(self, session: WorkerSession, index: int, report: Report, refusal: str) -> str:
        """What a report is told of a lease that is not held: the same that was reported before is right."""
        digest = digest_of_token(report.token)
        ended = self._book.how_ended(digest)
        if refusal == FOREIGN or ended is None:
            return refusal
        if ended == report.outcome:
            if self._book.is_being_reported(digest):
                self._book.wait_too(digest, session, index)
            return OK
        if ended in _ENDED_BY_REPORT:
            return ENDED
        return CANCELLED if ended == TASK_CANCELLED else refusal

    def _found(self, session: WorkerSession, token: str) -> Lease | str:
        """The lease, if the caller may speak for it; else why not."""
        lease = self._book.get(digest_of_token(token))
        if lease is None or not lease.held:
            return LOST if self._is_known(token) else UNAVAILABLE
        return FOREIGN if session.worker and lease.note.worker != session.worker else lease

    def _is_known(self, token: str) -> bool:
        """Whether all leases of the token's partition are known here; while it is taken they are still being read."""
        number = partition_of_token(token)
        if number is None or number >= self._state.limits.partitions:
            return True  # it never was a lease
        partition = self._state.partitions.get(number)
        return partition is not None and partition.state is ACTIVE

    def _sign(self, session: WorkerSession, sign: Sign, now: int) -> str:
        digest = digest_of_token(sign.token)
        lease = self._found(session, sign.token)
        if isinstance(lease, str):
            return CANCELLED if self._book.how_ended(digest) == TASK_CANCELLED else lease
        lease.token = sign.token
        self._keep(session, lease, now)
        if sign.progress is not None:
            lease.note = lease.note._replace(progress=sign.progress)
        if sign.checkpoint is not None and sign.checkpoint != lease.note.checkpoint:
            lease.note = lease.note._replace(checkpoint=sign.checkpoint)
            self._book.checkpoint(lease, now)
        return OK

    def _keep(self, session: WorkerSession, lease: Lease, now: int) -> None:
        """A lease has shown a sign of life; one of an earlier owner, or of a replaced session, joins the session that shows it."""
        if session.name and lease.session is not session:
            self._book.join(lease, session)
        lease.extend(now)

    def _compare(self, session: WorkerSession, tokens: tuple[str, ...], now: int) -> None:
        """A session lists all that it takes for its own: what is not, is lost; what it does not know, goes to others."""
        said: set[str] = set()
        for token in tokens:
            digest = digest_of_token(token)
            said.add(digest)
            lease = self._found(session, token)
            if not isinstance(lease, str):
                lease.token = token
                self._keep(session, lease, now)
            elif self._book.how_ended(digest) == TASK_CANCELLED:
                session.cancelled.append(token)
            elif lease != UNAVAILABLE:
                session.lost.append(token)
        for lease in list(session.held.values()):
            if lease.digest not in said and lease.confirmed:
                self._book.give_back(
                    lease, now, "lease_forgotten", f"Worker {session.worker!r} did not know of its lease."
                )

    def leave(self, worker: str, name: str, now: int) -> int:
        """A session ends: all that it holds is given back; how much that was."""
        session = self._sessions.get(worker)
        if session is None or session.name != name:
            return 0
        leases = list(session.held.values())
        for lease in leases:
            self._book.give_back(lease, now, "worker_left", f"Worker {worker!r} left.")
        self._refuse(session, SUPERSEDED)
        del self._sessions[worker]
        self._replaced.pop(worker, None)
        return len(leases)

    # -- time -------------------------------------------------------------------------------------------------------------

    def tick(self, now: int, *, may_start: bool) -> None:
        """Leases what is wanted and there, and answers whoever need not wait any longer.

        Args:
            now: microseconds since the epoch.
            may_start: membership is certain.
        """
        self._book.expire(now)
        if may_start:
            for name in list(self._demand):
                self._serve(name, now)
            for demand in list(self._asked.values()):
                self._serve_key(demand, now)
        new, self._new = self._new, []
        for session in new:
            session.looked = True
        while self._until and (self._until[0][0] <= now or self._until[0][1] not in self._calls):
            whose = self._calls.get(heappop(self._until)[1])
            if whose is not None:
                new.append(whose)
        news, self._book.news = self._book.news, {}
        for session in dict.fromkeys(new) | news:
            self._answer_if_done(session, now)

    def next_us(self) -> int:
        """When `tick` has something to do next."""
        while self._until and self._until[0][1] not in self._calls:
            heappop(self._until)
        if self._new or self._book.news:
            return 0
        opens = [
            at
            for name in self._demand
            if self._pulls.get(name) is not None and (at := self._gates.of(name).opens_us()) is not None
        ]
        return min(self._until[0][0] if self._until else NEVER, self._book.next_us(), *opens, NEVER)

    # -- leasing ----------------------------------------------------------------------------------------------------------

    def _serve(self, name: str, now: int) -> None:
        """Leases what waits in a queue to those who want it, the first first."""
        pull, gate = self._pulls.get(name), self._gates.of(name)
        if pull is None or not gate.is_open(now):
            return
        for demand in list(self._demand[name].values()):
            while demand.got < demand.want.most and demand.session.bytes < MOST_ANSWER_BYTES and gate.is_open(now):
                place = pull.pop(demand.want.handlers)
                if place is None:
                    break
                self._try(demand, place, gate, now)
            if not pull.size or not gate.is_open(now):
                break
        self._pulls.forget_if_empty(name)

    def _serve_key(self, demand: _Demand, now: int) -> None:
        """Leases the one task that is asked for, if it is the head of its lane and due."""
        key = demand.want.key
        assert key is not None
        partition = self._state.partitions.get(place_of(key.ordering_id, self._state.limits.partitions))
        lane = partition.lanes.get(key.ordering_id) if partition is not None else None
        if demand.got or partition is None or lane is None or lane.active is None or lane.active.key != key:
            return
        gate = self._gates.of(lane.active.data.queue)
        if gate.is_open(now) and self._waiting.executor_of(lane.active.data) == LEASED:
            self._try(demand, PullPlace(0, 0, 0, lane.stamp, partition, lane), gate, now)

    def _try(self, demand: _Demand, place: PullPlace, gate: Gate, now: int) -> None:
        """Leases the head of a lane, unless something else has to come first."""
        partition, lane = place.partition, place.lane
        head = lane.active
        if place.void or head is None:
            return
        if not gate.admits(partition, lane):
            return  # it waits for a slot of its group
        retry = retry_of(head.data, self._state.policy_of(head.data))
        if partition.backed_up(self._state.limits):
            partition.overflow.append((place.stamp, lane))
        elif not head.verified and not partition.is_fresh(head.key):
            lane.state = LOOKUP
            self._state.ask(action.Lookup(partition.tenure, [head.key]))
        elif head.cancelled or not retry.allows(head.used):
            lane.state = RECORDING
            self._cancels.end_unrun(partition, head, now)
        else:
            partition.reassure(lane)
            self._lease(demand, Run(partition, lane, head, _invocation(partition, head), LEASED, gate, retry), now)
            return
        self._waiting.let_in(gate.instead(lane.ordering_id))

    def _lease(self, demand: _Demand, run: Run, now: int) -> None:
        """A worker gets a task, once the fact of it counts."""
        limits, session, want, work = run.gate.limits, demand.session, demand.want, run.entry.work
        token = new_token(run.partition.number, self._state.rng)
        lease_ms = limits.lease_ms if want.lease_ms is None else want.lease_ms
        note = WorkNote(
            session.worker or None, digest_of_token(token), lease_ms, now, now + limits.max_run_ms * 1000,
            checkpoint=work.checkpoint if work is not None else None,
        )  # fmt: skip
        demand.got += 1
        session.bytes += len(run.invocation.payload)
        self._state.counts["leases"] += 1
        self._book.announce(Lease(run, note, digest_of_token(token), token, session), now)

    # -- answers ----------------------------------------------------------------------------------------------------------

    def _answer_if_done(self, session: WorkerSession, now: int) -> None:
        call = session.call
        if call is None or session.pending or session.reserved or not (session.looked or not call.wants):
            return
        told = session.fresh or session.lost or session.cancelled or call.reports or set(session.statuses) - {OK}
        if not (told or now >= call.until_us or not call.wants):
            return
        session.tell()
        self._forget_call(session)
        self._state.ask(action.Answered(self._answer(session, call)))
        for lease in session.given:
            if lease.token:
                self._book.deliver(lease, now)

    def _answer(self, session: WorkerSession, call: Call) -> Answer:
        leases = [
            _granted(lease) for lease in session.given if not lease.token or self._book.get(lease.digest) is lease
        ]
        held = [lease.token for lease in session.held.values() if lease.token]
        queues = dict.fromkeys(want.queue for want in call.wants)
        return Answer(
            call.number, tuple(session.statuses), tuple(leases), session.told.lost, session.told.cancelled, len(session.held),
            folded(held), tuple(map(self.scarcity, queues)),
        )  # fmt: skip

    def scarcity(self, name: str) -> Scarcity:
        """What a queue has for workers here."""
        pull = self._pulls.get(name)
        if pull is None:
            return Scarcity(name, 0, None, "")
        return Scarcity(name, pull.size, pull.oldest_us(), self._gates.of(name).why(""))

    def forget_idle(self, now: int) -> None:
        """Sessions that hold nothing and have not called for long are forgotten."""
        for worker, session in list(self._sessions.items()):
            if (
                session.call is None
                and not session.held
                and not session.reserved
                and now - session.seen_us > _FORGET_US
            ):
                del self._sessions[worker]
                self._replaced.pop(worker, None)


def _invocation(partition: Partition, head: Entry) -> Invocation:
    data, mine = head.data, partition.mine
    assert mine is not None
    return Invocation(
        0,
        head.key,
        head.attempt + 1,
        mine.epoch,
        data.handler or "",
        data.queue,
        data.payload,
        data.priority,
        head.next_us,
        0,
    )


def _granted(lease: Lease) -> Granted:
    invocation, note = lease.run.invocation, lease.note
    return Granted(
        lease.token or "", invocation.key, invocation.attempt, invocation.epoch, invocation.handler or None, invocation.queue,
        invocation.payload, invocation.priority, invocation.planned_us, note.lease_ms, note.until_us, note.checkpoint,
    )  # fmt: skip
