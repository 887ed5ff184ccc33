"""The command: reads arguments, runs one benchmark or all, and writes the result."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from scylla_spark.config.assignments import nested
from scylla_spark.config.settings import Log
from scylla_spark.errors import ArgumentError, ExitCode
from scylla_spark_tools.bench import report
from scylla_spark_tools.bench.deployment_under_test import Options, say

BENCHES: Final = {
    "lateness": "how late tasks start that are due some seconds ahead, and what that costs in CPU",
    "immediate": "from the send of a task due now to the start of its handler",
    "drain": "overdue tasks worked off in durable lane order; --batch: by a batch handler",
    "single": "one lane alone; --replay: in a queue of order replay",
    "enqueue": "rows of a DataFrame, checked and acknowledged",
    "ingest": "records from Kafka into the tables",
    "limits": "a drain in a queue with limits that do not bind, against one without limits",
    "pending": "lateness with a million future tasks in the tables, against without; memory of the dispatcher",
    "stuck": "lateness beside a head that hangs, one that always fails and a thousand blocked lanes, against without",
    "spread": "a million tasks over a year from a DataFrame, until they can be queried",
    "recover": "kill -9 with a million pending tasks; from the new start to the first release",
    "schedules": "a thousand crons of every second, 100,000 stored schedules, an event among them, and a killed planner",
    "watched": "from a commit to a watched table to the start of the task that it launches",
    "leases": "tasks leased and completed over HTTP by eight workers, a hundred at a time; --fleet: held",
    "neighbours": "lateness while a worker leases task by task over HTTP, against none; and what such a call takes",
    "api": "tasks enqueued over HTTP, one by one and as bulks",
    "reads": "a task, a page and a count over HTTP, a million tasks stored",
    "history": "pages of a schedule over HTTP, a year of hourly decisions about a thousand schedules stored",
    "dashboard": "every screen of the dashboard, its first paint, and the heat map of a day of a million tasks",
    "onlookers": "lateness, and the API's answers to others, while fifty screens Now are open, against none",
    "logs": "lateness while every handler prints twenty lines, against silence; and what became of the lines",
    "async": "ten thousand async tasks that sleep a second, in one child; without a dispatcher",
    "spark": "tasks on Spark workers beside tasks in the local pool: lateness, drain, and what a cluster adds; memory of 200 workers",
    "sandbox": "from the hand-over of a task to its start in a new child in a sandbox, against a plain child",
    "start": "from the command to ready: first start, restart, and a dispatcher without Spark; and their CPU time",
    "soak": "half an hour of steady load: lateness, memory and files at its end against its beginning",
}
ALL: Final = "all"
_APART: Final = ("soak",)  # takes too long to be part of "all"
_TIDY_S: Final = 120


def main(name: str, args: Sequence[str]) -> int:
    """Runs a benchmark.

    Args:
        name: one of BENCHES, or "all" for all but soak; "--help" lists them.
        args: options; `--help` lists them.

    Returns:
        0, or 1 if a benchmark of "all" failed.

    Raises:
        ArgumentError: there is no such benchmark.
    """
    if name in ("-h", "--help"):
        sys.stdout.write(listing() + "\n")
        return 0
    if name not in (*BENCHES, ALL):
        raise ArgumentError(f"There is no benchmark {name!r}.", hint=f"Benchmarks: {', '.join(BENCHES)}, {ALL}.")
    given = _parser(name).parse_args(list(args))
    options = Options(
        data=given.data,
        seconds=given.seconds,
        tasks=given.tasks,
        stored=given.stored,
        lanes=given.lanes,
        rate=given.rate,
        warm=given.warm,
        changes=nested(given.set),
        profile=given.profile,
        batch=given.batch,
        replay=given.replay,
        fleet=given.fleet,
        paused=given.paused,
        hours=given.hours,
        turns=given.turns,
        lines=given.lines,
    )
    with _result_stream() as out:
        from scylla_spark.log import configure

        configure(Log(level="warning"))
        if name == ALL:
            return _all(list(args), out, as_json=given.output == "json")
        load = round(os.getloadavg()[0], 2)
        result = importlib.import_module(f"scylla_spark_tools.bench.cases.{name}").run(options) | {"load_before": load}
        text = json.dumps(result) if given.output == "json" else f"{report.table([result])}\n\n{report.details(result)}"
        out.write(f"{text}\n")
    return 0


def listing() -> str:
    """Returns what there is to measure, a line each."""
    lines = [f"  {name:<10} {text}" for name, text in BENCHES.items()]
    lines.append(f"  {ALL:<10} all of them but {', '.join(_APART)}, each in a process of its own")
    return "\n".join(["Usage: scylla-spark bench NAME [OPTIONS]; `bench NAME --help` shows the options", "", *lines])


def _parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"scylla-spark bench {name}", description=BENCHES.get(name, "All benchmarks one after the other.")
    )
    parser.add_argument(
        "-o", "--output", choices=("table", "json"), default="table", help="json: one object on the last line"
    )
    parser.add_argument("--data", type=Path, help="folder for the run's own folder; default: the temporary one")
    parser.add_argument("--seconds", type=float, help="length of the steady load")
    parser.add_argument("--tasks", type=int, help="how many tasks, rows or pending tasks")
    parser.add_argument("--stored", type=int, help="onlookers: tasks that stand in the tables")
    parser.add_argument("--lanes", type=int, help="over how many lanes")
    parser.add_argument("--rate", type=float, help="tasks per second of the steady load")
    parser.add_argument("--warm", type=int, help="rows or tasks before the measurement; 0: cold")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="change a setting")
    parser.add_argument("--batch", action="store_true", help="drain: with a batch handler")
    parser.add_argument("--fleet", action="store_true", help="leases: held by many workers, for --seconds")
    parser.add_argument("--replay", action="store_true", help="single: in a queue of order replay")
    parser.add_argument("--paused", action="store_true", help="pending: overdue tasks of a paused queue")
    parser.add_argument(
        "--turns", type=int, default=3, help="logs, neighbours, onlookers, spark: how often both loads are measured"
    )
    parser.add_argument("--hours", type=float, default=0, help="drain: tasks due during so many past hours")
    parser.add_argument("--lines", type=int, help="logs: lines that each handler prints")
    parser.add_argument("--profile", action="store_true", help="tell stderr where the driver spends its time")
    return parser


@contextmanager
def _result_stream() -> Iterator[IO[str]]:
    """The real stdout; meanwhile whatever anybody else writes to it, the JVM included, goes to stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    previous = signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(ExitCode.INTERRUPTED)
    )  # so that everything is tidied up
    try:
        os.dup2(2, 1)
        with os.fdopen(os.dup(kept), "w") as out:
            yield out
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
        signal.signal(signal.SIGTERM, previous)


def _all(args: list[str], out: IO[str], *, as_json: bool) -> int:
    """Runs each benchmark in a process of its own, so that none inherits a warm or cluttered JVM."""
    results = []
    for name in [name for name in BENCHES if name not in _APART]:
        say(f"== {name}")
        results.append(_apart(name, args))
    out.write(report.table(results) + "\n")
    if as_json:
        out.write(json.dumps({"benches": results}) + "\n")
    return int(any("error" in result for result in results))


def _apart(name: str, args: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", "scylla_spark_tools.bench", name, *args, "-o", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            told, _ = process.communicate()
        except BaseException as error:
            if not isinstance(error, KeyboardInterrupt):  # a terminal interrupts both
                process.terminate()
            process.wait(_TIDY_S)
            raise
    if process.returncode != 0:
        return {"bench": name, "error": f"ended with exit code {process.returncode}"}
    result: dict[str, Any] = json.loads(told.splitlines()[-1])
    return result
