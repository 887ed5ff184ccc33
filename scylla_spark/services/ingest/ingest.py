"""Ingest: the only writer of the tables. Two streaming queries copy the two topics of tasks into Delta, idempotently.

Order of writes within a batch: data first, `progress` last. A crash between them repeats the batch, which changes nothing:
the MERGE is idempotent by (key, offset), the appends by the range of offsets they hold, and records below progress are skipped.
What is due before progress's `folded_until` is merged into `tasks`; the rest is appended to `deferred`. A timer does what is due
between batches. One lock per topic serialises all that writes its tables.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from scylla_spark import failpoint
from scylla_spark.clock import boot_us, now_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.records.command import Rules
from scylla_spark.duration import duration_ms
from scylla_spark.errors import SchedulerError
from scylla_spark.io.delta.deployment_record import check, check_version, deployment, stored_rules
from scylla_spark.io.delta.migration import migrate
from scylla_spark.io.delta.new_tables import ensure_tables, fold_target_us
from scylla_spark.io.delta.spark_tables import Tables
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.host.foreign_errors import outage_in
from scylla_spark.io.host.session import fit_to_cluster
from scylla_spark.io.kafka.batch_guard import NO_POISON, Guard, Poison
from scylla_spark.io.kafka.sole_table_writer import SingleWriter, sole
from scylla_spark.io.kafka.stream_offsets import Batch, planned, read_again, static_batch
from scylla_spark.io.kafka.topic_setup import ensure_topics, partition_count
from scylla_spark.io.kafka.topics import end_offsets, newest_append_us, offset_ranges, source_options
from scylla_spark.log import get_logger
from scylla_spark.services.ingest.ends_of_queries import end_query
from scylla_spark.services.ingest.fact_batches import FactWriter
from scylla_spark.services.ingest.locked_tables import LockedTables
from scylla_spark.services.ingest.log_batches import LogBatches
from scylla_spark.services.ingest.maintenance import Maintenance
from scylla_spark.services.ingest.merge_deferred import DeferredFolder
from scylla_spark.services.ingest.metrics import IngestMetrics
from scylla_spark.services.ingest.micro_batch import Portions, Writer, beyond, gaps, out_of_step
from scylla_spark.services.ingest.progress import Progress, check_position
from scylla_spark.services.ingest.proven_clock import ProvenClock
from scylla_spark.services.ingest.task_batches import TaskWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = get_logger("ingest")
_callbacks = logging.getLogger("py4j.clientserver")  # shows a stack for each batch that a stop interrupts

_SMALL_BATCH = 5_000  # fewer new records than this wait for more …
_TRIGGERS_WAITED = 3  # … through so many triggers: a batch costs a second of CPU, however little is in it …
_LEAST_WAIT = timedelta(seconds=15)  # … unless triggers are short, so that somebody wants to see rows soon
_STOP_PATIENCE_US = 5_000_000  # for the batches of both queries together
_BUSY_S, _IDLE_S, _FAILED_S = 1.0, 5.0, 30.0  # pauses of the timer; batches that wait for a table come in between
_LAG_US = 10_000_000  # between two looks at how far the tables are behind
_TIMER_END_S = 60.0
_EARLIEST: Final = -2  # what Spark calls the first offset that is kept


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What one batch wrote.

    Attributes:
        rows: merged or appended.
        rejected: refused records.
        seconds: it took.
        set_aside: records that could not be judged.
    """

    rows: int
    rejected: int
    seconds: float
    set_aside: int = 0


