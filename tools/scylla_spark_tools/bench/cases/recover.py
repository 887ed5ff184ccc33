"""`recover`: kill -9 of a whole deployment with a million pending tasks; then from the start of a new process to its first release.

Some tasks fall due while nothing runs; `seconds` is until the handler of the first of them begins, `all_seconds` until the
last of them is completed. Floor: how long the same command took on an empty directory until it was ready.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from scylla_spark.client.scheduler import Scheduler
from scylla_spark.clock import from_us, now_us
from scylla_spark.config.settings import Settings
from scylla_spark.errors import ConflictError
from scylla_spark_tools.bench import report
from scylla_spark_tools.bench.cli_process import Child, up
from scylla_spark_tools.bench.deployment_under_test import LIMIT_S, Options, await_merged, say
from scylla_spark_tools.bench.floor_measurements import wait_until
from scylla_spark_tools.bench.handlers import NOOP, STAMP
from scylla_spark_tools.bench.helper_process import Helper
from scylla_spark_tools.bench.outcomes_observer import violations

OVERDUE: Final = 1_000
_FIRST_US: Final = 8 * 60_000_000
_SPAN_US: Final = 4 * 3_600_000_000
_MARGIN_US: Final = 120_000_000
_CHUNK: Final = 20_000  # acknowledged before the next
_AHEAD_US: Final = 50_000_000  # of the tasks that fall due while nothing runs: time to merge a small batch


def run(options: Options) -> dict[str, Any]:
    """Measures; default 1,000,000 pending tasks over the next four hours, and 1,000 that fall due meanwhile."""
    count, lanes = options.tasks or 1_000_000, options.lanes or 1_000
    if options.data is not None:
        options.data.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="scylla-spark-bench-", dir=options.data))
    try:
        say("starting a deployment")
        with up(folder, options.changes) as first:
            settings = first.ready()
            empty_s = (now_us() - first.begun_us) / 1e6
            due_us = _fill(settings, count, lanes)
            say("kill -9")
            first.kill()
        wait_until(due_us + OVERDUE)
        with up(folder, options.changes) as again:
            ready_s, seen, memory = _watch(again)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return report.seconds(
        "recover", count, (seen["first_start_us"] - again.begun_us) / 1e6, empty_s, violations=violations(seen),
        lost=OVERDUE - seen["completed"], overdue=OVERDUE, ready_seconds=round(ready_s, 3), memory_mb=memory,
        all_seconds=round((seen["last_seen_us"] - again.begun_us) / 1e6, 3), lanes=lanes,
    )  # fmt: skip


def _fill(settings: Settings, count: int, lanes: int) -> int:
    """Returns when all is in the tables, the tasks included that fall due soon; the time of the first of those."""
    begun = now_us()
    with Scheduler.connect(settings) as scheduler:
        rows = _tasks(NOOP, "lane", count, lanes, begun + _FIRST_US, _SPAN_US / count)
        while chunk := list(islice(rows, _CHUNK)):
            scheduler.enqueue_many(chunk)
        say(f"{count} tasks enqueued in {(now_us() - begun) / 1e6:.0f} s; ingest merges them")
        await_merged(settings)
        due_us = now_us() + _AHEAD_US
        scheduler.enqueue_many(_tasks(STAMP, "overdue", OVERDUE, 100, due_us, 1))
        await_merged(settings)
    if due_us + _MARGIN_US > begun + _FIRST_US:
        raise ConflictError("The load took so long that pending tasks would fall due.", hint="Ask for fewer tasks.")
    return due_us


def _tasks(
    handler: str, prefix: str, count: int, lanes: int, first_us: int, step_us: float
) -> Iterator[dict[str, Any]]:
    for n in range(count):
        yield {
            "handler": handler, "ordering_id": f"{prefix}-{n % lanes}", "uniqueness_key": f"{n:09d}",
            "at": from_us(first_us + int(n * step_us)),
        }  # fmt: skip


def _watch(child: Child) -> tuple[float, dict[str, Any], dict[str, int]]:
    """Seconds until it is ready, what an observer then sees, and the memory it takes."""
    settings = child.ready()
    ready_s = (now_us() - child.begun_us) / 1e6
    with Helper("facts", settings, expected=OVERDUE, limit_s=120, idle_s=20, keep=False) as observer:
        observer.answer()
        seen = observer.answer(LIMIT_S)
    return ready_s, seen, child.memory_mb()
