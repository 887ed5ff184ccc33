"""How tasks stood at an earlier moment, from rows that say how they stand now: what no longer changes need not be read again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scylla_spark.clock import from_us

if TYPE_CHECKING:
    import polars as pl

_OF_ATTEMPTS: Final = ("ended", "ended_at", "last_outcome", "error_class", "fingerprint", "worker")


def as_it_was(rows: pl.DataFrame, moment_us: int) -> pl.DataFrame | None:
    """The rows of `status_rows` with `until_us`, made of those without; None where these do not tell enough.

    What had ended by then stands as it stands now, and what was not due yet had no attempt. What was due and ended later may have been
    between attempts, which only the tables know.

    Args:
        rows: of `status_rows`.
        moment_us: microseconds since the epoch.
    """
    import polars as pl

    moment = pl.lit(from_us(moment_us))
    had_ended = (pl.col("ended_at") <= moment).fill_null(value=False)
    was_later = pl.col("scheduled_time") > moment
    known = rows.filter(pl.col("enqueued_at").is_null() | (pl.col("enqueued_at") <= moment))
    changed = ~had_ended & (pl.col("ended").is_not_null() | (pl.col("attempts") > 0))
    if known.select((changed & ~was_later).any()).item():
        return None
    # whoever tells of an end without its instant tells nothing of this moment
    names = [name for name in _OF_ATTEMPTS if name in rows.columns]
    gone = [pl.when(changed).then(None).otherwise(name).alias(name) for name in names]
    attempts = pl.when(changed).then(0).otherwise("attempts").cast(rows.schema["attempts"]).alias("attempts")
    due = pl.when(changed).then("scheduled_time").otherwise("due_at").alias("due_at")
    return known.with_columns(*gone, attempts, due)
