"""Records of the `outcomes` topic into the tables: appends to `completions`, `attempts` and `rejected`, then `progress`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from scylla_spark import failpoint
from scylla_spark.core.records.fact import Fence
from scylla_spark.core.records.rejection_reason import DEFECT
from scylla_spark.core.tables.progress import Mark
from scylla_spark.errors import ConfigError
from scylla_spark.io.delta.spark_tables import Tables
from scylla_spark.io.kafka.stream_offsets import Range
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, REJECTED
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
from scylla_spark.services.ingest.progress import Progress
from scylla_spark.services.ingest.rejected_rows import append_refusal
from scylla_spark.transforms import records
from scylla_spark.transforms.plan_rows import KINDS
from scylla_spark.transforms.portions import CUT, Portion

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row


_TOLD: Final = (records.END, records.NEWER, DEFECT, CUT)  # rows that are for us
_TOLD_COLUMNS: Final = (
    "kind", "partition_id", "offset", "next_offset", "epoch", "nonce", "resigned", "detail", "ordering_id",
)  # fmt: skip
# an end is written after the attempts before it, so that whoever sees a task ended sees all that it did
_TABLES: Final = ((records.ATTEMPT, ATTEMPTS), (records.COMPLETION, COMPLETIONS), (records.REJECT, REJECTED))
_READ_JSON: Final = {"mode": "FAILFAST", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS][.SSS]X"}


@dataclass(frozen=True, slots=True)
class FactWriter:
    """Writes `outcomes`; the caller holds the lock of its tables.

    Attributes:
        topic: its name.
        tables: of the deployment.
        progress: how far they are.
        max_bytes: of records that are judged at once, shared out by partitions.
        partitions: of the deployment; facts of lanes that belong elsewhere are refused.
    """

    topic: str
    tables: Tables
    progress: Progress
    max_bytes: int
    partitions: int

    def positions(self) -> Mapping[int, int]:
        """Partition → next offset that is not in the tables."""
        return {number: mark.outcomes_offset for number, mark in self.progress.outcomes().items()}

    def write(self, frame: DataFrame, ranges: Mapping[int, Range]) -> Written:
        """Judges and writes as many records of the ranges as fit, then progress; idempotent under replay.

        Raises:
            Defective: the judge failed.
            ConfigError: a record is of a newer version; nothing of the portion is written.
        """
        known = self.progress.outcomes()
        begins = {number: wide.begin for number, wide in ranges.items()}
        marks = known | {n: known.get(n, Mark())._replace(outcomes_offset=begin) for n, begin in begins.items()}
        skipped = {number: mark.outcomes_offset for number, mark in marks.items()}
        portion = Portion(skipped, self.max_bytes // max(1, len(ranges)), failpoint.planted("ingest.outcomes.record"))
        judge = records.judge_facts(marks, self.partitions)
        with judged_rows(frame, judge, records.FACT_ROWS, portion, count_of(ranges)) as rows:
            return self._write_judged(rows, ranges, marks)

    def _write_judged(self, judged: DataFrame, ranges: Mapping[int, Range], marks: Mapping[int, Mark]) -> Written:
        told = F.when(F.col("kind").isin(*_TOLD), F.struct(*_TOLD_COLUMNS)).alias("told")
        found = judged.groupBy("kind", told).count().collect()
        rows = [row["told"] for row in found if row["told"] is not None]
        raise_defects(row["ordering_id"] for row in rows if row["kind"] == DEFECT)
        _refuse_newer(self.topic, [row for row in rows if row["kind"] == records.NEWER])
        counts = {row["kind"]: row["count"] for row in found}
        reached = reached_in(ranges, rows)
        name = (self.topic, spans(ranges, reached))
        failpoint.reach("ingest.outcomes.judged")
        for kind, table in _TABLES:
            if counts.get(kind):
                chosen = judged.where(F.col("kind") == kind).withColumn("topic", F.lit(self.topic))
                self.tables.append(chosen, table, same_append(name, counts[kind]))
                failpoint.reach("ingest.outcomes.appended")
        self._append_plan(judged, counts, name)
        fences = {row["partition_id"]: row for row in rows if row["kind"] == records.END}
        self.progress.outcomes_written({n: _mark(end, fences.get(n), marks[n]) for n, end in reached.items()})
        failpoint.reach("ingest.outcomes.progressed")
        rejected = counts.get(records.REJECT, 0)
        return Written(counts.get(records.COMPLETION, 0) + counts.get(records.ATTEMPT, 0), rejected, reached)

    def _append_plan(self, judged: DataFrame, counts: Mapping[str, int], name: Sequence[object]) -> None:
        """Appends what the planner has recorded."""
        for kind, table in KINDS.items():
            if counts.get(kind):
                cells = F.from_json("result", table.ddl, _READ_JSON).alias("cells")
                self.tables.append(
                    judged.where(F.col("kind") == kind).select(cells).select("cells.*"),
                    table,
                    same_append(kind, *name, counts[kind]),
                )

    def set_aside(self, refusal: Refusal, unread: DataFrame | None) -> None:
        """Writes rows of `rejected` for offsets, then progress; the fence stays what it was."""
        append_refusal(self.tables, self.topic, refusal, unread)
        known = self.progress.outcomes().get(refusal.partition, Mark())
        self.progress.outcomes_written({refusal.partition: known._replace(outcomes_offset=refusal.offsets.end)})


def _mark(end: int, row: Row | None, before: Mark) -> Mark:
    """The mark after a range: the fence that was found last in it, or that of before where no record was found."""
    if row is None:
        return before._replace(outcomes_offset=end)
    return Mark(0, end, Fence(row["epoch"], row["nonce"]), row["resigned"])


def _refuse_newer(topic: str, rows: list[Row]) -> None:
    if not rows:
        return
    first = min(rows, key=lambda row: (row["partition_id"], row["offset"]))
    raise ConfigError(
        f"The record at offset {first['offset']} of partition {first['partition_id']} of topic {topic!r} was written by a newer "
        f"version than this ingest knows: {first['detail']}",
        hint="Upgrade this ingest. Nothing is lost: progress stands before that record, and goes on after the upgrade.",
    )
