"""Calls of workers: what they report is judged, what they want is leased to them, and each call is answered once.

A lease is a fact before it is an answer. A call is answered when all that it reported stands in the log, and there is something to
give, something to tell, or no more time to wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from typing import Any, Final

from scylla_spark.core.engine import action
from scylla_spark.core.engine.leases.book import LeaseBook
from scylla_spark.core.engine.leases.leasing import Leasing
from scylla_spark.core.engine.leases.repeated_calls import Requests
from scylla_spark.core.engine.leases.reports import LeaseReports
from scylla_spark.core.engine.leases.worker_session import NOTHING_TOLD, Lease, WorkerSession
from scylla_spark.core.engine.outbox import NEVER
from scylla_spark.core.engine.state import EngineState
from scylla_spark.core.leases.messages import OK, STOP, UNAVAILABLE, Answer, Call, Granted, folded
from scylla_spark.core.tasks.output import OutputLink

SUPERSEDED: Final = "superseded"  # the session has called again
REPLACED: Final = "worker_replaced"  # another session calls itself by this worker's name
OUT_OF_ORDER: Final = "sequence_out_of_order"
_FORGET_US: Final = 600_000_000  # a session that holds nothing and does not call is forgotten after this
_LOOK_US: Final = 60_000_000  # between two looks for such sessions
_MOST_SESSIONS: Final = 20_000
"""Beyond that, those that have been silent longest and hold nothing are forgotten at once."""


class Leases:
    """What workers ask for, and what they are told.

    Args:
        state: of the engine.
        book: of leases.
        leasing: hands out what is wanted.
    """

    def __init__(self, state: EngineState, book: LeaseBook, leasing: Leasing) -> None:
        self._state = state
        self._book = book
        self._leasing = leasing
        self._reports = LeaseReports(state, book)
        self._sessions: OrderedDict[str, WorkerSession] = OrderedDict()  # worker → its newest; who called last is last
        self._replaced: dict[str, list[str]] = {}  # worker → names of its earlier sessions, the newest last
        self._calls: dict[int, WorkerSession] = {}  # number of a call that waits → whose
        self._until: list[tuple[int, int]] = []  # (when a call is to be answered, its number)
        self._next_forgotten_us = 0
        self._new: list[WorkerSession] = []  # called since the queues were looked at
        self._requests = Requests(book)

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
        if session.name:
            self._sessions.move_to_end(call.worker)
        self._refuse(session, SUPERSEDED)
        if call.request:
            call = self._requests.again(session, call, now)
        elif session.name and call.sequence == session.sequence:
            session.ask_again()  # the answer may have been lost: it is given again, as far as it still holds
        else:
            self._confirm(session, now)
        self._begin(session, call, now)
        self._answer_if_done(session, now)

    def _session_of(self, call: Call) -> WorkerSession | str:
        """The session of a call, made if it is new; or why it may not call."""
        if not call.session:
            return self._requests.session_of(call) if call.request else WorkerSession(call.worker, "")
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
        if len(self._sessions) > _MOST_SESSIONS:
            self._forget_most_silent()
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
            session.statuses[index] = self._reports.report(session, index, report, now)
        for index, sign in enumerate(call.signs, len(call.reports)):
            session.statuses[index] = self._reports.sign(session, sign, now)
        if call.held is not None:
            self._reports.compare(session, call.held, now)

    def _wait(self, session: WorkerSession, call: Call) -> None:
        session.call, session.looked, session.missed = call, False, []
        self._calls[call.number] = session
        heappush(self._until, (call.until_us, call.number))
        if not session.order:
            self._leasing.demands.add(session, call)
        self._new.append(session)

    def hang_up(self, numbers: Iterable[int]) -> None:
        """Nobody hears the answers to these calls any more; what was leased for them is given back when it is not confirmed."""
        for number in numbers:
            session = self._calls.get(number)
            if session is not None:
                self._forget_call(session)

    def hurry(self, numbers: Iterable[int], now: int) -> None:
        """These calls are to be answered with what there is, as soon as all that they reported stands in the log."""
        for number in numbers:
            session = self._calls.get(number)
            if session is not None and session.call is not None:
                session.call = session.call._replace(until_us=0)
                self._leasing.demands.forget(session, session.call)
                session.looked = True
                self._answer_if_done(session, now)

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
        self._leasing.demands.forget(session, call)

    def output(self, token: str, link: OutputLink | None, now: int) -> dict[str, Any] | str:
        """An attempt leaves a file behind; see `LeaseReports.output`."""
        return self._reports.output(token, link, now)

    # -- ending -----------------------------------------------------------------------------------------------------------

    def order(self, worker: str, order: str) -> bool:
        """An operator wants the newest session of a worker to drain or to stop; whether there is one.

        Nothing is leased to it any more, and every answer says so, the first one at once. A later session of that worker knows
        nothing of it. Who is to stop is not told to drain after that.
        """
        session = self._sessions.get(worker)
        if session is None:
            return False
        if session.order not in (order, STOP):
            session.order, session.ordered = order, True
            if session.call is not None:
                self._leasing.demands.forget(session, session.call)
            self._book.news[session] = None
        return True

    def leave(self, worker: str, name: str, now: int) -> int:
        """A session ends: all that it holds is given back; how much that was."""
        session = self._sessions.get(worker)
        if session is None or session.name != name:
            return 0
        leases = list(session.held.values())
        for lease in leases:
            self._book.give_back(lease, now, "worker_left", f"Worker {worker!r} left.")
        self._refuse(session, SUPERSEDED)
        self._forget(worker)
        return len(leases)

    # -- time -------------------------------------------------------------------------------------------------------------

    def tick(self, now: int, *, may_start: bool) -> None:
        """Leases what is wanted and there, and answers whoever need not wait any longer.

        Args:
            now: microseconds since the epoch.
            may_start: membership is certain.
        """
        self._book.expire(now)
        self._book.write_owed(now)
        if now >= self._next_forgotten_us:
            self._next_forgotten_us = now + _LOOK_US
            self._forget_idle(now)
            self._requests.forget(now)
        for session in self._book.news:
            if session.missed and self._leasing.demands.recount(session) and session.call is not None:
                self._new.append(session)
        if may_start:
            self._leasing.serve(now)
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

    def next_us(self, after_us: int) -> int:
        """Returns when `tick` has something to do next; what rates allowed by `after_us` already, something else holds back."""
        while self._until and self._until[0][1] not in self._calls:
            heappop(self._until)
        if self._new or self._book.news:
            return 0
        until = self._until[0][0] if self._until else NEVER
        return min(until, self._book.next_us(), *self._leasing.opens_us(after_us), NEVER)

    # -- answers ----------------------------------------------------------------------------------------------------------

    def _answer_if_done(self, session: WorkerSession, now: int) -> None:
        call = session.call
        if call is None or session.pending or session.reserved or not (session.looked or not call.wants):
            return
        news = session.fresh or session.lost or session.cancelled or session.ordered
        told = news or call.reports or set(session.statuses) - {OK}
        if not (told or now >= call.until_us or not call.wants):
            return
        told_bytes = session.bytes
        session.tell()
        self._forget_call(session)
        held = (lease for lease in session.given if not lease.token or self._book.get(lease.digest) is lease)
        given = {lease.digest: _granted(lease) for lease in held}
        if call.request:
            given = self._requests.answered(session, call, given, told_bytes, now)
        self._state.ask(action.Answered(self._answer(session, call, given, now)))
        for lease in session.given:
            if lease.token:
                self._book.deliver(lease, now)

    def _answer(self, session: WorkerSession, call: Call, given: Mapping[str, Granted], now: int) -> Answer:
        leases = [lease for digest, lease in given.items() if not lease.token or self._book.get(digest) is not None]
        held = [lease.token for lease in session.held.values() if lease.token]
        queues = dict.fromkeys(want.queue for want in call.wants)
        return Answer(
            call.number,
            tuple(session.statuses),
            tuple(leases),
            session.told.lost,
            session.told.cancelled,
            len(session.held),
            folded(held),
            tuple(self._leasing.scarcity(queue, now) for queue in queues),
            order=session.order,
            known=bool(call.request and given),
        )

    def _forget_idle(self, now: int) -> None:
        """Sessions that hold nothing and have not called for long are forgotten: their names come from callers."""
        for worker, session in list(self._sessions.items()):
            if now - session.seen_us <= _FORGET_US:
                break
            if session.idle:
                self._forget(worker)

    def _forget_most_silent(self) -> None:
        silent = next((worker for worker, session in self._sessions.items() if session.idle), None)
        if silent is not None:
            self._forget(silent)

    def _forget(self, worker: str) -> None:
        del self._sessions[worker]
        self._replaced.pop(worker, None)


def _granted(lease: Lease) -> Granted:
    task = lease.run.invocation._replace(checkpoint=lease.note.checkpoint)
    return Granted(lease.token or "", task, lease.note.lease_ms, lease.note.until_us)
