"""How late tasks started: per queue and stretch of five minutes, from the tables. Small numbers that stand for a million rows.

An hour of tasks is read once for the files that it has, and only its numbers are kept; a commit of ingest makes anew what it touched.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from scylla_spark.core.tasks.key import HOUR_US
from scylla_spark.defaults import DEFAULT_QUEUE
from scylla_spark.io.delta.open_table import UNKNOWN, State
from scylla_spark.io.delta.rows import IDENTITY, could_start_us, epoch_us, first_completions
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, TASKS

if TYPE_CHECKING:
    import polars as pl

STEP_US: Final = 300_000_000
"""Length of a stretch; an hour is a multiple of it."""
MOST_BYTES: Final = 64 * 1024 * 1024
_READ_ROWS: Final = 250_000  # of tasks that are joined at once
_TABLES: Final = (TASKS, COMPLETIONS, ATTEMPTS)  # in this order: what ends meanwhile is known to have ended

Mark = tuple[frozenset[str], ...]
"""The files that the numbers of an hour follow from."""
Files = dict[int, tuple[set[str], int]]
"""Hour → paths of its files, and how many rows they have."""


class Lateness:
    """Answers how late tasks started; thread safe.

    A task belongs to the stretch of its scheduled time. It is as late as its first attempt, counted from then, or from when it came if that
    was later. One that is due, has not started and has not ended counts as open. What stands in `deferred` alone is not seen.

    Args:
        readers: of the deployment.
    """

    def __init__(self, readers: TableReader) -> None:
        self._readers = readers
        self._lock = threading.Lock()
        self._files: dict[str, tuple[State, Files]] = {}
        self._kept: OrderedDict[int, tuple[Mark, pl.DataFrame]] = OrderedDict()
        self._unfinished: tuple[int, Mark, pl.DataFrame] | None = None

    def cells(self, start_us: int, stop_us: int, now: int) -> list[dict[str, Any]]:
        """One row per queue and stretch in which something was due, by queue and time.

        Args:
            start_us: the first stretch is the one that holds this instant, microseconds since the epoch.
            stop_us: only stretches that begin before this.
            now: microseconds since the epoch; what is due later is left out.

        Returns:
            Rows with `queue`, `at_us`, `started`, `p50_us`, `p99_us`, `worst_us` (None: nothing started), `open`, and
            `open_since_us`, the instant from which the oldest open one could have started (None: none is open).
        """
        import polars as pl

        first = start_us // STEP_US * STEP_US
        stop = min(stop_us, now + 1)
        with self._lock:
            hours = [hour for hour in self._hours() if first // HOUR_US <= hour <= (stop - 1) // HOUR_US]
            parts = list(self._numbers(hours, now)) if first < stop else []
        if not parts:
            return []
        rows = pl.concat(parts).filter(pl.col("at_us") >= first, pl.col("at_us") < stop)
        return rows.sort("queue", "at_us").to_dicts()

    def _hours(self) -> list[int]:
        """Hours that have tasks, by the files of now."""
        for table in _TABLES:
            state, files = self._files.get(table.name, (UNKNOWN, {}))
            state, found = self._readers.file_names(table, state)
            self._files[table.name] = (state, files if found is None else _by_hour(found))
        return sorted(self._files[TASKS.name][1])

    def _mark(self, hour: int) -> Mark:
        return tuple(frozenset(self._files[table.name][1].get(hour, (set(), 0))[0]) for table in _TABLES)

    def _numbers(self, hours: Sequence[int], now: int) -> Iterator[pl.DataFrame]:
        """The numbers of hours; of the one that is not over its tasks are kept, since more of them become due."""
        over = [hour for hour in hours if hour < now // HOUR_US]
        missing = [hour for hour in over if self._kept.get(hour, (None,))[0] != self._mark(hour)]
        for group in self._groups(missing):
            for hour, frame in _by_its_hour(_numbers_of(_known(self._readers, group))):
                self._kept[hour] = (self._mark(hour), frame)
                yield frame
        for hour in set(over) - set(missing):
            self._kept.move_to_end(hour)
            yield self._kept[hour][1]
        for hour in hours[len(over) :]:
            yield from (frame for _, frame in _by_its_hour(_numbers_of(self._open(hour).lazy(), now)))
        kept = sum(frame.estimated_size() for _, frame in self._kept.values())
        while kept > MOST_BYTES and self._kept:
            kept -= self._kept.popitem(last=False)[1][1].estimated_size()

    def _open(self, hour: int) -> pl.DataFrame:
        """The tasks of an hour that is not over, read again only when its files have changed."""
        mark = self._mark(hour)
        if self._unfinished is None or self._unfinished[:2] != (hour, mark):
            self._unfinished = (hour, mark, _known(self._readers, [hour]).collect())
        return self._unfinished[2]

    def _groups(self, hours: Sequence[int]) -> Iterator[list[int]]:
        """Hours that are read together."""
        sizes, group, rows = self._files[TASKS.name][1], list[int](), 0
        for hour in hours:
            group.append(hour)
            rows += sizes[hour][1]
            if rows >= _READ_ROWS:
                yield group
                group, rows = [], 0
        if group:
            yield group


def _by_hour(found: list[tuple[int, str, int]] | None) -> Files:
    files: Files = {}
    for hour, path, rows in found or ():
        paths, known = files.get(hour, (set[str](), 0))
        paths.add(path)
        files[hour] = (paths, known + (rows or 0))
    return files


def _known(readers: TableReader, hours: list[int]) -> pl.LazyFrame:
    """The tasks of some hours: what the numbers are made of."""
    import polars as pl

    pruning = [[("hour", "in", hours)]]
    tasks, completions, attempts = (readers.frame(table, pruning) for table in _TABLES)
    ends = first_completions(completions).select(*IDENTITY, last_us=epoch_us("started_at"), ended=pl.lit(value=True))
    starts = attempts.group_by(IDENTITY).agg(first_us=epoch_us("started_at").min())
    known = tasks.filter(pl.col("data_offset").is_not_null())
    return known.join(ends, on=IDENTITY, how="left").join(starts, on=IDENTITY, how="left").select(
        queue=pl.col("queue").fill_null(DEFAULT_QUEUE),
        started_us=pl.min_horizontal("first_us", "last_us"),
        ended=pl.col("ended").fill_null(value=False),
        due_us=epoch_us("scheduled_time"),
        came_us=epoch_us("enqueued_at"),
    )  # fmt: skip


def _numbers_of(known: pl.LazyFrame, now: int | None = None) -> pl.DataFrame:
    """Per queue and stretch how late tasks were; of those that are due at an instant, or of all."""
    import polars as pl

    rows = known if now is None else known.filter(pl.col("due_us") <= now)
    rows = rows.with_columns(known_us=could_start_us(pl.col("due_us"), pl.col("came_us"), pl.col("started_us")))
    rows = rows.with_columns(
        at_us=pl.col("due_us") // STEP_US * STEP_US,
        late_us=(pl.col("started_us") - pl.col("known_us")).clip(lower_bound=0),
        since_us=pl.when(~pl.col("ended") & pl.col("started_us").is_null()).then("known_us"),
    )
    return rows.group_by("queue", "at_us").agg(
        started=pl.col("late_us").count(), p50_us=_quantile(0.5), p99_us=_quantile(0.99), worst_us=pl.col("late_us").max(),
        open=pl.col("since_us").count(), open_since_us=pl.col("since_us").min(),
    ).collect()  # fmt: skip


def _by_its_hour(numbers: pl.DataFrame) -> list[tuple[int, pl.DataFrame]]:
    import polars as pl

    parts = numbers.with_columns(hour=pl.col("at_us") // HOUR_US).partition_by("hour", as_dict=True, include_key=False)
    return [(int(hour), part) for (hour,), part in parts.items()]


def _quantile(share: float) -> pl.Expr:
    import polars as pl

    return pl.col("late_us").quantile(share, "higher").cast(pl.Int64)
