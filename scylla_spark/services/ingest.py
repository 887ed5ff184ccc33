"""Ingest: the only writer of the tables. Two streaming queries copy the two topics into Delta, idempotently.

Order of writes within a batch: data first, `progress` last. A crash between them repeats the batch, which changes nothing:
the MERGE is idempotent by (key, offset), the appends by (checkpoint, batch id), and records below progress are skipped.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from pyspark.sql import functions as F

from scylla_spark.clock import now_us
from scylla_spark.config import Settings
from scylla_spark.core.fact import Fence
from scylla_spark.core.partition import Mark
from scylla_spark.core.wire import Rules
from scylla_spark.errors import ConflictError
from scylla_spark.io.tables import Tables
from scylla_spark.io.topics import ensure_topics, spark_options
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, DATA, KEY_NAMES, REJECTED, TASKS
from scylla_spark.transforms import records

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = structlog.get_logger("ingest")

_STOP_PATIENCE = 150  # tenths of a second


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What one batch wrote: rows merged or appended, rows refused, seconds it took."""

    rows: int
    rejected: int
    seconds: float


class Ingest:
    """The ingest application.

    Args:
        spark: session that runs the queries.
        settings: with the broker's address filled in.
    """

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self.spark = spark
        self.settings = settings
        self.tables = Tables(spark, settings.tables_path)
        self.results: dict[str, BatchResult] = {}
        self._rules = Rules(settings.partitions)
        self._marks: dict[tuple[str, int], Mark] = {}
        self._progress = threading.Lock()
        self._queries: list[StreamingQuery] = []
        self._lock: Any = None

    def prepare(self) -> None:
        """Makes topics and tables, checks them, and becomes the one writer.

        Raises:
            ConfigError: topics or tables belong to another deployment.
            ConflictError: another ingest holds the tables.
        """
        topic_ids = ensure_topics(self.settings)
        self._lock = exclusive(self.spark, self.settings)
        self.open_tables(topic_ids)

    def open_tables(self, topic_ids: dict[str, str]) -> None:
        """Makes and checks the tables and reads how far they are.

        Args:
            topic_ids: topic name → id.

        Raises:
            ConfigError: the tables belong to another deployment.
        """
        self._rules = self.tables.create(self.settings, topic_ids)
        self._marks = self.tables.marks()

    def start(self) -> None:
        """Starts both queries; they run until `stop`."""
        trigger = f"{int(self.settings.ingest.trigger.total_seconds() * 1000)} milliseconds"
        for name, topic, write in (
            ("ingest-tasks", self.settings.topics.tasks, self.write_tasks),
            ("ingest-outcomes", self.settings.topics.outcomes, self.write_outcomes),
        ):
            self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
            stream = self._source(topic).writeStream.queryName(name).foreachBatch(write)
            checkpoint = f"{self.settings.checkpoints_path}/{name}"
            self._queries.append(
                stream.option("checkpointLocation", checkpoint).trigger(processingTime=trigger).start()
            )
        self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", "default")

    def alive(self) -> bool:
        """Whether both queries run; a failed one raises its error.

        Raises:
            StreamingQueryException: a query ended with an error.
        """
        for query in self._queries:
            error = query.exception()
            if error is not None:
                raise error
        return all(query.isActive for query in self._queries)

    def stop(self) -> None:
        """Ends both queries, at a batch boundary where that comes within some seconds, and lets go of the tables."""
        for query in self._queries:
            _stop_between_batches(query)
        self._queries.clear()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def write_tasks(self, batch: DataFrame, batch_id: int) -> None:
        """One batch of the `tasks` topic: MERGE, `rejected`, `progress`. Idempotent under replay."""
        begun = now_us()
        offsets = {number: mark.tasks_offset for (topic, number), mark in self._marks.items() if topic == "tasks"}
        judged = batch.mapInArrow(
            records.judge_commands(self._rules, offsets), records.ddl(records.COMMAND_ROWS)
        ).persist()
        try:
            summary = judged.groupBy("kind", "partition_id", "hour").agg(*_bounds()).collect()
            slices = [row for row in summary if row["kind"] == records.ROW]
            rejected = sum(row["rows"] for row in summary if row["kind"] == records.REJECT)
            if slices:
                self._merge(judged.where(F.col("kind") == records.ROW).select(*TASKS.names), slices)
            if rejected:
                refused = judged.where(F.col("kind") == records.REJECT).withColumn(
                    "topic", F.lit(self.settings.topics.tasks)
                )
                self.tables.append(refused, REJECTED, app_id=self._app_id(batch), version=batch_id)
            ends = {row["partition_id"]: Mark(row["next_offset"]) for row in summary if row["kind"] == records.END}
            self._advance("tasks", ends)
        finally:
            judged.unpersist()
        self._note("tasks", sum(row["rows"] for row in slices), rejected, begun)

    def write_outcomes(self, batch: DataFrame, batch_id: int) -> None:
        """One batch of the `outcomes` topic: completions and attempts of facts that count, `progress`. Idempotent under replay."""
        begun = now_us()
        marks = {number: mark for (topic, number), mark in self._marks.items() if topic == "outcomes"}
        judged = batch.mapInArrow(records.judge_facts(marks), records.ddl(records.FACT_ROWS)).persist()
        try:
            columns = ("kind", "partition_id", "next_offset", "epoch", "nonce", "resigned")
            ends = judged.where(F.col("kind") == records.END).select(*columns).collect()
            counts = {row["kind"]: row["count"] for row in judged.groupBy("kind").count().collect()}
            for kind, table in ((records.COMPLETION, COMPLETIONS), (records.ATTEMPT, ATTEMPTS)):
                if counts.get(kind):
                    self.tables.append(
                        judged.where(F.col("kind") == kind), table, app_id=self._app_id(batch), version=batch_id
                    )
            found = {
                row["partition_id"]: Mark(0, row["next_offset"], Fence(row["epoch"], row["nonce"]), row["resigned"])
                for row in ends
            }
            self._advance("outcomes", found)
        finally:
            judged.unpersist()
        self._note("outcomes", counts.get(records.COMPLETION, 0) + counts.get(records.ATTEMPT, 0), 0, begun)

    def _merge(self, rows: DataFrame, slices: list[Any]) -> None:
        from delta.tables import DeltaTable

        # literal partitions and times: file statistics then prune what the MERGE has to read
        low, high = min(row["low"] for row in slices), max(row["high"] for row in slices)
        condition = F.col("t.partition_id").isin(sorted({row["partition_id"] for row in slices}))
        condition &= F.col("t.hour").isin(sorted({row["hour"] for row in slices}))
        condition &= F.col("t.scheduled_time").between(F.timestamp_micros(F.lit(low)), F.timestamp_micros(F.lit(high)))
        for name in KEY_NAMES:
            condition &= F.col(f"t.{name}") == F.col(f"s.{name}")
        table = DeltaTable.forPath(self.spark, self.tables.location(TASKS)).alias("t")
        merge = table.merge(rows.alias("s"), condition)
        merge.whenMatchedUpdate(_is_news(), _newest()).whenNotMatchedInsertAll().execute()

    def _source(self, topic: str) -> DataFrame:
        reader = self.spark.readStream.format("kafka").options(**spark_options(self.settings))
        return reader.options(
            **{
                "subscribe": topic,
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": str(self.settings.ingest.max_records),
                "failOnDataLoss": "true",
                "kafka.fetch.max.wait.ms": "10",  # the default makes every micro-batch wait half a second
            }
        ).load()

    def _advance(self, topic: str, ends: Mapping[int, Mark]) -> None:
        """Writes how far the tables are; never lets a mark fall."""
        with self._progress:
            for partition, mark in ends.items():
                known = self._marks.get((topic, partition), Mark())
                if (mark.tasks_offset, mark.outcomes_offset) > (known.tasks_offset, known.outcomes_offset):
                    self._marks[(topic, partition)] = mark
            if ends:
                self.tables.write_marks(self._marks)

    def _app_id(self, batch: DataFrame) -> str:
        """Identity of the checkpoint that numbers the batches; of the call itself outside a stream."""
        query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        return f"scylla-spark/{query_id}" if query_id else f"scylla-spark/direct-{now_us()}"

    def _note(self, topic: str, rows: int, rejected: int, begun: int) -> None:
        result = BatchResult(rows, rejected, (now_us() - begun) / 1e6)
        self.results[topic] = result
        if rows or rejected:
            log.info("batch", topic=topic, rows=rows, rejected=rejected, seconds=round(result.seconds, 3))