class Ingest:
    """The ingest application.

    Args:
        spark: session that runs the queries.
        settings: with the broker's address filled in.

    Attributes:
        finished: all is written that the topics held when the queries started (`ingest.available_now`).
    """

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self.spark = spark
        self.settings = settings
        self.finished = False
        self._failure: Exception | None = None
        self.tables = Tables(spark, settings.tables_path, settings.tables.store_timeout)
        self.results: dict[str, BatchResult] = {}
        self.metrics = IngestMetrics(settings.partitions)
        self._rules = Rules(settings.partitions)
        self.clock = ProvenClock()
        self.progress = Progress(self.tables)
        self.promotion = DeferredFolder(self.tables, self.progress, settings)
        self.tasks_lock = threading.Lock()
        self.outcomes_lock = threading.Lock()
        readers = TableReader.of(settings)
        kept = LockedTables(self.tables, readers, self.progress, self.tasks_lock, self.outcomes_lock)
        self.maintenance = Maintenance(kept, settings, self._ends)
        self._stopping = threading.Event()
        self._between = f"ingest-between-{uuid4().hex}"  # job group of what is done between batches
        self._timer: threading.Thread | None = None
        self._queries: list[StreamingQuery] = []
        self._logs: LogBatches | None = None
        self._sole: SingleWriter | None = None
        self._firsts: dict[str, dict[int, int]] = {"tasks": {}, "outcomes": {}}  # first offset that Kafka keeps
        self._guards: dict[str, Guard] = {}
        self._ended_by: SchedulerError | None = None
        self.kafka_is_silent = False  # at the last look, every ten seconds

    def prepare(self, topic_ids: dict[str, str] | None = None) -> None:
        """Becomes the one writer of the tables, and checks that they and the topics belong together.

        Args:
            topic_ids: topic name → id; None: makes and asks for them.

        Raises:
            ConfigError: topics or tables belong to another deployment, or the log does not reach to where the tables are.
            ConflictError: another ingest holds the tables.
        """
        topic_ids = topic_ids or ensure_topics(self.settings)
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
        """Makes and checks the tables, brings them to the version of this code, and reads how far they are.

        Args:
            topic_ids: topic name → id.

        Raises:
            ConfigError: the tables belong to another deployment, or are of newer code.
        """
        self._rules = stored_rules(ensure_tables(self.settings, topic_ids, now=now_us()))
        migrate(self.tables)
        self.begin()

    def open_to_tidy(self) -> None:
        """Checks the tables that are there, brings them to the version of this code, and reads how far they are; no broker is asked.

        Raises:
            ConfigError: the tables were made with other settings, or are of newer code.
        """
        stored = TableReader.of(self.settings).stored()
        check_version(stored)
        check(stored, deployment(self.settings, {}))
        migrate(self.tables)
        self.begin()

    def begin(self) -> None:
        """Reads how far the tables are."""
        marks = TableReader.of(self.settings).marks()
        self.progress.begin(marks, self.settings.partitions, fold_target_us(self.settings, now_us()))
        self.clock.shown(max((mark.appended_us for mark in self.progress.tasks().values()), default=0))
        failpoint.reach("ingest.tables.prepared")

    def _ends(self) -> dict[int, int]:
        """End offsets of `tasks`; none where there is no broker."""
        if not self.settings.kafka.bootstrap_servers:
            return {}
        return end_offsets(self.settings, self.settings.topics.tasks, list(range(self.settings.partitions)))

    def _check_positions(self) -> None:
        for source in ("tasks", "outcomes"):
            topic, positions = self._topic(source), self._writers()[source].positions()
            for number, kept in offset_ranges(self.settings, topic, list(self._partitions(source))).items():
                check_position(topic, number, positions.get(number, 0), kept)
                self._firsts[source][number] = kept[0]

    def start(self) -> None:
        """Starts both queries; they run until `stop`, or with `ingest.available_now` until all is written that is there now.

        Where that failed, a further call goes on with what has not begun.
        """
        _callbacks.setLevel(logging.NOTSET)
        once = self.settings.ingest.available_now
        trigger = f"{duration_ms(self.settings.ingest.trigger)} milliseconds"
        for source in ("tasks", "outcomes")[len(self._queries) :]:
            name = f"ingest-{source}"
            self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
            stream = self._source(source).writeStream.queryName(name).foreachBatch(partial(self._streamed, source))
            stream = stream.option("checkpointLocation", self._checkpoint(source))
            stream = stream.trigger(availableNow=True) if once else stream.trigger(processingTime=trigger)
            self._queries.append(stream.start())
        self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", "default")
        if self.settings.logs.enabled:
            self._logs = LogBatches(self.settings, self.tables, self.metrics)
            if not once:
                self._logs.start()
        self._timer = threading.Thread(
            target=self._finish if once else self._keep_time, name="ingest-timer", daemon=True
        )
        self._timer.start()

    def turn(self, now: int) -> bool:
        """One piece of what is done between batches; returns whether there was something to do.

        Raises:
            Exception: what is deferred could not be folded; a chore has had its turn all the same, as it may fail again and again.
        """
        if not self.promotion.due(now):
            return self.maintenance.turn(now)
        try:
            with self.tasks_lock:
                self.promotion.turn(now)
        except Exception:
            self.maintenance.turn(now)
            raise
        return True

    def _finish(self) -> None:
        """Waits for the end of both queries, then writes lines of attempts, and does what is due between batches."""
        self._name_timer()
        try:
            for query in self._queries.copy():
                query.awaitTermination()
            self.hear_the_time()
            if self._logs is not None:
                self._logs.turn()
            while not self._stopping.is_set() and self.turn(self.clock.now()):
                pass
        except Exception as error:
            self._failure = error
        else:
            self.finished = True

    def _name_timer(self) -> None:
        self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", "ingest-timer")
        self.spark.sparkContext.setJobGroup(self._between, "ingest, between batches")

    def _keep_time(self) -> None:
        self._name_timer()
        pause, told_us = 0.0, -_LAG_US
        while not self._stopping.wait(pause):
            if boot_us() - told_us >= _LAG_US:
                self.tell_lag()
                self.hear_the_time()
                told_us = boot_us()
            try:
                pause = _BUSY_S if self.turn(self.clock.now()) else _IDLE_S
            except Exception as error:  # nothing depends on its being in time
                pause = _FAILED_S
                if not self._stopping.is_set():
                    log.warning(
                        "work between batches failed; tried again",
                        after_s=pause,
                        exc_info=outage_in(error) is None,
                        error=repr(error)[:300],
                    )

    def hear_the_time(self) -> None:
        """Asks the broker for the newest append time until it has proven the clock; nothing changes where it does not answer."""
        if self.clock.proven or not self.settings.kafka.bootstrap_servers:
            return
        try:
            self.clock.shown(newest_append_us(self.settings))
        except Exception as error:
            log.warning("the broker does not tell the time", error=repr(error)[:500])

    def tell_lag(self) -> None:
        """Has metrics tell how far the tables are behind both logs; nothing where Kafka does not answer."""
        try:
            for source in ("tasks", "outcomes"):
                ends = end_offsets(self.settings, self._topic(source), list(self._partitions(source)))
                self.metrics.behind(source, ends, self._firsts[source] | _set(self._writers()[source].positions()))
            self.kafka_is_silent = False
        except Exception as error:
            self.kafka_is_silent = True
            self.metrics.unknown()
            log.warning("how far the tables are behind is not known", error=repr(error)[:500])

    def alive(self) -> bool:
        """Returns True if both queries run, or have ended as they should; a failed one raises its error.

        Raises:
            SchedulerError: a query ended for a reason that we know.
            StreamingQueryException: a query ended with another error.
        """
        if self._ended_by is not None:
            raise self._ended_by
        for query in self._queries:
            error = query.exception()
            if error is not None:
                raise error
        if self._failure is not None:
            raise self._failure
        return self.settings.ingest.available_now or all(query.isActive for query in self._queries)

    def stop(self) -> None:
        """Ends both queries, at a batch boundary where that comes within some seconds, and releases the tables."""
        self._stopping.set()
        _callbacks.setLevel(logging.CRITICAL + 1)
        until_us = boot_us() + _STOP_PATIENCE_US
        with ThreadPoolExecutor(len(self._queries) or 1) as threads:
            list(threads.map(lambda query: end_query(self.spark, query, until_us, self._between), self._queries))
        self._queries.clear()
        for guard in self._guards.values():
            guard.close()
        self._guards.clear()
        if self._logs is not None:
            self._logs.stop()
            self._logs = None
        if self._timer is not None:
            self._timer.join(_TIMER_END_S)
            self._timer = None
        if self._sole is not None:
            self._sole.release()
            self._sole = None

    def write_tasks(self, batch: DataFrame, _batch_id: int) -> None:
        """One batch of the `tasks` topic: MERGE of what is near, `deferred`, `rejected`, `progress`. Idempotent under replay."""
        self._write("tasks", static_batch(batch), NO_POISON)

    def write_outcomes(self, batch: DataFrame, _batch_id: int) -> None:
        """One batch of the `outcomes` topic: completions and attempts of facts that count, `progress`. Idempotent under replay."""
        self._write("outcomes", static_batch(batch), NO_POISON)

    def _begins(self, source: str) -> dict[str, int]:
        """Where a query without checkpoint begins, by partition; also those that were added to the topic, whose records are refused."""
        positions = _set(self._writers()[source].positions())
        numbers = self._partitions(source)
        if source == "tasks":  # the only one that may have more
            numbers = range(partition_count(self.settings, self.settings.topics.tasks))
        return {str(number): positions.get(number, _EARLIEST) for number in numbers}

    def _partitions(self, source: str) -> range:
        return range(self.settings.partitions + (source != "tasks"))  # `outcomes` has one more, for the planner

    def _write(self, source: str, batch: Batch, poison: Poison) -> None:
        begun = now_us()
        with self.tasks_lock if source == "tasks" else self.outcomes_lock:
            portions = Portions(self._writers()[source], batch, poison)
            portions.run()
        self._note(source, portions, begun)

    def _writers(self) -> dict[str, Writer]:
        topics, most = self.settings.topics, self.settings.ingest.max_bytes
        return {
            "tasks": TaskWriter(topics.tasks, self.tables, self.progress, self._rules, most),
            "outcomes": FactWriter(topics.outcomes, self.tables, self.progress, most, self.settings.partitions),
        }

    def _streamed(self, source: str, frame: DataFrame, batch_id: int) -> None:
        """One micro-batch of a running query; what ends the query is kept, to be told as it is."""
        fit_to_cluster(self.spark, frame.sparkSession)
        try:
            batch = self._planned(source, frame, batch_id)
            self._check_begin(source, batch)
            poison = self._guard(source).look(beyond(batch.planned, self._writers()[source].positions()))
            self._write(source, batch, poison)
        except SchedulerError as error:
            self._ended_by = error
            raise

    def _guard(self, source: str) -> Guard:
        """The query's own: each query has a thread of its own."""
        if source not in self._guards:
            self._guards[source] = Guard(self.settings, self._topic(source))
        return self._guards[source]

    def _planned(self, source: str, frame: DataFrame, batch_id: int) -> Batch:
        topic, session = self._topic(source), frame.sparkSession
        again = partial(read_again, session, source_options(self.settings), topic)
        return Batch(frame, planned(session, self._checkpoint(source), batch_id, topic), again)

    def _check_begin(self, source: str, batch: Batch) -> None:
        """Sees to it that a batch begins at or below progress.

        Raises:
            ConfigError: it begins beyond, and there are records in between.
        """
        gap = gaps(batch.planned, {**self._firsts[source], **_set(self._writers()[source].positions())})
        if gap and batch.again(gap, 1).limit(1).count():  # marks of transactions take offsets, but are no records
            raise out_of_step(self._topic(source), gap, self._checkpoint(source))

    def _topic(self, source: str) -> str:
        return self.settings.topics.tasks if source == "tasks" else self.settings.topics.outcomes

    def _checkpoint(self, source: str) -> str:
        return f"{self.settings.checkpoints_path}/ingest-{source}"

    def _source(self, source: str) -> DataFrame:
        topic = self._topic(source)
        reader = self.spark.readStream.format("kafka").options(**source_options(self.settings))
        reader = reader.options(
            **{
                "subscribe": topic,
                # where the tables are; this counts only where there is no checkpoint
                "startingOffsets": json.dumps({topic: self._begins(source)}),
                "maxOffsetsPerTrigger": str(self.settings.ingest.max_records),
                "failOnDataLoss": "true",
                "kafka.fetch.max.wait.ms": "10",  # the default makes every micro-batch wait half a second
            }
        )
        wait = self.settings.ingest.trigger * _TRIGGERS_WAITED
        if wait >= _LEAST_WAIT and not self.settings.ingest.available_now:  # what would wait there would not be written
            reader = reader.option("minOffsetsPerTrigger", str(_SMALL_BATCH))
            reader = reader.option("maxTriggerDelay", f"{int(wait.total_seconds())}s")
        return reader.load()

    def _note(self, source: str, portions: Portions, begun: int) -> None:
        self.metrics.written(source, ingested=portions.rows, rejected=portions.rejected, set_aside=portions.set_aside)
        result = BatchResult(portions.rows, portions.rejected, (now_us() - begun) / 1e6, portions.set_aside)
        self.results[source] = result
        self.metrics.took(source, result.seconds)
        if portions.rows or portions.rejected or portions.set_aside:
            log.info(
                "batch", topic=source, rows=result.rows, rejected=result.rejected, set_aside=portions.set_aside,
                seconds=round(result.seconds, 3),
            )  # fmt: skip


def _set(positions: Mapping[int, int]) -> dict[int, int]:
    """Those that are not at the beginning."""
    return {number: offset for number, offset in positions.items() if offset}
