"""What the tables say of all tasks of a queue together: how many there are, were handed out, came again, and have ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from scylla_spark.core.tasks.key import HOUR_US, place_of
from scylla_spark.core.tasks.task import TIMED_OUT
from scylla_spark.io.delta.rows import IDENTITY
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.schemas import ATTEMPTS
from scylla_spark.task_states import ENDED

if TYPE_CHECKING:
    import polars as pl

LEASE_EXPIRED: Final = "lease_expired"


@dataclass(slots=True)
class QueueCounts:
    """What was counted.

    Attributes:
        enqueued: tasks that are known, of any state.
        states: state → how many tasks.
        handed_out: tasks that were started or leased at least once.
        again: attempts beyond the first of each.
        expired: attempts that ended because their lease did.
        released: tasks that have ended, and not as cancelled, expired or duplicates.
    """

    enqueued: int = 0
    states: Counter[str] = field(default_factory=Counter)
    handed_out: int = 0
    again: int = 0
    expired: int = 0
    released: int = 0

    def document(self) -> dict[str, Any]:
        """The same as a JSON object."""
        return {
            "enqueued": self.enqueued, "states": dict(sorted(self.states.items())), "handed_out": self.handed_out, "again": self.again,
            "expired": self.expired, "released": self.released,
        }  # fmt: skip

    def add(self, state: str, tasks: int, handed_out: int, attempts: int) -> None:
        """Counts tasks of one state.

        Args:
            state: of all of them.
            tasks: how many.
            handed_out: how many of them had an attempt.
            attempts: how many they had together.
        """
        self.enqueued += tasks
        self.states[state] += tasks
        self.handed_out += handed_out
        self.again += attempts - handed_out
        self.released += tasks if state in ENDED and state not in ("cancelled", "expired", "duplicate") else 0


def counted(readers: TableReader, frames: Iterable[pl.DataFrame]) -> tuple[QueueCounts, dict[int, QueueCounts]]:
    """Counts tasks of a queue, in total and by partition, which is where they are kept apart for writers.

    Args:
        readers: of the deployment.
        frames: all tasks of the queue, as `TaskPages.frames` gives them.
    """
    import polars as pl

    total, parts, number = QueueCounts(), dict[int, QueueCounts](), readers.rules().partitions
    place = lambda lane: place_of(lane, number)  # noqa: E731
    for frame in frames:
        rows = frame.with_columns(part=pl.col("ordering_id").map_elements(place, pl.Int32))
        groups = rows.group_by("part", "state").agg(
            pl.len(), handed_out=(pl.col("attempts") > 0).sum(), attempts=pl.col("attempts").sum()
        )
        for part, state, *numbers in groups.iter_rows():
            for counts in (total, parts.setdefault(part, QueueCounts())):
                counts.add(state, *numbers)
        for part, expired in _expired(readers, rows.filter(pl.col("attempts") > 0)):
            total.expired += expired
            parts[part].expired += expired
    return total, dict(sorted(parts.items()))


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
