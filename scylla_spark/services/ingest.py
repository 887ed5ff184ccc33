"""Ingest: the only writer of the tables. Two streaming queries copy the two topics into Delta, idempotently.

Order of writes within a batch: data first, `progress` last. A crash between them repeats the batch, which changes nothing:
the MERGE is idempotent by (key, offset), the appends by (checkpoint, batch id), and records below progress are skipped.
What is due before progress's `folded_until` is merged into `tasks`; the rest is appended to `deferred`. A timer does what is due
between batches. One lock per topic serialises all that writes its tables.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import structlog
from pyspark.sql import functions as F

from scylla_spark import failpoint
from scylla_spark.clock import now_us
from scylla_spark.config import Settings
from scylla_spark.core.fact import Fence
from scylla_spark.core.partition import Mark
from scylla_spark.core.wire import Rules
from scylla_spark.io.readers import Readers
from scylla_spark.io.sole import Sole, sole
from scylla_spark.io.tables import Extent, Tables, before, bounds
from scylla_spark.io.topics import end_offsets, ensure_topics, offset_ranges, spark_options
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, REJECTED
from scylla_spark.services.maintain import Maintenance
from scylla_spark.services.progress import End, Progress, check_position
from scylla_spark.services.promotion import Promotion
from scylla_spark.transforms import records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = structlog.get_logger("ingest")

_SMALL_BATCH = 5_000  # fewer new records than this wait for more …
_TRIGGERS_WAITED = 3  # … through so many triggers: a batch costs a second of CPU, however little is in it …
_LEAST_WAIT = timedelta(seconds=15)  # … unless triggers are short, so that somebody wants to see rows soon
_STOP_PATIENCE = 150  # tenths of a second
_BUSY_S, _IDLE_S, _FAILED_S = 1.0, 5.0, 30.0  # pauses of the timer; batches that wait for a table come in between
_TIMER_END_S = 60.0


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
        self.progress = Progress(self.tables)
        self.promotion = Promotion(self.tables, self.progress, settings)
        self.tasks_lock = threading.Lock()
        self.outcomes_lock = threading.Lock()
        self.maintenance = Maintenance(
            self.tables, self.progress, settings, self.tasks_lock, self.outcomes_lock, self._ends
        )
        self._stopping = threading.Event()
        self._timer: threading.Thread | None = None
        self._queries: list[StreamingQuery] = []
        self._sole: Sole | None = None

    def prepare(self) -> None:
        """Makes topics and tables, checks them, and becomes the one writer.

        Raises:
            ConfigError: topics or tables belong to another deployment, or the log does not reach to where the tables are.
            ConflictError: another ingest holds the tables.
        """
        topic_ids = ensure_topics(self.settings)
        self.hold()
        self.open_tables(topic_ids)
        self._check_positions()

    def hold(self) -> None:
        """Becomes the one writer of the tables.

        Raises:
            ConflictError: another ingest holds them.
        """
        self._sole = sole(self.spark, self.settings)
        self.tables.before_commit = self._sole.check

    def open_tables(self, topic_ids: dict[str, str]) -> None:
        """Makes and checks the tables and reads how far they are.

        Args:
            topic_ids: topic name → id.

        Raises:
            ConfigError: the tables belong to another deployment.
        """
        self._rules = self.tables.create(self.settings, topic_ids)
        self.begin()

    def begin(self) -> None:
        """Reads how far the tables are."""
        marks = Readers(self.tables.path).marks()
        self.progress.begin(marks, self.settings.partitions, self.promotion.target_us(now_us()))
        failpoint.reach("ingest.tables.prepared")

    def _ends(self) -> dict[int, int]:
        """End offsets of `tasks`; none where there is no broker."""
        if not self.settings.kafka.bootstrap_servers:
            return {}
        return end_offsets(self.settings, self.settings.topics.tasks, list(range(self.settings.partitions)))

    def _check_positions(self) -> None:
        tasks = {number: mark.tasks_offset for number, mark in self.progress.tasks().items()}
        outcomes = {number: mark.outcomes_offset for number, mark in self.progress.outcomes().items()}
        for topic, positions in ((self.settings.topics.tasks, tasks), (self.settings.topics.outcomes, outcomes)):
            kept_of = offset_ranges(self.settings, topic, sorted(positions)) if positions else {}
            for number, kept in kept_of.items():
                check_position(topic, number, positions[number], kept)

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
        self._timer = threading.Thread(target=self._keep_time, name="ingest-timer", daemon=True)
        self._timer.start()

    def turn(self, now: int) -> bool:
        """One piece of what is done between batches; returns whether there was something to do."""
        if self.promotion.due(now):
            with self.tasks_lock:
                self.promotion.turn(now)
            return True
        return self.maintenance.turn(now)

    def _keep_time(self) -> None:
        self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", "ingest-timer")
        pause = 0.0
        while not self._stopping.wait(pause):
            try:
                pause = _BUSY_S if self.turn(now_us()) else _IDLE_S
            except Exception:  # nothing depends on its being in time
                pause = _FAILED_S
                if not self._stopping.is_set():
                    log.exception("work between batches failed; tried again", after_s=pause)

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
        self._stopping.set()
        for query in self._queries:
            _stop_between_batches(query)
        self._queries.clear()
        if self._timer is not None:
            self._timer.join(_TIMER_END_S)
            self._timer = None
        if self._sole is not None:
            self._sole.release()
            self._sole = None

    def write_tasks(self, batch: DataFrame, batch_id: int) -> None:
        """One batch of the `tasks` topic: MERGE of what is near, `deferred`, `rejected`, `progress`. Idempotent under replay."""
        begun = now_us()
        with self.tasks_lock:
            offsets = {number: mark.tasks_offset for number, mark in self.progress.tasks().items()}
            judge = records.judge_commands(self._rules, offsets)
            judged = batch.mapInArrow(judge, records.ddl(records.COMMAND_ROWS)).persist()
            try:
                rows, rejected = self._write_judged(judged, self._app_id(batch), batch_id)
            finally:
                judged.unpersist()
        self._note("tasks", rows, rejected, begun)

    def _write_judged(self, judged: DataFrame, app_id: str, batch_id: int) -> tuple[int, int]:
        near = before(self.progress.folded_until_us)
        ends = [F.max("next_offset").alias("next_offset"), F.max(F.unix_micros("appended_at")).alias("appended_us")]
        found = (
            judged.groupBy("kind", "partition_id", F.when(near, F.col("hour")).alias("hour"))
            .agg(*bounds(), *ends)
            .collect()
        )
        rows = [row for row in found if row["kind"] == records.ROW]
        slices = [row for row in rows if row["hour"] is not None]
        far = sum(row["rows"] for row in rows if row["hour"] is None)
        rejected = sum(row["rows"] for row in found if row["kind"] == records.REJECT)
        failpoint.reach("ingest.tasks.judged")
        valid = judged.where(F.col("kind") == records.ROW)
        if slices:
            self.tables.merge_tasks(valid.where(near), Extent.of(slices))
            failpoint.reach("ingest.tasks.merged")
        if far:
            self.tables.defer(valid.where(~near), far, app_id=app_id, version=batch_id)
            failpoint.reach("ingest.tasks.deferred")
        if rejected:
            refused = judged.where(F.col("kind") == records.REJECT)
            refused = refused.withColumn("topic", F.lit(self.settings.topics.tasks))
            self.tables.append(refused, REJECTED, app_id=app_id, version=batch_id)
            failpoint.reach("ingest.tasks.rejected")
        reached = {
            row["partition_id"]: End(row["next_offset"], row["appended_us"])
            for row in found
            if row["kind"] == records.END
        }
        self.progress.tasks_written(reached, ((row["partition_id"], row["hour"]) for row in slices))
        failpoint.reach("ingest.tasks.progressed")
        return sum(row["rows"] for row in rows), rejected

    def write_outcomes(self, batch: DataFrame, batch_id: int) -> None:
        """One batch of the `outcomes` topic: completions and attempts of facts that count, `progress`. Idempotent under replay."""
        begun = now_us()
        with self.outcomes_lock:
            written = self._write_facts(batch, batch_id)
        self._note("outcomes", written, 0, begun)

    def _write_facts(self, batch: DataFrame, batch_id: int) -> int:
        judged = batch.mapInArrow(
            records.judge_facts(self.progress.outcomes()), records.ddl(records.FACT_ROWS)
        ).persist()
        try:
            columns = ("kind", "partition_id", "next_offset", "epoch", "nonce", "resigned")
            ends = judged.where(F.col("kind") == records.END).select(*columns).collect()
            counts = {row["kind"]: row["count"] for row in judged.groupBy("kind").count().collect()}
            failpoint.reach("ingest.outcomes.judged")
            for kind, table in ((records.COMPLETION, COMPLETIONS), (records.ATTEMPT, ATTEMPTS)):
                if counts.get(kind):
                    self.tables.append(
                        judged.where(F.col("kind") == kind), table, app_id=self._app_id(batch), version=batch_id
                    )
                    failpoint.reach("ingest.outcomes.appended")
            found = {
                row["partition_id"]: Mark(0, row["next_offset"], Fence(row["epoch"], row["nonce"]), row["resigned"])
                for row in ends
            }
            self.progress.outcomes_written(found)
            failpoint.reach("ingest.outcomes.progressed")
        finally:
            judged.unpersist()
        return int(counts.get(records.COMPLETION, 0) + counts.get(records.ATTEMPT, 0))

    def _source(self, topic: str) -> DataFrame:
        reader = self.spark.readStream.format("kafka").options(**spark_options(self.settings))
        reader = reader.options(
            **{
                "subscribe": topic,
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": str(self.settings.ingest.max_records),
                "failOnDataLoss": "true",
                "kafka.fetch.max.wait.ms": "10",  # the default makes every micro-batch wait half a second
            }
        )
        wait = self.settings.ingest.trigger * _TRIGGERS_WAITED
        if wait >= _LEAST_WAIT:
            reader = reader.option("minOffsetsPerTrigger", str(_SMALL_BATCH))
            reader = reader.option("maxTriggerDelay", f"{int(wait.total_seconds())}s")
        return reader.load()

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
