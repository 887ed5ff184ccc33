"""`watched`: from a commit to a Delta table of the user's to the start of the task that a table trigger launches for it.

Commits of a foreign writer come one at a time, each at a random phase of the planner's looks, with `settle` 0. Floor: a bare
reader, in a thread of this process, that opens the table as often as the planner looks (`plan.poll`), from the same commits
to the moment it sees them.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import polars as pl
from deltalake import DeltaTable

from scylla_spark.client.scheduler import Scheduler
from scylla_spark.client.schedules.schedule import Schedule, Trigger
from scylla_spark.clock import now_us
from scylla_spark.config.settings import Settings
from scylla_spark_tools.bench import report
from scylla_spark_tools.bench.deployment_under_test import Costs, Options, await_value, place, say
from scylla_spark_tools.bench.floor_measurements import wait_until
from scylla_spark_tools.bench.handlers import STAMP
from scylla_spark_tools.bench.load import poll

_SECOND: Final = 1_000_000
_PERIOD_S: Final = 2.0  # a commit, and the run of the one before has long begun
_WARM: Final = 3
_NAME: Final = "watched"


def run(options: Options) -> dict[str, Any]:
    """Measures; default a commit every two seconds for 80 s, after three that do not count."""
    count = options.tasks or max(1, round((options.seconds or 80) / _PERIOD_S))
    with place(options, "ingest", "dispatch", "plan") as deployment, Scheduler(deployment.settings) as client:
        settings = deployment.settings
        path = f"{settings.data_dir}/{_NAME}"
        _commit(path)
        payload = {"sent": "{{ table.to_version }}"}
        client.put_schedules(Schedule(_NAME, STAMP, Trigger.table(path, settle="0s"), payload=payload))
        say(f"{count} commits, one every {_PERIOD_S:g} s")
        with _bare_reader(path, settings.plan.poll.total_seconds()) as seen:
            for _ in range(_WARM):
                _pause()
                _commit(path)
            costs = Costs()
            commits = [_after_pause(path) for _ in range(count)]
            _pause()
            cores, _ = costs.read()
        first = _WARM + 1
        begun = _starts(settings, first, count)
    late = [begun[version] - at for version, at in enumerate(commits, first) if version in begun]
    floor = [seen[version] - at for version, at in enumerate(commits, first) if version in seen]
    return report.latency(
        "watched", late, floor, sent=count, early=sum(one < 0 for one in late), cpu_cores=cores, violations=0
    )  # fmt: skip


def _commit(path: str) -> None:
    """Appends a row as foreign writers do."""
    pl.DataFrame({"a": [1]}).write_delta(path, mode="append")


def _after_pause(path: str) -> int:
    """Commits once more; when the commit stood, microseconds since the epoch."""
    _pause()
    _commit(path)
    return now_us()


def _pause() -> None:
    wait_until(now_us() + round(_PERIOD_S * _SECOND * random.uniform(0.8, 1.2)))


@contextmanager
def _bare_reader(path: str, pause_s: float) -> Iterator[dict[int, int]]:
    """Version → when it was first seen, microseconds since the epoch."""
    seen: dict[int, int] = {}
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(pause_s):
            seen.setdefault(DeltaTable(path).version(), now_us())

    reader = threading.Thread(target=look, name="bare-reader")
    reader.start()
    try:
        yield seen
    finally:
        ended.set()
        reader.join()


def _starts(settings: Settings, first: int, count: int) -> dict[int, int]:
    """Version → when the run for it began; a run of several is the run of each of them."""

    def look() -> dict[int, int] | None:
        found = _recorded(settings)
        if found and max(found) >= first + count - 1:
            return found
        poll(1)
        return None

    return await_value("the tables to hold the last run", look)


def _recorded(settings: Settings) -> dict[int, int]:
    frame = pl.scan_delta(f"{settings.tables_path}/completions").filter(
        pl.col("uniqueness_key").str.starts_with(f"{_NAME}/"), pl.col("outcome") == "succeeded"
    )
    ends = sorted((int(to), begun) for begun, to in map(json.loads, frame.select("result").collect()["result"]))
    begun_at: dict[int, int] = {}
    before = 0
    for version, begun in ends:
        begun_at.update(dict.fromkeys(range(before + 1, version + 1), begun))
        before = version
    return begun_at
