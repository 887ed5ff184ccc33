"""Handlers on the executors of a Spark application: long Spark tasks host workers, which take attempts as they become due."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scylla_spark.clock import boot_us
from scylla_spark.config.spark_workers import SparkWorkers
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.output import OutputTerms
from scylla_spark.core.tasks.task import NOT_STARTED, Invocation, Outcome
from scylla_spark.defaults import LONGEST_RUN_S
from scylla_spark.errors import ConflictError, SetupError
from scylla_spark.executors.interface import HearsLines, Kind, LogKeeper, Shortage, Sink, SparkFigures
from scylla_spark.executors.local.forkserver_handle import ForkserverHandle
from scylla_spark.executors.local.local_executors import auto_executor, secret_paths
from scylla_spark.executors.remote.certificate import server_context
from scylla_spark.executors.remote.handshake import Ticket
from scylla_spark.executors.remote.pool import RemotePool
from scylla_spark.executors.remote.resident import GONE, REFUSED, STOPPED
from scylla_spark.executors.remote.supervisor import EVENTS, RemoteTerms
from scylla_spark.executors.remote.worker_end import DRAINED, LEASE_ENDED
from scylla_spark.executors.spark.application import (
    LEAST_SLOTS,
    addresses,
    check,
    count_slots,
    leaving_executors,
    session_for_workers,
    share_of_overhead,
    waiting_for_slots,
)
from scylla_spark.executors.spark.elastic import Change, Present, StarvedStages, change, most_workers
from scylla_spark.executors.spark.probe import MEND_REACH, missing_on_executors, unreachable
from scylla_spark.executors.spark.worker import BROKEN, REASON, WorkerConfig, host
from scylla_spark.handlers.description import SPARK, HandlerInfo
from scylla_spark.io.host.output_files import OutputFiles
from scylla_spark.io.host.session import is_one_machine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from scylla_spark.config.settings import Settings

SCHEDULER_POOL: Final = "scylla-spark-workers"
_TAG: Final = "scylla-spark-worker-"
_LOOK_S: Final = 0.1
_CHILDREN_PER_CORE: Final = 2
_JOB_ENDS_S: Final = 15.0
_CANCEL_S: Final = 0.5
_FOR_EVER_US: Final = 1 << 62
_CORES_US: Final = 1_000_000
_LATE_US: Final = 10_000_000
_WARN_US: Final = 60_000_000
_CAUSES: Final = {
    DRAINED: "drained", LEASE_ENDED: "lease_ended", STOPPED: "stopped", GONE: "dispatcher_gone", REFUSED: "refused",
}  # fmt: skip
OUT_OF_MEMORY: Final = "out_of_memory"
_KILLED_FOR_MEMORY: Final = re.compile(r"exceeding .*memory limits|container OOM|OOMKilled|exit(?:ed with)? code 137\b")
_TOO_LARGE: Final = (
    "Its container was killed because its processes used too much memory. "
    "Raise spark.executor.memoryOverhead, or lower spark_workers.children."
)
_LACKED: Final = "Every Spark worker lacks its handler, or has it in another version. Restart the dispatcher with the present archive."
_BACK_OFF_US: Final = 1_000_000
_LONGEST_BACK_OFF_US: Final = 60_000_000
_log = logging.getLogger(__name__)


class SparkPool:
    """An Executor whose handlers run on the executors of a Spark application.

    Each worker is a Spark job with one task, which hosts a local pool. Attempts, outcomes and notes travel over a connection that the
    worker makes to this process. It has room for tasks once it is started and `attach`ed to a session, in either order; on a cluster
    once a first worker has loaded the handlers. If an executor cannot load them, the pool fails, and no attempt is used up.

    Args:
        modules: handler modules (see `registry.load`); executors must be able to import them.
        workers: how many there may be, and how they reach this process; default: `SparkWorkers()`.
        kill_grace_s: from SIGTERM to SIGKILL for a call that exceeds its timeout.
        pass_environment: further environment variables that handlers get (see `environment`).
        longest_s: how long a call may run at most if it asks for longer than its timeout.
        lease_s: how long a worker runs handlers without hearing from this process.
        auto: the executor of handlers that name none.
        hidden: files and folders that no sandbox shows.
        readable: further files and folders that sandboxed handlers can read.

    Attributes:
        failure: why it can run nothing any more: its session has ended, or an executor lacks the handlers; None: it can.
    """

    def __init__(
        self,
        modules: Sequence[str],
        *,
        workers: SparkWorkers | None = None,
        kill_grace_s: float = 1.0,
        pass_environment: Sequence[str] = (),
        longest_s: float = LONGEST_RUN_S,
        lease_s: float = 5.0,
        auto: str = SPARK,
        hidden: Sequence[str] = (),
        readable: Sequence[str] = (),
    ) -> None:
        self.failure: BaseException | None = None
        self._workers = workers or SparkWorkers()
        children = self._workers.children or _CHILDREN_PER_CORE
        self._config = WorkerConfig(
            tuple(modules), children, kill_grace_s, tuple(pass_environment), longest_s,
            auto, tuple(hidden), tuple(readable),
        )  # fmt: skip
        self._terms = RemoteTerms(lease_us=round(lease_s * 1e6), kill_us=round((kill_grace_s + 1) * 1e6))
        self._handlers: dict[str, HandlerInfo] = {}
        self._at_once: dict[str, int | None] = {SPARK: None}
        self._spark: SparkSession | None = None
        self._session: SparkSession | None = None  # for the jobs of workers
        self._remote: RemotePool | None = None
        self._jobs: dict[str, threading.Thread] = {}
        self._submitted_us: dict[str, int] = {}  # boot clock, by worker, of jobs that run
        self._without_core: list[str] = []  # workers whose jobs have waited for long
        self._looked_for_cores_us = self._warned_us = 0
        self._stages = StarvedStages()
        self._starved = False
        self._leaving: set[str] = set()  # executors
        self._starts = 0
        self._ends: Counter[str] = Counter()
        self._idle: dict[str, int] = {}
        self._slots = LEAST_SLOTS
        self._proven = False  # whether executors can load the handlers
        self._failures = 0
        self._started_us = boot_us()
        self._start_from_us = 0
        self._begin_lock = threading.Lock()
        self._stopping = threading.Event()
        self._manager: threading.Thread | None = None
        self._sink: Sink | None = None
        self._keeper: HearsLines | None = None

    def start(self, sink: Sink) -> None:
        """Reads the handlers' settings (in a process of their own) and begins to accept work.

        Raises:
            ConfigError: a handler module cannot be imported here.
            ArgumentError: handlers contradict each other, or a module file is missing.
            ConflictError: it was started before.
        """
        if self._sink is not None:
            raise ConflictError("This pool was started before.", hint="Make a new one.")
        config = self._config
        forkserver = ForkserverHandle(config.modules, pass_environment=config.pass_environment, auto=config.auto)
        forkserver.close()
        self._handlers = forkserver.handlers
        ours = [info for info in self._handlers.values() if info.runs_on == SPARK]
        self._at_once |= {info.executor: info.concurrency for info in ours}
        self._sink = sink
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
        """Hands what handlers write to a keeper; before `start`."""
        if isinstance(keeper, HearsLines):
            self._keeper = keeper
            self._config = replace(self._config, logs=keeper.terms())

    def attach(self, spark: SparkSession) -> None:
        """Gives it the session to run on: a classic one, not Spark Connect.

        Raises:
            ConfigError: handlers ask for Spark workers, and those cannot run in its application, or cannot connect to this process.
        """
        self._spark = spark
        self._begin()

    def handlers(self) -> dict[str, HandlerInfo]:
        """Every name that tasks may use; after `start`."""
        return dict(self._handlers)

    def rooms(self) -> dict[str, int]:
        """Returns how many more attempts would start now, or once workers have started that can be, by executor name."""
        remote = self._remote
        if remote is None or not self._proven or self.failure is not None or self._stopping.is_set():
            return dict.fromkeys(self._at_once, 0)
        with remote.lock:
            supervisor = remote.supervisor
            to_come = max(0, most_workers(self._workers, self._slots) - len(supervisor.workers))
            return {
                name: supervisor.room(name)
                + max(0, to_come * (at_once or self._config.children) - supervisor.waiting(name))
                for name, at_once in self._at_once.items()
            }

    def shortage(self) -> Shortage | None:
        """Returns why none of its tasks, or none of some handlers, can start now; None: workers are there for all of them."""
        remote, now = self._remote, boot_us()
        if remote is None:
            return Shortage("Spark's session is not up yet.", self._started_us)
        with remote.lock:
            workers = remote.supervisor.workers.values()
            held = frozenset(number for worker in workers for number in worker.held)
            if not all(worker.draining for worker in workers):
                lacked = remote.supervisor.lacked
                return Shortage(_LACKED, 0, held, lacked) if lacked else None
            starting = not all(map(remote.supervisor.has_seen, self._jobs.copy()))
        if since_us := [self._submitted_us.get(one, now) for one in self._without_core]:
            return Shortage("No Spark executor has a free core for a Spark worker.", min(since_us), held)
        return Shortage("A Spark worker is being started." if starting else "No Spark worker runs.", 0, held)

    def figures(self) -> SparkFigures:
        """Counts of its workers."""
        states, counts = dict.fromkeys(("running", "starting", "draining"), 0), dict.fromkeys(EVENTS, 0)
        if self._remote is not None:
            with self._remote.lock:
                supervisor = self._remote.supervisor
                states["starting"] = sum(not supervisor.has_seen(worker_id) for worker_id in self._jobs.copy())
                for worker in supervisor.workers.values():
                    states["draining" if worker.draining else "running"] += 1
                counts = supervisor.counts.copy()
        return SparkFigures(states, len(self._without_core), self._starts, dict(self._ends), counts)

    def workers(self) -> list[dict[str, Any]]:
        """Its workers, as fields of `SparkWorkerView` of the API."""
        if self._remote is None:
            return []
        with self._remote.lock:
            found = self._remote.supervisor.workers.items()
            return [{"worker": worker_id} | worker.described(boot_us()) for worker_id, worker in found]

    def drain(self, worker_id: str) -> bool:
        """Gives a worker no more work, so that it ends; False: there is none of that id."""
        if self._remote is None:
            return False
        with self._remote.lock:
            worker = self._remote.supervisor.workers.get(worker_id)
            if worker is not None:
                worker.drain()
        self._remote.submit(())  # writes the order at once
        return worker is not None

    def running(self) -> dict[int, int]:
        """Id → wall clock of the start, for each attempt whose start a worker has reported."""
        return {} if self._remote is None else self._remote.running()

    def notes(self) -> dict[int, WorkNote]:
        """Returns what attempts say of their work, of those that have said something since the last call."""
        return {} if self._remote is None else self._remote.notes()

    def submit(self, batch: Sequence[Invocation]) -> None:
        """Takes attempts; they start where a worker has room."""
        if self._remote is not None:
            self._remote.submit(batch)
        elif self._sink is not None and not self._stopping.is_set():  # there is no session yet
            self._sink([Outcome(item.id, NOT_STARTED) for item in batch])

    def kill(self, ids: Sequence[int], *, grace_ms: int = 0) -> None:
        """Ends attempts."""
        if self._remote is not None:
            self._remote.kill(ids, grace_ms=grace_ms)

    def stop(self, *, drain_s: float) -> None:
        """Hands back what has not started, lets the rest run for `drain_s` seconds, then ends all workers."""
        with self._begin_lock:
            if self._stopping.is_set():
                return
            self._stopping.set()
        if self._remote is None:
            return
        if self._manager is not None:  # it starts no more jobs then
            self._manager.join(_JOB_ENDS_S)
        self._remote.stop(drain_s=drain_s)
        until_us = boot_us() + round(_JOB_ENDS_S * 1e6)
        while (jobs := self._jobs.copy()) and boot_us() < until_us:
            for worker_id, thread in jobs.items():
                thread.join(_CANCEL_S / len(jobs))  # one that ends by itself leaves its Python process to other tasks
                if thread.is_alive():
                    self._cancel(worker_id)  # again: Spark does not know a job yet whose thread has just begun

    def _cancel(self, worker_id: str) -> None:
        if self._spark is not None:
            with contextlib.suppress(Exception):
                self._spark.sparkContext.cancelJobsWithTag(_tag(worker_id))

    # ---- workers ----

    def _begin(self) -> None:
        with self._begin_lock:
            if (
                self._spark is not None
                and self._sink is not None
                and self._remote is None
                and not self._stopping.is_set()
            ):
                self._begin_on(self._spark, self._sink)

    def _begin_on(self, spark: SparkSession, sink: Sink) -> None:
        context = spark.sparkContext
        if any(info.runs_on == SPARK for info in self._handlers.values()):
            check(context)
        local = self._proven = is_one_machine(context.master)
        if local:  # the JVM of a local master has another one
            self._config = replace(self._config, niceness=os.getpriority(os.PRIO_PROCESS, 0))
        self._session = session_for_workers(spark)
        bind, advertise = ("127.0.0.1", "127.0.0.1") if local else addresses(context, self._workers.advertise)
        if self._workers.children is None and not local:
            cores = int(context.getConf().get("spark.task.cpus", "1"))
            self._config = replace(self._config, children=_CHILDREN_PER_CORE * cores)
        self._config = replace(self._config, most_bytes=None if local else share_of_overhead(context))
        tls, certificate = (None, b"") if local else server_context()
        remote = RemotePool(
            self._terms,
            {name: info for name, info in self._handlers.items() if info.runs_on == SPARK},
            host=bind,
            advertise=advertise,
            port=self._workers.port,
            tls=tls,
            certificate=certificate,
        )
        remote.keeper = self._keeper
        remote.start(sink)
        self._remote = remote
        self._manager = threading.Thread(target=self._manage, name="spark-pool", daemon=True)
        self._manager.start()

    def _manage(self) -> None:
        if not self._proven:
            self._check_reach()
        while not self._stopping.wait(_LOOK_S) and self.failure is None:
            try:
                self._look()
            except Exception as error:
                if self._spark is None or _has_ended(self._spark.sparkContext):
                    self.failure = error
                    return
                _log.exception("the pool of Spark workers stumbled")

    def _check_reach(self) -> None:
        """Asks one executor to connect here: workers that cannot would only end, again and again."""
        assert self._remote is not None
        assert self._spark is not None
        ticket = self._remote.ticket()
        self._remote.forget(ticket.worker_id)
        try:
            why = unreachable(self._spark, ticket.host, ticket.port, self._stopping)
        except Exception as error:
            _log.warning("no executor could be asked whether it can connect to this process: %s", error)
            return
        if why:
            self.failure = SetupError(
                f"Executors cannot connect to this dispatcher at {ticket.host}:{ticket.port}: {why}.",
                hint=f"{MEND_REACH}, and let the port through. `scylla-spark doctor cluster` tries it.",
            )
            self._hand_back()

    def _look(self) -> None:
        assert self._remote is not None
        assert self._spark is not None
        now = boot_us()
        jobs = self._jobs.copy()
        with self._remote.lock:
            supervisor = self._remote.supervisor
            here = {  # one that is cut off may be dead, and is none to rely on
                name: worker for name, worker in supervisor.workers.items() if worker.takes_work
            }
            seen = {name for name in jobs if supervisor.has_seen(name)}
            waiting = sum(map(supervisor.wanting, self._at_once)) + (not self._proven)
            self._idle = {name: since for name, since in self._idle.items() if name in here}
            for name, worker in here.items():
                if worker.held or name not in self._idle:
                    self._idle[name] = now
            present = [
                Present(name, worker.hello.executor_id, len(worker.held), self._idle[name])
                for name, worker in here.items()
            ]
        self._proven |= bool(present)
        slots, self._slots = self._slots, count_slots(self._spark.sparkContext)
        if self._slots == 1 != slots:
            _log.warning(
                "the cluster runs one task at a time: no Spark worker starts, since no query could run beside it"
            )
        if jobs or here or waiting or self._workers.min:  # else there is nothing to decide
            self._ask_spark(jobs.keys() - seen, {one.executor_id for one in present}, now)
        ending = len(seen - here.keys())
        wanted = change(
            self._workers, self._slots, present, len(jobs) - len(seen), ending, waiting, now, starved=self._starved
        )
        of_leaving = [one.worker_id for one in present if one.executor_id in self._leaving]
        wanted = Change(wanted.start, (*wanted.drain, *of_leaving))
        if now < self._start_from_us:
            wanted = Change(0, wanted.drain)
        for _ in range(wanted.start):
            self._start_job(self._remote.ticket())
        if wanted.drain:
            with self._remote.lock:
                for name in wanted.drain:
                    if (leaving := supervisor.workers.get(name)) is not None:
                        leaving.drain()

    def _ask_spark(self, starting: set[str], executors: set[str], now: int) -> None:
        """Finds out, once a second, which stages wait for a slot, which executors leave, and which jobs have waited long for a core."""
        if now - self._looked_for_cores_us < _CORES_US:
            return
        self._looked_for_cores_us = now
        assert self._spark is not None
        context = self._spark.sparkContext
        self._leaving = leaving_executors(context, executors)
        waiting = waiting_for_slots(context)
        others = [one.stage for one in waiting if not one.group.startswith(_TAG)]
        was, self._starved = self._starved, self._stages.note(others, now)
        if self._starved and not was:
            _log.warning("a stage of a query has waited 10 s for a slot of the cluster: Spark workers end to make room")
        late = [one for one in starting if now - self._submitted_us.get(one, now) >= _LATE_US]
        groups = {one.group for one in waiting}
        self._without_core = [one for one in late if _tag(one) in groups]
        if self._without_core and now - self._warned_us >= _WARN_US:
            self._warned_us = now
            waited_s = (now - min(self._submitted_us.get(one, now) for one in self._without_core)) // 1_000_000
            _log.warning(
                "Spark executors are missing: %d Spark workers have waited up to %d s for a free core of one, and tasks wait for them",
                len(self._without_core), waited_s,
            )  # fmt: skip

    def _hand_back(self) -> None:
        """Hands back what waits: nothing can run it."""
        assert self._remote is not None
        with self._remote.lock:
            self._remote.supervisor.stop(_FOR_EVER_US)  # what runs on an executor that could load the handlers goes on
        self._remote.submit(())

    def _start_job(self, ticket: Ticket) -> None:
        thread = threading.Thread(
            target=self._job, args=(ticket,), name=f"spark-worker-{ticket.worker_id}", daemon=True
        )
        self._submitted_us[ticket.worker_id] = boot_us()
        self._jobs[ticket.worker_id] = thread
        self._starts += 1
        _log.info("the Spark worker %s is being started", ticket.worker_id)
        thread.start()

    def _job(self, ticket: Ticket) -> None:
        assert self._session is not None
        assert self._remote is not None
        spark, config, begun_us = self._session, self._config, boot_us()
        context = spark.sparkContext
        try:
            tag = _tag(ticket.worker_id)
            context.setLocalProperty("spark.scheduler.pool", SCHEDULER_POOL)
            context.setJobGroup(tag, f"scylla-spark: worker {ticket.worker_id}")
            context.clearJobTags()  # who interrupts a cell of a notebook, or cancels jobs of a tag, must not end workers
            context.addJobTag(tag)
            frame = spark.range(1).coalesce(1).mapInArrow(lambda batches: host(batches, config, ticket), REASON)
            reason = frame.collect()[0]["reason"]
        except Exception as error:
            reason = str(error)[:2000]
            if _has_ended(context):
                self.failure = error
            elif why := missing_on_executors(error):
                reason = BROKEN + why
        cause = _cause(reason)
        self._remote.forget(ticket.worker_id, _TOO_LARGE if cause == OUT_OF_MEMORY else "")
        del self._jobs[ticket.worker_id], self._submitted_us[ticket.worker_id]
        self._ends[cause] += 1
        if self._stopping.is_set():
            return
        if reason.startswith(BROKEN):
            self.failure = _broken(reason.removeprefix(BROKEN))
            self._hand_back()
            return
        if cause == OUT_OF_MEMORY:
            _log.warning("the Spark worker %s: %s %s", ticket.worker_id, _TOO_LARGE, reason)
        else:
            _log.info("the Spark worker %s has ended: %s", ticket.worker_id, reason)
        failed = boot_us() - begun_us < _LONGEST_BACK_OFF_US and cause != _CAUSES[DRAINED]
        self._failures = self._failures + 1 if failed else 0
        if failed:
            self._start_from_us = boot_us() + min(_BACK_OFF_US << min(self._failures, 6), _LONGEST_BACK_OFF_US)


def _cause(reason: str) -> str:
    """The label of metrics for the reason of an end."""
    if reason.startswith(BROKEN):
        return "broken"
    if _KILLED_FOR_MEMORY.search(reason):
        return OUT_OF_MEMORY
    return _CAUSES.get(reason, "failed")


def _broken(why: str) -> SetupError:
    return SetupError(
        f"Handlers cannot be loaded on the executors of Spark: {why.rstrip('.')}.",
        hint="Install scylla-spark and the modules of `handlers` in the Python of every executor, or set spark_workers.max = 0. "
        "No attempt was used up. docs/spark-cluster.md says what executors need.",
    )


def _tag(worker_id: str) -> str:
    return _TAG + worker_id


def _has_ended(context: Any) -> bool:
    """Returns True if a Spark context, or the JVM that it is in, has ended."""
    try:
        return bool(context._jsc.sc().isStopped())  # noqa: SLF001 - the only way to ask
    except Exception:
        return True


def _from_settings(settings: Settings) -> SparkPool:
    dispatch = settings.dispatch
    return SparkPool(
        settings.handlers,
        workers=settings.spark_workers,
        pass_environment=dispatch.pass_environment,
        longest_s=dispatch.longest_run.total_seconds(),
        lease_s=dispatch.session_timeout.total_seconds() / 2,
        auto=auto_executor(settings),
        hidden=[str(path.absolute()) for path in secret_paths(settings)],
        readable=[str(path) for path in dispatch.sandbox_paths],
    )


KIND: Final = Kind(
    _from_settings,
    wanted=lambda settings: settings.has_spark_workers,
    turned_on_by='set spark_workers.max to 1 or more and dispatch.scan to "spark" for the dispatchers',
    needs_session=lambda settings: True,
)
