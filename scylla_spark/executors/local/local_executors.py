"""All that runs handlers in child processes on this machine, as one Executor: a pool that handlers share, and pools of their own.

A dispatcher has one, and each Spark worker.

A handler that asks for isolation has a pool of its own, with a thread of its own, so that nothing it does holds up the others. It
fails closed: where such a pool cannot be as its handler asks, its tasks fail and say why; nowhere else do they run instead.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scylla_spark.clock import now_us
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.output import OutputTerms
from scylla_spark.core.tasks.task import FAILED, Failure, Invocation, Outcome
from scylla_spark.executors.interface import Kind, LogKeeper, Sink
from scylla_spark.executors.local.pool import LocalPool
from scylla_spark.executors.local.sandbox import Sandboxed
from scylla_spark.handlers.description import AUTO, LOCAL, SPARK, HandlerInfo
from scylla_spark.handlers.isolation import UNAVAILABLE
from scylla_spark.io.host.session import is_one_machine, master_of

if TYPE_CHECKING:
    from scylla_spark.config.settings import Settings

_log = logging.getLogger(__name__)
_ROOM: Final = 1_000  # to refuse takes no time
_SHORT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})
"""Errors of a machine that is short of something now."""
_AGAIN_S: Final = 1.0


class LocalExecutors:
    """An Executor that serves the name of its shared pool, and `async/NAME` and `own/NAME` of handlers that run on that one.

    Args:
        shared: the pool that handlers share; not started.
        own: makes the pool of a handler that asks for isolation.
        in_background: `start` returns once the shared pool runs; the executor names of the others come as they start.
    """

    def __init__(
        self, shared: LocalPool, own: Callable[[HandlerInfo], LocalPool], *, in_background: bool = False
    ) -> None:
        self._shared = shared
        self._own = own
        self._pools = [shared]
        self._pool_of: dict[str, LocalPool] = {}  # by handler, of those that have one of their own
        self._refusals: dict[str, str] = {}  # by handler: why it can have none
        self._keeper: LogKeeper | None = None
        self._outputs: OutputTerms | None = None
        self._waiting: tuple[HandlerInfo, ...] = ()  # whose pools could not be started yet
        self._starting = threading.Thread(target=self._start_own, name="isolated-pools", daemon=True)
        self._tried = threading.Event()  # each was tried to be started
        self._in_background = in_background
        self._stopping = threading.Event()
        self._sink: Sink

    def keep_logs(self, keeper: LogKeeper) -> None:
        """Hands what handlers write to a keeper; before `start`."""
        self._keeper = keeper

    def keep_outputs(self, terms: OutputTerms) -> None:
        """Says where files are kept that attempts leave behind; before `start`."""
        self._outputs = terms

    def start(self, sink: Sink) -> None:
        """Starts the shared pool, then one after the other those of handlers that ask for isolation.

        Where the machine is short of descriptors, memory or processes, such a pool is tried again, and its tasks wait.

        Raises:
            SchedulerError: as `LocalPool.start` of the shared one; another that cannot be started refuses its tasks from then on.
        """
        self._sink = sink
        self._start(self._shared)
        self._starting.start()
        if not self._in_background:
            self._tried.wait()

    def _start_own(self) -> None:
        left = self._isolated()
        try:
            while left:
                self._waiting = tuple(left := [info for info in left if not self._started(info)])
                self._tried.set()
                if left and self._stopping.wait(_AGAIN_S):
                    return
        finally:
            self._tried.set()

    def _started(self, info: HandlerInfo) -> bool:
        """Starts the pool of a handler; False: it is to be tried again."""
        if self._stopping.is_set():
            return False
        try:
            pool = self._own(info)
            self._start(pool)
        except Exception as error:  # whatever it is: nothing must run otherwise than asked for
            if isinstance(error, OSError) and error.errno in _SHORT:
                _log.warning("handler %r cannot be isolated now, which is tried again: %s", info.name, error)
                return False
            self._refusals[info.name] = str(error) or type(error).__name__
            _log.warning("handler %r cannot be isolated as it asks; its tasks will fail: %s", info.name, error)
        else:
            self._pool_of[info.name] = pool
            self._pools.append(pool)
        return True

    def _start(self, pool: LocalPool) -> None:
        if self._keeper is not None:
            pool.keep_logs(self._keeper)
        if self._outputs is not None:
            pool.keep_outputs(self._outputs)
        pool.start(self._sink)

    def _isolated(self) -> list[HandlerInfo]:
        known = {info.name: info for info in self.handlers().values()}
        return [info for info in known.values() if info.isolation is not None and info.runs_on == self._shared.executor]

    def handlers(self) -> dict[str, HandlerInfo]:
        """Every name that tasks may use; after `start`."""
        return self._shared.handlers()

    def rooms(self) -> dict[str, int]:
        """Returns how many more tasks would run, by executor name; where all are refused, always some, so that they fail soon."""
        rooms = {f"own/{info.name}": 0 for info in self._waiting}
        rooms |= {f"own/{name}": _ROOM for name in self._refusals}
        for pool in self._pools:
            rooms |= pool.rooms()
        return rooms

    def running(self) -> dict[int, int]:
        """Returns which tasks run, and since when."""
        return {number: began for pool in self._pools for number, began in pool.running().items()}

    def notes(self) -> dict[int, WorkNote]:
        """Returns what they say of their work."""
        return {number: note for pool in self._pools for number, note in pool.notes().items()}

    def submit(self, batch: Sequence[Invocation]) -> None:
        """Takes invocations, or reports a failure of kind `isolation_unavailable` for those that are refused."""
        if not self._pool_of and not self._refusals:
            self._shared.submit(batch)
            return
        handlers, shares = self.handlers(), defaultdict[str, list[Invocation]](list)
        for item in batch:
            info = handlers.get(item.handler)
            shares["" if info is None else info.name].append(item)
        for name, share in shares.items():
            if name in self._refusals:
                self._refuse(name, share)
            else:
                self._pool_of.get(name, self._shared).submit(share)

    def _refuse(self, handler: str, batch: Sequence[Invocation]) -> None:
        now, why = now_us(), f"Handler {handler!r} cannot be isolated as it asks. {self._refusals[handler]}"
        self._sink([Outcome(item.id, FAILED, now, now, failure=Failure(UNAVAILABLE, why)) for item in batch])

    def kill(self, ids: Sequence[int], *, grace_ms: int = 0) -> None:
        """Ends invocations; what was refused has been reported."""
        for pool in self._pools:
            pool.kill(ids, grace_ms=grace_ms)

    def recall(self, ids: Sequence[int]) -> None:
        """Hands back those of the invocations that no child has; see `LocalPool.recall`."""
        for pool in self._pools:
            pool.recall(ids)

    def be_lean(self, lean: bool) -> None:
        """Lets pools start no child beside another one of its kind, or lets them again."""
        for pool in self._pools:
            pool.be_lean(lean)

    def stop(self, *, drain_s: float) -> None:
        """Stops the pools."""
        self._stopping.set()
        if self._starting.ident is not None:
            self._starting.join()
        for pool in self._pools:
            pool.stop(drain_s=drain_s)


def auto_executor(settings: Settings) -> str:
    """The executor of handlers that name none: of Spark workers on a cluster, if there may be any, else that of local children."""
    asked = settings.dispatch.runs_on
    if asked != AUTO:
        return asked
    return SPARK if settings.has_spark_workers and not is_one_machine(master_of(settings)) else LOCAL


def _from_settings(settings: Settings) -> LocalExecutors:
    dispatch = settings.dispatch
    make = partial(
        LocalPool,
        settings.handlers,
        max_children=dispatch.max_children,
        pass_environment=dispatch.pass_environment,
        longest_s=dispatch.longest_run.total_seconds(),
        spans=settings.otel.enabled,
        auto=auto_executor(settings),
    )

    def own(info: HandlerInfo) -> LocalPool:
        readable = [Path(one) for one in dispatch.sandbox_paths]
        assert info.isolation is not None
        apart = Sandboxed(info.name, info.isolation, settings.handlers, secret_paths(settings), readable)
        return make(min_children=0, apart=apart)

    return LocalExecutors(make(min_children=dispatch.min_children), own)


KIND: Final = Kind(
    _from_settings,
    wanted=lambda settings: True,
    turned_on_by="it always is on in a dispatcher",
    needs_session=lambda settings: False,
)


def secret_paths(settings: Settings) -> list[Path]:
    """Files and folders of the deployment that no sandbox shows."""
    kafka = [value for value in dict(settings.kafka).values() if isinstance(value, Path)]
    tables = [settings.tables_folder] if settings.tables_folder is not None else []
    return [settings.data_dir, settings.outputs_path, Path("scyllaspark.toml"), Path(".env"), *tables, *kafka]
