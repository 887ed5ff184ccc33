"""`dashboard`: every screen of the dashboard, as a browser asks for it, while a million tasks and a thousand schedules are stored.

The tasks are those of a day, in the tables (`stored_day`): most have ended, a tenth of them failed once before, the others are to come.
A few more run all the time, so that ingest writes and what is remembered of the tables gets old, as it does elsewhere. Screens take turns,
after some turns that warm up; tasks and lanes are picked at random. `screens` is how many there are, `worst` the slowest by its p99;
`heat_map_first_ms` is the lateness of the whole day when it is asked for first, `first_paint_ms` what a browser says of Now and Tasks,
where chromium and Playwright are there. Floor: empty calls, p50.
"""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from scylla_spark.clock import now_us
from scylla_spark.config.settings import Settings
from scylla_spark.processes.deployment import Deployment
from scylla_spark_tools.bench import report
from scylla_spark_tools.bench.cases.reads import LANES, timed
from scylla_spark_tools.bench.deployment_under_test import LIMIT_S, Options, place, say, stored_tasks
from scylla_spark_tools.bench.helper_process import Helper
from scylla_spark_tools.bench.steady_load import LEAD_US
from scylla_spark_tools.bench.stored_day import StoredDay

SCHEDULES: Final = 1_000
_WARM: Final = 10
_CALLS: Final = 100
_BESIDE: Final = {
    "count": 100_000,
    "period_us": 50_000,
    "lanes": 100,
    "ahead_us": 1_000_000,
}  # more than anybody waits for


def run(options: Options) -> dict[str, Any]:
    """Measures; default 1,000,000 tasks, and 100 calls of each screen."""
    with place(options, "ingest", "dispatch", "plan", "api") as home:
        put_schedules(home.addresses["api"])
        day = StoredDay(options.tasks or 1_000_000, options.lanes or LANES, now_us())
        again = _stored(home, day)
        stored = stored_tasks(home.settings, "stored-")
        with Helper("steady", home.settings, **_BESIDE) as beside:
            beside.answer()
            beside.send(now_us() + LEAD_US)
            heat_map, _ = timed(home, {"first": [f"/v1/lateness?{urlencode(day.window)}"]})
            timed(home, _paths(_WARM, day))
            took, cores = timed(home, _paths(_CALLS, day))
            painted = _first_paint(home.settings, home.addresses["api"])
    floor = took.pop("empty")
    p99 = {screen: round(report.percentile(found, 0.99) / 1000, 3) for screen, found in took.items()}
    every = sorted(us for found in took.values() for us in found)
    return report.latency(
        "dashboard", every, floor, sent=len(every), early=0, cpu_cores=cores, stored=stored, stored_lost=day.count - stored,
        attempts=again, screens=len(p99), worst=max(p99, key=lambda screen: p99[screen]), worst_p99_ms=max(p99.values()),
        heat_map_first_ms=heat_map["first"][0] / 1000, first_paint_ms=painted,
        **{f"{screen}_p99_ms": value for screen, value in p99.items()},
    )  # fmt: skip


def put_schedules(address: str) -> None:
    """Stores schedules that do not fire meanwhile."""
    stored = [{"name": f"yearly-{n:04d}", "handler": "noop", "cron": "0 0 1 1 *"} for n in range(SCHEDULES)]
    body = json.dumps({"schedules": stored}).encode()
    with urlopen(Request(f"{address}/v1/schedules:apply", body, {"Content-Type": "application/json"}), timeout=60):
        say(f"{SCHEDULES} schedules stored")


def _stored(home: Deployment, day: StoredDay) -> int:
    assert home.spark is not None
    return day.store(home.spark, home.settings)


def _first_paint(settings: Settings, address: str) -> float | None:
    """Milliseconds until the slower of two screens shows something; None: there is no browser."""
    with Helper("first_paint", settings, api=address) as helper:
        found: float | None = helper.answer(LIMIT_S)
        return found


def _paths(calls: int, day: StoredDay) -> dict[str, list[str]]:
    picked, window = day.picked(calls), urlencode(day.window)
    return {
        "now": ["/ui/now"] * calls,
        "tasks": ["/ui/tasks"] * calls,
        "tasks_of_queue": ["/ui/tasks?filter=queue:reads-7+state:scheduled"] * calls,
        "tasks_failed": ["/ui/tasks?filter=state:failed"] * calls,
        "task": [f"/ui/tasks/{day.id(n)}" for n in picked],
        "lane": [f"/ui/lanes?name={day.lane(n)}" for n in picked],
        "schedules": ["/ui/schedules"] * calls,
        "schedule": [f"/ui/schedules/yearly-{n % SCHEDULES:04d}" for n in picked],
        "time": [f"/ui/time?{window}"] * calls,
        "system": ["/ui/system"] * calls,
        "tables": ["/ui/system/tables"] * calls,
        "empty": ["/healthz"] * calls,
    }
