"""`pending`: lateness with a million tasks waiting in the tables, none of them due during the run, against the same before.

They are spread over the next four hours, from just beyond the look-ahead when they are enqueued, so that some thousands of
them are held in memory when it is measured. `rss_mb` is the Python process of the dispatcher (ingest's Python side and this
benchmark are in it too). Floor: the same load on the same deployment without them.
`--paused`: they are overdue instead, half a million of them, in a queue that is paused; none of them may run.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Final

from scylla_spark.client.scheduler import Scheduler
from scylla_spark.clock import now_us
from scylla_spark.errors import ConflictError
from scylla_spark.processes.deployment import Deployment
from scylla_spark.services.dispatch.service import DispatchService
from scylla_spark_tools.bench import machine, report
from scylla_spark_tools.bench import steady_load as paced_load
from scylla_spark_tools.bench.deployment_under_test import Options, await_merged, place, say, stored_tasks
from scylla_spark_tools.bench.load import enqueue, tasks

_FIRST_US: Final = 330_000_000
_SPAN_US: Final = 4 * 3_600_000_000
_MARGIN_US: Final = 30_000_000
_PAUSED: Final = "paused"


def run(options: Options) -> dict[str, Any]:
    """Measures; default 1,000,000 pending or 500,000 paused tasks, and 100 others a second for 30 s, after 10 s of the same.

    Raises:
        ConflictError: the load took so long that pending tasks would fall due.
    """
    count = options.tasks or (500_000 if options.paused else 1_000_000)
    if options.paused:
        options = options.needing("queues", **{_PAUSED: {"paused": True}})
    load = paced_load.Load.of(replace(options, tasks=None), rate=100, seconds=30)  # --tasks says how many are pending
    with place(options, "ingest", "dispatch") as home:
        plain = paced_load.measure(home.settings, load)
        rss_before = machine.memory_mb(os.getpid())["driver"]
        first = _fill(home, count, load.lanes, paused=options.paused)
        if not options.paused and now_us() + load.total * load.period_us + _MARGIN_US > first:
            raise ConflictError("The load took so long that pending tasks would fall due.", hint="Ask for fewer tasks.")
        stored = stored_tasks(home.settings, "pending-")
        result = paced_load.measure(home.settings, load, before=load.total)
        rss, held = machine.memory_mb(os.getpid())["driver"], _held(home)
        passed = home.service(DispatchService).dispatcher.engine.counts["completed_succeeded"] - 2 * load.total
    return report.compared(
        "pending", result.late_us, plain.late_us, sent=len(result.late) + result.lost, early=result.early,
        cpu_cores=result.cores, violations=result.violations + max(passed, 0), pending=stored, pending_lost=count - stored, held=held,
        rss_mb=rss, rss_before_mb=rss_before, floor_cpu_cores=round(plain.cores, 3), behind_ms=result.behind_ms,
        timer_p99_ms=[_p99_ms(one.floor) for one in (plain, result)],
    )  # fmt: skip


def _fill(home: Deployment, count: int, lanes: int, *, paused: bool) -> int:
    """Returns when they are in the tables; the time of the first, microseconds since the epoch."""
    assert home.spark is not None
    first, step_us, queue = now_us() + _FIRST_US, _SPAN_US / count, "default"
    if paused:
        first, step_us, queue = now_us(), 1, _PAUSED
    with Scheduler(home.settings, spark=home.spark) as scheduler:
        enqueue(scheduler, tasks(home.spark, count, lanes, first, step_us, prefix="pending"), queue=queue)
    say(f"{count} pending tasks enqueued; ingest merges them")
    await_merged(home.settings, home)
    return first


def _held(home: Deployment) -> int:
    """Tasks that the dispatcher has in memory."""
    dispatcher = home.service(DispatchService).dispatcher
    lanes = dispatcher.mailbox.ask(
        lambda _now: [lane for part in dispatcher.engine.partitions.values() for lane in part.lanes.values()]
    )
    return sum(len(lane.entries) for lane in lanes)


def _p99_ms(late_us: list[int]) -> float:
    return round(report.percentile(sorted(late_us), 0.99) / 1000, 3)
