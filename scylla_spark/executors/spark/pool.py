"""The Spark pool: handlers run on executors, in child processes of Spark's Python workers.

Driver threads collect ready invocations into chunks; a chunk is one `mapInArrow` job with one task. Its outcomes
come back together when all of them are there (a Spark task hands over its rows at its end), so only tasks of
handlers known to be quick share a chunk. Nothing of user code can make the job fail: outcomes are data (see
`spark_worker`).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scylla_spark.clock import boot_us, both_us, now_us
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.handler_durations import HandlerDurations
from scylla_spark.core.tasks.output import OutputTerms
from scylla_spark.core.tasks.task import NOT_STARTED, SUCCEEDED, TIMED_OUT, Failure, Invocation, Outcome
from scylla_spark.defaults import LONGEST_RUN_S, SPARK_SLOTS
from scylla_spark.errors import ConflictError, SetupError
from scylla_spark.executors.backlog import Backlog
from scylla_spark.executors.interface import HearsLines, Kind, LogKeeper, Sink
from scylla_spark.executors.local.forkserver_handle import ForkserverHandle
from scylla_spark.executors.spark.chunk_lines import frames_of
from scylla_spark.executors.spark.start_signals import BegunListener
from scylla_spark.executors.spark.worker import (
    BROKEN,
    INPUT,
    LOST,
    OUTPUT,
    WorkerConfig,
    lost,
    outcome,
    run_chunk,
    to_table,
    why_broken,
)
from scylla_spark.executors.start_deadline import StartLimit, this_clock
from scylla_spark.handlers.description import HandlerInfo
from scylla_spark.io.host.output_files import OutputFiles
from scylla_spark.io.host.session import is_one_machine, missing_on_executors

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

    from scylla_spark.config.settings import Settings

_NAME: Final = "spark"
SCHEDULER_POOL: Final = "scylla-spark-tasks"
_CHUNK_US: Final = 500_000  # a chunk should not keep one child busy for longer
_CANCEL_EVERY_S: Final = 0.2
_CANCEL_WITHIN_S: Final = 15.0
_POLL_S: Final = 0.1
_log = logging.getLogger(__name__)


class _Chunk:
    """Invocations that share a job."""

    def __init__(self, tag: str, invocations: list[Invocation]) -> None:
        self.tag = tag
        self.invocations = invocations
        self.killed: set[int] = set()
        self.submitted_us = 0  # wall clock
        self.begun: dict[int, int] = {}  # id → wall clock of the start, of those that the worker has named
        self.stopped = False
        self.over = threading.Event()


class SparkPool:
    """An Executor whose handlers run on the executors of a Spark application.

    A lost executor or a cancelled job costs every task of the chunk one attempt (kind "executor_lost"); user code is
    never run again by Spark's own task retry. If an executor lacks this package or the handlers, no attempt is used up, and the
    pool fails. On a cluster one executor is checked before any task is taken.

    It has room for tasks once it is started and `attach`ed to a session, in either order.

    Args:
        modules: handler modules (see `registry.load`); executors must be able to import them (installed, or by
            --py-files).
        slots: how many chunks run at once: one per core that tasks may have.
        max_chunk: most tasks in one job.
        children: most child processes of one Python worker.
        kill_grace_s: from SIGTERM to SIGKILL for a call that exceeds its timeout.
        pass_environment: further environment variables that handlers get (see `environment`).
        longest_s: how long a call may run at most if it asks for longer than its timeout.

    Attributes:
        failure: why it can run nothing any more: its session has ended, or an executor lacks the handlers; None: it can.
    """

    def __init__(
        self,
        modules: Sequence[str],
        *,
        slots: int = SPARK_SLOTS,
        max_chunk: int = 1000,
        children: int = 2,
        kill_grace_s: float = 1.0,
        pass_environment: Sequence[str] = (),
        longest_s: float = LONGEST_RUN_S,
    ) -> None:
        self.failure: BaseException | None = None
        self._spark: SparkSession | None = None
        self._config = WorkerConfig(
            tuple(modules), children, kill_grace_s, tuple(pass_environment), longest_s=longest_s
        )
        self._keeper: HearsLines | None = None
        self._listener: BegunListener | None = None
        self._clock = this_clock()
        self._slots = slots
        self._max_chunk = max_chunk
        self._news = threading.Condition()
        self._running: set[_Chunk] = set()
        self._threads: list[threading.Thread] = []
        self._tags = (f"scylla-spark-{uuid.uuid4().hex[:8]}-{number}" for number in itertools.count())
        self._pace = HandlerDurations()
        self._last = ""
        self._started = False
        self._stopping = False
        self._stopped = False
        self._handlers: dict[str, HandlerInfo] = {}
        self._backlog = Backlog(lambda name: self._handlers[name].max_batch)
        self._sink: Sink

    def start(self, sink: Sink) -> None:
        """Reads the handlers' settings (in a process of their own) and begins to accept work.

        Raises:
            ConfigError: a handler module cannot be imported here.
            ArgumentError: handlers contradict each other, or a module file is missing.
            ConflictError: it was started before.
        """
        if self._started:
            raise ConflictError("This pool was started before.", hint="Make a new one.")
        forkserver = ForkserverHandle(self._config.modules, pass_environment=self._config.pass_environment)
        forkserver.close()
        self._handlers = forkserver.handlers
        self._sink = sink
        self._started = True
        self._begin()

    def keep_outputs(self, terms: OutputTerms) -> None:
        """Lets handlers leave files behind, on executors that have the same folder under the same path; before `start`."""
        try:
            identity = OutputFiles(Path(terms.folder)).identity()
        except OSError as error:
            _log.warning("handlers on Spark can leave no files behind: %s cannot be used here: %s", terms.folder, error)
            return
        self._config = replace(self._config, outputs=terms._replace(identity=identity))

    def keep_logs(self, keeper: LogKeeper) -> None:
        """Hands what handlers write to a keeper, with the outcomes of a job; before `start`."""
        if isinstance(keeper, HearsLines):
            self._keeper = keeper
            self._config = replace(self._config, logs=keeper.terms())

    def attach(self, spark: SparkSession) -> None:
        """Gives it the session to run on.

        Args:
            spark: a classic session (not Spark Connect), with FAIR scheduling if other jobs share it.
        """
        self._spark = spark
        self._begin()

    def handlers(self) -> dict[str, HandlerInfo]:
        """Every name that tasks may use; after `start`."""
        return dict(self._handlers)

    def rooms(self) -> dict[str, int]:
        """One chunk for each free slot and one chunk ahead for each slot, less what waits."""
        with self._news:
            if self._stopping or not self._threads or self.failure is not None:
                return {_NAME: 0}
            chunks = 2 * self._slots - len(self._running)
            return {_NAME: max(0, chunks * self._chunk_size(self._last) - len(self._backlog))}

    def running(self) -> dict[int, int]:
        """Id → wall clock of the start, for each invocation that a worker has named as begun and that is not reported yet."""
        with self._news:
            return {number: started for chunk in self._running for number, started in chunk.begun.items()}

    def notes(self) -> dict[int, WorkNote]:
        """Nothing: Spark tells of a task when its job ends, and then of all that it left behind."""
        return {}

    def _heard(self, begun: Mapping[int, int]) -> None:
        now = now_us()
        with self._news:
            for chunk in self._running:
                for item in chunk.invocations:
                    if (started := begun.get(item.id)) is not None:
                        chunk.begun[item.id] = min(max(started, chunk.submitted_us), now)

    def submit(self, batch: Sequence[Invocation]) -> None:
        """Takes invocations; they start with the next free slot."""
        known = [item for item in batch if item.handler in self._handlers]
        refused = [item for item in batch if item.handler not in self._handlers]
        with self._news:
            if self._stopping:
                if not self._stopped:
                    self._sink([Outcome(item.id, NOT_STARTED) for item in batch])
                return
            self._backlog.add(known)
            self._news.notify_all()
        if refused:
            self._sink(
                [
                    lost([item], f"No handler {item.handler!r} is registered here.", "handler_unknown")[0]
                    for item in refused
                ]
            )

    def kill(self, ids: Sequence[int], *, grace_ms: int = 0) -> None:
        """Ends these invocations; the others of a chunk that is cancelled with them fail as executor_lost."""
        wanted = set(ids)
        with self._news:
            waiting = self._backlog.discard(wanted)
            chunks = [chunk for chunk in self._running if wanted.intersection(item.id for item in chunk.invocations)]
            for chunk in chunks:
                chunk.killed |= wanted
        if waiting:
            self._sink([Outcome(item.id, NOT_STARTED) for item in waiting])
        self._cancel(chunks)

    def stop(self, *, drain_s: float) -> None:
        """Hands back what has not started, lets running chunks finish for `drain_s` seconds, then cancels them."""
        until = boot_us() + round(drain_s * 1e6)
        with self._news:
            if self._stopping:
                return
            self._stopping = True
            waiting = self._backlog.discard()
            self._news.notify_all()
        if waiting:
            self._sink([Outcome(item.id, NOT_STARTED) for item in waiting])
        with self._news:
            self._news.wait_for(lambda: not self._running, max(0, until - boot_us()) / 1e6)
            chunks = list(self._running)
            for chunk in chunks:
                chunk.stopped = True
        self._cancel(chunks)
        for chunk in chunks:
            if not chunk.over.wait(_CANCEL_WITHIN_S):
                self._end(chunk, self._missing(chunk))
        for thread in self._threads:
            thread.join(_CANCEL_WITHIN_S)
        if self._listener is not None:
            self._listener.close()
        self._stopped = True

    # ---- driver threads ----

    def _begin(self) -> None:
        from pyspark import InheritableThread

        if self._spark is None or not self._started:
            return
        self._listener = _listener(self._spark.sparkContext, self._heard)
        self._config = replace(self._config, driver=self._listener.address)
        threads = [
            InheritableThread(target=self._work, args=(self._spark,), name=f"spark-pool-{n}", daemon=True)
            for n in range(self._slots)
        ]
        if is_one_machine(self._spark.sparkContext.master):
            self._start_threads(threads)
        else:
            check = partial(self._check, self._spark, partial(self._start_threads, threads))
            InheritableThread(target=check, name="spark-pool-check", daemon=True).start()

    def _start_threads(self, threads: Sequence[threading.Thread]) -> None:
        self._threads = list(threads)
        for thread in threads:
            thread.start()

    def _check(self, spark: SparkSession, go_on: Callable[[], None]) -> None:
        """Loads the handlers on one executor before any task is taken."""
        config = self._config
        try:
            (why,) = spark.sparkContext.parallelize([0], 1).map(lambda _: why_broken(config)).collect()
        except Exception as error:
            why = missing_on_executors(error)
            if not why:
                _log.warning("executors could not be checked: %s", str(error)[:2000])
        if why:
            self.failure = _broken(why)
        else:
            go_on()

    def _work(self, spark: SparkSession) -> None:
        try:
            spark.sparkContext.setLocalProperty("spark.scheduler.pool", SCHEDULER_POOL)
        except Exception as error:
            self.failure = error
        while True:
            with self._news:
                self._news.wait_for(lambda: self._stopping or (self._backlog.ready and self.failure is None))
                if self._stopping:
                    return
                chunk = _Chunk(next(self._tags), self._take())
                if not chunk.invocations:
                    continue
                self._running.add(chunk)
            self._end(chunk, self._run(spark, chunk))

    def _run(self, spark: SparkSession, chunk: _Chunk) -> list[Outcome]:
        """The outcomes of what may still start, and of what may not any more; nothing of a job that was lost."""
        late = _late_lanes(chunk.invocations, boot_us())
        found = [Outcome(item.id, NOT_STARTED) for item in chunk.invocations if item.key.ordering_id in late]
        wanted = [item for item in chunk.invocations if item.key.ordering_id not in late]
        if not wanted:
            return found
        context = spark.sparkContext
        try:
            context.addJobTag(chunk.tag)
            context.setJobGroup(chunk.tag, f"scylla-spark: {len(wanted)} tasks")
            rows = self._frame(spark, chunk, wanted).collect()
            self._keep(rows)
            found += self._judged([outcome(row) for row in rows])
        except Exception as error:
            if why := missing_on_executors(error):
                self.failure = _broken(why)
                return found + [Outcome(item.id, NOT_STARTED) for item in wanted]
            if not (chunk.killed or chunk.stopped):
                _log.warning("a chunk of %d tasks was lost: %s", len(wanted), str(error)[:2000])
            if _has_ended(context):
                self.failure = error
                return found
        with contextlib.suppress(Exception):  # the session may end at any time
            context.removeJobTag(chunk.tag)
            if chunk.killed or chunk.stopped:
                _await_tasks(context, chunk.tag)
        return found

    def _judged(self, outcomes: list[Outcome]) -> list[Outcome]:
        """The same outcomes; if the executor could not load the handlers, this pool runs nothing more."""
        broken = next((one.failure for one in outcomes if one.failure is not None and one.failure.kind == BROKEN), None)
        if broken is None:
            return outcomes
        self.failure = _broken(broken.message)
        return [Outcome(one.id, one.outcome) for one in outcomes]

    def _keep(self, rows: Sequence[Any]) -> None:
        """Hands on what the handlers have written; whatever is wrong with it is no trouble of their tasks."""
        for row in rows:
            if row["lines"] is not None and self._keeper is not None:
                try:
                    self._keeper.hear(frames_of(row["lines"]))
                except Exception:
                    _log.exception("lines of tasks on Spark cannot be read")

    def _frame(self, spark: SparkSession, chunk: _Chunk, invocations: list[Invocation]) -> DataFrame:
        frame = spark.createDataFrame(to_table(invocations), schema=INPUT)
        config, departure = self._config, StartLimit(self._clock, *both_us())
        chunk.submitted_us = departure.wall_us
        return frame.coalesce(1).mapInArrow(lambda batches: run_chunk(batches, config, departure), OUTPUT)

    def _take(self) -> list[Invocation]:
        """The next chunk: one call, or several of quick handlers."""
        chunk: list[Invocation] = []
        budget = 0.0
        while (head := self._backlog.head()) is not None:
            size = self._chunk_size(head)
            batch = self._handlers[head].max_batch is not None
            if chunk and (size == 1 or batch or budget + 1 / size > 1):
                break
            self._last = head
            chunk += self._backlog.take()
            budget += 1 / size
            if batch or size == 1:
                break
        return chunk

    def _chunk_size(self, handler: str) -> int:
        average = self._pace.average_us(handler)
        return 1 if average is None else max(1, min(self._max_chunk, int(_CHUNK_US / (average + 100))))

    def _end(self, chunk: _Chunk, found: list[Outcome]) -> None:
        outcomes = found
        if len(found) < len(chunk.invocations):
            outcomes = found + self._missing(chunk, {one.id for one in found})
        tasks = {item.id: item for item in chunk.invocations}
        with self._news:
            if chunk not in self._running:
                return  # given up by `stop`
            self._running.remove(chunk)
            ran = [one for one in found if one.outcome != NOT_STARTED]
            if found and not ran and self.failure is None:
                _log.warning(
                    "%d tasks reached a Spark worker when they could not start any more, or its clock is ahead",
                    len(found),
                )
            for one in ran:
                self._pace.note(tasks[one.id].handler, one.finished_us - one.started_us)
            failed = [tasks[one.id].key.ordering_id for one in outcomes if one.outcome != SUCCEEDED]
            behind = [item for ordering_id in failed for item in self._backlog.fail(ordering_id)]
            self._backlog.finish(chunk.invocations)
            self._news.notify_all()
        outcomes = outcomes + [Outcome(item.id, NOT_STARTED) for item in behind]
        try:
            self._sink(outcomes)
        except Exception:
            _log.exception("the sink of the pool failed")
        chunk.over.set()

    def _missing(self, chunk: _Chunk, known: set[int] | frozenset[int] = frozenset()) -> list[Outcome]:
        message = "Its Spark job was cancelled or failed; whether the handler had begun is unknown."
        kind = "executor_stopped" if chunk.stopped else LOST
        outcomes = lost([item for item in chunk.invocations if item.id not in known], message, kind)
        return [_killed(one) if one.id in chunk.killed else one for one in outcomes]

    def _cancel(self, chunks: list[_Chunk]) -> None:
        """Cancels until it works: a job that is not submitted yet cannot be cancelled."""
        if not chunks or self._spark is None:
            return

        def cancel(context: Any) -> None:
            for _ in range(round(_CANCEL_WITHIN_S / _CANCEL_EVERY_S)):
                for chunk in chunks:
                    if not chunk.over.is_set():
                        with contextlib.suppress(Exception):
                            context.cancelJobsWithTag(chunk.tag)
                for chunk in chunks:
                    chunk.over.wait(_CANCEL_EVERY_S / len(chunks))
                if all(chunk.over.is_set() for chunk in chunks):
                    return

        threading.Thread(target=cancel, args=(self._spark.sparkContext,), name="spark-pool-cancel", daemon=True).start()


def _broken(why: str) -> SetupError:
    return SetupError(
        f"Handlers cannot be loaded on the executors of Spark: {why.rstrip('.')}.",
        hint="Install scylla-spark and the modules of `handlers` in the Python of every executor, or set dispatch.spark_slots = 0. "
        "No attempt was used up. docs/lakehouse.md says what executors need.",
    )


def _has_ended(context: Any) -> bool:
    """Whether a Spark context, or the JVM that it is in, is there no more."""
    try:
        return bool(context._jsc.sc().isStopped())  # noqa: SLF001 - the only way to ask
    except Exception:
        return True


def _listener(context: SparkContext, heard: Callable[[Mapping[int, int]], None]) -> BegunListener:
    """Listens where executors reach the driver; on one machine only there."""
    if is_one_machine(context.master):
        return BegunListener("127.0.0.1", "127.0.0.1", heard)
    host = str(context.getConf().get("spark.driver.host", "127.0.0.1"))
    return BegunListener(str(context.getConf().get("spark.driver.bindAddress", host)), host, heard)


def _late_lanes(invocations: Sequence[Invocation], now: int) -> set[str]:
    """Lanes with a task that may not start any more; those behind it must not overtake it."""
    return {item.key.ordering_id for item in invocations if item.start_by_us <= now}


def _await_tasks(context: SparkContext, group: str) -> None:
    """Waits for the Spark tasks of a cancelled job: they outlive it by seconds, and user code with them."""
    tracker = context.statusTracker()
    pause = threading.Event()
    for _ in range(round(_CANCEL_WITHIN_S / _POLL_S)):
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        if not any(stage is not None and stage.numActiveTasks for stage in stages):
            return
        pause.wait(_POLL_S)


def _killed(one: Outcome) -> Outcome:
    return Outcome(
        one.id, TIMED_OUT, one.started_us, one.finished_us, failure=Failure("killed", "It was killed on request.")
    )


def _from_settings(settings: Settings) -> SparkPool:
    dispatch = settings.dispatch
    return SparkPool(
        settings.handlers,
        slots=dispatch.spark_slots,
        pass_environment=dispatch.pass_environment,
        longest_s=dispatch.longest_run.total_seconds(),
    )


KIND: Final = Kind(
    _from_settings,
    wanted=lambda settings: settings.dispatch.spark_slots > 0,
    turned_on_by='set dispatch.spark_slots to 1 or more for the dispatchers (with dispatch.scan = "spark")',
    needs_session=lambda settings: True,
)
