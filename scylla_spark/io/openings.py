"""What is open, read without a JVM: the next tasks of cut lanes, and all of a partition just taken, where that is not much.

The engine orders what it is given, so these are plain look-ups; the due scan with its ranking and budget is Spark's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from scylla_spark.clock import from_us
from scylla_spark.core.feed import ScanRow
from scylla_spark.core.key import HOUR_US, TaskKey
from scylla_spark.core.partition import Mark
from scylla_spark.io.readers import Readers
from scylla_spark.io.rows import IDENTITY, Pruning, epoch_us, folded, in_us, newest_attempts, scan_row
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, DEFERRED, TASKS

if TYPE_CHECKING:
    import polars as pl


class Openings:
    """Reads open tasks.

    Completions are opened before tasks everywhere: what is purged goes from `tasks` first, so an older view of completions is
    the safe one.

    Args:
        readers: of the tables.
    """

    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    def partition(self, number: int, mark: Mark, until_us: int, most: int) -> list[ScanRow] | None:
        """All open tasks of a partition.

        Args:
            number: the partition.
            mark: its progress, read before.
            until_us: only scheduled times up to this, itself included, microseconds since the epoch.
            most: rows.

        Returns:
            In key order; None if there are more than `most`.
        """
        place, last = ("partition_id", "=", number), ("hour", "<=", until_us // HOUR_US)
        pruning: Pruning = [[place, ("hour", ">=", mark.closed_hour), last]]
        if mark.open_hours:
            pruning.append([place, ("hour", "in", sorted(mark.open_hours)), last])
        ended = self._readers.frame(COMPLETIONS, pruning).select(*IDENTITY)
        attempts = newest_attempts(self._readers.frame(ATTEMPTS, pruning))
        tasks = self._tasks(pruning, until_us, mark.folded_until_us)
        rows = tasks.join(ended, on=IDENTITY, how="anti").head(most + 1)
        found = in_us(rows.join(attempts, on=IDENTITY, how="left").sort(*IDENTITY)).collect()
        return [scan_row(row) for row in found.iter_rows(named=True)] if found.height <= most else None

    def cancelled(self, number: int, mark: Mark, after_us: int, until_us: int) -> list[TaskKey]:
        """Keys of a partition on which a cancel was seen, with after < scheduled time ≤ until (microseconds since the epoch).

        Args:
            number: the partition.
            mark: its progress, read before.
            after_us: only scheduled times after this.
            until_us: only scheduled times up to this.
        """
        import polars as pl

        hours = [("hour", ">=", after_us // HOUR_US), ("hour", "<=", until_us // HOUR_US)]
        time = epoch_us("scheduled_time")
        tasks = self._tasks([[("partition_id", "=", number), *hours]], until_us, mark.folded_until_us)
        marked = tasks.filter(time > after_us, pl.col("cancel_offset").is_not_null())
        return [TaskKey(*row) for row in marked.select(time, *IDENTITY[1:]).collect().iter_rows()]

    def lanes(
        self, partition: int, wanted: Mapping[str, tuple[TaskKey, int]], until_us: int
    ) -> dict[str, tuple[list[ScanRow], bool]]:
        """The next open tasks of several lanes of one partition.

        Args:
            partition: the lanes' partition.
            wanted: ordering id → only keys greater than this, and most rows.
            until_us: only scheduled times up to this, itself included, microseconds since the epoch.

        Returns:
            Ordering id → rows in key order, and whether there are more.
        """
        import polars as pl

        first = min(after for after, _ in wanted.values())
        pruning: Pruning = [
            [("partition_id", "=", partition), ("hour", ">=", first.hour), ("hour", "<=", until_us // HOUR_US)]
        ]
        asked = pl.LazyFrame(
            {
                "ordering_id": list(wanted),
                "after_us": [key.time_us for key, _ in wanted.values()],
                "after_key": [key.uniqueness_key for key, _ in wanted.values()],
                "most": [most for _, most in wanted.values()],
            }
        )
        # the time is for the statistics of the files
        ours = pl.col("ordering_id").is_in(list(wanted)) & (
            pl.col("scheduled_time") >= pl.lit(from_us(max(first.time_us, 0)))
        )
        ended = self._readers.frame(COMPLETIONS, pruning).filter(ours).select(*IDENTITY)
        attempts = newest_attempts(self._readers.frame(ATTEMPTS, pruning).filter(ours))
        tasks = self._tasks(pruning, until_us, self._readers.folded_until_us()).filter(ours)
        time = epoch_us("scheduled_time")
        behind = (time > pl.col("after_us")) | (
            (time == pl.col("after_us")) & (pl.col("uniqueness_key") > pl.col("after_key"))
        )
        rows = tasks.join(asked, on="ordering_id").filter(behind)
        rows = rows.join(ended, on=IDENTITY, how="anti").sort(*IDENTITY)
        rows = rows.filter(pl.int_range(pl.len()).over("ordering_id") <= pl.col("most")).drop(
            "after_us", "after_key", "most"
        )
        found: dict[str, tuple[list[ScanRow], bool]] = {ordering_id: ([], False) for ordering_id in wanted}
        marked = in_us(rows.join(attempts, on=IDENTITY, how="left", maintain_order="left"))
        for row in marked.collect().iter_rows(named=True):
            known, _ = found[row["ordering_id"]]
            if len(known) < wanted[row["ordering_id"]][1]:
                known.append(scan_row(row))
            else:
                found[row["ordering_id"]] = (known, True)
        return found

    def _tasks(self, pruning: Pruning, until_us: int, folded_until_us: int) -> pl.LazyFrame:
        """Tasks up to an instant, near and far: columns of `tasks` without partition columns, one row per key."""
        tasks = self._readers.frame(TASKS, pruning)
        if until_us >= folded_until_us:
            near = [[*conditions, ("scheduled_time", "<=", from_us(until_us))] for conditions in pruning]
            tasks = folded(tasks, self._readers.frame(DEFERRED, near).drop(TASKS.partitioned_by))
        return tasks.filter(epoch_us("scheduled_time") <= until_us)
