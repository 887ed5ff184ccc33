"""`limits`: what it costs to count: drains of a queue whose concurrency and rate are limited, too high to bind, and of one without.

One deployment, a new dispatcher for each drain; they take turns (without, with, with, without, twice), and the median of each
counts. Floor: the same drain without limits. `cost_percent` is what the limits take off the rate.
"""

from __future__ import annotations

from statistics import median
from typing import Any, Final

from scylla_spark_tools.bench import report
from scylla_spark_tools.bench.cases.drain import Work, drained
from scylla_spark_tools.bench.deployment_under_test import Options, place, say

FREE: Final = "bench-free"
LIMITED: Final = "bench-limited"
HIGH: Final = {"concurrency": 100_000, "rate": 1_000_000}
_TURNS: Final = 2 * (FREE, LIMITED, LIMITED, FREE)


def run(options: Options) -> dict[str, Any]:
    """Measures; default 100,000 tasks over 1,000 lanes, eight times."""
    count, lanes = options.tasks or 100_000, options.lanes or 1_000
    seconds: dict[str, list[float]] = {FREE: [], LIMITED: []}
    totals = {"completed": 0, "violations": 0, "lost": 0}
    with place(options.needing("queues", **{LIMITED: HIGH}), "ingest") as home:
        for queue in _TURNS:
            say(f"queue {queue}")
            took, seen = drained(home, Work(count, lanes, queue=queue), before=totals["completed"], recorded=False)
            seconds[queue].append(took)
            totals = {name: total + seen[name] for name, total in totals.items()}
    rates = {queue: [round(count / took) for took in taken] for queue, taken in seconds.items()}
    limited, plain = median(seconds[LIMITED]), median(seconds[FREE])
    return report.rate(
        "limits", count, limited, count / plain, violations=totals["violations"], lost=totals["lost"], lanes=lanes,
        cost_percent=round(100 * (1 - plain / limited), 1), rounds=rates[LIMITED], floor_rounds=rates[FREE],
    )  # fmt: skip
