"""`stuck`: lateness of everybody else while one head hangs, one fails for ever and a thousand lanes wait behind a head in back-off.

Floor: the same load on the same deployment before anything is stuck. What stands behind a stuck head must not run: if it
does, it is a violation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from scylla_spark.client.scheduler import Scheduler
from scylla_spark.clock import from_us, now_us
from scylla_spark.processes.deployment import Deployment
from scylla_spark.services.dispatch.service import DispatchService
from scylla_spark_tools.bench import report
from scylla_spark_tools.bench import steady_load as paced_load
from scylla_spark_tools.bench.deployment_under_test import Options, await_value, place, say
from scylla_spark_tools.bench.handlers import BLOCK, FAIL, HANG, NOOP

_BLOCKED: Final = 1_000
_AHEAD_US: Final = 2_000_000


def run(options: Options) -> dict[str, Any]:
    """Measures; default 100 tasks a second for 30 s over 1,000 lanes, beside 1,002 stuck ones."""
    load = paced_load.Load.of(options, rate=100, seconds=30)
    with place(options, "ingest", "dispatch") as home:
        plain = paced_load.measure(home.settings, load)
        _block(home)
        result = paced_load.measure(home.settings, load, before=load.total)
        counts = home.service(DispatchService).dispatcher.engine.counts
        passed = counts["completed_succeeded"] - 2 * load.total
    return report.compared(
        "stuck", result.late_us, plain.late_us, sent=len(result.late) + result.lost, early=result.early,
        cpu_cores=result.cores, violations=result.violations + max(passed, 0), blocked_lanes=_BLOCKED,
        failed_attempts=counts["attempts_failed"], floor_cpu_cores=round(plain.cores, 3), behind_ms=result.behind_ms,
        timer_p99_ms=[round(report.percentile(sorted(one.floor), 0.99) / 1000, 3) for one in (plain, result)],
    )  # fmt: skip


def _block(home: Deployment) -> None:
    """Returns when all the heads have begun to be stuck."""
    dispatcher = home.service(DispatchService).dispatcher
    with Scheduler.connect(home.settings) as scheduler:
        scheduler.enqueue_many(_stuck(now_us() + _AHEAD_US))
    say(f"{_BLOCKED} lanes are being blocked, one hangs, one always fails")
    await_value("the blocked", lambda: dispatcher.engine.counts["attempts_failed"] > _BLOCKED or None)


def _stuck(at_us: int) -> Iterator[dict[str, Any]]:
    """A head for each stuck lane, and a task behind it."""
    heads = {"hangs": HANG, "fails": FAIL} | {f"blocked-{n}": BLOCK for n in range(_BLOCKED)}
    for lane, handler in heads.items():
        for place_in_lane, name in enumerate((handler, NOOP)):
            yield {"handler": name, "ordering_id": lane, "uniqueness_key": "u", "at": from_us(at_us + place_in_lane)}
