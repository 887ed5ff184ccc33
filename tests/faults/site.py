"""One deployment of the campaign: broker, ingest and dispatchers as processes of their own, faults done to them, and the verdict."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from scylla_spark import Schedule, Scheduler, Settings, TaskKey, Trigger
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.key import partition_of
from scylla_spark.failpoint import VARIABLE
from scylla_spark.io.host.broker import EmbeddedBroker
from scylla_spark.io.kafka.topics import with_broker
from scylla_spark.schemas import DEPLOYMENT
from scylla_spark.testing import history
from scylla_spark.testing.history import Fault, History
from tests.acceptance.place import SECOND, Place, Process, now
from tests.faults import handlers
from tests.faults.load import WORK, Load
from tests.support.outcomes_log import OutcomesLog
from tests.support.waiting import eventually

T = TypeVar("T")
SESSION_S = 6
SETTINGS = (
    "api.port=0",
    "ingest.trigger=4s", "ingest.grace=60s", f"dispatch.session_timeout={SESSION_S}s", "spark_workers.max=0",
    "dispatch.drain=5s", "dispatch.trigger=2s", "partitions=3",
)  # fmt: skip
PARTITIONS = 3
PATIENCE = 120.0  # seconds in which something moves, on a machine where ingest makes its tables in eight …
STARTS = 15  # … and so many times as long where that takes longer, because the machine is busy
LONGEST = 900.0
INGEST, DISPATCH, PLAN, UP = "ingest", "dispatch", "plan", "up"


class Site(Place):
    """A deployment on a fresh folder, under load.

    Args:
        folder: for data, journals and output.
        seed: of the load and of whatever the case draws.
        disk: what lies on the small disk: "tables", "broker", "scratch" (temporary files, Spark's shuffles among them) or "log".
        small: where the small disk is.
    """

    patience = PATIENCE

    def __init__(self, folder: Path, seed: int, disk: str = "", small: Path | None = None) -> None:
        super().__init__(folder)
        self.small = small
        tables = small / "tables" if small and disk == "tables" else None
        broker = small / "kafka" if small and disk == "broker" else None
        self.environment[handlers.JOURNAL] = str(self.journal)
        if small and disk == "scratch":
            self.environment |= {"TMPDIR": str(small), "SPARK_LOCAL_DIRS": str(small)}
        self._log = f"log.file={small / 'log.jsonl'}" if small and disk == "log" else ""
        self.environment["PYTHONFAULTHANDLER"] = "1"  # for `stacks`
        self.rng = random.Random(seed)
        self.faults: list[Fault] = []
        self.events: list[str] = []  # what was done, in words
        self.restarts = 0  # of processes that ended without being asked to
        self.complaints: list[str] = []  # what no history shows: exit codes, processes that hang
        self.processes: dict[str, Process] = {}
        self.tables = tables or self.data / "tables"
        self._elsewhere = {"path": str(tables)} if tables else {}
        self.notified = 0
        self._starts = 0
        self._killed: dict[int, int] = {}
        self._scheduler: Scheduler | None = None
        self.data.mkdir(parents=True, exist_ok=True)
        self.broker = EmbeddedBroker(broker or self.data / "kafka").start()
        self.settings = with_broker(Settings(data_dir=self.data, partitions=PARTITIONS), self.broker.bootstrap)
        self.log = OutcomesLog(self.settings)
        self.load = Load(self.broker.bootstrap, self._client, folder / "load.jsonl", random.Random(seed))

    # -- processes --------------------------------------------------------------------------------------------------------

    def start(self, name: str, points: str = "", *settings: str) -> Process:
        """Starts ingest or a dispatcher, with fail points; not waited for.

        Args:
            name: "ingest", "dispatch", "plan", "up" (all in one process), or "dispatch-…" and "up-…" for further ones.
            points: as the variable wants them.
            settings: on top of those of the campaign.
        """
        role = name.partition("-")[0]
        self._starts += 1
        chosen = [*SETTINGS, *settings, f"kafka.bootstrap_servers={self.broker.bootstrap}"]
        chosen += [f"tables.{key}={value}" for key, value in self._elsewhere.items()]
        chosen += [self._log] if self._log else []
        options = [word for text in chosen for word in ("--set", text)]
        served = [] if role == INGEST else ["--handlers", handlers.__file__]
        words = [UP] if role == UP else ["run", role]
        command = [*self.command(), *options, *words, *served, "-o", "json"]
        process = Process(f"{self._starts:02}-{name}", command, self.folder, self.environment | {VARIABLE: points})
        self.processes[name] = process
        return process

    def begin(self, *dispatchers: str, **points: str) -> None:
        """Topics and tables, ingest, dispatchers (default: one) and the load; role → fail points that are armed from the start."""
        chosen = dispatchers or (DISPATCH,)
        ingest = self.start(INGEST, points.get(INGEST, ""))
        self._await_tables(ingest)
        for name in chosen:
            self.start(name, points.get(DISPATCH, ""))
        self.load.start()
        for name in () if points else (INGEST, *chosen):
            self.processes[name].ready(self.patience)

    def begin_up(self) -> Process:
        """Likewise with ingest and dispatch in one process."""
        process = self.start(UP)
        self._await_tables(process)
        self.load.start()
        process.ready(self.patience)
        return process

    def begin_plan(self) -> None:
        """A planner and three schedules: of every second, of every second notification, and one after another."""
        self.start(PLAN).ready(self.patience)
        self._client().put_schedules(
            Schedule("tick", WORK, Trigger.every("1s"), overlap="buffer_all", catch_up="all"),
            Schedule("count", WORK, Trigger.partitions("data", 2)),
            Schedule("then", WORK, Trigger.after("count")),
        )

    def notify(self, planner: str) -> None:
        """Notifies of one partition while that planner is stopped, so that it meets the command when it starts again."""
        if self.processes[planner].running:
            self.stop(planner)
        self._client().notify_partitions("data", [{"rows": 1}])
        self.notified += 1

    def end_plan(self) -> None:
        """Pauses what fires by itself, waits until all is decided and written, and judges what was launched."""
        self.supervised()
        self.processes[PLAN].ready(self.patience)
        asked = now()
        self._client().schedule("tick").pause("enough")

        def written() -> bool:
            self.supervised()
            paused = (self.rows_of("schedules")["change"] == "paused").any()
            return paused and len(self._launched("then")) >= self.notified // 2

        until(written, self.patience, "all decisions stand in the tables", self.told)
        for row in self.rows_of("fires").to_dicts():
            if row["verdict"] == "launched":
                key = TaskKey(row["scheduled_time"], row["ordering_id"], row["uniqueness_key"])
                taken_back = self.completions().get(key)
                if taken_back is not None and taken_back.outcome == "cancelled":
                    self.load.cancels.append(history.Cancel(key, "cancelled", asked, now()))
                self.load.enqueues[key] = history.Enqueue(key, history.OK, row["decided_at"], row["decided_at"], 101)
        counts = {name: len(self._launched(name)) for name in ("count", "then")}
        if set(counts.values()) != {self.notified // 2}:
            self.complaints.append(f"{self.notified} notifications have led to {counts} launches")
        self.complaints += second_breaches(self.rows_of("fires").to_dicts(), "tick")

    def _launched(self, name: str) -> list[dict[str, Any]]:
        return [
            row for row in self.rows_of("fires").to_dicts() if (row["schedule"], row["verdict"]) == (name, "launched")
        ]

    def _await_tables(self, ingest: Process) -> None:
        made = self.tables / DEPLOYMENT.name / "_delta_log" / f"{0:020}.json"
        begun = time.monotonic()
        eventually(lambda: made.exists() or not ingest.running, LONGEST, "the tables are made")
        self.patience = max(PATIENCE, STARTS * (time.monotonic() - begun))

    def supervised(self, besides: Process | None = None) -> bool:
        """Starts again what has ended, as a supervisor would, `besides` apart; False, for use in waits."""
        for name, process in list(self.processes.items()):
            if process is not besides and not process.running:
                asked = process.pid in self._killed or " kill\n" in process.told()
                if not asked:
                    self.restarts += 1
                    self.events.append(f"{name} ended with {process.ended()}")
                self._over(process, "kill" if asked else "ended")
                self.start(name)
        return False

    def end(self) -> None:
        """Stops everything in good order; a process that does not end with 0 is a complaint."""
        for name, process in sorted(self.processes.items()):
            process.signal(signal.SIGTERM)
            with contextlib.suppress(Exception):
                process.ended(60)
            if process.running or process.ended() != 0:
                self.complaints.append(f"{name} did not end well: {'hangs' if process.running else process.ended()}")
        self.processes.clear()

    def clear(self) -> None:
        self.log.close()
        super().clear()
        for process in self.processes.values():
            process.ended(10)
        self.broker.stop()

    def stacks(self) -> str:
        """Ends what still runs and returns what its Python threads were doing: for a case that waits in vain."""
        told = []
        for process in self.processes.values():
            if process.running:
                process.signal(signal.SIGABRT)
                with contextlib.suppress(Exception):
                    process.ended(10)
                told.append(f"{process.name}: {process.told().rpartition('Fatal Python error')[2][-4000:]}")
        return "\n".join(told)

    # -- faults -----------------------------------------------------------------------------------------------------------

    def meets(self, name: str, point: str, mode: str, nth: int = 1, *settings: str) -> Process:
        """Starts a process that meets a fault at a fail point; waits until it has, and, unless it is frozen, has ended or gone on."""
        process = self.processes.get(name)
        if process is not None and process.running:
            self.stop(name)
        process = self.start(name, f"{point}:{mode}:{nth}", *settings)
        self.reached(process, point, mode)
        return process

    def reached(self, process: Process, point: str, mode: str) -> None:
        """Waits until a process meets a fault, and has ended if that kills it."""
        line = f"failpoint {point} {mode}"
        until(lambda: line in process.told() or self.supervised(besides=process), self.patience, line, self.told)
        self.events.append(f"{mode} {point}")
        if mode == "kill":
            process.ended(30)
            self._over(process, "kill")

    def fails(self, process: Process, within: float = 60) -> None:
        """Waits until a process whose fault was raised has ended by itself, with an error that names the fault."""
        begin = now()
        code = process.ended(within)
        self._over(process, "raise", begin)
        told = process.told()
        if code == 0 or "fail point" not in told:
            self.complaints.append(f"{process.name} ended with {code} and did not say why: {told[-300:]}")

    def stop(self, name: str) -> None:
        """SIGTERM, and its end."""
        process = self.processes[name]
        if process.stop() != 0:
            self.complaints.append(f"{name} ended with {process.ended()} at SIGTERM")

    def kill_process(self, name: str) -> None:
        """kill -9 of the driver; its JVM ends by itself."""
        process = self.processes[name]
        process.signal(signal.SIGKILL)
        process.ended()
        self._over(process, "kill")
        self.events.append(f"kill {name}")

    def freeze(self, name: str, seconds: float) -> None:
        """SIGSTOP, and SIGCONT some time later."""
        process = self.processes[name]
        process.signal(signal.SIGSTOP)
        self.events.append(f"freeze {name} for {seconds:.0f} s")
        self.thaw(process, now(), seconds)

    def thaw(self, process: Process, begin: int, seconds: float) -> None:
        """Waits, then lets a frozen process go on."""
        pause(seconds)
        self.faults.append(Fault("freeze", begin, now(), process.pid))
        process.signal(signal.SIGCONT)

    def kill_part(self, name: str) -> None:
        """kill -9 of a child of `up`; what ran in its pool has ended with it."""
        pid = self._part(name)
        begin = now()
        os.kill(pid, signal.SIGKILL)
        self._killed[pid] = now()
        self.trouble(name, begin)
        self.events.append(f"kill {name}")

    def freeze_part(self, name: str, seconds: float) -> None:
        """SIGSTOP of a child of `up`, and SIGCONT some time later; tasks go on meanwhile."""
        pid = self._part(name)
        os.kill(pid, signal.SIGSTOP)
        try:
            until_end = time.monotonic() + seconds
            self.goes_on()
            pause(until_end - time.monotonic())
        finally:
            os.kill(pid, signal.SIGCONT)
        self.events.append(f"freeze {name} for {seconds:.0f} s")

    def _part(self, name: str) -> int:
        """A child of `up`; of the pools that which ran the newest task."""
        pool = self.written().runs[-1].pool
        return eventually(lambda: self.part(name, pool), self.patience, f"there is a {name}")

    def kill_broker(self, seconds: float) -> None:
        """kill -9 of the broker, and its restart some time later."""
        begin, pid = now(), self.broker.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not self.broker.alive, 20, "the broker is dead")
        pause(seconds)
        self.broker.start()
        self.events.append(f"kill broker, {seconds:.0f} s")
        self.trouble("broker", begin)

    def trouble(self, kind: str, begin: int) -> None:
        """Notes something that may cost every dispatcher its membership, until now and one session more."""
        self.faults.append(Fault(kind, begin, now() + 2 * SESSION_S * SECOND))

    def _over(self, process: Process, kind: str, begin: int | None = None) -> None:
        if process.pid in self._killed:
            return
        self._killed[process.pid] = now()
        if DISPATCH in process.name or UP in process.name:
            self.faults.append(Fault(kind, begin or now(), now(), process.pid))

    # -- the verdict ------------------------------------------------------------------------------------------------------

    def goes_on(self, seconds: float = 0) -> None:
        """Waits until tasks of every partition that were sent after this moment have completed; starts again what has ended."""
        pause(seconds)
        begun = now()

        def look() -> bool:
            self.supervised()
            ended = self.completions()
            fresh = [item.key for item in self.acknowledged() if item.asked > begun and item.key in ended]
            return {partition_of(key.ordering_id, PARTITIONS) for key in fresh} == set(range(PARTITIONS))

        until(look, self.patience, "tasks complete again", self.told)

    def calm(self) -> None:
        """Ends the load and waits until everything acknowledged has ended, in the log and in the tables."""
        self.supervised()
        self.load.stop()
        wanted = {item.key for item in self.acknowledged()}

        def open_tasks() -> set[Any]:
            self.supervised()
            left = wanted - self.completions().keys()
            for key in left:
                if key.time_us > now() + 60 * SECOND:
                    self.load.cancel(key)
            return left

        moved, deadline, last = self._moved(), time.monotonic() + self.patience, time.monotonic() + LONGEST
        while (missing := open_tasks()) and time.monotonic() < min(deadline, last):
            if moved != (moved := self._moved()):
                deadline = time.monotonic() + self.patience
            pause(0.5)
        if missing:
            self.complaints.append(f"still open, such as {sorted(missing)[:3]}, and nothing moves: {self.told()}")
            return
        eventually(
            lambda: self.supervised() or self._tables_caught_up(), self.patience, "the tables have it all", self.told
        )

    def _moved(self) -> tuple[int, int]:
        """Returns what grows while anything goes on: how many tasks have ended, and how far ingest has written."""
        with contextlib.suppress(OSError):
            return len(self.completions()), self.rows_of("progress")["next_offset"].sum()
        return len(self.completions()), 0

    def completions(self) -> dict[Any, Fact]:
        """Returns what has ended, by the log."""
        self.log.read()
        return self.log.completions

    def acknowledged(self) -> list[history.Enqueue]:
        """Returns what the load has sent and Kafka has acknowledged."""
        return [item for item in list(self.load.enqueues.values()) if item.outcome == history.OK]

    def written(self) -> History:
        """Everything written down so far."""
        text = self.journal.read_text() if self.journal.exists() else ""
        runs = history.runs(map(json.loads, text.splitlines()), killed=self._killed)
        self.log.read()
        return History(list(self.load.enqueues.values()), self.load.cancels, runs, self.faults, self.log.recorded)

    def table_breaches(self, *, repeats: bool = False) -> list[str]:
        """Returns what the tables say otherwise than the log; `repeats` allows rows to be there twice, as after a lost checkpoint."""
        rows = self.completions_in_tables()
        logged = {key: fact.outcome for key, fact in self.completions().items()}
        found = [
            f"{key}: {rows.get(key)} in the table, {outcome} in the log"
            for key, outcome in logged.items()
            if rows.get(key) != outcome
        ]
        found += [f"{key}: only in the table" for key in rows.keys() - logged.keys()]
        if self.rows_of("tasks").select("scheduled_time", "ordering_id", "uniqueness_key").is_duplicated().any():
            found.append("a key has two rows in `tasks`")
        if not repeats:
            for table in ("completions", "attempts"):
                keys = [
                    name
                    for name in ("scheduled_time", "ordering_id", "uniqueness_key", "attempt", "outcome")
                    if name in self.rows_of(table).columns
                ]
                if self.rows_of(table).select(keys).is_duplicated().any():
                    found.append(f"`{table}` repeats rows")
        refused = [(row["partition_id"], row["offset"]) for row in self.rows_of("rejected").to_dicts()]
        if not self.load.bad <= set(refused) or (len(refused) > len(set(refused)) and not repeats):
            found.append(f"{len(refused)} rows of `rejected` for {len(self.load.bad)} bad records")
        return found

    def rows_of(self, table: str) -> Any:
        """All rows of a table."""
        import polars as pl
        from deltalake import DeltaTable

        return pl.from_arrow(DeltaTable(str(self.tables / table)).to_pyarrow_table()).with_columns(
            pl.col(pl.Datetime).dt.epoch("us")
        )

    def completions_in_tables(self) -> dict[Any, str]:
        """Key → outcome, by the tables."""
        names = ("scheduled_time", "ordering_id", "uniqueness_key")
        rows = self.rows_of("completions").to_dicts()
        return {TaskKey(*(row[name] for name in names)): row["outcome"] for row in rows}

    def _tables_caught_up(self) -> bool:
        with contextlib.suppress(OSError):
            return self.completions().keys() <= self.completions_in_tables().keys() and len(
                self.rows_of("rejected")
            ) >= len(self.load.bad)
        return False

    def _client(self) -> Scheduler:
        if self._scheduler is None:
            tables = self.settings.tables.model_copy(update=self._elsewhere)
            self._scheduler = Scheduler.connect(self.settings.model_copy(update={"tables": tables}))
            self._clients.append(self._scheduler)
        return self._scheduler

    def told(self) -> str:
        """The end of what each process has told."""
        return "\n".join(f"{p.name}: {p.told()[-700:]}" for p in self.processes.values())


def second_breaches(fires: list[dict[str, Any]], name: str) -> list[str]:
    """Seconds that a schedule of every second has launched more than once, or neither launched nor told of as missed.

    Args:
        fires: rows of the table, instants in microseconds.
        name: of the schedule.
    """
    rows = [row for row in fires if row["schedule"] == name]
    launched = [row["planned_at"] // SECOND for row in rows if row["verdict"] == "launched"]
    told = {
        second
        for row in rows
        if row["verdict"] != "launched"
        for second in range(row["planned_at"] // SECOND, (row["until_at"] or row["planned_at"]) // SECOND + 1)
    }
    twice = sorted(second for second in set(launched) if launched.count(second) > 1)
    lost = sorted(set(range(min(launched), max(launched) + 1)) - set(launched) - told) if launched else ["all"]
    return [f"{name}: launched twice {twice}, never {lost}"] if twice or lost else []


def until(look: Callable[[], T], within: float, what: str, tell: Callable[[], object]) -> T:
    """`eventually` for looks that cost something: less often."""
    return eventually(look, within, what, tell, every=0.3)


def pause(seconds: float) -> None:
    """Lets real time pass: for outages of a given length."""
    threading.Event().wait(seconds)


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system of its own of that size, as far as this machine lets us mount one.

    Raises:
        PermissionError: it does not.
    """
    import subprocess

    folder.mkdir(parents=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise PermissionError(f"cannot mount a small disk: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def fill(folder: Path) -> Path:
    """Takes all space that is left; remove the file to give it back."""
    ballast = folder / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    return ballast
