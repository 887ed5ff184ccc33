"""What workers want and have not got: by queue, the first call first; and single tasks that were asked for by their names."""

from __future__ import annotations

from scylla_spark.core.engine.leases.worker_session import WorkerSession
from scylla_spark.core.leases.messages import Call, Want


class Demand:
    """A want of a call that waits, and how many leases it has got."""

    __slots__ = ("got", "session", "want")

    def __init__(self, session: WorkerSession, want: Want, got: int) -> None:
        self.session = session
        self.want = want
        self.got = got


class Demands:
    """All wants that wait."""

    def __init__(self) -> None:
        self._by_queue: dict[str, dict[WorkerSession, list[Demand]]] = {}
        self._by_key: dict[WorkerSession, list[Demand]] = {}

    def add(self, session: WorkerSession, call: Call) -> None:
        """A call waits; what was leased for the one whose place it takes counts for it."""
        coming = session.reserved + len(session.fresh)
        for want in call.wants:
            demand = Demand(session, want, min(coming, want.most))
            coming -= demand.got
            waiting = self._by_queue.setdefault(want.queue, {}) if want.key is None else self._by_key
            waiting.setdefault(session, []).append(demand)

    def recount(self, session: WorkerSession) -> bool:
        """Leases that were to come may have ended before their answer: then more is wanted again; whether it is."""
        missed, session.missed = session.missed, []
        changed = False
        for want in missed:
            waiting = self._by_queue.get(want.queue, {}) if want.key is None else self._by_key
            for demand in waiting.get(session, ()):
                if demand.want == want and demand.got:
                    demand.got -= 1
                    changed = True
                    break
        return changed

    def forget(self, session: WorkerSession, call: Call) -> None:
        """A call waits no longer."""
        self._by_key.pop(session, None)
        for queue in {want.queue for want in call.wants if want.key is None}:
            waiting = self._by_queue.get(queue, {})
            waiting.pop(session, None)
            if not waiting:
                self._by_queue.pop(queue, None)

    def queues(self) -> list[str]:
        """The queues of which something is wanted."""
        return list(self._by_queue)

    def of(self, queue: str) -> list[Demand]:
        """Returns who wants something of a queue, the first first."""
        return [demand for demands in self._by_queue[queue].values() for demand in demands]

    def by_key(self) -> list[Demand]:
        """Returns who wants one task."""
        return [demand for demands in self._by_key.values() for demand in demands]
