"""What has become of a schedule: its decisions, jobs and changes, from the tables and from the planner's log beyond them."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from scylla_spark.clock import to_us
from scylla_spark.errors import UnreachableError
from scylla_spark.io.delta.plan_queries import PlanQueries
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

    def fires(self, since_us: int | None = None, limit: int = MOST_ROWS) -> list[dict[str, Any]]:
        """Decisions."""
        return self._rows(FIRES, "schedule", "decided_at", since_us, limit)

    def jobs(self, limit: int = MOST_ROWS) -> list[dict[str, Any]]:
        """Changes of jobs."""
        return self._rows(JOBS, "schedule", "changed_at", None, limit)

    def changes(self) -> list[dict[str, Any]]:
        """Changes of the schedule itself."""
        return self._rows(SCHEDULES, "name", "changed_at", None, MOST_ROWS)

    def _rows(self, table: Table, named: str, time: str, since_us: int | None, limit: int) -> list[dict[str, Any]]:
        before = self._mark.outcomes_offset if self._mark is not None and self.complete else None
        new = [_row(table, row.text) for row in self._beyond if row.kind == table.name]
        new = [row for row in new if row[named] == self._name and (since_us is None or row[time] >= since_us)]
        old = self._queries.rows(table, self._name, since_us=since_us, before=before, limit=limit)
        return [*reversed(new), *old][:limit]


def history(connection: Connection, name: str) -> ScheduleHistory:
    """The history of a schedule of a deployment; it may be gone."""
    queries = PlanQueries(connection.readers, connection.rules.partitions)
    return ScheduleHistory(queries, connection.plan, name)


def _row(table: Table, text: str) -> dict[str, Any]:
    """Cells of the log as the table has them."""
    cells = json.loads(text)
    row = {column.name: cells.get(column.name) for column in table.columns}
    for column in table.columns:
        if column.type == "timestamp" and row[column.name] is not None:
            row[column.name] = to_us(datetime.fromisoformat(row[column.name]))
    return row
