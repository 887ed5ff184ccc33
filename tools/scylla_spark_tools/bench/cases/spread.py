"""`spread`: tasks over a whole year from one DataFrame, until every one of them can be queried in the tables.

The clock runs from the call of `enqueue_df`, with broker, session and ingest running. Floor: a bare batch read of the same
records, appended to an unpartitioned Delta table.
"""

from __future__ import annotations

from typing import Any, Final

from scylla_spark.client.scheduler import Scheduler
from scylla_spark.clock import boot_us, now_us
from scylla_spark_tools.bench import report
from scylla_spark_tools.bench.deployment_under_test import (
    Costs,
    Options,
    await_merged,
    ends,
    files_in,
    place,
    say,
    stored_tasks,
)
from scylla_spark_tools.bench.floor_measurements import append
from scylla_spark_tools.bench.load import enqueue, tasks
from scylla_spark_tools.bench.thread_profile import sampled

_YEAR_US: Final = 365 * 86_400_000_000
_SOON_US: Final = 60_000_000


def run(options: Options) -> dict[str, Any]:
    """Measures; default 1,000,000 tasks of 1,000 lanes over 365 days."""
    count, lanes = options.tasks or 1_000_000, options.lanes or 1_000
    with place(options, "ingest") as home, Scheduler(home.settings, spark=home.spark) as scheduler:
        assert home.spark is not None
        starts = ends(home.settings)
        costs, begun = Costs(), boot_us()
        with sampled(options.profile):
            enqueue(scheduler, tasks(home.spark, count, lanes, now_us() + _SOON_US, _YEAR_US / count))
            sent = boot_us()
            say(f"{count} tasks enqueued in {(sent - begun) / 1e6:.1f} s; ingest writes them")
            await_merged(home.settings, home)
        seconds, (cores, parts) = (boot_us() - begun) / 1e6, costs.read()
        lost, files = count - stored_tasks(home.settings), files_in(home.settings)
        floor = append(home.spark, home.settings, starts, str(home.settings.data_dir / "floor"), parsed=False)
    return report.seconds(
        "spread", count, seconds, floor, violations=max(-lost, 0), lost=max(lost, 0),
        enqueue_seconds=round((sent - begun) / 1e6, 3), files=files, cpu_cores=round(cores, 3), cpu_seconds=parts,
    )  # fmt: skip
