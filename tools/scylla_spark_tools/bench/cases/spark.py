"""`spark`: tasks on Spark workers beside tasks in the local pool, by turns in one deployment.

Lateness is that of a steady load, due some seconds ahead. `drain` is of tasks that fall due together while everything is warm: from
their time to the last completion on `outcomes`, over all of the deployment; `drain_ratio` compares the medians. `pool_drain_ratio`
does so with both pools alone, which are fed as the dispatcher feeds them. `workers_mb` is how much memory a pool takes for 200
connected workers, which one process plays. `--set master=local-cluster[4,4,1024]` measures executors in processes of their own.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import Any, Final

from scylla_spark.client.scheduler import Scheduler
from scylla_spark.clock import from_us, now_us
from scylla_spark.config.settings import Settings
from scylla_spark.errors import SetupError
from scylla_spark.executors.local.pool import LocalPool
from scylla_spark.executors.spark.pool import KIND, SparkPool
from scylla_spark.handlers.description import LOCAL, SPARK
from scylla_spark.processes.deployment import Deployment
from scylla_spark_tools.bench import report
from scylla_spark_tools.bench import steady_load as paced_load
from scylla_spark_tools.bench.deployment_under_test import LIMIT_S, Options, place, say
from scylla_spark_tools.bench.floor_measurements import Feeder, invocations
from scylla_spark_tools.bench.handlers import MODULE, NOOP, NOOP_ON_SPARK, STAMP, STAMP_ON_SPARK
from scylla_spark_tools.bench.helper_process import Helper
from scylla_spark_tools.bench.outcomes_observer import violations
from scylla_spark_tools.bench.worker_crowd import memory_of_workers_mb

_WORKERS: Final = 200
_ENQUEUE_US: Final = 20_000_000
_IDLE_S: Final = 20
_SIDES: Final = ((LOCAL, STAMP, NOOP), (SPARK, STAMP_ON_SPARK, NOOP_ON_SPARK))
_WARM_TASKS: Final = 2_000


def run(options: Options) -> dict[str, Any]:
    """Measures; default 50 tasks a second for 20 s and 20,000 tasks at once over 1,000 lanes, three times on each side.

    Raises:
        SetupError: the tasks of a drain were not all enqueued before their time.
    """
    load = paced_load.Load.of(replace(options, tasks=None), rate=50, seconds=20)
    count, lanes = options.tasks or 20_000, options.lanes or 1_000
    late: dict[str, list[paced_load.Result]] = {LOCAL: [], SPARK: []}
    drains: dict[str, list[float]] = {LOCAL: [], SPARK: []}
    lost = wrong = 0
    with place(options, "ingest", "dispatch") as home:
        _drain(home.settings, NOOP_ON_SPARK, _WARM_TASKS, lanes, before=0)  # Spark workers start, and are warm then
        ended = _WARM_TASKS
        for _ in range(options.turns):
            for side, stamp, noop in _SIDES:
                late[side].append(paced_load.measure(home.settings, replace(load, handler=stamp), before=ended))
                rate, missing, broken = _drain(home.settings, noop, count, lanes, before=ended + load.total)
                drains[side].append(rate)
                lost, wrong, ended = lost + missing, wrong + broken, ended + load.total + count
    with place(options) as home:
        alone = _alone(home, count, lanes, options.turns)
    here, there = paced_load.joined(late[LOCAL]), paced_load.joined(late[SPARK])
    record = report.compared(
        "spark", there.late_us, here.late_us, sent=len(there.late) + there.lost + here.lost + lost, early=there.early,
        cpu_cores=there.cores, violations=there.violations + wrong, behind_ms=there.behind_ms, master=home.settings.master,
        **_compared("drain", drains), **_compared("pool_drain", alone), workers_mb=memory_of_workers_mb(_WORKERS),
    )  # fmt: skip
    return record | {"local_p50_ms": record["floor_p50_ms"], "local_p99_ms": record["floor"]}


def _compared(name: str, rates: dict[str, list[float]]) -> dict[str, Any]:
    here, there = median(rates[LOCAL]), median(rates[SPARK])
    rounds = {side: [round(rate) for rate in found] for side, found in rates.items()}
    return {
        f"{name}_per_s": round(there), f"local_{name}_per_s": round(here), f"{name}_ratio": report.ratio(there, here),
        f"{name}_rounds": rounds,
    }  # fmt: skip


def _drain(settings: Settings, handler: str, count: int, lanes: int, *, before: int) -> tuple[float, int, int]:
    """Tasks per second of tasks that fall due together; how many did not succeed, and how many broke an order."""
    due_us = now_us() + _ENQUEUE_US
    tasks = (
        {
            "handler": handler, "payload": {"n": n}, "ordering_id": f"drain-{n % lanes}", "uniqueness_key": f"{n:09d}",
            "at": from_us(due_us),
        }
        for n in range(count)
    )  # fmt: skip
    wanted = {"expected": before + count, "limit_s": LIMIT_S, "idle_s": _ENQUEUE_US / 1e6 + _IDLE_S, "keep": False}
    with Helper("facts", settings, since_us=due_us, **wanted) as observer:
        observer.answer()
        with Scheduler.connect(settings) as scheduler:
            scheduler.enqueue_many(tasks)
        if now_us() > due_us:
            raise SetupError("The tasks of a drain were enqueued too late.", hint="Take fewer: --tasks.")
        say(f"{count} tasks of {handler} fall due together")
        seen = observer.answer(LIMIT_S)
    return count / ((seen["last_seen_us"] - due_us) / 1e6), count - seen["completed"], violations(seen)


def _alone(home: Deployment, count: int, lanes: int, turns: int) -> dict[str, list[float]]:
    """Tasks per second of both pools without a dispatcher."""
    dispatch = home.settings.dispatch
    local = LocalPool((MODULE,), min_children=dispatch.min_children, max_children=dispatch.max_children)
    remote = KIND.make(home.settings)
    assert isinstance(remote, SparkPool)
    assert home.spark is not None
    remote.attach(home.spark)
    feeders = {LOCAL: (Feeder(local), NOOP), SPARK: (Feeder(remote, SPARK), NOOP_ON_SPARK)}
    rates: dict[str, list[float]] = {LOCAL: [], SPARK: []}
    first = 1
    try:
        for turn in range(turns + 1):
            for side, (feeder, handler) in feeders.items():
                rate = feeder.run(invocations(count, handler, lanes, first=first), at_once=False)
                first += count
                if turn:  # the first one warms up
                    rates[side].append(rate)
    finally:
        local.stop(drain_s=0)
        remote.stop(drain_s=0)
    return rates
