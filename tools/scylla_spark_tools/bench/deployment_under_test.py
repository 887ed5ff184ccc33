"""Where a benchmark happens: its options, its folder, and the deployment that it measures."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from scylla_spark.clock import boot_us, now_us
from scylla_spark.config.kafka import Kafka
from scylla_spark.config.settings import Settings, Tables, Topics
from scylla_spark.core.tables.progress import Mark
from scylla_spark.errors import WaitTimeoutError
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.host.session import open_session
from scylla_spark.io.kafka.topics import end_offsets
from scylla_spark.processes.deployment import Deployment
from scylla_spark.processes.process_main import favour_latency
from scylla_spark.schemas import TABLES, Table
from scylla_spark_tools.bench import machine
from scylla_spark_tools.bench.handlers import MODULE
from scylla_spark_tools.bench.load import poll

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
LIMIT_S: Final = 600.0
_JVM_END_S: Final = 30


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line sets; None: as the benchmark likes it.

    Attributes:
        data: folder under which the run makes one of its own and removes it; None: the system's temporary folder.
        seconds: length of a latency benchmark.
        tasks: how many tasks or rows.
        stored: how many tasks stand in the tables beside them.
        lanes: over how many lanes.
        rate: tasks per second of a latency benchmark.
        warm: rows or tasks that go the same way before the measurement begins.
        changes: settings to change, nested.
        profile: write to stderr where the driver spends its time.
        batch: `drain` with a batch handler.
        replay: `single` in a queue of order "replay".
        hours: `drain` of tasks due during so many past hours.
        turns: how often a load and the same with a burden are measured by turns, where their p99 are compared.
        paused: `pending` with overdue tasks of a paused queue.
        fleet: `leases` that are held by many workers.
        lines: `logs` with so many lines of each handler.
    """

    data: Path | None = None
    seconds: float | None = None
    tasks: int | None = None
    stored: int | None = None
    lanes: int | None = None
    rate: float | None = None
    warm: int | None = None
    changes: dict[str, Any] | None = None
    profile: bool = False
    batch: bool = False
    replay: bool = False
    paused: bool = False
    fleet: bool = False
    hours: float = 0
    turns: int = 3
    lines: int | None = None

    def needing(self, section: str, **values: Any) -> Options:
        """These, with settings that the benchmark itself needs; `--set` wins over them."""
        changes = self.changes or {}
        return replace(self, changes=changes | {section: values | changes.get(section, {})})


def say(text: str) -> None:
    """Tells people what goes on."""
    sys.stderr.write(f"bench: {text}\n")
    sys.stderr.flush()


@contextmanager
def place(options: Options, *roles: str) -> Iterator[Deployment]:
    """A fresh deployment on an embedded broker, whose folder is removed at the end.

    Only the environment and `--set` change its settings: never a file, so that no other deployment is touched.

    Args:
        options: of the command line.
        *roles: services that run from the start; without any there are broker, session, topics and tables.

    Raises:
        WaitTimeoutError: the deployment was not ready within two minutes.
    """
    if options.data is not None:
        options.data.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="scylla-spark-bench-", dir=options.data))
    fresh = not _jvm_runs()
    try:
        fixed: dict[str, Any] = {
            "data_dir": folder,
            "handlers": (MODULE,),
            "kafka": Kafka(),
            "topics": Topics(),
            "tables": Tables(),
        }
        settings = Settings(_env_file=None, **((options.changes or {}) | fixed))
        say(f"starting broker, Spark{''.join(f', {role}' for role in roles)}")
        favour_latency()
        with _session(settings) as spark, Deployment(settings, roles=roles, spark=spark) as deployment:
            if not roles:
                _prepare(deployment.settings)
            if not deployment.await_ready():
                raise WaitTimeoutError("The deployment was not ready within two minutes.", hint="See the log above.")
            yield deployment
    finally:
        if fresh:
            _end_jvm()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _session(settings: Settings) -> Iterator[SparkSession]:
    """A session as services have it; it is there also where no service needs one."""
    spark = open_session(settings, "scylla-spark bench", services=True)
    try:
        yield spark
    finally:
        spark.stop()


def _jvm_runs() -> bool:
    from pyspark import SparkContext

    return SparkContext._gateway is not None  # noqa: SLF001 - there is no public way to ask


def _end_jvm() -> None:
    """Ends the JVM that served our session and waits for it, since it removes its own files last."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway  # noqa: SLF001 - nor to end it
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(_JVM_END_S)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()


def _prepare(settings: Settings) -> None:
    from scylla_spark.io.delta.new_tables import ensure_tables
    from scylla_spark.io.kafka.topic_setup import ensure_topics

    ensure_tables(settings, ensure_topics(settings), now=now_us())


def await_value(what: str, look: Callable[[], T | None], *, limit_s: float = LIMIT_S, pause_s: float = 0.05) -> T:
    """Returns what `look` finds, once it finds something.

    Args:
        what: the end of the error's sentence.
        look: None means: not yet.
        limit_s: seconds after which it is given up.
        pause_s: seconds between two looks.

    Raises:
        WaitTimeoutError: it finds nothing in time.
    """
    begun = boot_us()
    while (found := look()) is None:
        if boot_us() - begun > limit_s * 1e6:
            raise WaitTimeoutError(f"Waited {limit_s:g} s in vain for {what}.", hint="See the log above.")
        poll(pause_s)
    return found


def ends(settings: Settings) -> dict[int, int]:
    """End offset of each partition of `tasks`."""
    return end_offsets(settings, settings.topics.tasks, list(range(settings.partitions)))


def await_merged(settings: Settings, deployment: Deployment | None = None) -> None:
    """Returns when everything that stands on `tasks` now is in the tables."""
    readers, wanted = TableReader.of(settings), ends(settings)

    def look() -> bool | None:
        if deployment is not None:
            deployment.check()
        marks = readers.marks()
        reached = {number: marks.get(("tasks", number), Mark()).tasks_offset for number in wanted}
        return all(reached[number] >= end for number, end in wanted.items()) or None

    await_value("ingest", look, pause_s=0.1)


def rows_in(settings: Settings, table: Table) -> int:
    """Returns how many rows the files of a table hold, by its log."""
    return int(TableReader.of(settings).size(table)["rows"])


def stored_tasks(settings: Settings, prefix: str = "") -> int:
    """Returns how many tasks of lanes that begin so the tables hold, near and far, each counted once."""
    import polars as pl

    readers = TableReader.of(settings)
    identity = ("scheduled_time", "ordering_id", "uniqueness_key")
    keys = [readers.frame(table).select(identity) for table in TABLES if table.name in ("tasks", "deferred")]
    wanted = pl.concat(keys).filter(pl.col("ordering_id").str.starts_with(prefix))
    return int(wanted.unique().select(pl.len()).collect().item())


def files_in(settings: Settings) -> dict[str, int]:
    """Table → how many files it has."""
    readers = TableReader.of(settings)
    return {table.name: int(readers.size(table)["files"]) for table in TABLES}


class Costs:
    """CPU time of the system between its making and `read`, helper processes left out."""

    def __init__(self, *helpers: int) -> None:
        self._helpers = helpers
        self._begun = boot_us()
        self._before = machine.cpu_by_part(os.getpid(), helpers)

    def read(self) -> tuple[float, dict[str, float]]:
        """Cores in use on average, and CPU seconds per part."""
        parts = machine.used(self._before, machine.cpu_by_part(os.getpid(), self._helpers))
        return sum(parts.values()) / ((boot_us() - self._begun) / 1e6), parts
