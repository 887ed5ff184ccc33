"""`schedules`: a thousand crons of every second; then very many stored schedules, a tenth of them on one minute; and a killed planner.

Ingest, dispatch and planner run; the planner in a process of its own, so that its memory and its restart can be seen. `p99_ms` is from
the planned time to the start in the child. Floor: as many tasks, due at the same instants, all of a second at once, enqueued ahead by
a client in the same deployment right before; `ratio` is of p99. `spread_p99_ms`: as many a second, but each at a time of its own.
`minute_seconds`: from the minute on which a tenth is planned to the start of the last of them. `event_ms`: from an event to the
planner's answer, with ten schedules stored and with all. `restart_seconds`: from the start of a planner's process to its first answer.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import polars as pl

from scylla_spark.client.scheduler import Scheduler
from scylla_spark.client.schedules.schedule import Schedule, Trigger
from scylla_spark.clock import from_us, now_us, to_us
from scylla_spark.config.settings import Settings
from scylla_spark_tools.bench import report
from scylla_spark_tools.bench import steady_load as paced_load
from scylla_spark_tools.bench.cli_process import planner
from scylla_spark_tools.bench.deployment_under_test import LIMIT_S, Costs, Options, await_value, place, say
from scylla_spark_tools.bench.floor_measurements import wait_until
from scylla_spark_tools.bench.handlers import STAMP
from scylla_spark_tools.bench.load import poll

_SECOND: Final = 1_000_000
_CRONS: Final = 1_000
_STORED: Final = 100_000
_SETTLE_S: Final = 15
_AT_MOST_S: Final = 60
_LISTENING: Final = 10
_ASKED: Final = 20


def run(options: Options) -> dict[str, Any]:
    """Measures; default 1,000 crons for 60 s, and 100,000 schedules (`--rate` and `--tasks` for others)."""
    crons, stored, seconds = round(options.rate or _CRONS), options.tasks or _STORED, options.seconds or 60
    with place(options, "ingest", "dispatch") as deployment, Scheduler(deployment.settings) as client:
        settings = deployment.settings
        changes = (options.changes or {}) | {
            "kafka": {"bootstrap_servers": settings.kafka.bootstrap_servers},
            "dispatch": {"instance_id": "bench"},
        }
        with planner(settings.data_dir, changes) as child:
            child.told()
            load = paced_load.Load(round(crons * seconds), round(1e6 / crons), max(crons, 1_000), crons * 3)
            spread = paced_load.measure(settings, load)
            burst = paced_load.measure(settings, replace(load, together_us=_SECOND), before=load.total)
            say(f"{crons} crons of every second for {seconds:g} s")
            late, missed, doubled, cores = _crons(client, settings, crons, seconds)
            few = _event_ms(client)
            say(f"{stored} schedules, a tenth of them on one minute")
            put_s, minute = _many(client, settings, stored)
            many = _event_ms(client)
            memory = child.memory_mb()
            child.kill()
        with planner(settings.data_dir, changes) as child:
            client.connection.plan.ask("event", name="nobody listens", timeout_s=LIMIT_S)
            restart_s = (now_us() - child.begun_us) / 1e6
    missed, doubled = missed + minute["missed"], doubled + minute["doubled"]
    return report.compared(
        "schedules", late, burst.late_us, sent=len(late) + missed, early=sum(one < 0 for one in late), cpu_cores=cores,
        count=crons, seconds=seconds, missed=missed, doubled=doubled, violations=doubled, stored=stored,
        put_seconds=round(put_s, 1), minute_seconds=minute["seconds"], minute_count=minute["count"], event_ms=round(many, 1),
        event_few_ms=round(few, 1), restart_seconds=round(restart_s, 2), memory_mb=memory,
        spread_p99_ms=round(report.percentile(sorted(spread.late_us), 0.99) / 1000, 3),
    )  # fmt: skip


def _crons(
    client: Scheduler, settings: Settings, crons: int, seconds: float
) -> tuple[list[int], int, int, float]:  # fmt: skip
    """Returns how late each run was, how many planned times have none and how many have two, and the cores in use."""
    names = [f"cron-{number:05}" for number in range(crons)]
    client.put_schedules(*(Schedule(name, STAMP, Trigger.every("1s")) for name in names))
    first = now_us() // _SECOND * _SECOND + _SETTLE_S * _SECOND
    end = first + round(seconds * _SECOND)
    wait_until(first)
    costs = Costs()
    wait_until(end)
    cores, _ = costs.read()
    _delete(client, names)
    wanted = range(first, end, _SECOND)
    rows = _settled(settings, "cron-", len(wanted) * crons, first, end)
    return _judged(rows, {(name, at) for name in names for at in wanted}, cores)


def _judged(
    rows: pl.DataFrame, wanted: set[tuple[str, int]], cores: float
) -> tuple[list[int], int, int, float]:  # fmt: skip
    seen = Counter((row[0], row[1]) for row in rows.select("name", "planned").iter_rows())
    late = [row[0] for row in rows.select("late").iter_rows()]
    return late, len(wanted - seen.keys()), sum(count - 1 for count in seen.values()), cores


def _many(client: Scheduler, settings: Settings, stored: int) -> tuple[float, dict[str, Any]]:
    """Stores them; how long that took, and how the minute went on which a tenth is planned."""
    begun, crowd = now_us(), stored // 10
    minute = (now_us() // _SECOND + 90 + stored // 1_000) * _SECOND
    client.put_schedules(*_definitions(stored, crowd, minute))
    put_s = (now_us() - begun) / 1e6
    say(f"stored after {put_s:.1f} s; {(minute - now_us()) / 1e6:.0f} s until the minute")
    wait_until(minute)
    rows = _settled(settings, "many-", crowd, minute, minute + 1)
    planned = Counter(row[0] for row in rows.select("name").iter_rows())
    last = max((row[0] for row in rows.select("late").iter_rows()), default=0)
    doubled = sum(count - 1 for count in planned.values())
    return put_s, {"seconds": round(last / 1e6, 2), "count": crowd, "missed": crowd - len(planned), "doubled": doubled}


def _definitions(stored: int, crowd: int, minute: int) -> Iterator[Schedule]:
    at = Trigger.at(from_us(minute))
    for number in range(stored):
        if number < crowd:
            trigger = at
        elif number < crowd + _LISTENING:
            trigger = Trigger.event("bench")
        else:
            trigger = Trigger.cron(f"{number % 60} {number // 60 % 24} 1 1 *")
        yield Schedule(f"many-{number:06}", STAMP, trigger)


def _event_ms(client: Scheduler) -> float:
    """From an event to the answer of the planner, which comes once its decisions count; the median."""
    took = []
    for _ in range(_ASKED):
        begun = now_us()
        client.connection.plan.ask("event", name="bench")
        took.append((now_us() - begun) / 1e3)
    return statistics.median(took)


def _delete(client: Scheduler, names: list[str]) -> None:
    for first in range(0, len(names), 1_000):
        client.connection.plan.ask("delete", names=names[first : first + 1_000])


def _settled(settings: Settings, prefix: str, count: int, first: int, end: int) -> pl.DataFrame:
    """Runs of schedules planned in [first, end), once there are as many as there should be, or no more come."""
    last = -1

    def look() -> pl.DataFrame | None:
        nonlocal last
        rows = _runs(settings, prefix, first, end)
        if len(rows) >= count or (len(rows) == last and now_us() > end + _AT_MOST_S * _SECOND):
            return rows
        last = len(rows)
        poll(2 * settings.ingest.trigger.total_seconds() + 5)
        return None

    return await_value("the tables to hold all runs", look)


def _runs(settings: Settings, prefix: str, first: int, end: int) -> pl.DataFrame:
    """Name, planned time and lateness (microseconds) of completed runs."""
    frame = pl.scan_delta(f"{settings.tables_path}/completions").filter(
        pl.col("uniqueness_key").str.starts_with(prefix), pl.col("outcome") == "succeeded"
    )
    rows = frame.select("uniqueness_key", "result").collect()
    found = []
    for key, result in rows.iter_rows():
        name, planned, _ = key.split("/")
        at = to_us(datetime.fromisoformat(planned))
        if first <= at < end:
            found.append((name, at, json.loads(result)[0] - at))
    return pl.DataFrame(found, schema={"name": pl.String, "planned": pl.Int64, "late": pl.Int64}, orient="row")
