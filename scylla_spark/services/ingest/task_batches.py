"""Records of the `tasks` topic into the tables: a MERGE of what is near, appends to `deferred` and `rejected`, then `progress`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from scylla_spark import failpoint
from scylla_spark.core.records.command import Rules
from scylla_spark.core.records.rejection_reason import DEFECT
from scylla_spark.core.tables.progress import OpenHours
from scylla_spark.io.delta.spark_tables import MOST_MERGED_FILES, Extent, Tables, before, bounds
from scylla_spark.io.kafka.stream_offsets import Range
from scylla_spark.schemas import REJECTED
from scylla_spark.services.ingest.micro_batch import (
    Refusal,
    Written,
    count_of,
    judged_rows,
    raise_defects,
    reached_in,
    same_append,
    spans,
)
from scylla_spark.services.ingest.progress import End, Progress
from scylla_spark.services.ingest.rejected_rows import append_refusal
from scylla_spark.transforms import records
from scylla_spark.transforms.portions import CUT, Portion

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row


_FEWEST_PAST_HOURS: Final = 4  # of a partition in one portion, however many partitions there are


@dataclass(frozen=True, slots=True)
class TaskWriter:
    """Writes `tasks`; the caller holds the lock of its tables.

    Attributes:
        topic: its name.
        tables: of the deployment.
        progress: how far they are.
        rules: by which records are judged.
        max_bytes: of records that are judged at once, shared out by partitions.
    """

    topic: str
    tables: Tables
    progress: Progress
    rules: Rules
    max_bytes: int

    def positions(self) -> Mapping[int, int]:
        """Partition → next offset that is not in the tables."""
        return {number: mark.tasks_offset for number, mark in self.progress.tasks().items()}

    def write(self, frame: DataFrame, ranges: Mapping[int, Range]) -> Written:
        """Judges and writes as many records of the ranges as fit, then progress; idempotent under replay.

        Raises:
            Defective: the judge failed.
        """
        marks = {**self.positions(), **{number: wide.begin for number, wide in ranges.items()}}
        portion = Portion(marks, self.max_bytes // max(1, len(ranges)), failpoint.planted("ingest.tasks.record"))
        judge = records.judge_commands(self.rules, marks, self._past_hours(len(ranges)))
        with judged_rows(frame, judge, records.COMMAND_ROWS, portion, count_of(ranges)) as rows:
            return self._write_judged(rows, ranges)

    def _past_hours(self, partitions: int) -> records.PastHours:
        """Returns how many hours of the past a portion may touch, by the partitions that share it, and which are worth it."""
        open_hours = {number: OpenHours.of(mark) for number, mark in self.progress.tasks().items()}
        return records.PastHours(max(_FEWEST_PAST_HOURS, MOST_MERGED_FILES // max(1, partitions)), open_hours)

    def _write_judged(self, judged: DataFrame, ranges: Mapping[int, Range]) -> Written:
        edge_us = self.progress.folded_until_us
        near = before(edge_us)
        found = _found(judged, F.when(near, F.col("hour")))
        rows = [row for row in found if row["kind"] == records.ROW]
        slices = [row for row in rows if row["hour"] is not None]
        far = sum(row["rows"] for row in rows if row["hour"] is None)
        rejected = sum(row["rows"] for row in found if row["kind"] == records.REJECT)
        reached = reached_in(ranges, found)
        name = (self.topic, spans(ranges, reached), edge_us)
        failpoint.reach("ingest.tasks.judged")
        valid = judged.where(F.col("kind") == records.ROW)
        if slices:
            self.tables.merge_tasks(valid.where(near), Extent.of(slices))
            failpoint.reach("ingest.tasks.merged")
        if far:
            self.tables.defer(valid.where(~near), far, same_append(name, far))
            failpoint.reach("ingest.tasks.deferred")
        if rejected:
            rejects = judged.where(F.col("kind") == records.REJECT).withColumn("topic", F.lit(self.topic))
            self.tables.append(rejects, REJECTED, same_append(name, rejected))
            failpoint.reach("ingest.tasks.rejected")
        appended = {row["partition_id"]: row["appended_us"] for row in found if row["kind"] == records.END}
        ends = {number: End(offset, appended.get(number) or 0) for number, offset in reached.items()}
        self.progress.tasks_written(ends, ((row["partition_id"], row["hour"]) for row in slices))
        failpoint.reach("ingest.tasks.progressed")
        return Written(sum(row["rows"] for row in rows), rejected, reached)

    def set_aside(self, refusal: Refusal, unread: DataFrame | None) -> None:
        """Writes rows of `rejected` for offsets, then progress."""
        append_refusal(self.tables, self.topic, refusal, unread)
        self.progress.tasks_written({refusal.partition: End(refusal.offsets.end, 0)}, ())


def _found(judged: DataFrame, hour: Column) -> list[Row]:
    """Counts by kind, partition and hour (null where it is far), with bounds and ends.

    Raises:
        Defective: the judge failed.
    """
    first, last = F.min("next_offset"), F.max("next_offset")
    next_offset = F.when(F.col("kind") == CUT, first).otherwise(
        last
    )  # a partition may be cut for its bytes, and before that for its hours
    ends = [next_offset.alias("next_offset"), F.max(F.unix_micros("appended_at")).alias("appended_us")]
    stack = F.max(F.when(F.col("kind") == DEFECT, F.col("ordering_id"))).alias("stack")
    groups = judged.groupBy("kind", "partition_id", hour.alias("hour"))
    found = groups.agg(*bounds(), *ends, stack).collect()
    raise_defects(row["stack"] for row in found)
    return list(found)
