"""The Delta tables as Spark sees them: read, and written by ingest. What each column means stands in `schemas`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import functions as F

from scylla_spark.clock import from_us, now_us
from scylla_spark.core.tables.progress import Mark, common_edge, joined, reaches_far, stored_mark
from scylla_spark.core.tasks.key import HOUR_US
from scylla_spark.io.delta.deployment_record import (
    stored_rows,
)
from scylla_spark.io.delta.log_place import STORE_LIMIT
from scylla_spark.io.delta.replaced_table import ReplacedTable
from scylla_spark.io.delta.rows import progress_row
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.schemas import DEFERRED, DEPLOYMENT, KEY_NAMES, PROGRESS, TASKS, Table
from scylla_spark.transforms.fold_commands import folded, is_news, newest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

MOST_MERGED_FILES: Final = 64  # in one MERGE, if it can be helped: it costs some 30 ms for each (partition, hour)
_ROWS_PER_FILE: Final = 200_000  # of `deferred`


class HourBucket(NamedTuple):
    """One hour of one partition: a folder of `tasks`, `completions` and `attempts`."""

    partition: int
    hour: int


class Extent(NamedTuple):
    """Where rows of `tasks` lie: their places, first and last scheduled time (microseconds since the epoch)."""

    places: Collection[HourBucket]
    first_us: int
    last_us: int

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Extent:
        """From one row per (partition_id, hour) with the columns of `bounds`; at least one."""
        places = [HourBucket(row["partition_id"], row["hour"]) for row in rows]
        return cls(places, min(row["first_us"] for row in rows), max(row["last_us"] for row in rows))


def bounds() -> list[Column]:
    """Aggregates over rows with a scheduled time: `rows`, `first_us` and `last_us` (microseconds since the epoch)."""
    time = F.unix_micros("scheduled_time")
    return [F.count(F.lit(1)).alias("rows"), F.min(time).alias("first_us"), F.max(time).alias("last_us")]


def in_places(places: Collection[HourBucket], prefix: str = "") -> Column:
    """Predicate on partition columns alone: in one of these places; at least one.

    Args:
        places: that are meant.
        prefix: of the names of columns, such as "old.".
    """
    hours: dict[int, list[int]] = {}
    for place in places:
        hours.setdefault(place.partition, []).append(place.hour)
    partition, hour = F.col(f"{prefix}partition_id"), F.col(f"{prefix}hour")
    return reduce(
        operator.or_, ((partition == number) & hour.isin(sorted(found)) for number, found in sorted(hours.items()))
    )


def before(us: int) -> Column:
    """Whether a row's scheduled time is before an instant (microseconds since the epoch)."""
    return F.col("scheduled_time") < _instant(us)


def _nothing() -> None:
    """Before a commit of the only writer there is."""


