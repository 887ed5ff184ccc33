"""Routes of many tasks: pages, counts, and what is done to all that a filter chooses."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Depends, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from scylla_spark.api.context import Api, Asked, Instant, Own, Routes, answer, iso_us
from scylla_spark.api.tasks.actions import Grace, Running, grace_of
from scylla_spark.api.tasks.views import RunView
from scylla_spark.client.tasks import enqueue_arguments
from scylla_spark.clock import iso, now_us
from scylla_spark.core.access.scopes import QueueBounds
from scylla_spark.core.records.command import CANCEL, Command
from scylla_spark.core.tasks.filter import OneOf, TaskFilter, read_filter, without_fields
from scylla_spark.core.tasks.key import TaskKey, id_of
from scylla_spark.core.tasks.state import READY
from scylla_spark.core.tasks.status_view import run_view
from scylla_spark.core.tasks.task import CANCELLED
from scylla_spark.errors import ArgumentError
from scylla_spark.io.delta.task_commands import stored_commands
from scylla_spark.io.delta.task_pages import Urgency
from scylla_spark.task_states import ENDED, OPEN, State

routes = Routes()

_SENT_AT_ONCE = 5_000
_DIGITS = 19  # of what fits into 64 bits
_CLOCKS_US = 5_000_000  # by which clocks may differ: who ends a task tells when
_PLAIN = (
    "state", "queue", "handler", "priority", "attempts", "cancel_requested", "error_class", "name", "enqueued_by",
)  # fmt: skip
_OF_OPEN = ("state", "late", "ended", "error", "fingerprint")
_HINT = "FIELD:VALUE terms, such as `state:failed queue:mail late:>5m scheduled:<2026-12-01`"
Filter = Annotated[str, Query(max_length=4_000, description=f"Which tasks: {_HINT}; empty: all")]
NeededFilter = Annotated[str, Query(min_length=1, max_length=4_000, description=f"Which tasks: {_HINT}")]
DryRun = Annotated[bool, Query(description="Only count what would be done")]
AsOf = Annotated[Instant | None, Query(description="As it was then, as far as the rows of the tables tell")]


class ListedView(RunView):
    """The status of a task, from the tables."""

    state: State
    reason: Annotated[
        str | None,
        Field(
            description="no_handler: it is due, and its dispatcher does not have its handler; no_worker: it is due, and there is no "
            "Spark worker; null: none"
        ),
    ]
    queue: str
    handler: str | None
    priority: int | None
    attempts: int
    next_attempt_at: str | None
    enqueued_at: str | None
    ended_at: str | None
    cancel_requested: bool
    error_class: str | None
    tags: list[str]
    name: Annotated[str | None, Field(description="A title for people")]
    enqueued_by: Annotated[
        str | None,
        Field(
            description="Who enqueued it, as its record claims; `enqueued_by_verified` of the task shows if that is proven"
        ),
    ]


class PageView(BaseModel):
    """Tasks in the order that was asked for."""

    tasks: list[ListedView]
    next: Annotated[str | None, Field(description="The `cursor` of the next page; null: there is none")]


class CountView(BaseModel):
    """The number of tasks that match a filter."""

    matched: int


class TotalView(BaseModel):
    """The number of tasks of a queue in a state."""

    queue: str
    state: State
    count: int


class TotalsView(BaseModel):
    """The number of tasks of each queue by state."""

    totals: list[TotalView]


class BulkActionView(BaseModel):
    """The result of an action on all tasks that match a filter."""

    matched: int
    sent: Annotated[int, Field(description="Commands that Kafka has acknowledged; 0 with `dry_run`")]
    dry_run: bool
    undo: Annotated[
        str | None,
        Field(
            description="After a cancel: a filter of what it has ended, for `:restore`; null: there is nothing to undo"
        ),
    ] = None


async def _fresh_handlers(api: Asked) -> None:
    await api.handlers.fresh()


@routes.get("/v1/tasks", PageView)
async def list_tasks(
    api: Asked,
    own: Own,
    _handlers: Annotated[None, Depends(_fresh_handlers)],
    filter: Filter = "",
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    cursor: Annotated[str | None, Query(description="`next` of the page before")] = None,
    as_of: AsOf = None,
    order: Annotated[
        Literal["key", "newest", "urgency"],
        Query(
            description="newest: the latest keys first; urgency: the highest priority first, of equals the newest; each page of the latter "
            "looks at all that a filter chooses"
        ),
    ] = "key",
) -> Response:
    """List tasks in the order of their keys, in reverse order, or by urgency. Tables lag behind by at most the trigger of ingest."""
    return await api.paged(limit, lambda: _page(api, _wanted(filter, own, now_us()), limit, cursor, as_of, order))


@routes.get("/v1/tasks:count", CountView)
def count_tasks(api: Asked, own: Own, filter: Filter = "", as_of: AsOf = None) -> Response:
    """Count the tasks that match a filter."""
    now = now_us()
    return answer({"matched": api.pages.count(_wanted(filter, own, now), now=now, as_of_us=_us(as_of))})


@routes.get("/v1/tasks:totals", TotalsView)
def get_task_totals(api: Asked, own: Own, filter: Filter = "", as_of: AsOf = None) -> Response:
    """Count the tasks of each queue by state."""
    now = now_us()
    return answer({"totals": api.pages.totals(_wanted(filter, own, now), now=now, as_of_us=_us(as_of))})


@routes.post("/v1/tasks:cancel", BulkActionView)
async def cancel_tasks(
    api: Asked,
    own: Own,
    filter: NeededFilter,
    dry_run: DryRun = False,
    running: Running = False,
    grace_ms: Grace = None,
) -> Response:
    """Send a cancel for every open task that matches a filter. The answer does not wait until they have ended.

    Tasks leased by workers end at once. Tasks that a dispatcher runs go on, unless `running` is set.
    """
    now, grace = now_us(), grace_of(grace_ms, running=running)
    wanted = _with_states(_wanted(filter, own, now), OPEN)
    done = await api.at_length(lambda: _done(api, wanted, now, partial(_cancels, grace), dry_run=dry_run))
    return answer(done | {"undo": _undo(filter, now) if done["sent"] else None})


@routes.post("/v1/tasks:retry", BulkActionView)
async def retry_tasks(api: Asked, own: Own, filter: NeededFilter, dry_run: DryRun = False) -> Response:
    """Enqueue every ended task that matches a filter once more, due now, under new keys."""
    now = now_us()
    wanted = _with_states(_wanted(filter, own, now), ENDED)
    return answer(await api.at_length(lambda: _done(api, wanted, now, _copies, dry_run=dry_run)))


@routes.post("/v1/tasks:restore", BulkActionView)
async def restore_tasks(api: Asked, own: Own, filter: NeededFilter, dry_run: DryRun = False) -> Response:
    """Enqueue every cancelled task that matches a filter once more, under a new key.

    It is due at its own time, or now if that has passed.
    """
    now = now_us()
    wanted = _with_states(_wanted(filter, own, now), (CANCELLED,))
    return answer(await api.at_length(lambda: _done(api, wanted, now, _restored, dry_run=dry_run)))


def _urgency(row: dict[str, Any]) -> str:
    """The cursor behind a task: its priority, when it was enqueued, and its id."""
    return f"{row['priority'] or 0}.{row['enqueued_at'] or 0}.{id_of(_key(row))}"


def _urgency_of(cursor: str) -> Urgency:
    """Reads a cursor.

    Raises:
        ArgumentError: it is none of this order.
    """
    priority, enqueued, id = [*cursor.split(".", 2), "", ""][:3]
    if not (_is_number(priority) and _is_number(enqueued) and id):
        raise ArgumentError("The cursor is not one of a list by urgency.", hint="Pass `next` of the page before.")
    return Urgency(int(priority), int(enqueued), TaskKey.parse(id))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < _DIGITS


def _page(api: Api, wanted: TaskFilter, limit: int, cursor: str | None, as_of: datetime | None, order: str) -> Response:
    now = now_us()
    if order == "urgency":
        behind = _urgency_of(cursor) if cursor is not None else None
        rows = api.pages.urgent_page(wanted, limit, now=now, after=behind, as_of_us=_us(as_of))
        return answer(
            {"tasks": [_listed(api, row) for row in rows], "next": _urgency(rows[-1]) if len(rows) == limit else None}
        )
    after = TaskKey.parse(cursor) if cursor is not None else None
    if order == "newest":
        rows = api.pages.newest_page(wanted, limit, now=now, before=after, as_of_us=_us(as_of))
    else:
        rows = api.pages.page(wanted, limit, now=now, after=after, as_of_us=_us(as_of))
    last = id_of(_key(rows[-1])) if len(rows) == limit else None
    return answer({"tasks": [_listed(api, row) for row in rows], "next": last})


def _wanted(text: str, own: QueueBounds, now: int) -> TaskFilter:
    """Reads a filter, limited to the queues of the caller. The limit applies while rows are read, so that pages stay full."""
    return read_filter(text, now)._replace(queues=own)


def _done(api: Api, wanted: TaskFilter, now: int, make: Any, *, dry_run: bool) -> dict[str, Any]:
    """Counts first, then does it: what comes meanwhile is left alone."""
    found = list(api.pages.keys(wanted, now=now))
    done: dict[str, Any] = {"matched": sum(map(len, found)), "sent": 0, "dry_run": dry_run, "undo": None}
    if dry_run:
        return done
    sender = api.scheduler.connection.sender
    for keys in found:
        for start in range(0, len(keys), _SENT_AT_ONCE):
            some = [sender.begin(sender.record(one)) for one in make(api, keys[start : start + _SENT_AT_ONCE])]
            sender.finish(some)
            done["sent"] += len(some)
    return done


def _undo(text: str, now: int) -> str:
    """A filter of what was cancelled since a moment and is chosen by a filter, but for what holds of open tasks alone."""
    kept = without_fields(text, _OF_OPEN)
    return f"{kept} state:cancelled ended:>={iso(now - _CLOCKS_US)}".strip()


def _cancels(grace_ms: int | None, _api: Api, keys: list[TaskKey]) -> Iterator[Command]:
    return (Command(CANCEL, key, 0, enqueued_us=now_us(), grace_ms=grace_ms) for key in keys)


def _copies(api: Api, keys: list[TaskKey]) -> Iterator[Command]:
    for old in stored_commands(api.scheduler.connection.readers, keys):
        yield enqueue_arguments.retried(old, now_us())


def _restored(api: Api, keys: list[TaskKey]) -> Iterator[Command]:
    for old in stored_commands(api.scheduler.connection.readers, keys):
        yield enqueue_arguments.restored(old, now_us())


def _with_states(wanted: TaskFilter, states: Any) -> TaskFilter:
    """The same, of tasks in these states.

    Raises:
        ArgumentError: it chooses everything.
    """
    if not wanted.conditions:
        raise ArgumentError(
            "The filter is empty.", hint="To select all tasks, use state:open, state:ended or state:cancelled."
        )
    return wanted._replace(conditions=(*wanted.conditions, OneOf("state", tuple(states))))


def _listed(api: Api, row: dict[str, Any]) -> dict[str, Any]:
    reason = api.handlers.reason(row["queue"], row["handler"]) if row["state"] == READY else None
    plain = {name: row[name] for name in _PLAIN}
    times = {name: iso_us(row[name]) for name in ("next_attempt_at", "enqueued_at", "ended_at")}
    return run_view(_key(row)) | plain | times | {"tags": row["tags"] or [], "reason": reason}


def _key(row: dict[str, Any]) -> TaskKey:
    return TaskKey(row["scheduled_time"], row["ordering_id"], row["uniqueness_key"])


def _us(moment: Any) -> int | None:
    from scylla_spark.clock import to_us

    return None if moment is None else to_us(moment)
