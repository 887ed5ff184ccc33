"""The route of decisions about all schedules: what fired, what was skipped, and why."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel
from starlette.responses import Response

from scylla_spark.api.context import Api, Asked, Instant, Own, Routes, answer
from scylla_spark.api.schedules.plan_mirror import StoredText
from scylla_spark.api.schedules.views import FireView, fire_view
from scylla_spark.clock import now_us, to_us
from scylla_spark.core.access.scopes import ALL_QUEUES, QueueBounds
from scylla_spark.core.tasks.filter import DAY_US
from scylla_spark.errors import ArgumentError
from scylla_spark.io.delta.plan_queries import PlanQueries

routes = Routes()

Verdict = Literal[
    "launched", "skipped", "waiting", "missed", "obsolete", "failed", "late", "overdue", "silent", "no_handler"
]


class NamedFireView(FireView):
    """One decision about a schedule."""

    schedule: str


class DecisionsView(BaseModel):
    """Decisions about all schedules, the newest first; what was decided in the last seconds may not be there yet."""

    fires: list[NamedFireView]


@routes.get("/v1/fires", DecisionsView)
async def list_fires(
    api: Asked,
    own: Own,
    since: Annotated[
        Instant | None, Query(alias="from", description="Decided then or later; default: a day before the end")
    ] = None,
    until: Annotated[Instant | None, Query(alias="to", description="Decided before; default: now")] = None,
    verdict: Annotated[list[Verdict] | None, Query(description="Only these; repeatable")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
) -> Response:
    """List the decisions about all schedules with their reasons, from the tables, newest first: launched, skipped, missed and others."""
    stop = to_us(until) if until is not None else now_us()
    start = to_us(since) if since is not None else stop - DAY_US
    if start >= stop:
        raise ArgumentError("The window is empty: its begin is not before its end.")
    rows = await api.slowly(lambda: _decided(api, (start, stop), list(verdict or ()), limit, _names(api, own)))
    return answer({"fires": rows})


def _names(api: Api, own: QueueBounds) -> list[str] | None:
    """The schedules that send into these queues now; None: all that ever were."""
    if own == ALL_QUEUES:
        return None
    return [
        one.name for one in api.plan.ask(lambda plan: [*map(StoredText.of, plan.entries.values())]) if one.is_of(own)
    ]


def _decided(
    api: Api, window: tuple[int, int], verdicts: list[str], limit: int, names: list[str] | None
) -> list[dict[str, Any]]:
    connection = api.scheduler.connection
    queries = PlanQueries(connection.readers, connection.rules.partitions)
    rows = queries.decided(*window, verdicts, limit, names)
    return [fire_view(row) | {"schedule": row["schedule"]} for row in rows]
