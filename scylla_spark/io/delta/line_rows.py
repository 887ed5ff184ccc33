"""What the attempts of tasks have written, as polars rows: one per line that stands in the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scylla_spark.core.records.log_record import MARKER
from scylla_spark.core.tasks.key import HOUR_US
from scylla_spark.io.delta.rows import IDENTITY
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.schemas import ATTEMPT_LOGS

if TYPE_CHECKING:
    import polars as pl

_RUN: Final = (*IDENTITY, "attempt", "epoch")
_TOLD: Final = (*_RUN, "seq", "at", "stream", "level", "text", "fields")


def lines_of_tasks(readers: TableReader, tasks: pl.DataFrame) -> pl.DataFrame | None:
    """One row per line, each once, in the order of tasks, attempts and lines; a marker stands before the line of its number.

    Args:
        readers: of the deployment.
        tasks: with the columns of keys, in their order.

    Returns:
        The lines; None where no lines are kept.
    """
    import polars as pl

    if not readers.exists(ATTEMPT_LOGS):
        return None
    keys = tasks.select(*IDENTITY)
    hours = (keys["scheduled_time"].dt.epoch("us") // HOUR_US).unique().to_list()
    lines = readers.frame(ATTEMPT_LOGS, [[("hour", "in", hours)]]).join(keys.lazy(), on=IDENTITY, how="semi")
    lines = lines.with_columns(real=pl.col("stream") != MARKER).sort(*_RUN, "seq", "real", "log_offset")
    once = lines.unique([*_RUN, "seq", "real"], keep="first", maintain_order=True)
    return once.select(*_TOLD).collect()
