"""The due scan: which open tasks are to be loaded, in lane order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from scylla_spark.core.queues.in_force import ROW_BYTES, Budget
from scylla_spark.core.tables.progress import OpenHours
from scylla_spark.core.tasks.state import ATTEMPT_ORDER_SQL
from scylla_spark.core.tasks.stored_records import ENQUEUED
from scylla_spark.core.tasks.task import MAX_LAST_ERROR_CHARS
from scylla_spark.defaults import DEFAULT_QUEUE
from scylla_spark.schemas import KEY_NAMES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def maybe_open(hours: OpenHours) -> Column:
    """Predicate on any table with the key columns: in hours that may hold open tasks."""
    return (F.col("hour") >= hours.closed_hour) | F.col("hour").isin(list(hours.kept_open))


def uncompleted(tasks: DataFrame, completions: DataFrame, attempts: DataFrame) -> DataFrame:
    """Tasks without a completion, with their latest attempt.

    Args:
        tasks: rows of `tasks`.
        completions: rows of `completions` over the same window.
        attempts: rows of `attempts` over the same window; any number per key.

    Returns:
        Grain: one row per open key. Columns of `tasks` and `attempt`, `used` (0 if none), and `next_at`, `work`, `error`,
        `fact_offset` (null if none).
    """
    key = list(KEY_NAMES)
    message = F.substring("error_message", 1, MAX_LAST_ERROR_CHARS)
    error = F.struct(F.col("error_class").alias("kind"), message.alias("message")).alias("error")
    latest = attempts.groupBy(*key).agg(
        F.max_by(
            F.struct("attempt", "used", "next_at", "work", error, "fact_offset"),
            F.struct(*map(F.expr, ATTEMPT_ORDER_SQL)),
        ).alias("latest")
    )
    open_tasks = tasks.join(completions.select(*key), key, "left_anti").join(latest, key, "left")
    return open_tasks.select(
        *tasks.columns,
        F.coalesce("latest.attempt", F.lit(0)).alias("attempt"),
        F.coalesce("latest.used", F.lit(0)).alias("used"),
        F.col("latest.next_at").alias("next_at"),
        F.col("latest.work").alias("work"),
        F.col("latest.error").alias("error"),
        F.col("latest.fact_offset").alias("fact_offset"),
    )


def due(open_tasks: DataFrame, *, depth: int) -> DataFrame:
    """The first `depth` open tasks of every lane; one that a worker has leased goes before all, whatever its key.

    Args:
        open_tasks: as `uncompleted` returns.
        depth: most rows per lane.

    Returns:
        Grain: one row per task. Key, data and attempt columns with instants as microseconds (`time_us`, `next_us`,
        `enqueued_us`), `offset` of the newest record, `cancelled`, `leased`, `lane_rank` from 1, and `more`: whether the tables hold
        further open tasks of the lane.
    """
    lane = Window.partitionBy("partition_id", "ordering_id")
    leased = F.col("work.lease").isNotNull() & F.col("next_at").isNull()
    ranked = open_tasks.withColumn("leased", F.coalesce(leased, F.lit(False))).withColumns(
        {
            "lane_rank": F.row_number().over(lane.orderBy(~F.col("leased"), "scheduled_time", "uniqueness_key")),
            "lane_rows": F.count(F.lit(1)).over(lane),
        }
    )
    return ranked.where(F.col("lane_rank") <= depth).select(
        "partition_id",
        F.unix_micros("scheduled_time").alias("time_us"),
        "ordering_id",
        "uniqueness_key",
        *ENQUEUED,
        F.col("retry.max_retries").alias("max_retries"),
        F.col("retry.base_ms").alias("base_ms"),
        F.col("retry.cap_ms").alias("cap_ms"),
        F.unix_micros("enqueued_at").alias("enqueued_us"),
        F.coalesce("data_offset", "cancel_offset").alias("offset"),
        F.coalesce("first_offset", "data_offset").alias("first"),
        F.col("cancel_offset").isNotNull().alias("cancelled"),
        "attempt",
        "used",
        F.coalesce(F.unix_micros("next_at"), F.lit(0)).alias("next_us"),
        "work",
        "error",
        F.coalesce("fact_offset", F.lit(-1)).alias("fact_offset"),
        "leased",
        "lane_rank",
        (F.col("lane_rows") > depth).alias("more"),
    )


def first_of_queues(rows: DataFrame, budget: Budget, *, now: int) -> DataFrame:
    """Returns what fits the budget of every queue: what is leased, heads of lanes before those behind them, the urgent and overdue first.

    Lanes whose head cannot start (it waits for a retry, has no handler, or its queue is paused) come last, so that however many
    they are they keep nobody else out. A head that is cancelled ends wherever it stands, and what is behind it may start; so
    does one that has expired.

    Args:
        rows: as `due` returns.
        budget: of each queue.
        now: microseconds since the epoch.

    Returns:
        Grain: one row per task that is kept, and the head of every lane of which nothing is: columns of `rows` and `kept`. Of a
        lane the first tasks are kept; `more` is set where any is not.
    """
    lane = Window.partitionBy("partition_id", "ordering_id")
    upwards = (Window.unboundedPreceding, Window.currentRow)
    in_order = lane.orderBy("lane_rank").rowsBetween(*upwards)
    head = F.col("lane_rank") == 1
    name = F.coalesce("queue", F.lit(DEFAULT_QUEUE))
    waits = (F.col("next_us") > now) | F.col("handler").isNull() | name.isin(list(budget.paused))
    expired = (F.col("attempt") == 0) & (F.col("time_us") + F.col("expires_ms") * 1000 <= now)
    stuck = head & waits & ~F.col("cancelled") & ~F.coalesce(expired, F.lit(False))
    share = F.when(name.isin(list(budget.listed)), name)
    queue = Window.partitionBy("share").orderBy(
        ~F.col("leased"), "blocked", "lane_rank", F.desc("priority"), "time_us", "ordering_id"
    )
    size = F.lit(ROW_BYTES) + F.coalesce(F.octet_length("payload"), F.lit(0)).cast("long")
    ranked = rows.withColumns({"blocked": F.max(stuck).over(lane), "share": share})
    ranked = ranked.withColumns(
        {"place": F.row_number().over(queue), "bytes": F.sum(size).over(queue.rowsBetween(*upwards))}
    )
    too_much = (F.col("place") > budget.rows) | ((F.col("bytes") > budget.most_bytes) & (F.col("place") > 1))
    over = F.max(too_much).over(in_order)
    kept = ranked.withColumn("kept", ~over).withColumn("more", F.col("more") | ~F.min("kept").over(lane))
    return kept.where(F.col("kept") | head).drop("blocked", "share", "place", "bytes")
