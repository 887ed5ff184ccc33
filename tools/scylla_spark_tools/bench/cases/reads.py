"""`reads`: what people look at while a million tasks are stored: one task, a page of a list, and a count, over HTTP.

The tasks are spread over four hours and stand in the tables, none of them due. Calls of each kind take turns, after some of the same
that warm up; tasks are picked at random, pages are those of a queue and of a lane, counts are of a queue. Floor: empty calls, p50.
"""

from __future__ import annotations

import random
from typing import Any, Final

from scylla_spark.client.scheduler import Scheduler
from scylla_spark.clock import iso, now_us
from scylla_spark.processes.deployment import Deployment
from scylla_spark_tools.bench import report
from scylla_spark_tools.bench.deployment_under_test import (
    LIMIT_S,
    Costs,
    Options,
    await_merged,
    place,
    say,
    stored_tasks,
)
from scylla_spark_tools.bench.helper_process import Helper
from scylla_spark_tools.bench.load import enqueue, tasks

FIRST_US: Final = 600_000_000
SPAN_US: Final = 4 * 3_600_000_000
LANES: Final = 1_000
_WARM: Final = 50
_CALLS: Final = 300


def run(options: Options) -> dict[str, Any]:
    """Measures; default 1,000,000 tasks, and 300 calls of each kind."""
    count = options.tasks or 1_000_000
    with place(options, "ingest", "api") as home:
        first = fill(home, count, options.lanes or LANES)
        stored = stored_tasks(home.settings, "stored-")
        timed(home, _paths(_WARM, count, first, options.lanes or LANES))
        took, cores = timed(home, _paths(_CALLS, count, first, options.lanes or LANES))
    floor = took.pop("empty")
    p99 = {kind: round(report.percentile(found, 0.99) / 1000, 3) for kind, found in took.items()}
    every = sorted(us for found in took.values() for us in found)
    return report.latency(
        "reads", every, floor, sent=len(every), early=0, cpu_cores=cores, stored=stored, stored_lost=count - stored,
        **{f"{kind}_p99_ms": value for kind, value in p99.items()},
    )  # fmt: skip


def fill(home: Deployment, count: int, lanes: int) -> int:
    """Enqueues tasks over four hours, and returns when they are in the tables; the time of the first, microseconds since the epoch.

    Args:
        home: where.
        count: how many.
        lanes: of how many lanes.
    """
    assert home.spark is not None
    first = now_us() + FIRST_US
    with Scheduler(home.settings, spark=home.spark) as scheduler:
        enqueue(scheduler, tasks(home.spark, count, lanes, first, SPAN_US // count, prefix="stored"), queue="reads")
    say(f"{count} tasks enqueued; ingest merges them")
    await_merged(home.settings, home)
    return first


def _paths(calls: int, count: int, first: int, lanes: int) -> dict[str, list[str]]:
    rng = random.Random(calls)
    picked = [rng.randrange(count) for _ in range(calls)]
    step = SPAN_US // count
    return {
        "task": [f"/v1/tasks/{iso(first + n * step)},stored-{n % lanes},{n:09d}" for n in picked],
        "page": ["/v1/tasks?filter=queue:reads&limit=100"] * calls,
        "lane_page": [f"/v1/tasks?filter=lane:stored-{n % lanes}&limit=50" for n in picked],
        "count": ["/v1/tasks:count?filter=queue:reads"] * calls,
        "empty": ["/healthz"] * calls,
    }


def timed(home: Deployment, paths: dict[str, list[str]]) -> tuple[dict[str, list[int]], float]:
    """Returns what each call took in microseconds, by kind, and cores in use meanwhile."""
    with Helper("reads", home.settings, api=home.addresses["api"], paths=paths) as helper:
        helper.answer()
        costs = Costs(helper.pid)
        helper.send(True)
        took: dict[str, list[int]] = helper.answer(LIMIT_S)
        return took, costs.read()[0]
