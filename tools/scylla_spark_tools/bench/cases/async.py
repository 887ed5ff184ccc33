"""`async`: tasks that sleep, all at a time on the event loop of one child, without a dispatcher.

From the first start to the last end; the floor is the sleep itself. `child_mb` is the most memory that the child has had.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from scylla_spark.core.tasks.task import SUCCEEDED
from scylla_spark.executors.local.pool import LocalPool
from scylla_spark_tools.bench import report
from scylla_spark_tools.bench.deployment_under_test import Options
from scylla_spark_tools.bench.executor_handlers import AT_ONCE, MODULE, NAP
from scylla_spark_tools.bench.lone_executor import alone

_SECONDS: Final = 1.0


def run(options: Options) -> dict[str, Any]:
    """Measures; default 10,000 tasks that sleep a second."""
    count, nap_s = min(options.tasks or AT_ONCE, AT_ONCE), options.seconds or _SECONDS
    with alone(LocalPool([MODULE], min_children=0)) as executor:
        executor.run(NAP, [{"seconds": 0}])
        ended = [one for one in executor.run(NAP, [{"seconds": nap_s}] * count) if one.outcome == SUCCEEDED]
        children = {int(one.result or 0) for one in ended}
        child_mb = max(map(_most_mb, children), default=0)
    took_us = max(one.finished_us for one in ended) - min(one.started_us for one in ended) if ended else 0
    return report.seconds(
        "async", len(ended), took_us / 1e6, nap_s, violations=0, lost=count - len(ended), child_mb=child_mb,
        children=len(children),
    )  # fmt: skip


def _most_mb(number: int) -> int:
    """Most resident memory that a process has had, MiB."""
    lines = Path(f"/proc/{number}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))