def _stop_between_batches(query: StreamingQuery) -> None:
    """Stops a query while it waits for its trigger; one whose batch takes longer than that is interrupted, and repeats it later."""
    pause = threading.Event()
    for _ in range(_STOP_PATIENCE):
        if not query.isActive or not query.status["isTriggerActive"]:
            break
        pause.wait(0.1)
    query.stop()


def _bounds() -> list[Column]:
    return [
        F.count(F.lit(1)).alias("rows"),
        F.max("next_offset").alias("next_offset"),
        F.min(F.unix_micros("scheduled_time")).alias("low"),
        F.max(F.unix_micros("scheduled_time")).alias("high"),
    ]


def _is_news() -> Column:
    """Whether the source row tells something that the target row does not hold yet."""
    return (F.coalesce("s.data_offset", F.lit(-1)) > F.coalesce("t.data_offset", F.lit(-1))) | (
        F.coalesce("s.cancel_offset", F.lit(-1)) > F.coalesce("t.cancel_offset", F.lit(-1))
    )


def _newest() -> dict[str, str | Column]:
    """The fold of two rows of one key: data of the highest offset, the newest cancel."""
    newer = F.coalesce("s.data_offset", F.lit(-1)) > F.coalesce("t.data_offset", F.lit(-1))
    names = [column.name for column in DATA if column.name != "cancel_offset"]
    chosen: dict[str, str | Column] = {
        name: F.when(newer, F.col(f"s.{name}")).otherwise(F.col(f"t.{name}")) for name in names
    }
    return chosen | {"cancel_offset": F.greatest("s.cancel_offset", "t.cancel_offset")}


class _FileLock:
    """A lock file held by the JVM, which does the writing, so that it ends exactly when the writer does."""

    def __init__(self, channel: Any, lock: Any) -> None:
        self._channel = channel
        self._lock = lock

    def release(self) -> None:
        self._lock.release()
        self._channel.close()


def exclusive(spark: SparkSession, settings: Settings) -> _FileLock | None:
    """Holds the tables for this process, where they lie on a local disk.

    Raises:
        ConflictError: another process holds them.
    """
    path = settings.tables_path.removeprefix("file://").removeprefix("file:")
    if "://" in path:
        return None
    Path(path).mkdir(parents=True, exist_ok=True)
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - the only way to java.nio
    file = jvm.java.io.RandomAccessFile(str(Path(path) / ".ingest.lock"), "rw")
    channel = file.getChannel()
    try:
        lock = channel.tryLock()
    except Exception:
        lock = None
    if lock is None:
        channel.close()
        raise ConflictError(
            f"Another ingest writes the tables at {path}.",
            hint="One ingest application at a time: stop the other first.",
        )
    return _FileLock(channel, lock)
