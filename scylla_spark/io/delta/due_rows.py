"""The due scan without a JVM: the same selection as `transforms.due`, on polars frames.

What is to be loaded is chosen from keys and sizes alone; payloads are read for the chosen only. A suite of tests holds both
implementations to the same rows (`tests/spark/test_scan_conformance.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from scylla_spark.clock import from_us
from scylla_spark.core.queues.in_force import ROW_BYTES, Budget
from scylla_spark.core.tables.progress import Mark, OpenHours
from scylla_spark.core.tasks.key import HOUR_US
from scylla_spark.core.tasks.stored_records import ENQUEUED
from scylla_spark.defaults import DEFAULT_QUEUE
from scylla_spark.io.delta.rows import IDENTITY, Pruning, epoch_us, folded, newest_attempts
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, TASKS

if TYPE_CHECKING:
    import polars as pl

_LANE: Final = ("partition_id", "ordering_id")
_KEY: Final = ("partition_id", *IDENTITY)


class Window(NamedTuple):
    """Which scheduled times: after < time ≤ until, microseconds since the epoch; `after` None: all that may be open."""

    after_us: int | None
    until_us: int


def open_rows(readers: TableReader, marks: Mapping[int, Mark], window: Window) -> pl.LazyFrame:
    """Tasks without a completion, with their newest attempt.

    Args:
        readers: of the tables.
        marks: partition → its progress, read before; at least one.
        window: which scheduled times.

    Returns:
        Grain: one row per open key. `partition_id`, columns of `tasks`, and `attempt`, `used`, `next_at`, `work`,
        `error`, `fact_offset` (null if none).
    """
    import polars as pl

    parts = [
        _open_of_partition(readers, number, mark, window).with_columns(partition_id=pl.lit(number, pl.Int32))
        for number, mark in marks.items()
    ]
    return pl.concat(parts)


def _open_of_partition(readers: TableReader, number: int, mark: Mark, window: Window) -> pl.LazyFrame:
    import polars as pl

    pruning, until = _pruning(number, mark, window), pl.lit(from_us(window.until_us))
    inside = pl.col("scheduled_time") <= until
    if window.after_us is not None:
        inside &= pl.col("scheduled_time") > pl.lit(from_us(window.after_us))
    # completions before tasks: what is purged goes from tasks first, so an older view of completions is the safe one
    ended = readers.frame(COMPLETIONS, pruning).filter(inside).select(*IDENTITY)
    attempts = newest_attempts(readers.frame(ATTEMPTS, pruning).filter(inside), "fact_offset")
    tasks = readers.frame(TASKS, pruning)
    if window.until_us >= mark.folded_until_us:
        far = [("scheduled_time", "<=", from_us(window.until_us))]
        tasks = folded(tasks, readers.deferred(far, [[("partition_id", "=", number)]]))
    return tasks.filter(inside).join(ended, on=IDENTITY, how="anti").join(attempts, on=IDENTITY, how="left")


def _pruning(number: int, mark: Mark, window: Window) -> Pruning:
    """In which folders of a partition such tasks may be."""
    place, last = ("partition_id", "=", number), ("hour", "<=", window.until_us // HOUR_US)
    if window.after_us is not None:
        return [[place, ("hour", ">=", (window.after_us + 1) // HOUR_US), last]]
    return [[place, within, last] for within in OpenHours.of(mark).conditions()]


def is_leased() -> pl.Expr:
    """Whether the newest attempt of a task is a lease that nothing has ended."""
    import polars as pl

    return (pl.col("work").struct.field("lease").is_not_null() & pl.col("next_at").is_null()).fill_null(value=False)


def due_keys(rows: pl.LazyFrame, *, depth: int, now: int, paused: Sequence[str]) -> pl.DataFrame:
    """Keys and sizes of the first open tasks of every lane.

    Args:
        rows: as `open_rows` returns.
        depth: most rows per lane.
        now: microseconds since the epoch.
        paused: names of queues of which nothing starts.

    Returns:
        Grain: one row per task, lane by lane in key order. Key columns, `queue`, `priority`, `size` (bytes), `stuck` (it cannot
        start, and is neither cancelled nor expired: it waits for a retry, names no handler, or its queue is paused), `leased`,
        `lane_rank` from 1, and `more`: whether the tables hold further open tasks of the lane.
    """
    import polars as pl

    queue = pl.col("queue").fill_null(DEFAULT_QUEUE)
    waits = (epoch_us("next_at").fill_null(0) > now) | pl.col("handler").is_null() | queue.is_in(list(paused))
    expires_us = epoch_us("scheduled_time") + pl.col("expires_ms") * 1000
    expired = ((pl.col("attempt").fill_null(0) == 0) & (expires_us <= now)).fill_null(value=False)
    stuck = waits & pl.col("cancel_offset").is_null() & ~expired
    size = pl.lit(ROW_BYTES, pl.Int64) + pl.col("payload").str.len_bytes().fill_null(0)
    keys = rows.select(*_KEY, "priority", queue=queue, stuck=stuck, size=size, leased=is_leased()).collect()
    keys = keys.sort(
        *_LANE, "leased", "scheduled_time", "uniqueness_key", descending=[False, False, True, False, False]
    )
    place = pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over(_LANE)
    return keys.with_columns(lane_rank=place, more=pl.len().over(_LANE) > depth).filter(pl.col("lane_rank") <= depth)


def first_of_queues(keys: pl.DataFrame, budget: Budget) -> pl.DataFrame:
    """Returns what fits the budget of every queue; see `transforms.due.first_of_queues`.

    Args:
        keys: as `due_keys` returns.
        budget: of each queue.

    Returns:
        Grain: one row per task that is kept, and the head of every lane of which nothing is: columns of `keys` and `kept`.
    """
    import polars as pl

    head = pl.col("lane_rank") == 1
    share = pl.when(pl.col("queue").is_in(list(budget.listed))).then("queue")
    rows = keys.with_columns(blocked=(head & pl.col("stuck")).max().over(_LANE), share=share)
    order = ["leased", "blocked", "lane_rank", "priority", "scheduled_time", "ordering_id"]
    rows = rows.sort(order, descending=[True, False, False, True, False, False], nulls_last=True)
    rows = rows.with_columns(
        place=pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over("share"), bytes=pl.col("size").cum_sum().over("share")
    )
    too_much = (pl.col("place") > budget.rows) | ((pl.col("bytes") > budget.most_bytes) & (pl.col("place") > 1))
    rows = rows.with_columns(over=too_much.cast(pl.UInt8)).sort(*_LANE, "lane_rank")
    rows = rows.with_columns(kept=pl.col("over").cum_max().over(_LANE) == 0)
    rows = rows.with_columns(more=pl.col("more") | ~pl.col("kept").all().over(_LANE))
    return rows.filter(pl.col("kept") | head).drop("blocked", "share", "place", "bytes", "over")


def filled(rows: pl.LazyFrame, keys: pl.DataFrame) -> pl.DataFrame:
    """The chosen tasks with all that they hold, lane by lane in key order.

    Args:
        rows: as `open_rows` returned when the keys were chosen.
        keys: what was chosen.

    Returns:
        Grain: one row per key. The columns of `transforms.due.due` but `lane_rank`.
    """
    import polars as pl

    chosen = rows.join(keys.lazy().select(*_KEY, "lane_rank", "more"), on=_KEY)
    retry = pl.col("retry").struct
    return (
        chosen.sort(*_LANE, "lane_rank")
        .select(
            *_LANE, "uniqueness_key", *ENQUEUED, "more", first=pl.coalesce("first_offset", "data_offset"),
            time_us=epoch_us("scheduled_time"), max_retries=retry.field("max_retries"), base_ms=retry.field("base_ms"),
            cap_ms=retry.field("cap_ms"), enqueued_us=epoch_us("enqueued_at"),
            offset=pl.coalesce("data_offset", "cancel_offset"), cancelled=pl.col("cancel_offset").is_not_null(),
            attempt=pl.col("attempt").fill_null(0), used=pl.col("used").fill_null(0),
            next_us=epoch_us("next_at").fill_null(0), work=pl.col("work"), error=pl.col("error"), leased=is_leased(),
            fact_offset=pl.col("fact_offset").fill_null(-1),
        )
        .collect()
    )  # fmt: skip
