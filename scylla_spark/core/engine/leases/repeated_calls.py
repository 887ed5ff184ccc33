"""Calls without a session that have a name: the same call again, because its answer may have been lost, gets the same answer."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from scylla_spark.core.engine.leases.book import LeaseBook
from scylla_spark.core.engine.leases.worker_session import WorkerSession
from scylla_spark.core.leases.messages import Call, Granted
from scylla_spark.core.tasks.task import TIMED_OUT, YIELDED

_REMEMBERED_US: Final = 600_000_000  # a request is forgotten so long after it was answered …
_MOST: Final = 10_000  # … or when so many others came after it …
_MOST_BYTES: Final = 64 * 1024 * 1024  # … or ones that were told so much

_Name = tuple[str, str]  # worker, request


class _Told(NamedTuple):
    """What a request was told: digest of the token → lease. It refers to no partition, which may be left meanwhile."""

    leases: dict[str, Granted]
    bytes: int
    answered_us: int


class Requests:
    """What was leased for requests lately.

    A request that was given nothing, or whose leases were all given back or ran out, is as good as new. So is one that nobody remembers.

    Args:
        book: of leases.
    """

    def __init__(self, book: LeaseBook) -> None:
        self._book = book
        self._sessions: OrderedDict[_Name, WorkerSession] = OrderedDict()  # of what is not answered; the latest is last
        self._told: OrderedDict[_Name, _Told] = OrderedDict()  # who was answered last is last
        self._bytes = 0

    def session_of(self, call: Call) -> WorkerSession:
        """The session of a request, in which an earlier call of it may still wait."""
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
        name = call.worker, call.request
        told = self._told.get(name)
        if told is not None and all(self._book.how_ended(digest) in (YIELDED, TIMED_OUT) for digest in told.leases):
            self._drop(name)
            told = None
        given = (*(told.leases if told is not None else ()), *(lease.digest for lease in session.fresh))
        for digest in given:
            lease = self._book.get(digest)
            if lease is not None and lease.held:
                self._book.confirm(lease, now)
        return call._replace(wants=()) if given else call

    def answered(
        self, session: WorkerSession, call: Call, new: dict[str, Granted], new_bytes: int, now: int
    ) -> dict[str, Granted]:
        """A request has its answer, which is remembered for a while; returns all that it was given, now or before.

        Args:
            session: of the request.
            call: that is answered.
            new: digest of the token → lease, of what it was not told before.
            new_bytes: how many bytes that takes.
            now: microseconds since the epoch.
        """
        name = call.worker, call.request
        if self._sessions.get(name) is session:
            del self._sessions[name]
        before = self._told.get(name)
        told = _Told(new, new_bytes, now)
        if before is not None:
            self._drop(name)
            told = _Told(before.leases | new, before.bytes + new_bytes, now)
        if told.leases:
            self._told[name] = told
            self._bytes += told.bytes
        self.forget(now)
        return told.leases

    def forget(self, now: int) -> None:
        """Forgets what is too old, or too much; not what waits."""
        while self._told:
            name, told = next(iter(self._told.items()))
            fits = len(self._told) <= _MOST and self._bytes <= _MOST_BYTES
            if fits and now - told.answered_us <= _REMEMBERED_US:
                break
            self._drop(name)
        while self._sessions:
            name, session = next(iter(self._sessions.items()))
            if session.call is not None or session.reserved or now - session.seen_us <= _REMEMBERED_US:
                break
            del self._sessions[name]  # its caller hung up, and what it was about to be given goes to others

    def _drop(self, name: _Name) -> None:
        self._bytes -= self._told.pop(name).bytes