class Tables:
    """All tables of one deployment.

    Args:
        spark: the session.
        path: folder or URI under which they lie.
        limit: time limit of a request to a store that Spark does not send, repeats included.
    """

    def __init__(self, spark: SparkSession, path: str, limit: timedelta = STORE_LIMIT) -> None:
        self.spark = spark
        self.path = path.rstrip("/")
        self._limit = limit
        self.before_commit: Callable[[], None] = _nothing  # of rows or progress; may wait or raise
        self._clustered: set[str] = set()  # names of the tables that are known to be clustered
        self._replaced: dict[str, ReplacedTable] = {}

    def location(self, table: Table) -> str:
        """Folder or URI of one table."""
        return f"{self.path}/{table.name}"

    def read(self, table: Table) -> DataFrame:
        """The newest version of a table, lazily; grain and columns as in `schemas`.

        Columns that were added since the table was made or migrated are null, as they are for readers without Spark.
        """
        frame = self.spark.read.format("delta").load(self.location(table))
        there = set(frame.columns)
        absent = {column.name: column.type for column in table.columns if column.name not in there}
        return frame.withColumns({name: F.lit(None).cast(kind) for name, kind in absent.items()}) if absent else frame

    def empty(self, table: Table) -> DataFrame:
        """A frame of the table's schema without rows."""
        return self.spark.createDataFrame([], table.ddl)

    def tasks_between(
        self, partitions: Sequence[int] | None, after_us: int | None, until_us: int | None, folded_until_us: int
    ) -> DataFrame:
        """All tasks of a window, near and far, lazily: columns of `tasks`, one row per key.

        Args:
            partitions: which; None: all.
            after_us: only scheduled times after this, microseconds since the epoch; None: no bound.
            until_us: only scheduled times up to this, itself included; None: no bound.
            folded_until_us: from a progress that was read before; an older one is as right, only slower.
        """
        tasks = self.read(TASKS).where(between(partitions, after_us, until_us))
        if not reaches_far(until_us, folded_until_us):
            return tasks
        far_us = folded_until_us - 1 if after_us is None else max(after_us, folded_until_us - 1)
        far = between(partitions, far_us, until_us)
        operations = self.read(DEFERRED).where(far).unionByName(tasks.where(far))
        near = tasks.where(between(None, None, folded_until_us - 1))
        return near.unionByName(folded(operations))

    def deferred_between(self, from_us: int, until_us: int) -> DataFrame:
        """The deferred tasks with from ≤ scheduled time < until (microseconds since the epoch): columns of `tasks`, one row per key."""
        return folded(self.read(DEFERRED).where(between(None, from_us - 1, until_us - 1)))

    def deferred_places(self, from_us: int, until_us: int) -> dict[HourBucket, int]:
        """Place → rows of `deferred`, repeats included, in the same window."""
        rows = (
            self.read(DEFERRED).where(between(None, from_us - 1, until_us - 1)).groupBy("partition_id", "hour").count()
        )
        return {HourBucket(row["partition_id"], row["hour"]): row["count"] for row in rows.collect()}

    def merge_tasks(self, rows: DataFrame, extent: Extent) -> None:
        """Folds rows into `tasks`; a repeat changes nothing.

        Args:
            rows: columns of `tasks`, one row per key.
            extent: where the rows lie; as literals in the condition they let partitions and file statistics prune what is read.
        """
        from delta.tables import DeltaTable

        self.before_commit()
        condition = F.col("t.partition_id").isin(sorted({place.partition for place in extent.places}))
        condition &= F.col("t.hour").isin(sorted({place.hour for place in extent.places}))
        condition &= F.col("t.scheduled_time").between(_instant(extent.first_us), _instant(extent.last_us))
        for name in KEY_NAMES:
            condition &= F.col(f"t.{name}") == F.col(f"s.{name}")
        table = DeltaTable.forPath(self.spark, self.location(TASKS)).alias("t")
        merge = table.merge(rows.select(*TASKS.names).alias("s"), condition)
        merge.whenMatchedUpdate(is_news(), newest()).whenNotMatchedInsertAll().execute()

    def defer(self, rows: DataFrame, count: int, name: str) -> None:
        """Appends rows to `deferred`, in order of time, so that file statistics prune a slice of time; once per name.

        Args:
            rows: with the columns of `deferred`.
            count: how many they are, which decides how many files they become.
            name: says what they are; a repeat of it is skipped.
        """
        self._cluster(DEFERRED)
        files = -(-count // _ROWS_PER_FILE)
        spread = rows.coalesce(1) if files == 1 else rows.repartitionByRange(files, "scheduled_time")
        self.append(spread.sortWithinPartitions("scheduled_time"), DEFERRED, name)

    def append(self, frame: DataFrame, table: Table, name: str) -> None:
        """Appends rows once per name, which says what they are: a repeat is skipped by the table itself.

        Args:
            frame: with at least the columns of the table.
            table: which one.
            name: unique for the content.
        """
        self.before_commit()
        options = {"txnAppId": f"scylla-spark/{name}", "txnVersion": "1"}
        frame.select(*table.names).write.format("delta").mode("append").options(**options).save(self.location(table))

    def sql_name(self, table: Table) -> str:
        """Returns how a statement of Spark SQL names a table."""
        return f"delta.`{self.location(table).replace('`', '``')}`"

    def _cluster(self, table: Table) -> None:
        """Says in a table's log by which columns its files are clustered: tables are made without Spark, which cannot say it."""
        if table.name in self._clustered:
            return
        if "clustering" not in TableReader(self.path, self._limit).features(table):
            self.before_commit()
            self.spark.sql(f"ALTER TABLE {self.sql_name(table)} CLUSTER BY ({', '.join(table.clustered_by)})")
        self._clustered.add(table.name)

    def store(self, fixed: dict[str, Any]) -> None:
        """Replaces what is stored of the deployment."""
        rows = [tuple(row.values()) for row in stored_rows(fixed)]
        frame = self.spark.createDataFrame(rows, DEPLOYMENT.ddl).coalesce(1)
        frame.write.format("delta").mode("overwrite").save(self.location(DEPLOYMENT))

    def marks(self) -> dict[tuple[str, int], Mark]:
        """Returns how far the tables are: ("tasks" | "outcomes", partition) → mark; the offset of its own topic is set in it."""
        instants = {name: F.unix_micros(name) for name in ("folded_until", "appended_at")}
        rows = self.read(PROGRESS).withColumns(instants).drop("updated_at").collect()
        return {(row["topic"], row["partition_id"]): stored_mark(row.asDict()) for row in rows}

    def folded_until_us(self) -> int:
        """Tasks due before this stand in `tasks` alone (microseconds since the epoch)."""
        return common_edge(mark.folded_until_us for mark in self.marks().values())

    def partition_marks(self) -> dict[int, Mark]:
        """The marks of both topics joined: partition → mark."""
        return joined(self.marks())

    def write_marks(self, marks: dict[tuple[str, int], Mark]) -> None:
        """Replaces the progress table; the caller serialises its calls and never lets a mark fall."""
        self.before_commit()
        stamp = from_us(now_us())
        rows = [
            progress_row(topic, partition, mark) | {"updated_at": stamp}
            for (topic, partition), mark in sorted(marks.items())
        ]
        self.replaced(PROGRESS).replace(rows)

    def replaced(self, table: Table) -> ReplacedTable:
        """Returns the writer of a table of which every write replaces all rows.

        Args:
            table: one of `REPLACED`.
        """
        if table.name not in self._replaced:
            self._replaced.setdefault(table.name, ReplacedTable(TableReader(self.path, self._limit), table))
        return self._replaced[table.name]


def between(partitions: Sequence[int] | None, after_us: int | None, until_us: int | None) -> Column:
    """Predicate on any table with the key columns: these partitions, after < scheduled_time ≤ until.

    Args:
        partitions: numbers; None: all.
        after_us: instants after this one, microseconds since the epoch; None: from the beginning.
        until_us: up to and with this one; None: to the end.
    """
    time, predicate = F.col("scheduled_time"), F.lit(True)
    if partitions is not None:
        predicate &= F.col("partition_id").isin(list(partitions))
    if after_us is not None:
        predicate &= (F.col("hour") >= (after_us + 1) // HOUR_US) & (time > _instant(after_us))
    if until_us is not None:
        predicate &= (F.col("hour") <= until_us // HOUR_US) & (time <= _instant(until_us))
    return predicate


def _instant(us: int) -> Column:
    return F.timestamp_micros(F.lit(us))
