"""`history`: pages of a schedule over HTTP while a year of hourly decisions about 1,000 schedules is stored.

The rows of `fires` are made and written a month at a time, as files are after their compaction. Calls of each kind take turns, after
some of the same that warm up; schedules are picked at random. A page is the newest 100 decisions, as the dashboard shows them; `week`
is at most 100 of those of seven days. Floor: empty calls, p50.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from scylla_spark.clock import iso, now_us
from scylla_spark.core.tasks.key import HOUR_US
from scylla_spark.io.delta.rows import polars_type
from scylla_spark.schemas import FIRES
from scylla_spark_tools.bench import report
from scylla_spark_tools.bench.cases.reads import timed
from scylla_spark_tools.bench.deployment_under_test import Options, place, say

if TYPE_CHECKING:
    import polars as pl

SCHEDULES: Final = 1_000
_FIRES: Final = 8_760 * SCHEDULES
_FILES: Final = 12
_WARM: Final = 20
_CALLS: Final = 200
_AHEAD_US: Final = 9_000_000
_ROWS_OF_A_RECORD: Final = 200


def run(options: Options) -> dict[str, Any]:
    """Measures; default 8,760,000 decisions, and 200 calls of each kind."""
    count = options.tasks or _FIRES
    with place(options, "ingest", "api") as home:
        stored = fill(f"{home.settings.tables_path}/{FIRES.name}", count, now_us())
        timed(home, _paths(_WARM))
        took, cores = timed(home, _paths(_CALLS))
    floor = took.pop("empty")
    p99 = {kind: round(report.percentile(found, 0.99) / 1000, 3) for kind, found in took.items()}
    every = sorted(us for found in took.values() for us in found)
    return report.latency(
        "history", every, floor, sent=len(every), early=0, cpu_cores=cores, stored=stored, stored_lost=count - stored,
        **{f"{kind}_p99_ms": value for kind, value in p99.items()},
    )  # fmt: skip


def fill(table: str, count: int, now: int) -> int:
    """Appends decisions, each schedule one an hour up to now, and returns how many there are.

    Args:
        table: folder of `fires`.
        count: how many, of all schedules.
        now: microseconds since the epoch.
    """
    import polars as pl
    from deltalake import DeltaTable, write_deltalake

    hours = count // SCHEDULES
    bounds = [hours * part // _FILES for part in range(_FILES + 1)]
    for begin, end in pairwise(bounds):
        if begin < end:
            write_deltalake(
                table, _rows(begin, end, now // HOUR_US * HOUR_US - hours * HOUR_US).to_arrow(), mode="append"
            )
    say(f"{hours * SCHEDULES} decisions are stored")
    return int(pl.scan_parquet(DeltaTable(table).file_uris()).select(pl.len()).collect().item())


def _rows(begin: int, end: int, first_us: int) -> pl.DataFrame:
    """The decisions of some hours after an instant (microseconds since the epoch), ordered as the planner makes them."""
    import polars as pl

    at = pl.Datetime("us", "UTC")
    number, planned = pl.col("n") % SCHEDULES, (pl.col("n") // SCHEDULES * HOUR_US + first_us)
    name = pl.format("team-{}.report-{}", number % 20, number)
    known = {
        "schedule": name,
        "generation": pl.col("n") // SCHEDULES + 1,
        "revision": pl.lit(1),
        "planned_at": planned.cast(at),
        "decided_at": (planned - _AHEAD_US + number).cast(at),
        "verdict": pl.lit("launched"),
        "why": pl.lit(""),
        "by_hand": pl.lit(value=False),
        "scheduled_time": planned.cast(at),
        "ordering_id": pl.format("schedule/{}", name),
        "uniqueness_key": pl.format("{}/{}/{}", name, planned, pl.col("n") // SCHEDULES + 1),
        "plan_offset": pl.col("n") // _ROWS_OF_A_RECORD,
    }
    columns = [known.get(one.name, pl.lit(None)).cast(polars_type(one.type)).alias(one.name) for one in FIRES.columns]
    return pl.DataFrame({"n": pl.int_range(begin * SCHEDULES, end * SCHEDULES, eager=True)}).select(columns)


def _paths(calls: int) -> dict[str, list[str]]:
    rng = random.Random(calls)
    picked = [rng.randrange(SCHEDULES) for _ in range(calls)]
    names = [f"/v1/schedules/team-{number % 20}.report-{number}" for number in picked]
    since = iso(now_us() - 7 * 24 * HOUR_US)
    return {
        "page": [f"{name}/fires?limit=100" for name in names],
        "week": [f"{name}/fires?since={since}" for name in names],
        "empty": ["/healthz"] * calls,
    }
