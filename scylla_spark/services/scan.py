"""The scanning query: streaming job 2. It loads taken partitions and the next look-ahead slice from the tables into the lanes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import structlog
from pyspark.sql import functions as F

from scylla_spark.clock import now_us
from scylla_spark.config import Settings
from scylla_spark.core.engine import Engine
from scylla_spark.core.feed import ScanRow
from scylla_spark.core.key import HOUR_US, TaskKey
from scylla_spark.core.partition import Mark
from scylla_spark.core.wire import DEFAULT_QUEUE, ENQUEUE, Command, RetryTerms
from scylla_spark.io.tables import Tables
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, KEY_NAMES, TASKS
from scylla_spark.services.mailbox import Mailbox
from scylla_spark.transforms.due import due, uncompleted, window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

log = structlog.get_logger("dispatch")

ROWS_PER_MESSAGE = 500  # the engine stays responsive between messages


@dataclass(slots=True)
class _Reach:
    """Up to when a partition was scanned and how far its horizon was raised, microseconds; None: not scanned at all."""

    scanned_us: int | None
    horizon_us: int


class Scanner:
    """Decides what to scan, runs it on Spark and offers the rows to the engine.

    Args:
        tables: what is scanned.
        settings: look-ahead and depth.
        mailbox: the engine's.
        engine: receives rows.
    """

    def __init__(self, tables: Tables, settings: Settings, mailbox: Mailbox, engine: Engine) -> None:
        self.failure: BaseException | None = None
        self.rows = 0
        self._tables = tables
        self._settings = settings
        self._mailbox = mailbox
        self._engine = engine
        self._look_ahead_us = int(settings.dispatch.look_ahead.total_seconds() * 1e6)
        self._reach: dict[int, _Reach] = {}
        self._lock = threading.Lock()
        self._query: StreamingQuery | None = None

    def start(self) -> None:
        """Starts the streaming query: a ticker whose every batch calls `run_once`."""
        spark = self._tables.spark
        trigger = f"{int(self._settings.dispatch.trigger.total_seconds() * 1000)} milliseconds"
        ticker = spark.readStream.format("rate").option("rowsPerSecond", 1).option("numPartitions", 1).load()
        writer = ticker.writeStream.queryName("dispatch-scan").foreachBatch(lambda _batch, _id: self._tick())
        self._query = writer.trigger(processingTime=trigger).start()

    def stop(self) -> None:
        """Ends the query."""
        if self._query is not None:
            self._query.stop()

    def alive(self) -> bool:
        """Whether the query runs.

        Raises:
            StreamingQueryException: it ended with an error.
        """
        if self._query is None:
            return True
        error = self._query.exception()
        if error is not None:
            raise error
        return self._query.isActive

    def horizon(self, now: int) -> int:
        """How far ahead tasks are held, microseconds since the epoch."""
        return now + self._look_ahead_us

    def add(self, partition: int, horizon_us: int) -> None:
        """A partition was taken; its tail keeps tasks up to the horizon."""
        with self._lock:
            self._reach[partition] = _Reach(None, horizon_us)

    def remove(self, partition: int) -> None:
        """A partition was left."""
        with self._lock:
            self._reach.pop(partition, None)

    def run_once(self, now: int) -> int:
        """Scans what is wanted at `now`; returns how many rows were offered."""
        offered = 0
        for (after, until), partitions in self._plan(now).items():
            offered += self._scan(partitions, after, until)
        return offered

    def _tick(self) -> None:
        try:
            self.rows += self.run_once(now_us())
        except Exception as error:
            if "DELTA_" not in str(error) and "FileNotFound" not in str(error):
                raise
            log.warning("scan failed, tried again", error=repr(error)[:500])

    def _plan(self, now: int) -> dict[tuple[int | None, int], list[int]]:
        with self._lock:
            reaches = dict(self._reach)
        plan: dict[tuple[int | None, int], list[int]] = {}
        for partition, reach in reaches.items():
            if reach.horizon_us - now < self._look_ahead_us // 2:
                reach.horizon_us = self.horizon(now)
            if reach.scanned_us is None or reach.scanned_us < reach.horizon_us:
                plan.setdefault((reach.scanned_us, reach.horizon_us), []).append(partition)
        return plan

    def _scan(self, partitions: list[int], after: int | None, until: int) -> int:
        # the horizon is raised before progress is read: a tail record dropped earlier is covered by the scan or postpones it
        far = self._mailbox.ask(
            lambda now: {n: self._engine.raise_horizon(n, until) for n in partitions if n in self._engine.partitions}
        )
        marks = self._tables.partition_marks()
        ready = [number for number in far if marks.get(number, Mark()).tasks_offset > far[number]]
        if not ready:
            return 0
        rows = self.read(ready, after, until)
        if after is None:
            self._offer_cancelled(ready)
        cuts: dict[int, dict[str, TaskKey]] = {number: {} for number in ready}
        for number, part in _by_partition(rows, cuts, self._settings.dispatch.lane_depth).items():
            iterator = iter(part)
            while chunk := list(islice(iterator, ROWS_PER_MESSAGE)):
                self._mailbox.post(partial(self._engine.rows, number, chunk))
        for number in ready:
            mark = marks.get(number, Mark())
            self._mailbox.post(partial(self._engine.scanned, number, until, cuts[number], mark))
            with self._lock:
                if number in self._reach:
                    self._reach[number].scanned_us = until
        log.info("scan", partitions=len(ready), rows=rows.num_rows)
        return int(rows.num_rows)

    def read(self, partitions: list[int], after: int | None, until: int) -> Any:
        """The due scan as an Arrow table (columns of `transforms.due.due`)."""
        inside = window(partitions, after, until)
        # completions before tasks: what is purged goes from tasks first, so an older view of completions is the safe one
        completions = self._tables.read(COMPLETIONS).where(inside)
        attempts = self._tables.read(ATTEMPTS).where(inside)
        tasks = self._tables.read(TASKS).where(inside)
        frame = due(uncompleted(tasks, completions, attempts), depth=self._settings.dispatch.lane_depth)
        return frame.toArrow()

    def _offer_cancelled(self, partitions: list[int]) -> None:
        frame = self._tables.read(TASKS).where(
            F.col("partition_id").isin(partitions) & F.col("cancel_offset").isNotNull()
        )
        frame = frame.where(F.col("hour") >= now_us() // HOUR_US - 1)
        cancelled: dict[int, list[TaskKey]] = {}
        for partition, *key in _lists(_micros(frame).toArrow()):
            cancelled.setdefault(partition, []).append(TaskKey(*key))
        for partition, keys in cancelled.items():
            self._mailbox.post(partial(self._remember, partition, keys))

    def _remember(self, partition: int, keys: list[TaskKey], _now: int) -> None:
        self._engine.remember_cancelled(partition, keys)


def _micros(frame: DataFrame) -> DataFrame:
    names = [name for name in KEY_NAMES if name not in {"partition_id", "hour", "scheduled_time"}]
    return frame.select("partition_id", F.unix_micros("scheduled_time").alias("time_us"), *names)


def _lists(table: Any) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


def _by_partition(table: Any, cuts: dict[int, dict[str, TaskKey]], depth: int) -> dict[int, list[ScanRow]]:
    """Rows per partition; notes the last key of every lane that was cut."""
    parts: dict[int, list[ScanRow]] = {}
    names = (
        "partition_id", "time_us", "ordering_id", "uniqueness_key", "handler", "queue", "priority", "payload", "timeout_ms", "extra",
        "max_retries", "base_ms", "cap_ms", "enqueued_us", "offset", "cancelled", "attempt", "used", "next_us", "lane_rows",
    )  # fmt: skip
    columns = [table.column(name).to_pylist() for name in names]
    for (
        partition, time_us, ordering_id, uniqueness_key, handler, queue, priority, payload, timeout_ms, extra,
        max_retries, base_ms, cap_ms, enqueued_us, offset, cancelled, attempt, used, next_us, lane_rows,
    ) in zip(*columns, strict=True):  # fmt: skip
        key = TaskKey(time_us, ordering_id, uniqueness_key)
        retry = RetryTerms(max_retries, base_ms, cap_ms) if base_ms is not None else None
        command = Command(
            ENQUEUE,
            key,
            offset,
            handler,
            queue or DEFAULT_QUEUE,
            payload or "{}",
            priority or 0,
            timeout_ms,
            retry,
            enqueued_us or 0,
            extra,
        )
        parts.setdefault(partition, []).append(ScanRow(command, cancelled, attempt, used, next_us))
        if lane_rows > depth:
            lanes = cuts[partition]
            if ordering_id not in lanes or key > lanes[ordering_id]:
                lanes[ordering_id] = key
    return parts
