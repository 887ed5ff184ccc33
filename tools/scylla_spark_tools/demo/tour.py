"""The tour itself: start everything, send the plan, wait for the end, stop, and judge."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TextIO

import structlog

from scylla_spark.client.scheduler import Scheduler
from scylla_spark.clock import boot_us, now_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.tasks.task import SUCCEEDED
from scylla_spark.defaults import DEFAULT_QUEUE
from scylla_spark.errors import ConflictError, ExitCode, WaitTimeoutError
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.processes.deployment import Deployment
from scylla_spark.processes.process_main import favour_latency
from scylla_spark.services.dispatch.service import DispatchService
from scylla_spark.services.metrics_server import PREFIX
from scylla_spark.visible import visible
from scylla_spark_tools.demo import check, collect_evidence, handlers, planned_tasks, schedules, show
from scylla_spark_tools.demo.check import Finding
from scylla_spark_tools.demo.evidence import History, Intended
from scylla_spark_tools.demo.send import Sender
from scylla_spark_tools.demo.witness import Receiver

LEAST_LEAD_S: Final = 10
MOST_LEAD_S: Final = 240
_LEAD_PER_FRAME: Final = 4.0  # two frames with rows, two other clients, and changes follow
_SCHEDULES_AFTER_S: Final = 6  # about so long after the first task is due the schedules begin to fire
_COMMITS_AT_S: Final = 13  # between what is sent while a task runs and what is sent when tasks are done
_POLL_S: Final = 0.25
_STOP_S: Final = 60.0
_TOLD: Final = 30


def run(*, as_json: bool, data: Path | None, limit_s: float) -> int:
    """See `demo.main`."""
    folder = Path(tempfile.mkdtemp(prefix="scylla-spark-demo-")) if data is None else _empty(data)
    with _kept_if_it_fails(folder, temporary=data is None) as failing:
        if not _run_and_judge(folder, limit_s, as_json=as_json):
            failing()
            return ExitCode.FAILED
    return ExitCode.OK


def _run_and_judge(folder: Path, limit_s: float, *, as_json: bool) -> bool:
    """One run, and what there is to say of it; returns whether every check held."""
    begun = boot_us()
    with _aside(folder / "demo.log") as screen, _ending(limit_s, screen, folder), show.Display(screen) as display:
        tour = _Tour(folder, display, begun, limit_s)
        history = tour.run()
    failed = {name: list(judge(history)) for name, judge in check.CHECKS.items()}
    findings = tour.findings + [finding for found in failed.values() for finding in found]
    counted = [finding for finding in findings if finding.check != "late" or not show.is_busy()]
    numbers = check.summary(history, counted, (boot_us() - begun) / 1e6)
    if as_json:
        for line in show.told(findings):
            sys.stderr.write(line + "\n")
        show.as_json(numbers)
    else:
        show.as_table(tour.plan, history, {name for name, found in failed.items() if found}, findings, numbers)
    return bool(numbers["ok"])


class _Tour:
    """One run.

    Args:
        folder: where everything lies.
        display: told of progress.
        begun_us: boot clock at the beginning.
        limit_s: how long after it waiting ends.
    """

    def __init__(self, folder: Path, display: show.Display, begun_us: int, limit_s: float) -> None:
        self.plan = planned_tasks.Plan(0)
        self.findings: list[Finding] = []
        self._folder = folder
        self._display = display
        self._deadline_us = begun_us + int(limit_s * 1e6)
        self._readers: TableReader
        self._sender: Sender
        self._intended: Intended
        self._table = folder / "demo-numbers"

    def run(self) -> History:
        """Everything up to the point where only judging is left."""
        self._display.at("starting the receiver, the embedded broker, Spark, ingest, dispatch and the planner")
        favour_latency()
        with Receiver(self._folder / "receiver.jsonl") as receiver:
            with Deployment(_settings(self._folder)) as deployment:
                self._readers = TableReader.of(deployment.settings)
                if not deployment.await_ready(timeout_s=self._remaining_s()):
                    raise WaitTimeoutError("The deployment was not ready in time.", hint="Is the machine very busy?")
                lead_us = self._lead_us(deployment)
                self._schedule(deployment, lead_us)
                self.plan = planned_tasks.make(now_us() // 1000 * 1000 + lead_us, receiver.address)
                self._watch(deployment)
                assert deployment.spark is not None
                with Sender(deployment.settings, deployment.spark, self.plan) as self._sender:
                    self._send()
                    self._await_end(deployment)
                self._display.at("stopping")
            return collect_evidence.history(self.plan, self._intended, self._sender, receiver, self._readers)

    def _lead_us(self, deployment: Deployment) -> int:
        """Returns how long before its first task is due the enqueueing begins: longer on a slow or busy machine."""
        self._display.at("enqueueing an empty frame, to see how fast this machine is")
        assert deployment.spark is not None
        begun = boot_us()
        with Sender(deployment.settings, deployment.spark, self.plan) as sender:
            sender.warm_up()
        lead_s = (boot_us() - begun) / 1e6 * _LEAD_PER_FRAME
        return int(min(max(lead_s, LEAST_LEAD_S), MOST_LEAD_S)) * 1_000_000

    def _schedule(self, deployment: Deployment, lead_us: int) -> None:
        self._display.at("putting three schedules")
        self._intended = schedules.intended(now_us() + lead_us + _SCHEDULES_AFTER_S * 1_000_000)
        with Scheduler.connect(deployment.settings) as client:
            schedules.put(client, self._intended, self._table)

    def _watch(self, deployment: Deployment) -> None:
        dispatcher = deployment.service(DispatchService).dispatcher
        counts, measured = dispatcher.engine.counts, dispatcher.measures.registry
        name = f"{PREFIX}execution_seconds_count"
        labels = {"queue": DEFAULT_QUEUE, "handler": handlers.SCHEDULED, "outcome": SUCCEEDED}

        def count() -> int:
            """Returns how many tasks have ended, without the runs of schedules."""
            ended = sum(counts[f"completed_{how}"] for how in _ENDS)
            return ended - int(measured.get_sample_value(name, labels) or 0)

        self._display.count = count
        self._display.total = len(self.plan.tasks)

    def _send(self) -> None:
        plan, sender, second = self.plan, self._sender, 1_000_000
        self._display.at(f"enqueueing {len(plan.tasks):,} tasks of {planned_tasks.LANES} lanes, and bad records")
        sender.first()
        self._display.at("sending duplicates, overwrites and cancels")
        sender.changes(plan.start_us + int((planned_tasks.SAFE_S - 1) * second))
        self._display.at("running")
        running = plan.while_running[0].key.time_us
        self._sleep_until(running + int(planned_tasks.OVERWRITE_RUNNING_AFTER_S * second))
        sender.again(plan.while_running)
        for number in range(1, schedules.COMMITS + 1):
            self._sleep_until(plan.start_us + int((_COMMITS_AT_S + number) * second))
            schedules.commit(self._table, number)
        self._sleep_until(plan.start_us + int(planned_tasks.RESENT_AT_S * second))
        sender.again(plan.resent)
        self._sleep_until(plan.last_us)

    def _await_end(self, deployment: Deployment) -> None:
        self._display.at("waiting for the last tasks")
        total, refused = len(self.plan.tasks), len(self._sender.refused)
        self._await(deployment, lambda: self._display.count() >= total, "not all tasks ended in time")
        self._display.at("waiting for the tables")

        def recorded() -> bool:
            return all(
                have >= want
                for have, want in zip(collect_evidence.written(self._readers), (total, refused), strict=True)
            )

        self._await(deployment, recorded, "not all completions and rejects were in the tables in time")

        def settled() -> bool:
            return schedules.settled(self._intended, collect_evidence.scheduled(self._readers))

        self._await(deployment, settled, "not all runs of schedules were in the tables in time")

    def _await(self, deployment: Deployment, done: Callable[[], bool], otherwise: str) -> None:
        pause = threading.Event()
        while not done():
            deployment.check()
            if self._remaining_s() <= 0:
                self.findings.append(Finding("time", "", otherwise))
                return
            pause.wait(_POLL_S)

    def _sleep_until(self, moment_us: int) -> None:
        threading.Event().wait(max(0.0, min((moment_us - now_us()) / 1e6, self._remaining_s())))

    def _remaining_s(self) -> float:
        return (self._deadline_us - boot_us()) / 1e6


_ENDS: Final = ("succeeded", "failed", "aborted", "cancelled")


def _settings(folder: Path) -> Settings:
    """The demo's own settings: whatever is configured on this machine is not touched and changes nothing."""
    sections = {
        name: field.default.model_dump()
        for name, field in Settings.model_fields.items()
        if hasattr(field.default, "model_dump")
    }
    changes: dict[str, dict[str, Any]] = {
        "ingest": {"trigger": "5s", "default_handler": planned_tasks.DEFAULT_HANDLER},
        "dispatch": {"drain": "5s"},
        "spark_workers": {"min": 1, "max": 1},  # it is there before the first task on Spark is due
        "api": {"port": 0},
    }
    empty = folder / "demo.toml"
    empty.touch()
    return Settings.load(
        empty,
        data_dir=folder,
        handlers=(planned_tasks.HANDLERS,),
        partitions=8,
        master="local[2]",
        **{name: section | changes.get(name, {}) for name, section in sections.items()},
    )


