"""The fold of `core.tasks.fold_commands` on frames: of rows of one key, the newest data, what the first enqueue said, the newest cancel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from scylla_spark.core.tasks.stored_records import NEWEST
from scylla_spark.schemas import KEY_NAMES, TASKS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def folded(operations: DataFrame) -> DataFrame:
    """One row per key.

    Args:
        operations: columns of `tasks`; any number of rows per key, in any order, repeats included.

    Returns:
        Columns of `tasks`; data is null where only cancels were seen.
    """
    newest = F.max_by(F.struct(*NEWEST), "data_offset").alias("newest")  # rows without data_offset do not take part
    first = _first_offset("")
    oldest = F.min_by(F.struct(first.alias("first_offset"), "unique_open"), first).alias("oldest")
    rows = operations.groupBy(*KEY_NAMES).agg(newest, oldest, F.max("cancel_offset").alias("cancel_offset"))
    return rows.select(*KEY_NAMES, "newest.*", "oldest.*", "cancel_offset").select(*TASKS.names)


def is_news() -> Column:
    """For a MERGE of `s` into `t`: whether the source row tells something that the target row does not hold yet."""
    cancelled = F.coalesce("s.cancel_offset", F.lit(-1)) > F.coalesce("t.cancel_offset", F.lit(-1))
    return _is_newer() | cancelled | F.coalesce(_is_older(), F.lit(False))


def newest() -> dict[str, str | Column]:
    """For a MERGE of `s` into `t`: the columns of the fold of both rows."""
    chosen: dict[str, str | Column] = {
        name: F.when(_is_newer(), F.col(f"s.{name}")).otherwise(F.col(f"t.{name}")) for name in NEWEST
    }
    first: dict[str, str | Column] = {
        "first_offset": F.least(_first_offset("s."), _first_offset("t.")),
        "unique_open": F.when(_is_older(), F.col("s.unique_open")).otherwise(F.col("t.unique_open")),
    }
    return chosen | first | {"cancel_offset": F.greatest("s.cancel_offset", "t.cancel_offset")}


def _is_newer() -> Column:
    """Whether the source row holds a newer enqueue than the target row."""
    return F.coalesce("s.data_offset", F.lit(-1)) > F.coalesce("t.data_offset", F.lit(-1))


def _is_older() -> Column:
    """Whether the source row holds an older first enqueue than the target row; null where it holds none."""
    source, target = _first_offset("s."), _first_offset("t.")
    return target.isNull() & source.isNotNull() | (source < target)


def _first_offset(row: str) -> Column:
    """Offset of the first enqueue; rows of older versions hold that of the newest only."""
    return F.coalesce(f"{row}first_offset", f"{row}data_offset")
