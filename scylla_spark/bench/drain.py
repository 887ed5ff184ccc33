"""`drain`: overdue tasks, merged into Delta while no dispatcher ran; then one starts and works them off in durable lane order.

The rate is tasks over the time from the first partition becoming active (or the first start, if that was seen earlier) to
the receipt of the last counting completion by an independent consumer of `outcomes`. Loading the tables before that is
`load_seconds`; `recorded_seconds` goes on until all rows are in table `completions`. Floor: a bare pool, same handler.
"""

from __future__ import annotations

from typing import Any

from scylla_spark.bench import report
from scylla_spark.bench.helper import Helper
from scylla_spark.bench.lateness import violations
from scylla_spark.bench.load import enqueue, tasks
from scylla_spark.bench.sampling import sampled
from scylla_spark.bench.site import LIMIT_S, Costs, Options, await_merged, await_value, place, rows_in, say
from scylla_spark.client import Scheduler
from scylla_spark.clock import now_us
from scylla_spark.schemas import COMPLETIONS
from scylla_spark.services.deployment import Deployment


def run(options: Options) -> dict[str, Any]:
    """Measures; default 100,000 tasks over 1,000 lanes."""
    count, lanes = options.tasks or 100_000, options.lanes or 1_000
    with place(options, "ingest") as home:
        settings = home.settings
        _load(home, count, lanes)
        with Helper("facts", settings, expected=count, limit_s=LIMIT_S, idle_s=20, keep=False) as observer:
            observer.answer()
            say("dispatch starts")
            begun = now_us()
            with Deployment(settings, roles=("dispatch",), spark=home.spark) as dispatch:
                active = await_value("the first active partition", lambda: _active(dispatch), pause_s=0.002)
                costs = Costs(observer.pid)
                with sampled(options.profile):
                    seen = observer.answer(LIMIT_S)
                cores, parts = costs.read()
                first = min(active, seen["first_start_us"] or active)
                recorded = None if seen["completed"] < count else _recorded(home, count, first)
        with Helper("pool", settings, count=count, rounds=3) as helper:
            say("bare pool")
            pool = helper.answer(LIMIT_S)
    return report.rate(
        "drain", seen["completed"], (seen["last_seen_us"] - first) / 1e6, pool["rate_per_s"],
        violations=violations(seen), lost=count - seen["completed"], recorded_seconds=recorded,
        load_seconds=round((first - begun) / 1e6, 3), lanes=lanes, cpu_cores=round(cores, 3), cpu_seconds=parts,
        floor_rounds=pool["rounds"],
    )  # fmt: skip


def _load(home: Deployment, count: int, lanes: int) -> None:
    assert home.spark is not None
    with Scheduler(home.settings, spark=home.spark) as scheduler:
        enqueue(scheduler, tasks(home.spark, count, lanes, now_us(), 1))
    say(f"{count} tasks enqueued; ingest merges them")
    await_merged(home.settings, home)


def _active(dispatch: Deployment) -> int | None:
    assert dispatch.dispatcher is not None
    partitions = list(dispatch.dispatcher.engine.partitions.values())
    return now_us() if any(partition.state == "active" for partition in partitions) else None


def _recorded(home: Deployment, count: int, first_us: int) -> float:
    def look() -> int | None:
        return now_us() if rows_in(home.settings, COMPLETIONS) >= count else None

    return round((await_value("the completions", look, pause_s=0.1) - first_us) / 1e6, 3)
