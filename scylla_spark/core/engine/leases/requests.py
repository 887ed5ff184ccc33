"""Calls without a session that have a name: the same call again, because its answer may have been lost, gets the same answer."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from scylla_spark.core.engine.leases.book import LeaseBook
from scylla_spark.core.engine.leases.worker_session import Lease, WorkerSession
from scylla_spark.core.lease import Call
from scylla_spark.core.task import TIMED_OUT, YIELDED

_REMEMBERED_US: Final = 600_000_000  # a request is forgotten so long after it was answered …
_MOST: Final = 10_000  # … or when so many others came after it …
_MOST_BYTES: Final = 64 * 1024 * 1024  # … or ones that were told so much

_Name = tuple[str, str]  # worker, request


class Requests:
    """What was leased for requests lately.

    A request that was given nothing, or whose leases were all given back or ran out, is as good as new. So is one that nobody remembers.

    Args:
        book: of leases.
    """

    def __init__(self, book: LeaseBook) -> None:
        self._book = book
        self._sessions: OrderedDict[_Name, WorkerSession] = OrderedDict()  # who called last is last
        self._bytes: dict[_Name, int] = {}
        self._all_bytes = 0

    def session_of(self, call: Call) -> WorkerSession:
        """What is known of a request."""
        name = call.worker, call.request
        session = self._sessions.pop(name, None) or WorkerSession(call.worker, "")
        self._sessions[name] = session
        return session

    def again(self, session: WorkerSession, call: Call, now: int) -> Call:
        """The call as it is to be done: where its request was given something, that is told again, and nothing else is wanted.

        Args:
            session: of the request; nobody waits for its answer any more.
            call: of the same request, perhaps its first.
            now: microseconds since the epoch.
        """
        if session.given and all(self._came_back(lease) for lease in session.given):
            session.given = []
        session.ask_again()
        for lease in session.fresh:
            if lease.held and self._book.get(lease.digest) is lease:
                self._book.confirm(lease, now)
        return call._replace(wants=()) if session.fresh else call

    def answered(self, session: WorkerSession, call: Call, told_bytes: int, now: int) -> None:
        """A request has its answer; what it was given is remembered for a while.

        Args:
            session: of the request.
            call: that was answered.
            told_bytes: of what was new in the answer.
            now: microseconds since the epoch.
        """
        name = call.worker, call.request
        if self._sessions.get(name) is not session:
            return
        if session.given:
            self._bytes[name] = self._bytes.get(name, 0) + told_bytes
            self._all_bytes += told_bytes
        else:
            self._drop(name)
        self.forget(now)

    def forget(self, now: int) -> None:
        """Forgets what is too old, or too much; not what waits."""
        while self._sessions:
            name, session = next(iter(self._sessions.items()))
            is_old = now - session.seen_us > _REMEMBERED_US
            fits = len(self._sessions) <= _MOST and self._all_bytes <= _MOST_BYTES
            if session.call is not None or session.reserved or (fits and not is_old):
                return
            self._drop(name)

    def _drop(self, name: _Name) -> None:
        del self._sessions[name]
        self._all_bytes -= self._bytes.pop(name, 0)

    def _came_back(self, lease: Lease) -> bool:
        return self._book.how_ended(lease.digest) in (YIELDED, TIMED_OUT)
