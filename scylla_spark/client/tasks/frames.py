"""The client's work with Spark frames: check, then send through Spark's Kafka sink; and the tables as frames."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from scylla_spark.config.settings import Settings
from scylla_spark.core.records.command import Rules
from scylla_spark.errors import ArgumentError, UnreachableError
from scylla_spark.io.delta.spark_tables import Tables
from scylla_spark.io.kafka.topics import MAX_MESSAGE_BYTES, spark_options
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, TABLES
from scylla_spark.transforms import commands_from_frames
from scylla_spark.transforms import status_view as status_view
from scylla_spark.transforms.commands_from_frames import Columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_CHANGED: Final = "The frame gave other rows when they were sent than when they were checked"
SINK: Final = {  # options of Spark's Kafka sink, on top of where the brokers are
    "kafka.acks": "all",
    "kafka.enable.idempotence": "true",
    "kafka.linger.ms": "20",
    "kafka.batch.size": str(256 * 1024),
    "kafka.buffer.memory": str(64 * 1024 * 1024),
    "kafka.compression.type": "lz4",  # records of a frame are alike: a fifth of the bytes, in less time
    "kafka.max.block.ms": "15000",
    "kafka.max.request.size": str(MAX_MESSAGE_BYTES),
}

__all__ = ["Columns", "cancel", "enqueue", "status", "stream", "table"]


def enqueue(df: DataFrame, columns: Columns, settings: Settings, rules: Rules, now: int) -> int:
    """Checks all rows, then sends them; returns how many.

    Args:
        df: one row per task.
        columns: which columns of it are what.
        settings: with the broker.
        rules: by which all readers judge.
        now: microseconds since the epoch.

    Raises:
        ArgumentError: some rows would be refused, or the frame or its columns are wrong; nothing was sent.
        UnreachableError: the write failed; part of the rows may have been sent.
    """
    with _analysis():
        return _send(commands_from_frames.enqueue_records(df, columns, rules, now), settings, rules.earliest_us(now))


def cancel(keys: DataFrame, columns: Columns, settings: Settings, rules: Rules, now: int) -> int:
    """The same for cancels.

    Args:
        keys: one row per task, with the columns of the key.
        columns: which columns of it are what.
        settings: with the broker.
        rules: by which all readers judge.
        now: microseconds since the epoch.
    """
    with _analysis():
        return _send(commands_from_frames.cancel_records(keys, columns, now), settings, None)


def stream(
    df: DataFrame, columns: Columns, settings: Settings, rules: Rules, checkpoint: str, trigger_ms: int
) -> StreamingQuery:
    """Starts a query that sends every row, unchecked and without stamp.

    Args:
        df: a streaming frame, one row per task.
        columns: which columns of it are what.
        settings: with the broker.
        rules: by which all readers judge.
        checkpoint: folder of the query's checkpoint.
        trigger_ms: pause between two micro-batches.
    """
    with _analysis():
        records = commands_from_frames.enqueue_records(df, columns, rules, 0, checked=False)
        options = spark_options(settings) | SINK | {"topic": settings.topics.tasks, "checkpointLocation": checkpoint}
        writer = records.select("key", "value").writeStream.format("kafka").options(**options)
        return writer.trigger(processingTime=f"{trigger_ms} milliseconds").start()


def table(spark: SparkSession, path: str, name: str) -> DataFrame:
    """One of our tables, lazily.

    Args:
        spark: session.
        path: folder or URI of the tables.
        name: of one of `schemas.TABLES`.
    """
    return Tables(spark, path).read(next(entry for entry in TABLES if entry.name == name))


def status(spark: SparkSession, path: str, as_of: int, *, history: bool) -> DataFrame:
    """The status view over the tables as they are now; with `history`, by the times in the rows.

    Args:
        spark: session.
        path: folder or URI of the tables.
        as_of: by when a task is due, and with `history` also what is known, microseconds since the epoch.
        history: see `transforms.status_view.status`.
    """
    tables = Tables(spark, path)
    tasks = tables.tasks_between(None, None, None, tables.folded_until_us())
    return status_view.status(tasks, tables.read(COMPLETIONS), tables.read(ATTEMPTS), as_of, history=history)


def _send(records: DataFrame, settings: Settings, earliest_us: int | None) -> int:
    # only what is the same in every call stands in these queries: Spark compiles them once, and so does the JVM
    first_us = F.min(F.unix_micros("scheduled_time")).alias("first_us")
    sums = records.agg(F.count("*").alias("rows"), F.count("fault").alias("faults"), first_us).collect()[0]
    late = earliest_us is not None and sums["first_us"] is not None and sums["first_us"] < earliest_us
    if sums["faults"] or late:
        refused = {row["reason"]: row["count"] for row in records.groupBy("reason").count().collect() if row["reason"]}
        raise _refusal(records, refused)
    sent = int(sums["rows"])
    if sent == 0:
        return 0
    # a source that is not the same twice must not slip rows past the check
    value = F.when(F.col("fault").isNull(), F.col("value")).otherwise(F.raise_error(F.lit(_CHANGED)))
    writer = records.select("key", value.alias("value")).write.format("kafka")
    try:
        writer.options(**spark_options(settings) | SINK, topic=settings.topics.tasks).save()
    except Exception as error:  # a PySparkException or, from sinks, a bare Py4JJavaError
        if _CHANGED in str(error):
            raise ArgumentError(
                f"{_CHANGED}.", hint="Part of it may have been sent. Write it to a table first, then enqueue that."
            ) from error
        raise UnreachableError(
            f"The write to Kafka at {settings.kafka.bootstrap_servers} failed: {_cause(error)}",
            hint="Part of it may have been sent; enqueueing the same frame again is safe if its times are the same. "
            "Rows that are due are refused as too late once the grace is over, also those that were sent.",
        ) from error
    return sent


def _refusal(records: DataFrame, refused: dict[str, int]) -> ArgumentError:
    examples = {}
    for reason in sorted(refused):
        parts: list[Column] = [
            F.substring(F.col(name).cast("string"), 1, 80).alias(name)
            for name in ("scheduled_time", "ordering_id", "uniqueness_key")
        ]
        rows = records.where(F.col("reason") == reason).select(*parts).limit(1).collect()
        examples[reason] = ",".join(str(part) for part in rows[0]) if rows else "?"
    told = "; ".join(
        f"{count} x {commands_from_frames.REASONS[reason]}, such as ({examples[reason]})"
        for reason, count in sorted(refused.items())
    )
    return ArgumentError(
        f"{sum(refused.values())} rows would be refused: {told}.",
        hint="Nothing was sent.",
        refused=refused,
        examples=examples,
    )


@contextmanager
def _analysis() -> Iterator[None]:
    try:
        yield
    except AnalysisException as error:
        raise ArgumentError(f"The frame cannot be enqueued: {_first_line(error)}", hint="Nothing was sent.") from error


def _cause(error: Exception) -> str:
    """The innermost exception that Spark tells of, in one line."""
    named = re.findall(r"[\w.$]+(?:Exception|Error): [^\n]+", str(error))
    return (named[0].rsplit("Exception: ", 1)[-1] if named else _first_line(error))[:500]


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:500]
