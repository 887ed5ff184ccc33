"""`drain`: overdue tasks, merged into Delta while no dispatcher ran; then one starts and works them off in durable lane order.

The rate is tasks over the time from the first partition becoming active (or the first start, if that was seen earlier) to
the receipt of the last counting completion by an independent consumer of `outcomes`. Loading the tables before that is
`load_seconds`; `recorded_seconds` goes on until all rows are in table `completions`. Floor: a bare pool, same handler.
`--batch`: a batch handler, so that tasks of a lane share calls. `--hours`: their times lie in that many past hours, so that the
tables have that many more folders (and `ingest.grace` is as long).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scylla_spark.client.scheduler import Scheduler
from scylla_spark.clock import now_us
from scylla_spark.core.tasks.key import HOUR_US
from scylla_spark.processes.deployment import Deployment
from scylla_spark.schemas import COMPLETIONS
from scylla_spark.services.dispatch.service import DispatchService
from scylla_spark_tools.bench import report
from scylla_spark_tools.bench.deployment_under_test import (
    LIMIT_S,
    Costs,
    Options,
    await_merged,
    await_value,
    place,
    rows_in,
    say,
)
from scylla_spark_tools.bench.handlers import BATCH, NOOP
from scylla_spark_tools.bench.helper_process import Helper
from scylla_spark_tools.bench.load import enqueue, tasks
from scylla_spark_tools.bench.outcomes_observer import violations
from scylla_spark_tools.bench.thread_profile import sampled


@dataclass(frozen=True, slots=True)
class Work:
    """What is drained: so many tasks over so many lanes, for a handler, in a queue, due during so many past hours."""

    count: int
    lanes: int
    handler: str = NOOP
    queue: str = "default"
    hours: float = 0


def run(options: Options) -> dict[str, Any]:
    """Measures; default 200,000 tasks over 1,000 lanes."""
    handler = BATCH if options.batch else NOOP
    work = Work(options.tasks or 200_000, options.lanes or 1_000, handler, hours=options.hours)
    if work.hours:
        options = options.needing("ingest", grace=f"{work.hours + 1}h")
    with place(options, "ingest") as home:
        seconds, seen = drained(home, work, profile=options.profile)
        with Helper("pool", home.settings, count=min(work.count, 100_000), rounds=3, handler=handler) as helper:
            say("bare pool")
            pool = helper.answer(LIMIT_S)
    return report.rate(
        "drain", seen.pop("completed"), seconds, pool["rate_per_s"],
        **seen, lanes=work.lanes, batch=options.batch, hours=work.hours, floor_rounds=pool["rounds"],
    )  # fmt: skip


def drained(
    home: Deployment, work: Work, *, before: int = 0, recorded: bool = True, profile: bool = False
) -> tuple[float, dict[str, Any]]:
    """Fills the tables of a deployment that only ingests, then drains them.

    Args:
        home: the deployment.
        work: what to do.
        before: tasks that have succeeded on it already.
        recorded: wait until the tables hold all completions, too.
        profile: tell stderr where the driver spends its time.

    Returns:
        Seconds, and fields for the record.
    """
    since, total = _load(home, work), before + work.count
    wanted = {"expected": total, "limit_s": LIMIT_S, "idle_s": 20, "keep": False, "since_us": since}
    with Helper("facts", home.settings, **wanted) as observer:
        observer.answer()
        say("dispatch starts")
        begun = now_us()
        with Deployment(home.settings, roles=("dispatch",), spark=home.spark) as dispatch:
            active = await_value("the first active partition", lambda: _active(dispatch), pause_s=0.002)
            costs = Costs(observer.pid)
            with sampled(profile):
                seen = observer.answer(LIMIT_S)
            cores, parts = costs.read()
            first = min(active, seen["first_start_us"] or active)
            lost = work.count - seen["completed"]
            recorded_s = _recorded(home, total, first) if recorded and not lost else None
    return (seen["last_seen_us"] - first) / 1e6, {
        "completed": seen["completed"], "violations": violations(seen), "lost": lost,
        "recorded_seconds": recorded_s, "load_seconds": round((first - begun) / 1e6, 3),
        "cpu_cores": round(cores, 3), "cpu_seconds": parts,
    }  # fmt: skip


def _load(home: Deployment, work: Work) -> int:
    """Returns when all is in the tables; the scheduled time of the first, microseconds since the epoch."""
    assert home.spark is not None
    span_us = int(work.hours * HOUR_US)
    first = now_us() - span_us
    with Scheduler(home.settings, spark=home.spark) as scheduler:
        frame = tasks(home.spark, work.count, work.lanes, first, max(span_us / work.count, 1))
        enqueue(scheduler, frame, handler=work.handler, queue=work.queue)
    say(f"{work.count} tasks enqueued; ingest merges them")
    await_merged(home.settings, home)
    return first


def _active(dispatch: Deployment) -> int | None:
    partitions = list(dispatch.service(DispatchService).dispatcher.engine.partitions.values())
    return now_us() if any(partition.state == "active" for partition in partitions) else None


def _recorded(home: Deployment, count: int, first_us: int) -> float:
    def look() -> int | None:
        return now_us() if rows_in(home.settings, COMPLETIONS) >= count else None

    return round((await_value("the completions", look, pause_s=0.1) - first_us) / 1e6, 3)
