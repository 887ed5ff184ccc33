"""Counts of the tasks of a queue, from the tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import BaseModel, Field

from scylla_spark.core.tasks.key import HOUR_US, place_of
from scylla_spark.core.tasks.task import TIMED_OUT
from scylla_spark.io.delta.rows import IDENTITY
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.schemas import ATTEMPTS
from scylla_spark.task_states import ENDED

if TYPE_CHECKING:
    import polars as pl

LEASE_EXPIRED: Final = "lease_expired"


class QueueCounts(BaseModel):
    """Counts of tasks, from the tables."""

    enqueued: Annotated[int, Field(description="Known tasks in any state")] = 0
    states: Annotated[dict[str, int], Field(description="Tasks by state")] = {}
    started: Annotated[int, Field(description="Tasks that were started or leased at least once")] = 0
    retries: Annotated[int, Field(description="Attempts after the first one of each task")] = 0
    expired_leases: Annotated[int, Field(description="Attempts that ended because their lease expired")] = 0
    completed: Annotated[int, Field(description="Tasks that ended, except as cancelled, expired or duplicate")] = 0

    def add(self, state: str, tasks: int, started: int, attempts: int) -> None:
        """Counts tasks of one state.

        Args:
            state: of all of them.
            tasks: how many.
            started: how many of them had an attempt.
            attempts: how many they had together.
        """
        self.enqueued += tasks
        self.states[state] = self.states.get(state, 0) + tasks
        self.started += started
        self.retries += attempts - started
        self.completed += tasks if state in ENDED and state not in ("cancelled", "expired", "duplicate") else 0


class PartitionStats(QueueCounts):
    """Counts of the tasks of one partition."""

    partition: int


class QueueStats(QueueCounts):
    """Counts of the tasks of a queue, in total and by partition."""

    name: str
    partitions: list[PartitionStats]


def counted(readers: TableReader, name: str, frames: Iterable[pl.DataFrame]) -> QueueStats:
    """Counts the tasks of a queue, in total and by partition, which is where they are kept apart for writers.

    Args:
        readers: of the deployment.
        name: of the queue.
        frames: all tasks of the queue, as `TaskPages.frames` gives them.
    """
    import polars as pl

    total, parts, number = QueueCounts(), dict[int, QueueCounts](), readers.rules().partitions
    place = lambda lane: place_of(lane, number)  # noqa: E731
    for frame in frames:
        rows = frame.with_columns(part=pl.col("ordering_id").map_elements(place, pl.Int32))
        groups = rows.group_by("part", "state").agg(
            pl.len(), started=(pl.col("attempts") > 0).sum(), attempts=pl.col("attempts").sum()
        )
        for part, state, *numbers in groups.iter_rows():
            for counts in (total, parts.setdefault(part, QueueCounts())):
                counts.add(state, *numbers)
        for part, expired in _expired(readers, rows.filter(pl.col("attempts") > 0)):
            total.expired_leases += expired
            parts[part].expired_leases += expired
    found = [PartitionStats(partition=part, **dict(counts)) for part, counts in sorted(parts.items())]
    return QueueStats(name=name, partitions=found, **dict(total))


def _expired(readers: TableReader, tasks: pl.DataFrame) -> list[tuple[int, int]]:
    """By partition, how many attempts of tasks ended with their lease; repeats of a row count once."""
    import polars as pl

    if tasks.is_empty():
        return []
    hours = (tasks["scheduled_time"].dt.epoch("us") // HOUR_US).unique().to_list()
    ended = pl.col("outcome").eq(TIMED_OUT) & pl.col("error_class").eq(LEASE_EXPIRED)
    rows = readers.frame(ATTEMPTS, [[("hour", "in", hours)]]).filter(ended)
    rows = rows.select(*IDENTITY, "attempt").unique()
    found = rows.join(tasks.lazy().select(*IDENTITY, "part"), on=IDENTITY, how="inner")
    return found.group_by("part").agg(pl.len()).collect().rows()
