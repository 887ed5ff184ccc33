"""What the planner has recorded, as rows of the tables that people query, such as `schedules`, `fires` and `queues`."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

from scylla_spark.clock import iso
from scylla_spark.core.plan.notices.state import RULE
from scylla_spark.core.plan.state.audit_entry import AUDIT, read_audit_change
from scylla_spark.core.plan.state.plan_log import Change, Group
from scylla_spark.core.plan.state.stored_definition import QUEUE, read_definition_change
from scylla_spark.core.plan.state.stored_token import TOKEN, read_token_change
from scylla_spark.definitions.definition import Definition
from scylla_spark.definitions.notification_rule import NotificationRule
from scylla_spark.definitions.queue import Queue
from scylla_spark.schemas import (
    AUDIT_TRAIL,
    CALENDARS,
    FIRES,
    JOBS,
    NOTIFICATION_RULES,
    QUEUES,
    REJECTED,
    SCHEDULES,
    TOKENS,
    Table,
)

PLAN_TABLES: Final = {
    table.name: table for table in (SCHEDULES, JOBS, FIRES, CALENDARS, QUEUES, TOKENS, NOTIFICATION_RULES, AUDIT_TRAIL)
}
REFUSED: Final = "plan_rejected"
"""The kind of rows that go to `rejected`."""
KINDS: Final[dict[str, Table]] = {**PLAN_TABLES, REFUSED: REJECTED}


class PlanRow(NamedTuple):
    """One row.

    Attributes:
        kind: of `KINDS`: which table it is for.
        text: its cells, a JSON object.
    """

    kind: str
    text: str


def plan_rows(group: Group, offset: int) -> Iterator[PlanRow]:
    """The rows of one record that counts.

    Args:
        group: what it says.
        offset: of the record.
    """
    for change in group.changes:
        make = _ROWS.get(change[0])
        for kind, cells in make(change, group.at_us) if make is not None else ():
            known = {name: value for name, value in cells.items() if value is not None}
            yield PlanRow(kind, json.dumps(known | {"plan_offset": offset}, ensure_ascii=False))


def _put(change: Change, at_us: int) -> Iterator[tuple[str, dict[str, Any]]]:
    fields = change[2]
    yield (
        SCHEDULES.name,
        {
            "name": change[1],
            "revision": fields["revision"],
            "changed_at": iso(fields["changed_us"]),
            "change": "put",
            "until": _iso(fields.get("until_us", 0)),
            "definition": fields["text"],
            "handler": fields["handler"],
            "paused": fields["paused"],
            "note": fields["note"],
            "author": fields["author"],
        },
    )


def _set(change: Change, at_us: int) -> Iterator[tuple[str, dict[str, Any]]]:
    fields = change[2]
    if "paused" in fields:
        until_us = fields["until_us"]
        yield (
            SCHEDULES.name,
            {
                "name": change[1],
                "changed_at": iso(fields["changed_us"]),
                "change": "paused" if fields["paused"] else "resumed",
                "paused": fields["paused"],
                "until": iso(until_us) if until_us else None,
                "note": fields["note"],
                "author": fields["author"],
            },
        )


def _drop(change: Change, at_us: int) -> Iterator[tuple[str, dict[str, Any]]]:
    fields = change[2]
    yield (
        SCHEDULES.name,
        {
            "name": change[1],
            "revision": fields["revision"],
            "changed_at": iso(fields["at_us"]),
            "change": "removed",
            "author": fields["author"],
        },
    )


def _job(change: Change, at_us: int) -> Iterator[tuple[str, dict[str, Any]]]:
    job, common = change[3], {"schedule": change[1], "generation": change[2], "changed_at": iso(at_us)}
    if job is None:
        yield JOBS.name, {**common, "state": "joined"}
        return
    yield (
        JOBS.name,
        {
            **common,
            "state": job["state"],
            "planned_at": _iso(job["planned_us"]),
            "seen": json.dumps(job["latches"], ensure_ascii=False),
        },
    )


def _fire(change: Change, at_us: int) -> Iterator[tuple[str, dict[str, Any]]]:
    fire = change[2]
    key = fire.get("key")
    task = {"scheduled_time": iso(key[0]), "ordering_id": key[1], "uniqueness_key": key[2]} if key else {}
    common = {
        "schedule": change[1],
        "generation": fire.get("generation") or None,
        "revision": fire["revision"],
        "planned_at": _iso(fire["planned_us"]),
    }
    yield (
        FIRES.name,
        {
            **common,
            **task,
            "until_at": _iso(fire.get("until_us", 0)),
            "decided_at": iso(fire["at_us"]),
            "verdict": fire["verdict"],
            "why": fire["why"],
            "by_hand": fire.get("by_hand", False),
            "values": fire.get("values"),
        },
    )
    if fire.get("ends_job", True) and fire.get("generation"):
        yield JOBS.name, {**common, **task, "state": fire["verdict"], "changed_at": iso(fire["at_us"])}


def _end(change: Change, at_us: int) -> Iterator[tuple[str, dict[str, Any]]]:
    _, name, generation, outcome, started_us, finished_us, key = change[:7]
    yield (
        JOBS.name,
        {
            "schedule": name,
            "generation": generation,
            "state": "ended",
            "changed_at": iso(at_us),
            "outcome": outcome,
            "started_at": _iso(started_us),
            "finished_at": _iso(finished_us),
            "scheduled_time": iso(key[0]),
            "ordering_id": key[1],
            "uniqueness_key": key[2],
        },
    )


def _calendar(change: Change, at_us: int) -> Iterator[tuple[str, dict[str, Any]]]:
    notes = change[3] if len(change) > 3 else {}
    for day in change[2] or [None]:
        yield CALENDARS.name, {"name": change[1], "day": day, "note": notes.get(day), "changed_at": iso(at_us)}


def _defined(table: Table, model: type[Definition]) -> Callable[[Change, int], Iterator[tuple[str, dict[str, Any]]]]:
    """Makes rows of changes of definitions. Fields of the model that the table has as columns are cells of their own."""
    own = {column.name for column in table.columns} & (model.model_fields.keys() - {"name"})

    def rows(change: Change, at_us: int) -> Iterator[tuple[str, dict[str, Any]]]:
        read = read_definition_change(change)
        cells: dict[str, Any] = {
            "name": read.name,
            "revision": read.revision,
            "changed_at": iso(read.changed_us),
            "deleted": read.stored is None,
            "author": read.author,
            "request_id": read.request,
        }
        if read.stored is not None:
            cells["definition"] = read.stored.text
            with suppress(ValueError):  # only a newer version can read it
                values = model.of(json.loads(read.stored.text)).values
                cells |= {name: values[name] for name in own}
        yield table.name, cells

    return rows


def _token(change: Change, at_us: int) -> Iterator[tuple[str, dict[str, Any]]]:
    id, stored = read_token_change(change)
    common = {
        "id": id,
        "changed_at": iso(at_us),
        "deleted": stored is None,
        "author": change[2]["author"],
        "request_id": change[2].get("request", ""),
    }
    if stored is None:
        yield TOKENS.name, common
        return
    yield (
        TOKENS.name,
        {
            **common,
            "name": stored.name,
            "scopes": json.dumps(stored.scopes),
            "namespaces": json.dumps(stored.namespaces),
            "expires_at": iso(stored.expires_us) if stored.expires_us is not None else None,
            "revoked": stored.revoked,
        },
    )


def _refuse(change: Change, at_us: int) -> Iterator[tuple[str, dict[str, Any]]]:
    _, offset, append_us, reason, detail, text, size = change
    yield (
        REFUSED,
        {
            "day": iso(append_us)[:10],
            "topic": "schedules",
            "partition_id": 0,
            "offset": offset,
            "appended_at": iso(append_us),
            "reason": reason,
            "detail": detail,
            "value": b64encode(text.encode()).decode(),
            "value_bytes": size,
        },
    )


def _audit(change: Change, at_us: int) -> Iterator[tuple[str, dict[str, Any]]]:
    entry = read_audit_change(change)
    yield AUDIT_TRAIL.name, {"at": iso(entry.at_us), **{name: entry._asdict()[name] for name in entry._fields[1:]}}


def _iso(us: int) -> str | None:
    return iso(us) if us else None


_ROWS: Final[dict[str, Callable[[Change, int], Iterator[tuple[str, dict[str, Any]]]]]] = {
    "put": _put,
    "set": _set,
    "drop": _drop,
    "job": _job,
    "fire": _fire,
    "end": _end,
    "calendar": _calendar,
    QUEUE: _defined(QUEUES, Queue),
    TOKEN: _token,
    RULE: _defined(NOTIFICATION_RULES, NotificationRule),
    "refuse": _refuse,
    AUDIT: _audit,
}