@contextmanager
def _kept_if_it_fails(folder: Path, *, temporary: bool) -> Iterator[Callable[[], None]]:
    """Removes the folder of a run if it is temporary, unless the run fails: then it is the evidence, and is named on stderr."""

    def failing() -> None:
        sys.stderr.write(
            f"the evidence is kept in {folder}: demo.log, receiver.jsonl, the tables and the broker's logs\n"
        )
        if show.is_busy():
            sys.stderr.write(f"{show.load()}: try again when it is quieter\n")
        kept.append(folder)

    kept: list[Path] = []
    try:
        yield failing
    except Exception:
        failing()
        raise
    finally:
        if temporary and not kept:
            shutil.rmtree(folder, ignore_errors=True)


def _empty(data: Path) -> Path:
    if data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise ConflictError(f"{data} is not an empty folder.", hint="The demo needs a new or empty one for --data.")
    data.mkdir(parents=True, exist_ok=True)
    return data


@contextmanager
def _aside(path: Path) -> Iterator[TextIO]:
    """Sends stderr to a file, with our log and what libraries, JVMs and children say; yields the true stderr.

    If it ends with an error, the last lines of our own log are shown, without what the JVM said while it was stopped.
    """
    with os.fdopen(os.dup(2), "w", buffering=1) as screen, path.open("a", buffering=1) as file:
        os.dup2(file.fileno(), 2)
        try:
            with _logging(file):
                yield screen
        except Exception:
            lines = [line for line in path.read_text(errors="replace").splitlines() if line.startswith("{")]
            screen.writelines(f"demo.log: {visible(line)}\n" for line in lines[-_TOLD:])
            raise
        finally:
            sys.stderr.flush()
            os.dup2(screen.fileno(), 2)


@contextmanager
def _logging(file: TextIO) -> Iterator[None]:
    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(default=str),
    ]
    structlog.configure(processors=processors, logger_factory=structlog.WriteLoggerFactory(file))
    handler = logging.StreamHandler(file)
    root = logging.getLogger()
    known, root.handlers = root.handlers, [handler]
    try:
        yield
    finally:
        root.handlers = known
        structlog.configure(processors=processors, logger_factory=structlog.WriteLoggerFactory(sys.stderr))


@contextmanager
def _ending(limit_s: float, screen: TextIO, folder: Path) -> Iterator[None]:
    """SIGTERM ends the demo in good order, and nothing that hangs keeps it beyond the limit."""

    def give_up() -> None:
        screen.write(
            f"error: the demo hangs: it has not ended {_STOP_S:g} s after its limit of {limit_s:g} s; see {folder}\n"
        )
        os._exit(ExitCode.FAILED)

    watchdog = threading.Timer(limit_s + _STOP_S, give_up)
    watchdog.daemon = True
    watchdog.start()
    main_thread = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(ExitCode.INTERRUPTED)) if main_thread else None
    try:
        yield
    finally:
        watchdog.cancel()
        if main_thread:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
