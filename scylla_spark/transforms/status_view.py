"""The status view: one row per task, from its data, its attempts and its end."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from scylla_spark.core.tasks.state import ATTEMPT_ORDER_SQL, STATE_SQL
from scylla_spark.schemas import KEY_NAMES

_KEY: Final = list(KEY_NAMES)
_DATA: Final = ("handler", "queue", "priority", "payload", "enqueued_at", "tags")


def status(
    tasks: DataFrame, completions: DataFrame, attempts: DataFrame, now: int, *, history: bool = False
) -> DataFrame:
    """One row per key of `tasks`.

    Args:
        tasks: table `tasks`, one row per key.
        completions: table `completions`; repeats are tolerated.
        attempts: table `attempts`; repeats are tolerated.
        now: microseconds since the epoch: what is due, and with `history` also what is known.
        history: leave out what the rows date after `now`. An overwritten or cancelled task shows its newest data and mark,
            because rows keep no older ones.

    Returns:
        The key columns, `queue`, `handler`, `priority`, `payload`, `enqueued_at`, `tags`, `name`, `description`, `enqueued_by` (as
        its record claims), `state`, `attempts` (begun so far), `next_attempt_at` (null when ended), `cancel_requested`,
        `started_at`, `ended_at`, `result`, `error_class`, `error_message`, `error_stack` of the end or of the newest attempt.
    """
    moment = F.timestamp_micros(F.lit(now))
    if history:
        tasks = tasks.where(F.coalesce(F.col("enqueued_at") <= moment, F.lit(True)))
        completions = completions.where(F.col("finished_at") <= moment)
        attempts = attempts.where(F.coalesce("finished_at", "started_at") <= moment)
    ended = _first(completions).select(
        *_KEY, F.struct("attempt", "outcome", "started_at", "finished_at", "result", *_ERROR).alias("end")
    )
    last = _newest(attempts).select(
        *_KEY, F.struct("attempt", "outcome", "started_at", "next_at", *_ERROR).alias("last")
    )
    rows = tasks.join(ended, _KEY, "left").join(last, _KEY, "left")
    rows = rows.withColumns({"ended": F.col("end.outcome"), "last_outcome": F.col("last.outcome"), "as_of": moment})
    rows = rows.withColumn("next_attempt_at", F.greatest("scheduled_time", F.col("last.next_at")))
    return rows.withColumn("state", F.expr(STATE_SQL)).select(*_KEY, *_DATA, *_about(), *_outcome_columns())


def _about() -> list[Column]:
    return [F.col("about")[part].alias(part) for part in ("name", "description", "enqueued_by")]


_ERROR: Final = ("error_class", "error_message", "error_stack")


def _outcome_columns() -> list[Column]:
    running = F.col("end").isNull()
    return [
        F.col("state"),
        F.greatest(F.coalesce("end.attempt", F.lit(0)), F.coalesce("last.attempt", F.lit(0))).alias("attempts"),
        F.when(running, F.col("next_attempt_at")).alias("next_attempt_at"),
        F.col("cancel_offset").isNotNull().alias("cancel_requested"),
        F.coalesce("end.started_at", "last.started_at").alias("started_at"),
        F.col("end.finished_at").alias("ended_at"),
        F.col("end.result").alias("result"),
        *[F.when(running, F.col(f"last.{name}")).otherwise(F.col(f"end.{name}")).alias(name) for name in _ERROR],
    ]


def _first(completions: DataFrame) -> DataFrame:
    """One row per key: the first that was recorded."""
    order = Window.partitionBy(*_KEY).orderBy("fact_offset")
    return completions.withColumn("rank", F.row_number().over(order)).where("rank = 1")


def _newest(attempts: DataFrame) -> DataFrame:
    """One row per key: its newest attempt, as it ended if that is known."""
    order = Window.partitionBy(*_KEY).orderBy(*(F.expr(term).desc() for term in ATTEMPT_ORDER_SQL))
    return attempts.withColumn("rank", F.row_number().over(order)).where("rank = 1")
