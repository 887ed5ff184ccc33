"""The client's work with Spark frames: check, then send through Spark's Kafka sink; and the tables as frames."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from scylla_spark.clock import now_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.records.command import SENT_WITHIN_US, TOO_LATE, Rules
from scylla_spark.errors import ArgumentError, SetupError, UnreachableError
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

_CHECKED_QUICKLY_US: Final = (
    300_000_000  # after a longer check records are stamped anew, which costs the compilation of another query
)
_AGAIN_S: Final = 1.0  # a write that is to end is told so this often, since its next job may not have begun

__all__ = ["Columns", "cancel", "enqueue", "status", "stream", "table"]


class Checked(NamedTuple):
    """What the check of a frame has found.

    Attributes:
        rows: how many there are.
        first_us: earliest scheduled time, microseconds since the epoch; 0 if there are no rows.
    """

    rows: int
    first_us: int


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
        UnreachableError: the write failed, or took so long that rows may come too late; part of them may have been sent.
    """
    check_connector(df.sparkSession, settings)
    with _analysis():
        records = commands_from_frames.enqueue_records(df, columns, rules, now)
        found = _checked(records, rules.earliest_us(now))
        if found.rows and now_us() - now > _CHECKED_QUICKLY_US:
            now = stamp_of_write(found, columns, rules, now, now_us())
            records = commands_from_frames.enqueue_records(df, columns, rules, now)
        return _send(records, found.rows, settings, now + SENT_WITHIN_US)


def cancel(keys: DataFrame, columns: Columns, settings: Settings, rules: Rules, now: int) -> int:
    """The same for cancels.

    Args:
        keys: one row per task, with the columns of the key.
        columns: which columns of it are what.
        settings: with the broker.
        rules: by which all readers judge.
        now: microseconds since the epoch.
    """
    check_connector(keys.sparkSession, settings)
    with _analysis():
        records = commands_from_frames.cancel_records(keys, columns, now)
        return _send(records, _checked(records, None).rows, settings, None)


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
    check_connector(df.sparkSession, settings)
    with _analysis():
        records = commands_from_frames.enqueue_records(df, columns, rules, 0, checked=False)
        options = spark_options(settings) | SINK | {"topic": settings.topics.tasks, "checkpointLocation": checkpoint}
        writer = records.select("key", "value").writeStream.format("kafka").options(**options)
        return writer.trigger(processingTime=f"{trigger_ms} milliseconds").start()


def check_connector(spark: SparkSession, settings: Settings, kind: str = "kafka") -> None:
    """Checks that a session can write to Kafka, before a job checks the rows.

    Args:
        spark: a classic session, or one of Spark Connect.
        settings: with the broker; it is not asked.
        kind: Spark's name of the connector.

    Raises:
        SetupError: the session has no Kafka connector.
    """
    options = spark_options(settings) | {"subscribe": settings.topics.tasks}
    try:
        _ = spark.read.format(kind).options(**options).load().schema
    except AnalysisException as error:
        raise SetupError(
            f"This Spark session has no connector for Kafka: {_first_line(error)}",
            hint=f"Start the session or the cluster with the package org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version} "
            "(spark.jars.packages), or install it as a library of the cluster.",
        ) from error


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


def stamp_of_write(found: Checked, columns: Columns, rules: Rules, asked_us: int, now: int) -> int:
    """The stamp of records whose check has taken long: the latest with which none of them is too late.

    Args:
        found: by the check.
        columns: as they were checked; where no time is given, the rows are due at their stamp.
        rules: by which all readers judge.
        asked_us: when the check began, microseconds since the epoch.
        now: when the write begins.

    Raises:
        ArgumentError: such a stamp would not be believed until the end of the write.
    """
    latest = now if columns.scheduled_time is None else found.first_us + rules.grace_ms * 1000
    if now - latest > SENT_WITHIN_US // 2:
        raise ArgumentError(
            f"The check of the rows took {_minutes(now - asked_us)} minutes; those that were due when it began come too late by now.",
            hint="Nothing was sent. Write the frame to a table first, so that it is computed once, and enqueue that with later times.",
            reason=TOO_LATE,
        )
    return min(now, latest)


