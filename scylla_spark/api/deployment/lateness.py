"""The route of lateness: how late tasks started, per queue and five minutes."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from scylla_spark.api.context import Asked, Instant, Own, Routes, answer
from scylla_spark.clock import iso, now_us, to_us
from scylla_spark.core.tasks.filter import DAY_US
from scylla_spark.errors import ArgumentError
from scylla_spark.io.delta.lateness import STEP_US

routes = Routes()

MOST_US = 7 * DAY_US


class LatenessCellView(BaseModel):
    """The start lateness of the tasks of a queue that were due within five minutes."""

    queue: str
    at: Annotated[str, Field(description="Begin of the stretch")]
    started: int
    p50_ms: Annotated[float | None, Field(description="Of the first starts; null: nothing has started")]
    p99_ms: float | None
    worst_ms: float | None
    open: Annotated[int, Field(description="Due, not started and not ended")]
    open_ms: Annotated[float | None, Field(description="How long the oldest of them has waited")]


class LatenessMapView(BaseModel):
    """By queue and time; stretches in which nothing was due are left out."""

    begin: str
    end: str
    step_ms: int
    queues: Annotated[
        int, Field(description="In how many queues something was due; of many only the latest are told of")
    ]
    cells: list[LatenessCellView]


@routes.get("/v1/lateness", LatenessMapView)
async def get_lateness(
    api: Asked,
    own: Own,
    since: Annotated[Instant | None, Query(alias="from", description="Due then or later; default: a day ago")] = None,
    until: Annotated[Instant | None, Query(alias="to", description="Due before; default: now")] = None,
    queue: Annotated[str | None, Query(max_length=600, description="Only this queue")] = None,
    most_queues: Annotated[int, Query(ge=1, le=1_000, description="Of more queues, only those that were latest")] = 100,
) -> Response:
    """Return how late tasks started, per queue and five minutes of scheduled time, for at most seven days. The source is the tables."""
    now = now_us()
    start = to_us(since) if since is not None else now - DAY_US
    stop = to_us(until) if until is not None else now
    if not start < stop <= start + MOST_US:
        raise ArgumentError("The window is empty, or wider than seven days.", hint="Pass from and to, e.g. of one day.")
    found = await api.slowly(lambda: api.lateness.cells(start, stop, now))
    rows = [row for row in found if own.has(row["queue"])]
    latest = _latest([row for row in rows if queue in (None, row["queue"])], now)
    told = set(latest[:most_queues])
    moments = {at_us: iso(at_us) for at_us in {row["at_us"] for row in rows}}  # a stretch is that of many queues
    cells = [_cell(row, moments[row["at_us"]], now) for row in rows if row["queue"] in told]
    return answer(
        {"begin": iso(start), "end": iso(stop), "step_ms": STEP_US // 1000, "queues": len(latest), "cells": cells}
    )


def _latest(rows: list[dict[str, Any]], now: int) -> list[str]:
    """Names of queues, the latest first."""
    late: dict[str, int] = {}
    for row in rows:
        waits = now - row["open_since_us"] if row["open_since_us"] is not None else 0
        late[row["queue"]] = max(late.get(row["queue"], 0), row["p99_us"] or 0, waits)
    return sorted(late, key=lambda name: (-late[name], name))


def _cell(row: dict[str, Any], at: str, now: int) -> dict[str, Any]:
    since = row["open_since_us"]
    return {
        "queue": row["queue"],
        "at": at,
        "started": row["started"],
        "p50_ms": _ms(row["p50_us"]),
        "p99_ms": _ms(row["p99_us"]),
        "worst_ms": _ms(row["worst_us"]),
        "open": row["open"],
        "open_ms": None if since is None else _ms(now - since),
    }


def _ms(us: int | None) -> float | None:
    return None if us is None else us / 1000
