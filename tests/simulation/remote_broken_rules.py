"""Rules of the pool of Spark workers, each broken on purpose, so that the simulation can show that it would see it."""

from __future__ import annotations

from typing import Any

from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import NOT_STARTED, Outcome
from scylla_spark.executors.local.outcomes import Moment
from scylla_spark.executors.remote.boot_offset import BootOffset, Offset
from scylla_spark.executors.remote.link import Link
from scylla_spark.executors.remote.remote_worker import RemoteWorker
from scylla_spark.executors.remote.supervisor import RemoteSupervisor
from scylla_spark.executors.remote.worker_end import WorkerEnd
from tests.simulation.remote_world import Rules


class _TrustsCuts(RemoteSupervisor):
    def cut(self, worker_id: str) -> None:
        if worker_id in self.workers:
            self._lose(
                worker_id,
                self.workers[worker_id],
                "its connection was closed",
                Moment(self._now.wall_us, self._now.boot_us),
            )

    _now = Moment(0, 0)

    def watch(self, now: Moment) -> int:
        self._now = now
        return super().watch(now)


class _LeasesForEver(RemoteSupervisor):
    def leases(self, now: int) -> Any:
        for worker in self.workers.values():
            worker.silent_since_us = now
        return super().leases(now)


class _FreesWhatWasSent(RemoteSupervisor):
    def _lose(self, worker_id: str, worker: RemoteWorker, message: str, now: Moment) -> None:
        for number, held in list(worker.held.items()):
            if not held.begun_us:
                del worker.held[number]
                self._backlogs[held.name].finish([held.item])
                self.done.append(Outcome(number, NOT_STARTED))
        super()._lose(worker_id, worker, message, now)


class _ChargesEachLoss(RemoteSupervisor):
    def _is_free(self, key: TaskKey) -> bool:
        return False


class _ChargesNoLoss(RemoteSupervisor):
    def _is_free(self, key: TaskKey) -> bool:
        return True


class _ForgetsStarts(RemoteSupervisor):
    def _begun(self, worker_id: str, worker: RemoteWorker, begun: Any, now: Moment) -> None:
        """Starts are not noted."""


class _RecallsSingly(RemoteWorker):
    def recall(self, ids: Any, now: int) -> None:
        super().recall(list(ids)[:1], now)


class _RecallsFromLanes(RemoteSupervisor):
    def joined(self, worker_id: str, hello: Any, now: int) -> bool:
        done = super().joined(worker_id, hello, now)
        self.workers[worker_id].__class__ = _RecallsSingly
        return done


class _Immortal(WorkerEnd):
    def may_run(self, now: int) -> bool:
        return True


class _Forgetful(Link):
    def reconnected(self, their_received: int) -> None:
        super().reconnected(their_received)
        self._written = self._next - 1


class _Gullible(Link):
    def receive(self, frame: Any) -> Any:
        body = super().receive(frame)
        return frame[2] if body is None else body


class _RepeatsAll(Link):
    def reconnected(self, their_received: int) -> None:
        self._written = 0  # what the other end has, but has not acknowledged, too


class _NoOffset(BootOffset):
    def best(self, now_us: int) -> Offset | None:
        best = super().best(now_us)
        return None if best is None else Offset(best.us + 3_000_000, best.error_us)


def _with_link(receiving: type[Link], sending: type[Link]) -> Rules:
    """Rules with another link at the worker, and another one at the dispatcher."""

    class End(WorkerEnd):
        def __init__(self, now: int, lease_us: int) -> None:
            super().__init__(now, lease_us)
            self.link = receiving()

    class Supervisor(RemoteSupervisor):
        def joined(self, worker_id: str, hello: Any, now: int) -> bool:
            done = super().joined(worker_id, hello, now)
            self.workers[worker_id].link = sending()
            return done

    return Rules(Supervisor, End)


class _WrongClocks(RemoteSupervisor):
    def joined(self, worker_id: str, hello: Any, now: int) -> bool:
        done = super().joined(worker_id, hello, now)
        self.workers[worker_id].offset = _NoOffset()
        return done


BROKEN = {
    "a closed connection counts as the end of a worker": Rules(_TrustsCuts),
    "a silent worker gets leases": Rules(_LeasesForEver, faults=("freeze",)),
    "what was sent to a lost worker and did not report its start is free": Rules(_FreesWhatWasSent),
    "each attempt that was lost before its start uses up a retry": Rules(_ChargesEachLoss),
    "no attempt that was lost before its start uses up a retry": Rules(_ChargesNoLoss, faults=("die",)),
    "reported starts do not count when a worker is lost": Rules(_ForgetsStarts),
    "a worker runs on without a lease": Rules(worker=_Immortal),
    "nothing kills the handlers of a frozen worker": Rules(watchdog=False),
    "what was lost with a connection is not sent again": _with_link(Link, _Forgetful),
    "a repeated frame is taken twice": _with_link(_Gullible, _RepeatsAll),
    "clocks are off by more than is known": Rules(_WrongClocks),
    "a part of a lane is recalled": Rules(_RecallsFromLanes),
}
