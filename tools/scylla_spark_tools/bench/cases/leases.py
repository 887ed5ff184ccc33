"""`leases`: overdue tasks of a pull queue, leased and completed over HTTP by eight workers, a hundred at a time.

Each call reports the batch before and asks for the next. The rate is tasks over the time from the first call to the last report that
counts. Floor: as many tasks as the same application would pass on if a call that carries a hundred cost what an empty one does. `doubled`
are tasks that were leased twice, `lost` those that were never leased or reported.

`--fleet`: a thousand workers hold a hundred leases of 30 s each for `--seconds` (a minute), and keep them alive by a call every 10 s,
which a few threads make for all. The latencies are of these calls, the floor is an empty call. `calls_per_s` is what the leases need,
`call_cpu_ms` what such a call costs the whole system; `lost` are leases that ended meanwhile.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Final

from scylla_spark.client.scheduler import Scheduler
from scylla_spark.clock import now_us
from scylla_spark.processes.deployment import Deployment
from scylla_spark.services.dispatch.service import DispatchService
from scylla_spark_tools.bench import machine, report
from scylla_spark_tools.bench.deployment_under_test import LIMIT_S, Costs, Options, await_value, place, say
from scylla_spark_tools.bench.helper_process import Helper
from scylla_spark_tools.bench.load import enqueue, tasks

QUEUE: Final = "leased"
_AT_ONCE: Final = 100
_PROCESSES: Final = 2
_THREADS: Final = 4
_EACH: Final = 100  # leases of a worker of the fleet


def run(options: Options) -> dict[str, Any]:
    """Measures; default 50,000 tasks over as many lanes, of a fleet 100,000."""
    if options.fleet:
        return _fleet(options)
    count = options.tasks or 50_000
    options = options.needing("queues", **{QUEUE: {"mode": "pull"}})
    with place(options, "ingest", "dispatch", "api") as home:
        assert home.spark is not None
        api = home.addresses["api"]
        enqueued(home, count, options.lanes or count)
        seen, cores = _worked_off(home, api)
        floor = _floor(home, api)
    keys = seen["keys"]
    return report.rate(
        "leases", len(set(keys)), (seen["last_us"] - seen["first_us"]) / 1e6, floor * _AT_ONCE,
        violations=seen["refused"], lost=count - len(set(keys)), doubled=len(keys) - len(set(keys)),
        p50_ms=round(report.percentile(seen["calls_us"], 0.5) / 1000, 3), p99_ms=round(report.percentile(seen["calls_us"], 0.99) / 1000, 3),
        floor_calls_per_s=round(floor, 1), outstanding=_PROCESSES * _THREADS * _AT_ONCE, cpu_cores=round(cores, 3),
    )  # fmt: skip


def _fleet(options: Options) -> dict[str, Any]:
    """Holds leases."""
    count, seconds = options.tasks or 100_000, options.seconds or 60
    options = options.needing("queues", **{QUEUE: {"mode": "pull", "lease": "30s", "max_run": "1d"}})
    with place(options, "ingest", "dispatch", "api") as home:
        assert home.spark is not None
        enqueued(home, count, count)
        before = machine.memory_mb(os.getpid())
        arguments = {"api": home.addresses["api"], "queue": QUEUE, "workers": -(-count // _EACH), "most": _EACH}
        with Helper("lease_fleet", home.settings, **arguments) as helper:
            helper.answer()
            helper.send(True)
            leased = helper.answer(LIMIT_S)
            say(f"{leased} leases are held, for {seconds:g} s")
            costs = Costs(helper.pid)
            threading.Event().wait(seconds)
            cores, parts = costs.read()
            after = machine.memory_mb(os.getpid(), [helper.pid])
            helper.send(True)
            seen = helper.answer(LIMIT_S)
        with Helper("empty_calls", home.settings, api=home.addresses["api"], workers=1, calls=500) as helper:
            helper.answer()
            helper.send(True)
            empty_us = round(1e6 / helper.answer(LIMIT_S))
    calls = len(seen["calls_us"])
    costs_of = {
        "call_cpu_ms": round(cores * seconds * 1000 / max(1, calls), 2),
        "cpu_parts": {name: round(s, 2) for name, s in parts.items()},
    }
    return report.latency(
        "leases", seen["calls_us"], [empty_us], sent=calls + seen["lost"], early=0, cpu_cores=cores,
        outstanding=seen["held"], workers=arguments["workers"], doubled=seen["doubled"], repeated=seen["repeated"], seconds=seconds,
        latest_beat_s=round(seen["late_us"] / 1e6, 2), calls_per_s=round(calls / seconds, 1), memory_mb=after, memory_before_mb=before,
        **costs_of,
    )  # fmt: skip


def enqueued(home: Deployment, count: int, lanes: int) -> None:
    """Overdue tasks of QUEUE, of which those at the heads of their lanes can be leased.

    Args:
        home: with a session.
        count: tasks.
        lanes: over how many lanes.
    """
    assert home.spark is not None
    with Scheduler(home.settings, spark=home.spark) as scheduler:
        enqueue(scheduler, tasks(home.spark, count, lanes, now_us(), 1, prefix=QUEUE), handler="noop", queue=QUEUE)
    say(f"{count} tasks enqueued; the dispatcher takes them up")
    await_value("the tasks to be ready", lambda: _ready(home) >= min(count, lanes) or None, pause_s=0.1)


def _ready(home: Deployment) -> int:
    dispatcher = home.service(DispatchService).dispatcher
    return dispatcher.mailbox.ask(lambda now: dispatcher.engine.scarcity(QUEUE, now).ready)


def _worked_off(home: Deployment, api: str) -> tuple[dict[str, Any], float]:
    """Returns what all workers saw together, and cores in use meanwhile."""
    helpers = [
        Helper(
            "lease_workers", home.settings, api=api, prefix=f"p{number}-", queue=QUEUE, workers=_THREADS, most=_AT_ONCE
        )
        for number in range(_PROCESSES)
    ]
    try:
        for helper in helpers:
            helper.answer()
        say("workers begin")
        costs = Costs(*[helper.pid for helper in helpers])
        for helper in helpers:
            helper.send(True)
        seen = [helper.answer(LIMIT_S) for helper in helpers]
        cores, _parts = costs.read()
    finally:
        for helper in helpers:
            helper.__exit__(None, None, None)
    return {
        "keys": [key for one in seen for key in one["keys"]], "first_us": min(one["first_us"] for one in seen),
        "last_us": max(one["last_us"] for one in seen), "refused": sum(one["refused"] for one in seen),
        "calls_us": sorted(us for one in seen for us in one["calls_us"]),
    }, cores  # fmt: skip


def _floor(home: Deployment, api: str) -> float:
    """Empty calls a second."""
    with Helper("empty_calls", home.settings, api=api, workers=_PROCESSES * _THREADS, calls=250) as helper:
        helper.answer()
        helper.send(True)
        rate: float = helper.answer(LIMIT_S)
    return rate
