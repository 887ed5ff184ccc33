"""The attempts of tasks, as polars rows: one per attempt, from the two tables that say something of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scylla_spark.core.tasks.key import HOUR_US
from scylla_spark.core.tasks.task import STARTED
from scylla_spark.io.delta.rows import IDENTITY, first_completions
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS

if TYPE_CHECKING:
    import polars as pl

TOLD: Final = (
    *IDENTITY, "attempt", "outcome", "planned_at", "started_at", "finished_at", "next_at", "result", "error_class", "error_message",
    "error_stack",
)  # fmt: skip


def attempts_of_tasks(readers: TableReader, tasks: pl.DataFrame) -> pl.DataFrame:
    """One row per attempt in order, with how it ended, or that it started; the rule is that of `core.tasks.state.attempts_of`.

    Args:
        readers: of the deployment.
        tasks: with the columns of keys, in their order.
    """
    import polars as pl

    keys = tasks.select(*IDENTITY)
    hours = (keys["scheduled_time"].dt.epoch("us") // HOUR_US).unique().to_list()
    pruning = [[("hour", "in", hours)]]
    ended = readers.frame(
        COMPLETIONS, pruning
    )  # before the attempts, which ingest writes first: none of an ended task is missed
    known = readers.frame(ATTEMPTS, pruning)
    ends = first_completions(ended).with_columns(next_at=pl.lit(None, known.collect_schema()["next_at"]))
    # an end tells more than a start; and a cancel after an attempt bears its number, and says nothing of it
    rank = pl.when(pl.col("outcome") == STARTED).then(0).otherwise(2)
    parts = [known.select(*TOLD, "fact_offset", rank=rank), ends.select(*TOLD, "fact_offset", rank=pl.lit(1))]
    rows = pl.concat(parts, how="vertical_relaxed")
    rows = rows.filter(pl.col("attempt") > 0).join(keys.lazy(), on=IDENTITY, how="semi")
    best = rows.sort("rank", "fact_offset").unique([*IDENTITY, "attempt"], keep="last", maintain_order=True)
    return best.sort(*IDENTITY, "attempt").select(*TOLD).collect()
