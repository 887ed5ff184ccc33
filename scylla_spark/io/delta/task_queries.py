"""Pages of the tables for people: tasks by time, state, queue and lane; refused records; sizes. JVM-free, like `table_reader`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from scylla_spark.clock import from_us
from scylla_spark.core.tasks.key import TaskKey, partition_of
from scylla_spark.duration import duration_us
from scylla_spark.errors import ArgumentError
from scylla_spark.io.delta.rejected_records import RejectedRecords
from scylla_spark.io.delta.rows import (
    IDENTITY,
    Pruning,
    after_key,
    before_key,
    hours_between,
    in_us,
)
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.delta.task_status_rows import LISTED, status_rows, with_state
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, TABLES
from scylla_spark.task_states import OPEN, STATES

if TYPE_CHECKING:
    import polars as pl

MAX_WINDOW_US: Final = duration_us("8h")
MAX_LIMIT: Final = 10_000


@dataclass(frozen=True, slots=True)
class Filter:
    """Which tasks to list; None does not restrict.

    Attributes:
        states: names of states.
        start_us: scheduled at or after this, microseconds since the epoch.
        stop_us: scheduled before this.
        after: only keys greater than this.
        before: only keys smaller than this.
    """

    states: Collection[str] | None = None
    queue: str | None = None
    ordering_id: str | None = None
    partition: int | None = None
    handler: str | None = None
    start_us: int | None = None
    stop_us: int | None = None
    after: TaskKey | None = None
    before: TaskKey | None = None


class TaskQueries:
    """Lists what the tables hold; they lag behind the logs by up to the trigger of ingest.

    Args:
        readers: of the deployment.
    """

    def __init__(self, readers: TableReader) -> None:
        self._readers = readers

    def scheduled(self, wanted: Filter, limit: int, *, now: int) -> list[dict[str, Any]]:
        """Tasks not ended with scheduled times in [start, stop), in key order.

        Args:
            wanted: start and stop must be set, at most 8 hours apart.
            limit: most rows, from 1 to 10,000.
            now: as in `tasks`, and so are the rows.

        Raises:
            ArgumentError: a bound is missing, the window is empty or too wide, or the limit is out of range.
        """
        if wanted.start_us is None or wanted.stop_us is None:
            raise ArgumentError("Both ends of the window are needed.", hint="Pass --from and --to.")
        if wanted.start_us >= wanted.stop_us:
            raise ArgumentError("The window is empty: its start is not before its end.")
        if wanted.stop_us - wanted.start_us > MAX_WINDOW_US:
            raise ArgumentError("The window is wider than 8 hours.", hint="Ask for less, and go on from its end.")
        return self.tasks(wanted, limit, now=now, open_only=True)

    def tasks(
        self, wanted: Filter, limit: int, *, now: int, open_only: bool = False, newest_first: bool = False
    ) -> list[dict[str, Any]]:
        """Tasks in key order.

        Args:
            wanted: which.
            limit: most rows, from 1 to 10,000.
            now: microseconds since the epoch: what is due by then is "ready".
            open_only: leave out what has ended, whatever `wanted.states` says.
            newest_first: in the opposite order, the latest scheduled times first.

        Returns:
            Rows with the key's parts, `state`, `queue`, `handler`, `priority`, `attempts`, `next_attempt_at`, `enqueued_at`,
            `ended_at`, `cancel_requested`, `error_class`; instants in microseconds since the epoch.

        Raises:
            ArgumentError: a state is unknown, or the limit is out of range.
        """
        check_limit(limit)
        states = set(wanted.states or ())
        if unknown := states - set(STATES):
            raise ArgumentError(f"There is no state {sorted(unknown)}.", hint=f"States: {', '.join(STATES)}.")
        pruning, within = self._conditions(wanted)
        open_only = open_only or (bool(states) and states <= set(OPEN))
        data = _data_conditions(wanted, states)

        def page(tasks: pl.LazyFrame, most: int) -> list[dict[str, Any]]:
            rows = self._with_state(tasks, pruning, within, now, open_only=open_only).filter(*data)
            return in_us(rows.sort(*IDENTITY, descending=newest_first).head(most).select(*LISTED)).collect().to_dicts()

        stop_us = _stop_us(wanted)
        until_us = stop_us - 1 if stop_us is not None else None
        return self._readers.paged(pruning, within, until_us, limit, page, newest_first=newest_first)

    def rejected(self) -> RejectedRecords:
        """Refused records."""
        return RejectedRecords(self._readers)

    def sizes(self) -> list[dict[str, Any]]:
        """Per table: rows, files, bytes and version, from the log alone."""
        return [self._readers.size(table) for table in TABLES]

    def _conditions(self, wanted: Filter) -> tuple[Pruning, list[pl.Expr]]:
        import polars as pl

        pruning: Pruning = [[]]
        within: list[pl.Expr] = []
        partition = wanted.partition
        if wanted.ordering_id is not None:
            within.append(pl.col("ordering_id") == wanted.ordering_id)
            partition = partition_of(wanted.ordering_id, self._readers.rules().partitions)
        if partition is not None:
            pruning[0].append(("partition_id", "=", partition))
        if wanted.start_us is not None:
            within.append(pl.col("scheduled_time") >= pl.lit(from_us(wanted.start_us)))
        if wanted.stop_us is not None:
            within.append(pl.col("scheduled_time") < pl.lit(from_us(wanted.stop_us)))
        if wanted.after is not None:
            within.append(after_key(wanted.after))
        if wanted.before is not None:
            within.append(before_key(wanted.before))
        starts = [us for us in (wanted.start_us, wanted.after.time_us if wanted.after else None) if us is not None]
        pruning[0] += hours_between(max(starts, default=None), _stop_us(wanted))
        return (pruning if pruning[0] else []), within

    def _with_state(
        self, tasks: pl.LazyFrame, pruning: Pruning, within: list[pl.Expr], now: int, *, open_only: bool
    ) -> pl.LazyFrame:
        completions = self._readers.frame(COMPLETIONS, pruning).filter(*within)
        if open_only:
            tasks = tasks.join(completions.select(*IDENTITY), on=IDENTITY, how="anti")
        attempts = self._readers.frame(ATTEMPTS, pruning).filter(*within)
        return with_state(status_rows(tasks, completions, attempts), now)


def _stop_us(wanted: Filter) -> int | None:
    """The scheduled time from which on nothing passes; None: there is none."""
    stops = [us for us in (wanted.stop_us, wanted.before.time_us + 1 if wanted.before else None) if us is not None]
    return min(stops, default=None)


def check_limit(limit: int) -> None:
    """Refuses limits out of range.

    Raises:
        ArgumentError: not in 1 to 10,000.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise ArgumentError(f"The limit is {limit}.", hint=f"Pass 1 to {MAX_LIMIT}.")


def _data_conditions(wanted: Filter, states: Collection[str]) -> list[pl.Expr]:
    import polars as pl

    conditions = [pl.col("state").is_in(sorted(states))] if states else []
    if wanted.queue is not None:
        conditions.append(pl.col("queue") == wanted.queue)
    if wanted.handler is not None:
        conditions.append(pl.col("handler") == wanted.handler)
    return conditions
