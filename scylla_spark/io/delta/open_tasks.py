"""What is open, read without a JVM: the next tasks of cut lanes, and all of a partition just taken, where that is not much.

The engine orders what it is given, so these are plain look-ups; the due scan with its ranking and budget is Spark's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from scylla_spark.clock import from_us
from scylla_spark.core.tables.progress import Mark, OpenHours, joined, reaches_far
from scylla_spark.core.tasks.key import HOUR_US, Name, TaskKey
from scylla_spark.core.tasks.stored_records import Bearer, Known, ScanRow
from scylla_spark.core.tasks.task import DUPLICATE
from scylla_spark.defaults import DEFAULT_QUEUE
from scylla_spark.io.delta.rows import (
    IDENTITY,
    Pruning,
    epoch_us,
    first_offset,
    folded,
    in_us,
    newest_attempts,
    scan_row,
)
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, TASKS

if TYPE_CHECKING:
    import polars as pl


_NAME: Final = IDENTITY[1:]
MOST_BYTES: Final = 64 * 1024 * 1024  # of the rows that one reload brings
_ROW_BYTES: Final = 1024  # of a task without its payload


class Bound(NamedTuple):
    """How much may be read at once: rows, and bytes of them, payloads included."""

    rows: int
    bytes: int

    def less(self, rows: int, size: int) -> Bound:
        """Returns what is left of it."""
        return Bound(self.rows - rows, self.bytes - size)


class OpenTasksReader:
    """Reads open tasks.

    Completions are opened before tasks everywhere: what is purged goes from `tasks` first, so an older view of completions is
    the safe one. Sizes are looked at before payloads are fetched, since some thousand tasks may be gigabytes.

    Args:
        readers: of the tables.
    """

    def __init__(self, readers: TableReader) -> None:
        self._readers = readers

    def marks(self) -> dict[int, Mark]:
        """Returns how far the tables are: partition → mark."""
        return joined(self._readers.marks())

    def known(self, keys: Collection[TaskKey]) -> dict[TaskKey, Known]:
        """Returns what the tables hold of each key: whether it has ended, and its newest attempt."""
        return self._readers.known(keys)

    def partition(self, number: int, mark: Mark, until_us: int, bound: Bound) -> list[ScanRow] | None:
        """All open tasks of a partition.

        Args:
            number: the partition.
            mark: its progress, read before.
            until_us: only scheduled times up to this, itself included, microseconds since the epoch.
            bound: most rows, and bytes of them.

        Returns:
            In key order; None if there is more than the bound allows.
        """
        place, last = ("partition_id", "=", number), ("hour", "<=", until_us // HOUR_US)
        pruning: Pruning = [[place, within, last] for within in OpenHours.of(mark).conditions()]
        ended = self._readers.frame(COMPLETIONS, pruning).select(*IDENTITY)
        attempts = newest_attempts(self._readers.frame(ATTEMPTS, pruning), "fact_offset")
        tasks = self._tasks(pruning, until_us, mark.folded_until_us)
        rows = tasks.join(ended, on=IDENTITY, how="anti").head(bound.rows + 1)
        sizes = rows.select(size_bytes()).collect().to_series()
        if len(sizes) > bound.rows or sizes.sum() > bound.bytes:
            return None
        found = in_us(rows.join(attempts, on=IDENTITY, how="left").sort(*IDENTITY)).collect()
        return [scan_row(row) for row in found.iter_rows(named=True)]

    def cancelled(self, number: int, mark: Mark, after_us: int, until_us: int) -> list[TaskKey]:
        """Keys of a partition that were cancelled or ended as duplicates, with after < scheduled time ≤ until.

        Args:
            number: the partition.
            mark: its progress, read before.
            after_us: only scheduled times after this, microseconds since the epoch.
            until_us: only scheduled times up to this, likewise.
        """
        import polars as pl

        hours = [("hour", ">=", after_us // HOUR_US), ("hour", "<=", until_us // HOUR_US)]
        time = epoch_us("scheduled_time")
        pruning: Pruning = [[("partition_id", "=", number), *hours]]
        refused = self._readers.frame(COMPLETIONS, pruning).filter(pl.col("outcome") == DUPLICATE, time <= until_us)
        tasks = self._tasks(pruning, until_us, mark.folded_until_us)
        marked = tasks.filter(pl.col("cancel_offset").is_not_null())
        found = [rows.filter(time > after_us).select(time, *IDENTITY[1:]) for rows in (marked, refused)]
        return [TaskKey(*row) for rows in pl.collect_all(found) for row in rows.iter_rows()]

    def bearers(self, number: int, names: Collection[Name] | None, mark: Mark) -> list[Bearer]:
        """The open tasks of a partition, whenever they are due, that bear one of some names.

        Args:
            number: the partition.
            names: of its lanes; None: those that any open task wants to be unique and that another bears, too.
            mark: its progress, read before.
        """
        import polars as pl

        pruning: Pruning = [[("partition_id", "=", number), within] for within in OpenHours.of(mark).conditions()]
        ended = self._readers.frame(COMPLETIONS, pruning).select(*IDENTITY)
        # what is folded meanwhile is seen twice, never not at all
        parts = [self._readers.deferred([], [[("partition_id", "=", number)]]), self._readers.frame(TASKS, pruning)]
        if names is None:
            asking = [rows.filter(pl.col("unique_open")).select(_NAME) for rows in parts]
            wanted = pl.concat(asking).unique().collect()
        else:
            wanted = pl.DataFrame([tuple(name) for name in names], schema=dict.fromkeys(_NAME, pl.String), orient="row")
        if wanted.is_empty():
            return []
        rows = folded(*(rows.join(wanted.lazy(), on=_NAME, how="semi") for rows in parts))
        rows = rows.filter(pl.col("data_offset").is_not_null()).join(ended, on=IDENTITY, how="anti")
        if names is None:
            rows = rows.filter(pl.len().over(_NAME) > 1)
        first, unique = first_offset().alias("first"), pl.col("unique_open").fill_null(value=False)
        found = in_us(rows.select(*IDENTITY, first, unique, "queue", "handler", "tags")).collect()
        return [
            Bearer(TaskKey(*row[:3]), row[3], row[4], row[5] or DEFAULT_QUEUE, row[6], tuple(row[7] or ()))
            for row in found.iter_rows()
        ]

    def lanes(
        self, partition: int, wanted: Mapping[str, tuple[TaskKey, int]], until_us: int, mark: Mark
    ) -> dict[str, tuple[list[ScanRow], bool]]:
        """The next open tasks of several lanes of one partition.

        Args:
            partition: the lanes' partition.
            wanted: ordering id → only keys greater than this, and most rows.
            until_us: only scheduled times up to this, itself included, microseconds since the epoch.
            mark: its progress, read before.

        Returns:
            Ordering id → rows in key order, and whether there are more. Of large rows fewer are returned than were asked for.
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
        attempts = newest_attempts(self._readers.frame(ATTEMPTS, pruning).filter(ours), "fact_offset")
        tasks = self._tasks(pruning, until_us, mark.folded_until_us).filter(ours)
        time = epoch_us("scheduled_time")
        behind = (time > pl.col("after_us")) | (
            (time == pl.col("after_us")) & (pl.col("uniqueness_key") > pl.col("after_key"))
        )
        rows = tasks.join(asked, on="ordering_id").filter(behind)
        rows = rows.join(ended, on=IDENTITY, how="anti").sort(*IDENTITY)
        place = pl.int_range(pl.len()).over("ordering_id")
        rows = rows.filter(place <= pl.col("most")).drop("after_us", "after_key", "most")
        keep = _fitting(rows.select("ordering_id", size_bytes()).collect())
        rows = rows.with_columns(place=place).join(keep.lazy(), on="ordering_id", maintain_order="left")
        rows = rows.filter(pl.col("place") <= pl.col("keep"))
        found: dict[str, tuple[list[ScanRow], bool]] = {ordering_id: ([], False) for ordering_id in wanted}
        most = {ordering_id: min(kept, wanted[ordering_id][1]) for ordering_id, kept in keep.iter_rows()}
        marked = in_us(rows.join(attempts, on=IDENTITY, how="left", maintain_order="left"))
        for row in marked.collect().iter_rows(named=True):
            known, _ = found[row["ordering_id"]]
            if len(known) < most[row["ordering_id"]]:
                known.append(scan_row(row))
            else:
                found[row["ordering_id"]] = (known, True)
        return found

    def _tasks(self, pruning: Pruning, until_us: int, folded_until_us: int) -> pl.LazyFrame:
        """Tasks of a partition up to an instant, near and far: columns of `tasks` without partition columns, one row per key."""
        tasks = self._readers.frame(TASKS, pruning)
        if reaches_far(until_us, folded_until_us):
            tasks = folded(tasks, self._readers.deferred([("scheduled_time", "<=", from_us(until_us))], pruning))
        return tasks.filter(epoch_us("scheduled_time") <= until_us)


def size_bytes() -> pl.Expr:
    """About how many bytes a row takes in memory."""
    import polars as pl

    return (pl.lit(_ROW_BYTES, pl.Int64) + pl.col("payload").str.len_bytes().fill_null(0)).alias("size")


def _fitting(sizes: pl.DataFrame) -> pl.DataFrame:
    """Returns how many rows of each lane are kept (`ordering_id`, `keep`), so that all fit in the bound; of each lane one at least."""
    import polars as pl

    share = max(MOST_BYTES // max(sizes["ordering_id"].n_unique(), 1), 1)
    fits = (pl.col("size").cum_sum() <= share).sum().cast(pl.Int64)
    return sizes.group_by("ordering_id").agg(pl.max_horizontal(fits, 1).alias("keep"))
