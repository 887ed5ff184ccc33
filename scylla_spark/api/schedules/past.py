"""The route of schedules as they were at a moment, by the tables: what each was defined to do, and whether it was paused."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Any, Final, Literal

from fastapi import Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from scylla_spark.api.context import Asked, Instant, Own, Routes, answer, iso_us
from scylla_spark.client.schedules.trigger_words import brief, in_words
from scylla_spark.clock import iso, to_us
from scylla_spark.core.access.scopes import QueueBounds
from scylla_spark.core.plan.schedule_format import read_schedule
from scylla_spark.defaults import DEFAULT_QUEUE
from scylla_spark.errors import ArgumentError
from scylla_spark.io.delta.plan_queries import PlanQueries, Row

routes = Routes()

_STATE: Final = ("paused", "until", "note", "author", "changed_at")


class PastScheduleView(BaseModel):
    """The state and the definition of a schedule at a past time."""

    name: str
    state: Annotated[
        Literal["active", "paused"], Field(description="One that had completed is active: no row tells that")
    ]
    handler: str | None
    trigger: Annotated[str, Field(description="In short; empty where this version cannot read the definition")]
    words: Annotated[str, Field(description="The trigger in words; likewise")]
    note: str
    until: Annotated[str | None, Field(description="When its pause was to end by itself")]
    owner: str
    tags: list[str]
    author: Annotated[str, Field(description="Who had changed it last")]
    changed_at: str
    revision: int | None


class PastSchedulesView(BaseModel):
    """Schedules by name, as they stood at a moment."""

    as_of: str
    schedules: list[PastScheduleView]
    next: Annotated[str | None, Field(description="The `after` of the next page; null: there is none")]


@routes.get("/v1/schedules:past", PastSchedulesView)
async def list_past_schedules(
    api: Asked,
    own: Own,
    as_of: Annotated[Instant, Query(description="As they were then, as far as the rows of the tables tell")],
    after: Annotated[str | None, Query(description="Only names after this one")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000,
) -> Response:
    """List schedules as they were defined at a given time, from the tables, without next times and runs."""
    connection = api.scheduler.connection
    queries = PlanQueries(connection.readers, connection.rules.partitions)
    stood = standing(await api.slowly(lambda: queries.schedule_changes(to_us(as_of))))
    names = (name for name in sorted(stood) if (after is None or name > after) and _is_of(stood[name], own))
    some = list(islice(names, limit + 1))
    rows = [_view(stood[name]) for name in some[:limit]]
    return answer(
        {"as_of": iso(to_us(as_of)), "schedules": rows, "next": some[limit - 1] if len(some) > limit else None}
    )


def standing(changes: Iterable[Row]) -> dict[str, Row]:
    """The schedules that are there after some changes: name → the row of its definition, with what was changed of its state since.

    Args:
        changes: rows of the table `schedules`, the oldest first.
    """
    found: dict[str, Row] = {}
    for row in changes:
        name, change = row["name"], row["change"]
        if change == "removed":
            found.pop(name, None)
        elif change == "put":
            found[name] = row
        elif name in found:  # else its definition is older than the tables
            found[name] = found[name] | {field: row[field] for field in _STATE}
    return found


def _is_of(row: Row, own: QueueBounds) -> bool:
    return own.has(_definition(row).get("queue", DEFAULT_QUEUE))


def _definition(row: Row) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(row["definition"] or "{}")
    return found


def _view(row: Row) -> dict[str, Any]:
    definition = _definition(row)
    try:
        trigger = read_schedule(definition).trigger
        words = {"trigger": brief(trigger), "words": in_words(trigger)}
    except ArgumentError:
        words = {"trigger": "", "words": ""}
    return words | {
        "name": row["name"],
        "state": "paused" if row["paused"] else "active",
        "handler": row["handler"],
        "note": row["note"] or "",
        "until": iso_us(row["until"]),
        "owner": definition.get("owner") or "",
        "tags": list(definition.get("tags") or ()),
        "author": row["author"] or "",
        "changed_at": iso(row["changed_at"]),
        "revision": row["revision"],
    }
