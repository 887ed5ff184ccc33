"""`dashboard`: every screen of the dashboard, as a browser asks for it, while a million tasks and a thousand schedules are stored.

The tasks are those of `reads`: spread over four hours, in the tables, none of them due; a tenth as many have run before. Screens take
turns, after some turns that warm up; tasks and lanes are picked at random. `screens` is how many there are, `worst` the slowest by its
p99. Floor: empty calls, p50.
"""

from __future__ import annotations

import json
import random
from typing import Any, Final
from urllib.request import Request, urlopen

from scylla_spark.bench import report
from scylla_spark.bench.cases.reads import LANES, SPAN_US, fill, timed
from scylla_spark.bench.load import enqueue, tasks
from scylla_spark.bench.site import Options, await_value, place, rows_in, say, stored_tasks
from scylla_spark.client.scheduler import Scheduler
from scylla_spark.clock import iso, now_us
from scylla_spark.schemas import COMPLETIONS
from scylla_spark.services.deployment import Deployment

_SCHEDULES: Final = 1_000
_WARM: Final = 10
_CALLS: Final = 100


def run(options: Options) -> dict[str, Any]:
    """Measures; default 1,000,000 tasks, and 100 calls of each screen."""
    count, lanes = options.tasks or 1_000_000, options.lanes or LANES
    with place(options, "ingest", "dispatch", "plan", "api") as home:
        _put_schedules(home.addresses["api"])
        ended = _play(home, count // 10, lanes)
        first = fill(home, count, lanes)
        stored = stored_tasks(home.settings, "stored-")
        timed(home, _paths(_WARM, count, first, lanes))
        took, cores = timed(home, _paths(_CALLS, count, first, lanes))
    floor = took.pop("empty")
    p99 = {screen: round(report.percentile(found, 0.99) / 1000, 3) for screen, found in took.items()}
    every = sorted(us for found in took.values() for us in found)
    return report.latency(
        "dashboard", every, floor, sent=len(every), early=0, cpu_cores=cores, stored=stored, stored_lost=count - stored,
        attempts=ended, screens=len(p99), worst=max(p99, key=lambda screen: p99[screen]), worst_p99_ms=max(p99.values()),
        **{f"{screen}_p99_ms": value for screen, value in p99.items()},
    )  # fmt: skip


def _put_schedules(address: str) -> None:
    """Stores schedules that do not fire meanwhile."""
    stored = [{"name": f"yearly-{n:04d}", "handler": "noop", "cron": "0 0 1 1 *"} for n in range(_SCHEDULES)]
    body = json.dumps({"schedules": stored}).encode()
    with urlopen(Request(f"{address}/v1/schedules:apply", body, {"Content-Type": "application/json"}), timeout=60):
        say(f"{_SCHEDULES} schedules stored")


def _play(home: Deployment, count: int, lanes: int) -> int:
    """Lets tasks run, and returns how many attempts stand in the tables once all do."""
    assert home.spark is not None
    with Scheduler(home.settings, spark=home.spark) as scheduler:
        enqueue(scheduler, tasks(home.spark, count, lanes, now_us(), 1, prefix="ended"))
    say(f"{count} tasks run")
    await_value("all attempts", lambda: rows_in(home.settings, COMPLETIONS) >= count or None)
    return rows_in(home.settings, COMPLETIONS)


def _paths(calls: int, count: int, first: int, lanes: int) -> dict[str, list[str]]:
    rng = random.Random(calls)
    picked = [rng.randrange(count) for _ in range(calls)]
    step = SPAN_US // count
    return {
        "now": ["/ui/now"] * calls,
        "tasks": ["/ui/tasks"] * calls,
        "tasks_of_queue": ["/ui/tasks?filter=queue:reads+state:scheduled"] * calls,
        "task": [f"/ui/tasks/{iso(first + n * step)},stored-{n % lanes},{n:09d}" for n in picked],
        "lane": [f"/ui/lanes?name=stored-{n % lanes}" for n in picked],
        "schedules": ["/ui/schedules"] * calls,
        "schedule": [f"/ui/schedules/yearly-{n % _SCHEDULES:04d}" for n in picked],
        "time": ["/ui/time"] * calls,
        "system": ["/ui/system"] * calls,
        "empty": ["/healthz"] * calls,
    }
