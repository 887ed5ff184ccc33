"""`logs`: lateness while every handler prints twenty lines, against the same load on the same deployment in silence, three turns of both.

`--lines`: so many instead; with 200 of them a hundred tasks a second print 20,000 lines a second. `lines` were printed, `dropped`
are told by markers, and `missing` are neither in table `attempt_logs` nor told.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

from scylla_spark.clock import boot_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.records.log_record import MARKER
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.schemas import ATTEMPT_LOGS
from scylla_spark_tools.bench import report
from scylla_spark_tools.bench import steady_load as paced_load
from scylla_spark_tools.bench.deployment_under_test import Options, await_value, place, say
from scylla_spark_tools.bench.thread_profile import sampled

_LINES: Final = 20
_PATIENCE_US: Final = 120_000_000


def run(options: Options) -> dict[str, Any]:
    """Measures; default 100 tasks a second for 20 s over 1,000 lanes, with 20 lines each, three times."""
    load = paced_load.Load.of(options, rate=100, seconds=20)
    each = options.lines or _LINES
    silent, loud = [], []
    with place(options, "ingest", "dispatch") as home:
        for turn in range(options.turns):
            silent.append(paced_load.measure(home.settings, load, before=2 * turn * load.total))
            with sampled(options.profile):
                chatty = replace(load, lines=each)
                loud.append(paced_load.measure(home.settings, chatty, before=(2 * turn + 1) * load.total))
        lines = load.total * each * options.turns
        kept, dropped = _settled(home.settings, lines)
    plain, result = paced_load.joined(silent), paced_load.joined(loud)
    medians = [report.percentile(sorted(one.late_us), 0.5) for one in (result, plain)]
    return report.compared(
        "logs", result.late_us, plain.late_us, sent=len(result.late) + result.lost, early=result.early,
        cpu_cores=result.cores, violations=result.violations, lines=lines, dropped=dropped, missing=lines - kept - dropped,
        median_ratio=report.ratio(*medians), floor_cpu_cores=round(plain.cores, 3), cpu_seconds=result.cpu_seconds,
        floor_cpu_seconds=plain.cpu_seconds, behind_ms=result.behind_ms,
    )  # fmt: skip


def _settled(settings: Settings, lines: int) -> tuple[int, int]:
    """Lines in the table, and how many its markers tell of, once these are all, or after two minutes."""
    say("the lines come to stand in the table")
    until_us = boot_us() + _PATIENCE_US

    def look() -> tuple[int, int] | None:
        found = _counted(settings)
        return found if sum(found) >= lines or boot_us() > until_us else None

    return await_value("the lines", look, pause_s=1)


def _counted(settings: Settings) -> tuple[int, int]:
    import polars as pl

    frame = TableReader.of(settings).frame(ATTEMPT_LOGS)
    markers = frame.filter(pl.col("stream") == MARKER).select("fields").collect()["fields"].to_list()
    rows = frame.select(pl.len()).collect().item()
    return rows - len(markers), sum(json.loads(fields)["missing"] for fields in markers)
