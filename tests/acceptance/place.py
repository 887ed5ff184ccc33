"""One data directory and what runs on it: real processes, seen only from outside (their output, /proc, tables, the handlers' journal)."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import polars as pl
from deltalake import DeltaTable
from kafka import KafkaProducer

from scylla_spark import Scheduler, Settings, TaskKey
from scylla_spark.clock import iso
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.task import STARTED
from scylla_spark.io.host import die_with_parent
from scylla_spark.io.kafka.access import python_options
from scylla_spark.io.kafka.topics import located
from scylla_spark.processes.ready_line import read_ready_line
from scylla_spark.testing.history import Recorded, Run, runs
from tests.acceptance import journal_handlers
from tests.support.command_line import run_command
from tests.support.outcomes_log import OutcomesLog
from tests.support.processes import alive, descendants
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
HANDLERS = journal_handlers.__file__
SETTINGS = (
    "api.port=0",
    "ingest.trigger=2s",
    "logs.trigger=10s",
    "ingest.grace=60s",
    "dispatch.session_timeout=6s",
    "spark_workers.max=0",
)
# A deployment of a test lives for minutes: code that is compiled well costs more there than it saves. The code cache is as large as
# without that flag: at 48 MB it is full after minutes of Spark, and Java spends half a core on making room.
JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
SECOND = 1_000_000
PATIENCE = 180.0  # a deadline, not a wait: machines that run tests may be busy
PARTS = {  # of a deployment → what stands in the command line of the process
    "broker": "kafka.Kafka",
    "api": "-m scylla_spark.api",
    "reader of lines": "scylla_spark.services.dispatch.log_process",
    "python daemon of spark": "pyspark.daemon",
    "jvm of spark": "org.apache.spark.deploy.SparkSubmit",
}
POOL = ("forkserver", "handler")  # further parts
KEY = ("scheduled_time", "ordering_id", "uniqueness_key")

T = TypeVar("T")


def now() -> int:
    return time.time_ns() // 1000


# Commands are forked from a process that has imported the command line: importing it is most of what a command costs.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([run_command.__module__])


class Called(NamedTuple):
    """What a command has left."""

    returncode: int
    stdout: str
    stderr: str


class Process:
    """A process of ours that says on stdout, as JSON, when it is ready; it does not outlive the tests."""

    started: ClassVar[list[Process]] = []

    def __init__(self, name: str, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.name, self.folder = name, folder
        self.stdout, self.stderr = folder / f"{name}.out", folder / f"{name}.err"
        bound = die_with_parent.command(command)
        with self.stdout.open("wb") as out, self.stderr.open("ab") as err:
            self._popen = subprocess.Popen(
                bound, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )  # fmt: skip
        self.pid = self._popen.pid
        self.started.append(self)

    def ready(self, within: float = PATIENCE) -> Mapping[str, Any]:
        """Waits for the line that says ready."""
        return eventually(self._ready_facts, within, f"{self.name} is ready")

    def _ready_facts(self) -> Mapping[str, Any] | None:
        assert self.running, f"{self.name} ended with {self._popen.returncode}: {self.told()[-3000:]}"
        # under spark-submit the log stands here too: Spark joins the driver's stderr to its stdout
        text = self.stdout.read_text(errors="replace")
        told = map(read_ready_line, text[: text.rfind("\n") + 1].splitlines())
        return next((facts for facts in told if facts is not None), None)

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def told(self) -> str:
        return self.stderr.read_text(errors="replace") + self.stdout.read_text(errors="replace")

    def signal(self, number: int) -> None:
        self._popen.send_signal(number)

    def ended(self, within: float = PATIENCE) -> int:
        """Waits for the end; the exit code."""
        return self._popen.wait(within)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.signal(signal.SIGTERM)
        return self.ended()


class Place:
    """A data directory.

    Args:
        folder: holds the data, the handlers' journal and the processes' output.
    """

    java = JAVA

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.journal = folder / "journal.jsonl"
        self.deaths: list[int] = []
        self.killed: dict[int, int] = {}
        self._clients: list[Scheduler] = []
        self._outcomes_log: OutcomesLog | None = None
        self._seen: dict[str, tuple[DeltaTable, int, pl.DataFrame]] = {}
        self._starts = self._calls = 0
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("SCYLLASPARK_", "SPARK_"))}
        # every descendant inherits it: that is how `left` finds them
        self.environment = clean | {
            "ACCEPTANCE_DATA": str(self.data),
            "PYTHONPATH": str(ROOT),
            journal_handlers.JOURNAL: str(self.journal),
            "SCYLLASPARK_SPARK__OPTIONS": json.dumps({"spark.driver.extraJavaOptions": self.java}),
            "SCYLLASPARK_DISPATCH__PASS_ENVIRONMENT": '["ACCEPTANCE_*", "FAULTS_*"]',
        }

    def command(self, *words: str) -> list[str]:
        """A command line of ours on this directory."""
        options = [word for text in SETTINGS for word in ("--set", text)]
        return [str(Path(sys.executable).with_name("scylla-spark")), "--data", str(self.data), *options, *words]

    def up(self, *words: str) -> Process:
        """Starts everything on this directory; not waited for."""
        self._starts += 1
        command = self.command("up", "--handlers", HANDLERS, "-o", "json", *words)
        return Process(f"up-{self._starts}", command, self.folder, self.environment)

    def call(self, *words: str) -> Called:
        """Runs a command to its end."""
        self._calls += 1
        out, err = (self.folder / f"call-{self._calls}.{kind}" for kind in ("out", "err"))
        process = _FORKS.Process(
            target=run_command, args=(self.command(*words)[1:], self.folder, self.environment, out, err)
        )
        process.start()
        process.join(PATIENCE)
        assert process.exitcode is not None, f"{words} has not ended; it said: {err.read_text()}"
        return Called(process.exitcode, out.read_text(), err.read_text())

    def kill(self, process: Process) -> None:
        """kill -9, noted as a death for the history once all processes below it are dead, too, which takes some milliseconds."""
        below = descendants(process.pid)
        process.signal(signal.SIGKILL)
        process.ended()
        eventually(lambda: not any(map(alive, below)), PATIENCE, "what it had started is dead")
        self.deaths.append(now())

    def kill_part(self, pid: int, *others: int) -> None:
        """Kills one process, and notes its death and that of all processes below it and below `others`, which end because of it."""
        below = [found for top in (pid, *others) for found in (top, *descendants(top))]
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not any(map(alive, below)), PATIENCE, "what ran below it is dead")
        self.killed |= dict.fromkeys(below, now())

    def left(self) -> list[str]:
        """Command lines of all living processes that belong to this directory."""
        needle, found = str(self.data).encode(), []
        for entry in Path("/proc").iterdir():
            try:
                if not entry.name.isdigit() or int(entry.name) == os.getpid():
                    continue
                command = (entry / "cmdline").read_bytes()
                if needle in command or needle in (entry / "environ").read_bytes():
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                    if state != "Z":
                        words = command.replace(b"\0", b" ").decode(errors="replace")
                        found.append(f"{entry.name} {words[:200]}")
            except OSError:
                continue  # it has ended meanwhile
        return found

    def part(self, name: str, pool: int = 0) -> int | None:
        """The process id of a part of a deployment, None while there is none.

        Args:
            name: one of `PARTS` or `POOL`.
            pool: process id of the forkserver of a pool, as handlers write it down.
        """
        if name == "forkserver":
            return pool
        if name == "handler":
            children = [
                pid for path in Path(f"/proc/{pool}/task").glob("*/children") for pid in path.read_text().split()
            ]
            return next((int(pid) for pid in children), None)
        for line in self.left():
            pid = int(line.split()[0])
            with contextlib.suppress(OSError):
                if PARTS[name] in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(
                    errors="replace"
                ):
                    return pid
        return None

    def clear(self) -> None:
        """Ends what is left, whatever happened in the tests."""
        self.close_clients()
        for line in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line.split()[0]), signal.SIGKILL)
        for process in Process.started:
            if process.folder == self.folder:
                process.ended(10)

    def driver_of(self, pool: int) -> int:
        """The driver that a pool of children belongs to; 0 if it is gone."""
        try:
            return int(Path(f"/proc/{pool}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return 0

    def close_clients(self) -> None:
        """Closes the clients that `client` and `ends` have made."""
        while self._clients:
            self._clients.pop().close()
        if self._outcomes_log is not None:
            self._outcomes_log.close()
            self._outcomes_log = None

    # -- asking -----------------------------------------------------------------------------------------------------------

    def client(self, **settings: Any) -> Scheduler:
        """A client of this directory, closed by `clear`."""
        self._clients.append(Scheduler.connect(Settings(data_dir=self.data, **settings)))
        return self._clients[-1]

    def history(self, prefix: str = "") -> list[Run]:
        """Returns what the handlers wrote, for lanes that begin with `prefix`; by start."""
        text = self.journal.read_text() if self.journal.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        found = runs(map(json.loads, whole.splitlines()), self.deaths, self.killed)
        return [run for run in found if run.key.ordering_id.startswith(prefix)]

    def rows(self, table: str) -> pl.DataFrame:
        """All rows of a table, instants as microseconds since the epoch."""
        found, version, frame = self._seen.get(table) or (DeltaTable(f"{self.data}/tables/{table}"), -1, pl.DataFrame())
        found.update_incremental()
        if found.version() != version:
            frame = pl.from_arrow(found.to_pyarrow_table()).with_columns(pl.col(pl.Datetime).dt.epoch("us"))
            self._seen[table] = found, found.version(), frame
        return frame

    def completions(self, prefix: str = "") -> dict[TaskKey, dict[str, Any]]:
        """Key → its row of `completions`: the one that counts, the first that was recorded."""
        rows = self.rows("completions").filter(pl.col("ordering_id").str.starts_with(prefix)).sort("fact_offset")
        found: dict[TaskKey, dict[str, Any]] = {}
        for row in rows.to_dicts():
            found.setdefault(TaskKey(*(row[name] for name in KEY)), row)
        return found

    def begun(self, prefix: str = "") -> list[Recorded]:
        """The attempts that stand in `attempts`, as the facts that they began."""
        rows = self.rows("attempts").filter(pl.col("ordering_id").str.starts_with(prefix)).to_dicts()
        facts = (Fact(TaskKey(*(row[name] for name in KEY)), row["attempt"], STARTED) for row in rows)
        return [Recorded(fact, 0) for fact in facts]

    def ingested(self, acknowledged: Iterable[Any], within: float = PATIENCE) -> None:
        """Waits until ingest has written the records behind these futures of a producer."""
        ends: dict[int, int] = {}
        for future in acknowledged:
            placed = future.get(timeout=30)
            ends[placed.partition] = max(ends.get(placed.partition, 0), placed.offset + 1)

        def look() -> bool:
            rows = self.rows("progress").filter(pl.col("topic") == "tasks").to_dicts()
            written = {row["partition_id"]: row["next_offset"] for row in rows}
            return all(written.get(partition, 0) >= end for partition, end in ends.items())

        eventually(look, within, "ingest has caught up")

    def completed(self, keys: Iterable[TaskKey], within: float = PATIENCE) -> dict[TaskKey, dict[str, Any]]:
        """Waits until all these keys stand in `completions`."""
        wanted = set(keys)

        def look() -> dict[TaskKey, dict[str, Any]] | None:
            found = self.completions()
            return {key: found[key] for key in wanted} if wanted <= found.keys() else None

        return eventually(look, within, f"{len(wanted)} completions")

    def ends(self, prefix: str = "") -> dict[TaskKey, Fact]:
        """Key → the fact that ended it, as the log says now; the tables hold it some seconds later, at a much higher cost."""
        if self._outcomes_log is None:
            self._outcomes_log = OutcomesLog(located(Settings(data_dir=self.data)))
        self._outcomes_log.read()
        return {key: fact for key, fact in self._outcomes_log.completions.items() if key.ordering_id.startswith(prefix)}

    def recorded(self, keys: Iterable[TaskKey], within: float = PATIENCE) -> dict[TaskKey, Fact]:
        """Waits until the log says that all these keys have ended."""
        wanted = set(keys)

        def look() -> dict[TaskKey, Fact] | None:
            found = self.ends()
            return {key: found[key] for key in wanted} if wanted <= found.keys() else None

        return eventually(look, within, f"{len(wanted)} ends")


class Foreign:
    """A producer that knows nothing of us: the topic, the ordering id as key, the record's JSON."""

    def __init__(self, kafka: str, topic: str = "tasks", **options: Any) -> None:
        self._topic = topic
        # gives up soon on a broker that was killed, so that it can be closed
        patience = {"delivery_timeout_ms": 5_000, "request_timeout_ms": 4_000, "max_block_ms": 5_000}
        self._producer = KafkaProducer(bootstrap_servers=kafka, **patience | options)

    @classmethod
    def of(cls, data: Path, **options: Any) -> Self:
        """With the access that the deployment of a data directory asks for."""
        kafka = located(Settings(data_dir=data)).kafka
        assert kafka.bootstrap_servers
        return cls(kafka.bootstrap_servers, **python_options(kafka) | options)

    def put(self, key: TaskKey, payload: dict[str, Any] | None = None, **more: Any) -> Any:
        """Sends one task; the future of its acknowledgement."""
        record = {
            "orderingId": key.ordering_id, "scheduledTime": iso(key.time_us), "uniquenessKey": key.uniqueness_key,
            "taskData": payload or {}, "version": 1, "handler": "work",
        } | more  # fmt: skip
        return self.raw(key.ordering_id.encode(), json.dumps(record).encode())

    def raw(self, key: bytes | None, value: bytes | None, partition: int | None = None) -> Any:
        """Sends bytes."""
        return self._producer.send(self._topic, key=key, value=value, partition=partition)

    def flush(self) -> None:
        self._producer.flush(timeout=30)

    def close(self) -> None:
        self._producer.close(timeout=30)
