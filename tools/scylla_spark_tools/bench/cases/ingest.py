"""`ingest`: records that stand on `tasks`, due within two hours, until the progress table covers them all: judged, MERGEd.

The clock runs from the start of the streaming queries, with session and tables ready; before that, some rows go the same way
to warm the JVM (`--warm 0`: cold). Floor: a bare batch read of the same records, appended to an unpartitioned Delta table.
"""

from __future__ import annotations

from typing import Any, Final

from scylla_spark.client.scheduler import Scheduler
from scylla_spark.clock import boot_us, now_us
from scylla_spark.processes.deployment import Deployment
from scylla_spark.services.ingest.ingest import Ingest
from scylla_spark_tools.bench import report
from scylla_spark_tools.bench.deployment_under_test import Costs, Options, await_merged, ends, place, say, stored_tasks
from scylla_spark_tools.bench.floor_measurements import append
from scylla_spark_tools.bench.load import enqueue, tasks
from scylla_spark_tools.bench.thread_profile import sampled

ROUNDS: Final = 2
_SPAN_US: Final = 2 * 3_600_000_000


def run(options: Options) -> dict[str, Any]:
    """Measures; default 1,000,000 records over 1,000 lanes."""
    count, lanes = options.tasks or 1_000_000, options.lanes or 1_000
    warm = options.warm if options.warm is not None else min(count // 10, 40_000)
    with place(options.needing("ingest", near="3h")) as home:  # so that every row is merged, none deferred
        if warm:
            say(f"warming up with {warm} rows")
            _enqueue(home, warm, lanes, "warm")
            _ingest(home, profile=False)
        starts = ends(home.settings)
        _enqueue(home, count, lanes, "lane")
        say(f"ingest of {count} records")
        costs = Costs()
        seconds = _ingest(home, profile=options.profile)
        cores, parts = costs.read()
        lost = count - stored_tasks(home.settings, "lane-")
        raw, parsed = _floors(home, starts, warm=bool(warm))
    return report.rate(
        "ingest", count - lost, seconds, count / min(raw), violations=0, lost=lost, floor_rounds=[round(count / s) for s in raw],
        floor_parsed_per_s=round(count / min(parsed), 1), cpu_cores=round(cores, 3), cpu_seconds=parts,
    )  # fmt: skip


def _enqueue(home: Deployment, count: int, lanes: int, prefix: str) -> None:
    assert home.spark is not None
    with Scheduler(home.settings, spark=home.spark) as scheduler:
        frame = tasks(home.spark, count, lanes, now_us(), _SPAN_US / count, prefix=prefix)
        enqueue(scheduler, frame)


def _ingest(home: Deployment, *, profile: bool) -> float:
    """Runs an ingest application until the tables are level with the topic; seconds from the start of its queries."""
    assert home.spark is not None
    service = Ingest(home.spark, home.settings)
    service.prepare()
    try:
        with sampled(profile):
            begun = boot_us()
            service.start()
            await_merged(home.settings, home)
            return (boot_us() - begun) / 1e6
    finally:
        service.stop()


def _floors(home: Deployment, starts: dict[int, int], *, warm: bool) -> tuple[list[float], list[float]]:
    assert home.spark is not None
    say("bare append")
    times: dict[bool, list[float]] = {False: [], True: []}
    for number, parsed in enumerate([False] * (warm + ROUNDS) + [True]):
        seconds = append(
            home.spark, home.settings, starts, str(home.settings.data_dir / f"floor-{number}"), parsed=parsed
        )
        if number >= warm:
            times[parsed].append(seconds)
    return times[False], times[True]
