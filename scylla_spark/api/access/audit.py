"""The route of the audit trail: who changed what over HTTP, and who was not allowed to."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from scylla_spark.api.context import Api, Asked, Instant, Routes, answer
from scylla_spark.clock import from_us, to_us
from scylla_spark.schemas import AUDIT_TRAIL

routes = Routes()


class AuditEntryView(BaseModel):
    """Something that was asked for, and changes something."""

    at: Annotated[datetime, Field(description="When it was answered")]
    token: Annotated[str, Field(description="Id of the token; empty: none that holds was shown")]
    name: Annotated[str, Field(description="Of the token")]
    operation: Annotated[str, Field(description="`operationId` of this description")]
    method: str
    path: Annotated[str, Field(description="Its first 300 characters")]
    status: Annotated[int, Field(description="Of the answer; 0: the caller was gone")]
    client: Annotated[str, Field(description="Network address")]


class AuditView(BaseModel):
    """The newest first; what was asked for in the last seconds may not be there yet."""

    entries: list[AuditEntryView]


@routes.get("/v1/audit", AuditView)
async def list_audit_log(
    api: Asked,
    since: Annotated[Instant | None, Query(description="Answered then or later")] = None,
    before: Annotated[Instant | None, Query(description="Answered before that: for the page behind")] = None,
    token: Annotated[str | None, Query(max_length=300, description="Id of a token")] = None,
    operation: Annotated[str | None, Query(max_length=300)] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
) -> Response:
    """List changes and refused requests, from the tables. Enqueues and calls of workers are not included."""
    times = (None if since is None else to_us(since), None if before is None else to_us(before))
    return answer(
        {"entries": await api.slowly(lambda: _found(api, times, {"token": token, "operation": operation}, limit))}
    )


def _found(
    api: Api, times: tuple[int | None, int | None], wanted: dict[str, str | None], limit: int
) -> list[dict[str, Any]]:
    import polars as pl

    readers = api.scheduler.connection.readers
    if not readers.exists(AUDIT_TRAIL):  # tables of an older version
        return []
    since, before = times
    conditions = [pl.col(name) == value for name, value in wanted.items() if value is not None]
    conditions += [pl.col("at") >= from_us(since)] if since is not None else []
    conditions += [pl.col("at") < from_us(before)] if before is not None else []
    rows = readers.frame(AUDIT_TRAIL).filter(*conditions).top_k(limit, by=["at", "plan_offset"]).collect()
    newest = rows.drop("plan_offset").sort("at", descending=True, maintain_order=True)
    return newest.to_dicts()
