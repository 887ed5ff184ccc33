"""The executors of handlers that ask for isolation: a pool for each, whose children are of its kind alone.

It fails closed. Where a pool cannot be as its handler asks, its tasks fail and say why; nowhere else do they run instead.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scylla_spark.clock import now_us
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.output import OutputTerms
from scylla_spark.core.tasks.task import FAILED, NOT_STARTED, Failure, Invocation, Outcome
from scylla_spark.executors.interface import Executor, LogKeeper, Sink
from scylla_spark.executors.local.output_desk import OutputDesk
from scylla_spark.executors.local.pool import LocalPool
from scylla_spark.executors.local.sandbox import Sandboxed
from scylla_spark.handlers.description import HandlerInfo
from scylla_spark.handlers.isolation import SANDBOX, UNAVAILABLE, Isolation

if TYPE_CHECKING:
    from scylla_spark.config.settings import Settings

_log = logging.getLogger(__name__)
_ROOM: Final = 1_000  # to refuse takes no time


class OwnPool:
    """An Executor for one handler, which writes the level of isolation onto every attempt.

    Args:
        pool: whose children are as the handler asks; not started.
        handler: its name.
        isolation: what it asks for.
    """

    def __init__(self, pool: LocalPool, handler: str, isolation: Isolation) -> None:
        self._pool = pool
        self._handler = handler
        self._isolation = isolation
        self._refusal = ""
        self._desk: OutputDesk | None = None
        self._sink: Sink

    def keep_logs(self, keeper: LogKeeper) -> None:
        """Hands what the handler writes to a keeper; before `start`."""
        self._pool.keep_logs(keeper)

    def keep_outputs(self, terms: OutputTerms) -> None:
        """Says where files are kept that attempts leave behind; out of a sandbox they are handed over; before `start`."""
        if self._isolation.level != SANDBOX:
            self._pool.keep_outputs(terms)
            return
        self._desk = OutputDesk(terms)
        self._pool.hand_outputs_over(self._desk)

    def start(self, sink: Sink) -> None:
        """Starts the pool; where that cannot be, says so and refuses all tasks from then on."""
        self._sink = sink
        try:
            self._pool.start(self._report)
        except Exception as error:  # whatever it is that keeps the pool from being as asked: nothing must run otherwise
            self._refusal = str(error) or type(error).__name__
            _log.warning("handler %r cannot be isolated as it asks; its tasks will fail: %s", self._handler, error)

    def handlers(self) -> dict[str, HandlerInfo]:
        """None: the pool that all share names them."""
        return {}

    def rooms(self) -> Mapping[str, int]:
        """How many more of its tasks would run; where all are refused, always some, so that they fail soon."""
        return {f"own/{self._handler}": _ROOM} if self._refusal else self._pool.rooms()

    def running(self) -> Mapping[int, int]:
        """Which of its tasks run, and since when."""
        return {} if self._refusal else self._pool.running()

    def notes(self) -> Mapping[int, WorkNote]:
        """What they say of their work, with the level of isolation."""
        if self._refusal:
            return {}
        return {number: self._marked(note) for number, note in self._pool.notes().items()}

    def submit(self, batch: Sequence[Invocation]) -> None:
        """Takes invocations, or reports a failure of kind `isolation_unavailable` for each."""
        if not self._refusal:
            if self._desk is not None:
                self._desk.begin(batch)
            self._pool.submit(batch)
            return
        now = now_us()
        failure = Failure(UNAVAILABLE, f"Handler {self._handler!r} cannot be isolated as it asks. {self._refusal}")
        self._sink([Outcome(item.id, FAILED, now, now, failure=failure) for item in batch])

    def kill(self, ids: Sequence[int], *, grace_ms: int = 0) -> None:
        """Ends invocations; what was refused has been reported."""
        if not self._refusal:
            self._pool.kill(ids, grace_ms=grace_ms)

    def stop(self, *, drain_s: float) -> None:
        """Stops the pool."""
        self._pool.stop(drain_s=drain_s)
        if self._desk is not None:
            self._desk.stop()

    def _report(self, outcomes: Sequence[Outcome]) -> None:
        if self._desk is not None:
            self._desk.end(one.id for one in outcomes)
        self._sink([
            one if one.outcome == NOT_STARTED else one._replace(work=self._marked(one.work or WorkNote()))
            for one in outcomes
        ])  # fmt: skip

    def _marked(self, note: WorkNote) -> WorkNote:
        return note._replace(isolation=self._isolation.level)


def executors(settings: Settings, handlers: Mapping[str, HandlerInfo]) -> dict[str, Executor]:
    """By name, what runs those of the handlers that ask for isolation; not started.

    Args:
        settings: of the deployment.
        handlers: all that are known.
    """
    asking = {info.executor: (info.name, info.isolation) for info in handlers.values() if info.isolation is not None}
    return {executor: _own(settings, name, isolation) for executor, (name, isolation) in asking.items()}


def _own(settings: Settings, name: str, isolation: Isolation) -> OwnPool:
    dispatch = settings.dispatch
    readable = list(dispatch.sandbox_paths)
    apart = Sandboxed(name, isolation, settings.handlers, _secret_paths(settings), readable)
    pool = LocalPool(
        settings.handlers,
        executor=f"own/{name}",
        min_children=0,
        max_children=dispatch.max_children,
        pass_environment=dispatch.pass_environment,
        longest_s=dispatch.longest_run.total_seconds(),
        apart=apart,
        spans=settings.otel.enabled,
    )
    return OwnPool(pool, name, isolation)


def _secret_paths(settings: Settings) -> list[Path]:
    """Files and folders of the deployment that no sandbox shows, wherever they lie."""
    kafka = [value for value in dict(settings.kafka).values() if isinstance(value, Path)]
    tables = [settings.tables_folder] if settings.tables_folder is not None else []
    return [settings.data_dir, settings.outputs_path, Path("scyllaspark.toml"), Path(".env"), *tables, *kafka]
