"""What the tables say of schedules: decisions, jobs and changes of one of them. JVM-free, like `table_reader`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scylla_spark.clock import from_us
from scylla_spark.core.progress_mark import Mark
from scylla_spark.io.delta.rows import in_us
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.schemas import FIRES, JOBS, SCHEDULES, Table

if TYPE_CHECKING:
    import polars as pl

_TIME: Final = {FIRES.name: "decided_at", JOBS.name: "changed_at", SCHEDULES.name: "changed_at"}
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
        """How far the tables are with the planner's log; None: they hold nothing of it."""
        return self._readers.marks().get(("outcomes", self._partition))

    def rows(
        self, table: Table, name: str, *, since_us: int | None, before: int | None, limit: int
    ) -> list[dict[str, Any]]:
        """The newest rows of a schedule, the newest first.

        Args:
            table: `FIRES`, `JOBS` or `SCHEDULES`.
            name: of the schedule.
            since_us: not older than this, microseconds since the epoch.
            before: only what stands in the planner's log before this offset; the rest is read there.
            limit: most rows.

        Returns:
            Rows with all columns; instants in microseconds since the epoch.
        """
        import polars as pl

        time = _TIME[table.name]
        wanted: list[pl.Expr] = [pl.col(_NAME[table.name]) == name]
        if since_us is not None:
            wanted.append(pl.col(time) >= pl.lit(from_us(since_us)))
        if before is not None:
            wanted.append(pl.col("plan_offset") < before)
        rows = self._readers.frame(table).filter(*wanted).unique()
        rows = rows.sort(time, "plan_offset", descending=True).head(limit)
        return in_us(rows).collect().to_dicts()
