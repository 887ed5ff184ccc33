"""What has become of a schedule: its decisions, jobs and changes, from the tables and from the planner's log beyond them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from scylla_spark.clock import to_us
from scylla_spark.errors import UnreachableError
from scylla_spark.io.delta.plan_queries import ORDER, PlanQueries, Row
from scylla_spark.schemas import FIRES, JOBS, SCHEDULES, Table
from scylla_spark.transforms.plan_rows import plan_rows

if TYPE_CHECKING:
    from scylla_spark.client.connection import Connection
    from scylla_spark.io.kafka.plan_requests import PlanRequests

MOST_ROWS: Final = 10_000


class ScheduleHistory:
    """Rows about one schedule, the newest first; instants in microseconds since the epoch.

    Args:
        queries: the tables.
        plan: the planner's log.
        name: of the schedule.

    Attributes:
        complete: the log could be read; else the rows are what the tables say.
    """

    def __init__(self, queries: PlanQueries, plan: PlanRequests, name: str) -> None:
        self._queries = queries
        self._name = name
        self._mark = queries.mark()
        self.complete = True
        try:
            groups = plan.groups(self._mark)
        except UnreachableError:
            groups, self.complete = [], False
        self._beyond = [row for offset, group in groups for row in plan_rows(group, offset)]

    def fires(self, since_us: int | None = None, limit: int = MOST_ROWS) -> list[Row]:
        """The newest decisions."""
        new = [row for row in self._new(FIRES) if since_us is None or row["decided_at"] >= since_us]
        return [*new, *self._queries.newest(FIRES, self._name, since_us, self._before, limit)][:limit]

    def fires_about(self, begin_us: int, end_us: int) -> list[Row]:
        """Decisions about planned times of [begin, end)."""
        new = [row for row in self._new(FIRES) if row["planned_at"] < end_us and last_of(row) >= begin_us]
        return [*new, *self._queries.fires_about(self._name, begin_us, end_us, self._before)]

    def jobs_of(self, fires: Iterable[Row]) -> list[Row]:
        """Changes of the jobs that some decisions are about."""
        generations = {row["generation"] for row in fires if row["generation"]}
        new = [row for row in self._new(JOBS) if row["generation"] in generations]
        return [*new, *self._queries.jobs_of(self._name, generations, self._before)] if generations else []

    def changes(self) -> list[Row]:
        """The newest changes of the schedule itself."""
        old = self._queries.newest(SCHEDULES, self._name, None, self._before, MOST_ROWS)
        return [*self._new(SCHEDULES), *old]

    @property
    def _before(self) -> int | None:
        return self._mark.outcomes_offset if self._mark is not None and self.complete else None

    def _new(self, table: Table) -> list[Row]:
        named = "name" if table is SCHEDULES else "schedule"
        rows = [stored(table, row.text) for row in self._beyond if row.kind == table.name]
        return sorted(
            (row for row in rows if row[named] == self._name), key=partial(_rank, ORDER[table.name]), reverse=True
        )


def last_of(row: Mapping[str, Any]) -> int:
    """The last planned time that a decision is about."""
    at_us: int = row["until_at"] or row["planned_at"]
    return at_us


def _rank(names: tuple[str, ...], row: Row) -> tuple[Any, ...]:
    """Sorts as the tables are sorted; what is null comes before all."""
    return tuple((row[name] is not None, row[name]) for name in names)


def history(connection: Connection, name: str) -> ScheduleHistory:
    """The history of a schedule of a deployment; it may be gone."""
    queries = PlanQueries(connection.readers, connection.rules.partitions)
    return ScheduleHistory(queries, connection.plan, name)


def stored(table: Table, text: str) -> Row:
    """Cells of the log as the table has them."""
    cells = json.loads(text)
    row = {column.name: cells.get(column.name) for column in table.columns}
    for column in table.columns:
        if column.type == "timestamp" and row[column.name] is not None:
            row[column.name] = to_us(datetime.fromisoformat(row[column.name]))
    return row
