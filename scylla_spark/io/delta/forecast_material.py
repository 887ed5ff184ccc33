"""What became of the tasks of a past window, read from the tables without a JVM: the material of a forecast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scylla_spark.clock import from_us, iso
from scylla_spark.core.tasks.task import STARTED
from scylla_spark.defaults import DEFAULT_QUEUE
from scylla_spark.errors import ArgumentError, NotFoundError
from scylla_spark.io.delta.rows import IDENTITY, could_start_us, epoch_us, first_completions, hours_between
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, TASKS

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True)
class TaskHistory:
    """Tasks that ran, and how many of the window are left out.

    Attributes:
        tasks: one row per task, in key order; instants and durations in microseconds. `time_us`, `ordering_id`,
            `uniqueness_key`, `queue`, `handler`, `priority`; `known_us`: when it could start at the earliest, its scheduled
            time or its enqueueing if that was later; `started_us`: start of its first attempt; `finished_us`: its end;
            `lasted_us`: how long its last attempt ran, of a batch call its share; `earlier`: list of (lasted_us, wait_us) of
            the attempts before, null without any.
        unfinished: tasks without a completion.
        unrun: tasks that ended without a run, such as those cancelled in time.
    """

    tasks: pl.DataFrame
    unfinished: int
    unrun: int


def past(readers: TableReader, start_us: int, stop_us: int) -> TaskHistory:
    """Reads the tasks with scheduled times in [start, stop).

    Args:
        readers: of the deployment.
        start_us: microseconds since the epoch.
        stop_us: microseconds since the epoch.

    Raises:
        ArgumentError: the window is empty.
        NotFoundError: there are no tables, or nothing ran in that window.
    """
    import polars as pl

    if start_us >= stop_us:
        raise ArgumentError("The window is empty: its start is not before its end.")
    tasks, ends, attempts = _frames(readers, start_us, stop_us)
    first = attempts.group_by(IDENTITY).agg(
        first_us=pl.col("started_at").min(), earlier=pl.struct("lasted_us", "wait_us").filter(pl.col("settled"))
    )
    rows = tasks.join(ends, on=IDENTITY, how="left").join(first, on=IDENTITY, how="left").collect()
    ran = rows.filter(pl.col("finished_us").is_not_null() & pl.col("last_us").is_not_null())
    if ran.is_empty():
        raise NotFoundError(
            f"No task scheduled from {iso(start_us)} to {iso(stop_us)} has run.",
            hint="Choose a window in which tasks ran; `scylla-spark task list --state succeeded` shows some.",
        )
    unfinished = rows["finished_us"].null_count()
    return TaskHistory(_shaped(ran), unfinished, len(rows) - len(ran) - unfinished)


def _frames(readers: TableReader, start_us: int, stop_us: int) -> tuple[pl.LazyFrame, pl.LazyFrame, pl.LazyFrame]:
    """Tasks, their ends, and their attempts before the last, of a window."""
    import polars as pl

    inside = (pl.col("scheduled_time") >= pl.lit(from_us(start_us))) & (
        pl.col("scheduled_time") < pl.lit(from_us(stop_us))
    )
    pruning = [hours_between(start_us, stop_us)]
    tasks = readers.frame(TASKS, pruning).filter(inside, pl.col("data_offset").is_not_null())
    ends = first_completions(readers.frame(COMPLETIONS, pruning).filter(inside))
    attempts = readers.frame(ATTEMPTS, pruning).filter(inside).unique([*IDENTITY, "attempt", "outcome"])
    settled = pl.col("outcome") != STARTED
    return (
        tasks.select(*IDENTITY, "queue", "handler", "priority", epoch_us("enqueued_at")),
        ends.select(*IDENTITY, finished_us=epoch_us("finished_at"), last_us=epoch_us("started_at")),
        attempts.sort("attempt").select(
            *IDENTITY, epoch_us("started_at"), settled=settled,
            lasted_us=(epoch_us("finished_at") - epoch_us("started_at")).clip(lower_bound=0),
            wait_us=(epoch_us("next_at") - epoch_us("finished_at")).clip(lower_bound=0).fill_null(0),
        ),
    )  # fmt: skip


def _shaped(ran: pl.DataFrame) -> pl.DataFrame:
    import polars as pl

    started = pl.min_horizontal("first_us", "last_us")
    together = pl.len().over("handler", "last_us", "finished_us")  # tasks of one batch call, which share its times
    shaped = ran.select(
        epoch_us("scheduled_time").alias("time_us"), "ordering_id", "uniqueness_key",
        pl.col("queue").fill_null(DEFAULT_QUEUE), pl.col("handler").fill_null(""), pl.col("priority").fill_null(0),
        known_us=could_start_us(epoch_us("scheduled_time"), pl.col("enqueued_at"), started),
        started_us=started, finished_us=pl.max_horizontal("finished_us", "last_us"),
        lasted_us=(pl.col("finished_us") - pl.col("last_us")).clip(lower_bound=0) // together,
        earlier=pl.when(pl.col("earlier").list.len() > 0).then("earlier"),
    )  # fmt: skip
    return shaped.sort("time_us", "ordering_id", "uniqueness_key")
