"""What the tables say of schedules: decisions, jobs and changes of one of them. JVM-free, like `table_reader`."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from scylla_spark.clock import from_us
from scylla_spark.core.tables.progress import Mark
from scylla_spark.io.delta.newest_rows import Order, first_rows
from scylla_spark.io.delta.rows import in_us
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.schemas import FIRES, JOBS, SCHEDULES, Table

if TYPE_CHECKING:
    import polars as pl

Row = dict[str, Any]
_MOST: Final = 10_000
ORDER: Final = {
    FIRES.name: ("decided_at", "plan_offset", "planned_at", "generation", "verdict"),
    JOBS.name: ("changed_at", "plan_offset", "generation", "state"),
    SCHEDULES.name: ("changed_at", "plan_offset"),
}
"""By what rows are ordered: rows of one record of the planner have no order in the tables but this."""
_NAME: Final = {FIRES.name: "schedule", JOBS.name: "schedule", SCHEDULES.name: "name"}


class PlanQueries:
    """Reads the planner's tables, which lag behind its log by up to the trigger of ingest.

    Args:
        readers: of the deployment.
        partition: number of the planner's partition of `outcomes`.
    """

    def __init__(self, readers: TableReader, partition: int) -> None:
        self._readers = readers
        self._partition = partition

    def mark(self) -> Mark | None:
        """Returns how far the tables are with the planner's log; None: they hold nothing of it."""
        return self._readers.marks().get(("outcomes", self._partition))

    def newest(self, table: Table, name: str, since_us: int | None, before: int | None, limit: int) -> list[Row]:
        """The newest rows of a schedule, the newest first, as are those of all methods; instants in microseconds since the epoch.

        Args:
            table: `FIRES`, `JOBS` or `SCHEDULES`.
            name: of the schedule.
            since_us: not older than this, microseconds since the epoch.
            before: only what stands in the planner's log before this offset, as in all methods; None: all.
            limit: most rows.
        """
        import polars as pl

        recent = [] if since_us is None else [pl.col(ORDER[table.name][0]) >= pl.lit(from_us(since_us))]
        return self._rows(table, name, recent, before, limit)

    def fires_about(self, name: str, begin_us: int, end_us: int, before: int | None) -> list[Row]:
        """Decisions about planned times of a stretch.

        Args:
            name: of the schedule.
            begin_us: from this planned time on …
            end_us: … and earlier than this; microseconds since the epoch.
            before: as in `newest`.
        """
        import polars as pl

        last = pl.coalesce("until_at", "planned_at")
        inside = [pl.col("planned_at") < pl.lit(from_us(end_us)), last >= pl.lit(from_us(begin_us))]
        return self._rows(FIRES, name, inside, before, _MOST)

    def decided(
        self,
        begin_us: int,
        end_us: int,
        verdicts: Collection[str],
        limit: int,
        schedules: Collection[str] | None = None,
    ) -> list[Row]:
        """Decisions about all schedules that were made in [begin, end), the newest first; instants in microseconds since the epoch.

        Args:
            begin_us: microseconds since the epoch.
            end_us: microseconds since the epoch.
            verdicts: only these; empty: all.
            limit: most rows.
            schedules: only decisions about these; None: about all.
        """
        import polars as pl

        wanted = [pl.col("decided_at") >= pl.lit(from_us(begin_us)), pl.col("decided_at") < pl.lit(from_us(end_us))]
        if verdicts:
            wanted.append(pl.col("verdict").is_in(list(verdicts)))
        if schedules is not None:
            wanted.append(pl.col("schedule").is_in(list(schedules)))
        return _newest(self._readers.frame(FIRES).filter(*wanted), (*ORDER[FIRES.name], "schedule"), limit)

    def schedule_changes(self, until_us: int) -> list[Row]:
        """All changes of schedules until a moment, the oldest first; instants in microseconds since the epoch.

        Args:
            until_us: not later than this, microseconds since the epoch.
        """
        import polars as pl

        rows = self._readers.frame(SCHEDULES).filter(pl.col("changed_at") <= pl.lit(from_us(until_us))).unique()
        return in_us(rows.sort(*ORDER[SCHEDULES.name])).collect().to_dicts()

    def jobs_of(self, name: str, generations: Collection[int], before: int | None) -> list[Row]:
        """Changes of some jobs.

        Args:
            name: of the schedule.
            generations: their numbers.
            before: as in `newest`.
        """
        import polars as pl

        return self._rows(JOBS, name, [pl.col("generation").is_in(list(generations))], before, _MOST)

    def _rows(self, table: Table, name: str, wanted: list[pl.Expr], before: int | None, limit: int) -> list[Row]:
        import polars as pl

        wanted = [pl.col(_NAME[table.name]) == name, *wanted]
        if before is not None:
            wanted.append(pl.col("plan_offset") < before)
        return _newest(self._readers.frame(table).filter(*wanted), ORDER[table.name], limit)


def _newest(rows: pl.LazyFrame, columns: tuple[str, ...], limit: int) -> list[Row]:
    order = Order(columns, (True,) * len(columns), nulls_last=True)
    return in_us(first_rows(rows, order, limit).lazy()).collect().to_dicts()