def _checked(records: DataFrame, earliest_us: int | None) -> Checked:
    # only what is the same in every call stands in this query and the next: Spark compiles them once, and so does the JVM
    first_us = F.min(F.unix_micros("scheduled_time")).alias("first_us")
    sums = records.agg(F.count("*").alias("rows"), F.count("fault").alias("faults"), first_us).collect()[0]
    late = earliest_us is not None and sums["first_us"] is not None and sums["first_us"] < earliest_us
    if sums["faults"] or late:
        refused = {row["reason"]: row["count"] for row in records.groupBy("reason").count().collect() if row["reason"]}
        raise _refusal(records, refused)
    return Checked(int(sums["rows"]), int(sums["first_us"] or 0))


def _send(records: DataFrame, rows: int, settings: Settings, until_us: int | None) -> int:
    if rows == 0:
        return 0
    # a source that is not the same twice must not slip rows past the check
    value = F.when(F.col("fault").isNull(), F.col("value")).otherwise(F.raise_error(F.lit(_CHANGED)))
    writer = records.select("key", value.alias("value")).write.format("kafka")
    begun_us = now_us()
    try:
        with _ended_by(records.sparkSession, until_us):
            writer.options(**spark_options(settings) | SINK, topic=settings.topics.tasks).save()
    except Exception as error:  # a PySparkException or, from sinks, a bare Py4JJavaError
        if _CHANGED in str(error):
            raise ArgumentError(
                f"{_CHANGED}.", hint="Part of it may have been sent. Write it to a table first, then enqueue that."
            ) from error
        if _is_over(until_us):
            raise _too_slow(begun_us) from error
        raise UnreachableError(
            f"The write to Kafka at {settings.kafka.bootstrap_servers} failed: {_cause(error)}",
            hint="Part of it may have been sent; enqueueing the same frame again is safe if its times are the same. "
            "Rows that are due are refused as too late once the grace is over, also those that were sent.",
        ) from error
    if _is_over(until_us):
        raise _too_slow(begun_us)
    return rows


@contextmanager
def _ended_by(spark: SparkSession, until_us: int | None) -> Iterator[None]:
    """Spark's jobs of a block are ended at a moment, so that nothing is written that would be refused then.

    A row that looked at the clock itself would cost the compiled form of the whole query; this costs nothing.
    """
    if until_us is None:
        yield
        return
    tag, done = f"scylla-spark-enqueue-{uuid.uuid4()}", threading.Event()
    context = getattr(
        spark, "sparkContext", None
    )  # a session of Spark Connect has none; of others tags of the session mean nothing
    add, remove, end = (
        (context.addJobTag, context.removeJobTag, context.cancelJobsWithTag)
        if context is not None
        else (spark.addTag, spark.removeTag, spark.interruptTag)
    )

    def watch() -> None:
        while not done.wait(max((until_us - now_us()) / 1e6, _AGAIN_S)):
            if _is_over(until_us):
                end(tag)

    add(tag)
    threading.Thread(target=watch, name="enqueue-deadline", daemon=True).start()
    try:
        yield
    finally:
        done.set()
        remove(tag)


def _is_over(until_us: int | None) -> bool:
    return until_us is not None and now_us() > until_us


def _too_slow(begun_us: int) -> UnreachableError:
    return UnreachableError(
        f"The write to Kafka was ended after {_minutes(now_us() - begun_us)} minutes: the moment of a call is believed for an hour, so "
        "rows that come later may be refused as too late.",
        hint="Part of it was sent. Split the frame or repartition it, so that a call takes less, and enqueue what is due later again: the "
        "same keys are the same tasks.",
    )


def _minutes(us: int) -> str:
    return f"{us / 60e6:.0f}"


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
