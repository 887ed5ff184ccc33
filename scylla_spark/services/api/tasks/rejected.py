"""Routes of refused records: which they are, and how to send them again."""

from __future__ import annotations

import base64
from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from scylla_spark.client.tasks.resend_rejected import repaired
from scylla_spark.clock import now_us, to_us
from scylla_spark.io.delta.task_queries import TaskQueries
from scylla_spark.services.api import problems
from scylla_spark.services.api.context import Api, Asked, Instant, answer, answers, iso_us, router

routes = router()

Reason = Annotated[str | None, Query(max_length=100, description="Only this reason code")]
Since = Annotated[Instant | None, Query(description="Appended at or after this")]
Limit = Annotated[int, Query(ge=1, le=10_000)]


class RejectedView(BaseModel):
    """A refused record."""

    topic: str
    partition: int
    offset: Annotated[str, Field(description="As text: offsets grow beyond 2^53")]
    appended_at: str | None
    reason: str
    detail: str | None
    key: Annotated[str | None, Field(description="The Kafka key, what of it is no UTF-8 replaced")]
    value: Annotated[str | None, Field(description="The first MiB of the value, likewise")]
    value_base64: Annotated[str | None, Field(description="The same exactly, where it is no UTF-8")]


class RejectedPageView(BaseModel):
    """Refused records, the newest first."""

    rejected: list[RejectedView]


class ReplayView(BaseModel):
    """What became of refused records."""

    matched: int
    sent: int
    refused_again: int
    dry_run: bool


@routes.get(
    "/v1/rejected", operation_id="list_refused_records", responses=answers({200: RejectedPageView}, problems.INVALID)
)
def page(api: Asked, reason: Reason = None, since: Since = None, limit: Limit = 100) -> Response:
    """Refused records, the newest first."""
    return answer({"rejected": [_shown(row) for row in _found(api, reason, since, limit)]})


@routes.post(
    "/v1/rejected:replay",
    operation_id="send_refused_records_again",
    responses=answers({200: ReplayView}, problems.INVALID),
)
async def replay(
    api: Asked, reason: Reason = None, since: Since = None, limit: Limit = 100,
    now: Annotated[bool, Query(description="They are due now, instead of at their own times")] = False,
    dry_run: Annotated[bool, Query(description="Only count")] = False,
) -> Response:  # fmt: skip
    """Send refused records of the topic `tasks` again, under the right key and partition; those that would be refused again are left."""
    return answer(
        await api.at_length(lambda: _replayed(api, _found(api, reason, since, limit), reschedule=now, dry_run=dry_run))
    )


def _replayed(api: Api, rows: list[dict[str, Any]], *, reschedule: bool, dry_run: bool) -> dict[str, Any]:
    connection, moment = api.scheduler.connection, now_us()
    judged = [repaired(row["value"], connection.rules, moment, reschedule=reschedule) for row in rows]
    good = [one for one in judged if not isinstance(one, str)]
    if not dry_run:
        connection.sender.finish([connection.sender.begin(record) for record in good])
    sent = 0 if dry_run else len(good)
    return {"matched": len(rows), "sent": sent, "refused_again": len(rows) - len(good), "dry_run": dry_run}


def _found(api: Api, reason: str | None, since: Any, limit: int) -> list[dict[str, Any]]:
    queries = TaskQueries(api.scheduler.connection.readers)
    return queries.rejected(limit, reason=reason, since_us=None if since is None else to_us(since))


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "topic": row["topic"], "partition": row["partition_id"], "offset": str(row["offset"]),
        "appended_at": iso_us(row["appended_at"]), "reason": row["reason"], "detail": row["detail"], "key": _text(row["key"]),
        "value": _text(row["value"]), "value_base64": _exact(row["value"]),
    }  # fmt: skip


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("utf-8", "replace")


def _exact(raw: bytes | None) -> str | None:
    """The bytes, where text cannot say them."""
    if raw is None or raw.decode("utf-8", "replace").encode() == raw:
        return None
    return base64.b64encode(raw).decode()
