"""`lateness`: tasks due some seconds ahead, at a steady rate; from their time to the start of their handler.

Everything runs: ingest with its default trigger and MERGE, dispatch, facts. The start is stamped in the child, inside the
handler. Floor: how late a bare process, in the same run, wakes up for the same instants. `cpu_cores` is the whole system in
the steady state: after start-up and warm-up, load generator and observer left out.
"""

from __future__ import annotations

from typing import Any

from scylla_spark_tools.bench import report
from scylla_spark_tools.bench import steady_load as paced_load
from scylla_spark_tools.bench.deployment_under_test import Options, place
from scylla_spark_tools.bench.thread_profile import sampled


def run(options: Options) -> dict[str, Any]:
    """Measures; default 100 tasks a second for 30 s over 1,000 lanes, due 5 s ahead, after 10 s of the same."""
    load = paced_load.Load.of(options, rate=100, seconds=30)
    with place(options, "ingest", "dispatch") as deployment, sampled(options.profile):
        result = paced_load.measure(deployment.settings, load)
    return report.latency(
        "lateness", result.late_us, result.floor, sent=len(result.late) + result.lost, early=result.early,
        cpu_cores=result.cores, cpu_seconds=result.cpu_seconds, violations=result.violations, behind_ms=result.behind_ms,
        warm=load.warm,
    )  # fmt: skip
