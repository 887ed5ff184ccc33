"""The executors of `async def` handlers: one pool, and for each handler an executor with room of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.task import Invocation
from scylla_spark.executors.interface import Executor, Sink
from scylla_spark.executors.local.pool import LocalPool
from scylla_spark.executors.local.supervisor_interface import ChildKind
from scylla_spark.executors.loops.supervisor import LoopSupervisor
from scylla_spark.handlers.description import HandlerInfo

if TYPE_CHECKING:
    from scylla_spark.config.settings import Settings

LOOPS: Final = ChildKind("scylla_spark.executors.loops.child", LoopSupervisor)
POOL: Final = "async"


class Slots:
    """The Executor of one `async def` handler: a share of a pool that others start and stop.

    It has room of its own, so that tasks of one handler that wait for a slot keep no slot of another free.

    Args:
        pool: of event loops.
        handler: its name.
    """

    def __init__(self, pool: LocalPool, handler: str) -> None:
        self._pool = pool
        self._handler = handler

    def start(self, sink: Sink) -> None:
        """Does nothing: the pool is started."""

    def handlers(self) -> dict[str, HandlerInfo]:
        """None: the pool names them."""
        return {}

    def room(self) -> int:
        """How many more tasks of this handler would run now."""
        return self._pool.room(self._handler)

    def running(self) -> Mapping[int, int]:
        """Nothing: the pool names what runs."""
        return {}

    def notes(self) -> Mapping[int, WorkNote]:
        """Nothing: the pool tells it."""
        return {}

    def submit(self, batch: Sequence[Invocation]) -> None:
        """Gives invocations to the pool."""
        self._pool.submit(batch)

    def kill(self, ids: Sequence[int], *, grace_ms: int = 0) -> None:
        """Has the pool end them."""
        self._pool.kill(ids, grace_ms=grace_ms)

    def stop(self, *, drain_s: float) -> None:
        """Does nothing: the pool is stopped."""


def executors(settings: Settings, handlers: Mapping[str, HandlerInfo]) -> dict[str, Executor]:
    """By name, what runs those of the handlers that are `async def`; nothing if none is. Not started; the pool comes first.

    Args:
        settings: of the deployment.
        handlers: all that are known.
    """
    ours = [info for info in handlers.values() if info.concurrency is not None]
    if not ours:
        return {}
    dispatch = settings.dispatch
    longest_s = dispatch.longest_run.total_seconds()
    pool = LocalPool(
        settings.handlers,
        pass_environment=dispatch.pass_environment,
        longest_s=longest_s,
        kind=LOOPS,
        spans=settings.otel.enabled,
    )
    slots = {info.executor: Slots(pool, info.name) for info in ours}
    return {POOL: pool, **slots}
