"""Routes of refused records: which they are, and how to send them again."""

from __future__ import annotations

import base64
from codecs import getincrementaldecoder
from typing import Annotated, Any, Final

from fastapi import Path, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from scylla_spark.api import problems
from scylla_spark.api.context import Api, Asked, Instant, Routes, answer, iso_us
from scylla_spark.api.schedules.definitions import name_of
from scylla_spark.client.tasks.resend_rejected import repaired
from scylla_spark.clock import now_us, to_us
from scylla_spark.errors import NotFoundError
from scylla_spark.io.delta.rejected_records import Beginnings, Place, RejectedRecords, place_of

routes = Routes()

_SHOWN: Final = Beginnings(each=1024, read=64 * 1024 * 1024, told=4 * 1024 * 1024)

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
    value: Annotated[
        str | None,
        Field(description="The value, likewise: in lists the first KiB; null in those beyond 4 MiB of such values"),
    ]
    value_base64: Annotated[str | None, Field(description="The same exactly, where it is no UTF-8")]
    value_bytes: Annotated[int | None, Field(description="How long the value is")]
    value_is_cut: Annotated[
        bool, Field(description="There is more of it: ask for the one record, of which the tables have the first MiB")
    ]


class RejectedPageView(BaseModel):
    """Refused records, the newest first."""

    rejected: list[RejectedView]


class ReplayView(BaseModel):
    """The result of a replay of rejected records."""

    matched: int
    sent: int
    refused_again: int
    dry_run: bool


@routes.get("/v1/rejected", RejectedPageView)
async def list_rejected_records(api: Asked, reason: Reason = None, since: Since = None, limit: Limit = 100) -> Response:
    """List rejected records, newest first, with the beginnings of their values."""
    return answer({"rejected": await api.slowly(lambda: _page(api, reason, since, limit))})


@routes.get("/v1/rejected/{topic}/{partition}/{offset}", RejectedView, problems.NOT_FOUND)
async def get_rejected_record(
    api: Asked,
    topic: Annotated[str, Path(min_length=1, max_length=750)],
    partition: Annotated[int, Path(ge=0, lt=2**31)],
    offset: Annotated[int, Path(ge=0, lt=2**63)],
) -> Response:
    """Return one rejected record. Its value is at most the first MiB, as the tables have it."""
    place = Place(name_of(topic), partition, offset)
    row = await api.slowly(lambda: _records(api).one(place))
    if row is None:
        raise NotFoundError("There is no such rejected record, or it was purged.", hint="GET /v1/rejected lists them.")
    return answer(_shown(row, row["value"]))


@routes.post("/v1/rejected:replay", ReplayView)
async def replay_rejected_records(
    api: Asked,
    reason: Reason = None,
    since: Since = None,
    limit: Limit = 100,
    now: Annotated[bool, Query(description="They are due now, instead of at their own times")] = False,
    dry_run: Annotated[bool, Query(description="Only count")] = False,
) -> Response:
    """Send rejected records of the topic `tasks` again, with the right key and partition.

    Records that would be rejected again are skipped.
    """
    return answer(
        await api.at_length(lambda: _replayed(api, _chosen(api, reason, since, limit), reschedule=now, dry_run=dry_run))
    )


def _replayed(api: Api, rows: list[dict[str, Any]], *, reschedule: bool, dry_run: bool) -> dict[str, Any]:
    """Reads, judges and sends some at a time: their values may be a MiB each."""
    connection, moment, good = api.scheduler.connection, now_us(), 0
    for portion in _records(api).whole(rows):
        judged = (repaired(row["value"], connection.rules, moment, reschedule=reschedule) for row in portion)
        some = [one for one in judged if not isinstance(one, str)]
        good += len(some)
        if not dry_run:
            connection.sender.finish([connection.sender.begin(record) for record in some])
    return {"matched": len(rows), "sent": 0 if dry_run else good, "refused_again": len(rows) - good, "dry_run": dry_run}


def _records(api: Api) -> RejectedRecords:
    return RejectedRecords(api.scheduler.connection.readers)


def _chosen(api: Api, reason: str | None, since: Any, limit: int) -> list[dict[str, Any]]:
    return _records(api).chosen(limit, reason=reason, since_us=None if since is None else to_us(since))


def _page(api: Api, reason: str | None, since: Any, limit: int) -> list[dict[str, Any]]:
    rows = _chosen(api, reason, since, limit)
    values = _records(api).beginnings(rows, _SHOWN)
    return [_shown(row, values.get(place_of(row))) for row in rows]


def _shown(row: dict[str, Any], value: bytes | None) -> dict[str, Any]:
    is_cut = (row["value_bytes"] or 0) > len(value or b"")
    value = whole_characters(value) if is_cut and value else value
    return {
        "topic": row["topic"],
        "partition": row["partition_id"],
        "offset": str(row["offset"]),
        "appended_at": iso_us(row["appended_at"]),
        "reason": row["reason"],
        "detail": row["detail"],
        "key": _text(row["key"]),
        "value": _text(value),
        "value_base64": _exact(value),
        "value_bytes": row["value_bytes"],
        "value_is_cut": is_cut,
    }


def whole_characters(raw: bytes) -> bytes:
    """A beginning of UTF-8 without the character at its end that is not complete."""
    decoder = getincrementaldecoder("utf-8")("replace")
    decoder.decode(raw)
    return raw[: len(raw) - len(decoder.getstate()[0])]


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("utf-8", "replace")


def _exact(raw: bytes | None) -> str | None:
    """The bytes, where text cannot say them."""
    if raw is None or raw.decode("utf-8", "replace").encode() == raw:
        return None
    return base64.b64encode(raw).decode()
