"""Routes of queues: their definitions, which every dispatcher obeys within a second, and how many tasks they have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Body as JsonBody
from fastapi import Path, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from scylla_spark.api import problems
from scylla_spark.api.context import Api, Asked, Instant, Own, Routes, answer
from scylla_spark.api.revisions import ANY, ask, check, etag
from scylla_spark.api.schedules.definitions import Author, IfMatch, name_of
from scylla_spark.api.tasks.actions import Grace, Running, grace_of
from scylla_spark.client.queues.handle import QueueStatus, statuses, warning_of_delete
from scylla_spark.client.queues.queue import Queue
from scylla_spark.client.queues.tasks import QueueTasks
from scylla_spark.client.schedules.trigger_shorthand import camel
from scylla_spark.clock import now_us, to_us
from scylla_spark.core.plan.state.stored_definition import StoredDefinition
from scylla_spark.core.queues.definition import read_queue
from scylla_spark.core.tasks.filter import DAY_US
from scylla_spark.errors import ArgumentError, NotFoundError
from scylla_spark.io.delta.queue_stats import QueueStats
from scylla_spark.services.simulate.what_if import Question

routes = Routes()

Name = Annotated[
    str, Path(min_length=1, max_length=600, description="Name of the queue, percent-encoded: %2F for a slash")
]
Fields = Annotated[
    dict[str, Any],
    JsonBody(
        description="Fields of a queue, in snake_case or camelCase; null is a value: no limit, of `max_retries` for ever",
        examples=[{"concurrency": 5, "rate": 10}],
    ),
]
Unset = Annotated[list[str] | None, Query(max_length=100, description="Fields that go back to their defaults")]
_WRITES = (problems.NOT_JSON, problems.NOT_FOUND, problems.CONFLICT, problems.CHANGED)


class QueueView(BaseModel):
    """The definition of a queue that is in force."""

    name: str
    source: Annotated[
        Literal["stored", "settings"], Field(description="Whether a definition was put, or the settings list it")
    ]
    revision: Annotated[int, Field(description="Of the definition; 0: none was put")]
    etag: str
    author: str
    changed_at: datetime | None
    fields: Annotated[dict[str, Any], Field(description="All fields, defaults included")]
    definition: Annotated[dict[str, Any], Field(description="As it was put; names are camelCase, as on the wire")]


class QueuesView(BaseModel):
    """All queues that are defined, by name."""

    queues: list[QueueView]


class QueueClearedView(BaseModel):
    """The result of clearing a queue."""

    matched: int
    sent: Annotated[int, Field(description="Cancels that Kafka has acknowledged; 0 with `dry_run`")]
    dry_run: bool


class QueueDeletedView(BaseModel):
    """A definition that was forgotten."""

    name: str
    change: Literal["removed"]
    warning: Annotated[
        str | None, Field(description="What becomes of its tasks that its owner may not want; null: nothing")
    ]


@routes.get("/v1/queues", QueuesView)
def list_queues(api: Asked, own: Own) -> Response:
    """List all queues that are defined, by a stored definition or in the settings. Other queues have no limits."""
    found = api.plan.ask(lambda plan: statuses(plan, api.settings))
    return answer({"queues": [_view(one) for name, one in found.items() if own.has(name)]})


@routes.get("/v1/queues/{name}", QueueView, problems.NOT_FOUND)
def get_queue(api: Asked, name: Name) -> Response:
    """Return the definition of a queue that is in force. The ETag is its revision."""
    return _shown(api, name_of(name))


@routes.put("/v1/queues/{name}", {200: QueueView, 201: QueueView}, problems.IF_MATCH_NEEDED, *_WRITES)
async def put_queue(api: Asked, name: Name, fields: Fields, if_match: IfMatch = None, author: Author = "") -> Response:
    """Store a whole definition. Omitted fields get their defaults. Replacing a different definition needs If-Match."""
    plain = name_of(name)

    def done() -> Response:
        queue = Queue.of({"name": plain} | _wire(plain, fields))
        stored = api.plan.ask(lambda plan: plan.queues.get(plain))
        if stored is not None and read_queue(json.loads(stored.text)) == read_queue(queue.definition):
            return _shown(api, plain)  # a PUT that is repeated, perhaps since its answer got lost
        revision = _checked(plain, stored, if_match, needs_match=True)
        done = ask(api, "put_queue", queues=[queue.definition], expect={plain: revision}, author=author or None)
        return _shown(api, plain, 201 if done[plain]["became"] == "added" else 200)

    return await api.planned(done)


@routes.patch("/v1/queues/{name}", QueueView, *_WRITES)
async def update_queue(
    api: Asked, name: Name, fields: Fields, unset: Unset = None, if_match: IfMatch = None, author: Author = ""
) -> Response:
    """Change some fields and keep the others. The base is the stored definition, or else the settings."""
    plain = name_of(name)
    given, gone = _wire(plain, fields), [camel(field) for field in unset or ()]
    return await api.planned(
        lambda: _patched(api, plain, {"queues": [{"name": plain} | given], "unset": gone or None}, if_match, author)
    )


@routes.post("/v1/queues/{name}:pause", QueueView, *_WRITES)
async def pause_queue(api: Asked, name: Name, author: Author = "") -> Response:
    """Start no more tasks of a queue. Running tasks go on."""
    plain = name_of(name)
    return await api.planned(lambda: _patched(api, plain, {"queues": [{"name": plain, "paused": True}]}, None, author))


@routes.post("/v1/queues/{name}:resume", QueueView, *_WRITES)
async def resume_queue(api: Asked, name: Name, author: Author = "") -> Response:
    """Start tasks of a queue again."""
    plain = name_of(name)
    return await api.planned(lambda: _patched(api, plain, {"queues": [{"name": plain, "paused": False}]}, None, author))


@routes.delete("/v1/queues/{name}", QueueDeletedView, *_WRITES)
async def delete_queue(api: Asked, name: Name, if_match: IfMatch = None, author: Author = "") -> Response:
    """Delete a definition. The start values of the settings apply again, or no limits if there are none."""
    plain = name_of(name)

    def done() -> Response:
        stored = api.plan.ask(lambda plan: plan.queues.get(plain))
        revision = _checked(plain, stored, if_match, needs_match=False)
        expect = {plain: revision} if if_match not in (None, ANY) else None
        warning = api.plan.ask(lambda plan: warning_of_delete(plan, api.settings, plain))
        ask(api, "delete_queue", names=[plain], expect=expect, author=author or None)
        return answer({"name": plain, "change": "removed", "warning": warning})

    return await api.planned(done)


@routes.get("/v1/queues/{name}/stats", QueueStats)
def get_queue_stats(api: Asked, name: Name) -> Response:
    """Count the tasks of a queue by state, and how many were started, tried again and ended. The source is the tables."""
    return answer(_tasks(api, name).stats())


@routes.post("/v1/queues/{name}:clear", QueueClearedView)
async def clear_queue(
    api: Asked,
    name: Name,
    dry_run: Annotated[bool, Query(description="Only count what would be done")] = False,
    running: Running = False,
    grace_ms: Grace = None,
) -> Response:
    """Send a cancel for every open task of a queue that the tables show. The answer does not wait until they have ended.

    Tasks leased by workers end at once. Tasks that a dispatcher runs go on, unless `running` is set.
    """
    tasks, grace = _tasks(api, name), grace_of(grace_ms, running=running)
    done = await api.at_length(lambda: tasks.clear(grace, dry_run=dry_run))
    return answer(done._asdict() | {"dry_run": dry_run})


class DelaysView(BaseModel):
    """Start delays of some tasks: played with the limits of today, with the changed ones, and as they were measured then."""

    scope: Literal["all", "queue", "lane"]
    name: str
    count: int
    never_started: Annotated[int, Field(description="Would not have started at all with the changed limits")]
    p50_ms: float | None
    predicted_p50_ms: float | None
    measured_p50_ms: float | None
    p95_ms: float | None
    predicted_p95_ms: float | None
    measured_p95_ms: float | None
    p99_ms: float | None
    predicted_p99_ms: float | None
    measured_p99_ms: float | None
    max_ms: float | None
    predicted_max_ms: float | None
    measured_max_ms: float | None
    makespan_s: Annotated[float | None, Field(description="From the first time that one could start to the last end")]
    predicted_makespan_s: float | None
    measured_makespan_s: float | None


class SimulationView(BaseModel):
    """A past window with the limits of today, beside the same with changed ones."""

    tasks: Annotated[int, Field(description="That were played")]
    unfinished: Annotated[int, Field(description="Left out, as they had not ended")]
    unrun: Annotated[int, Field(description="Left out, as they ended without a run")]
    slots: Annotated[int, Field(description="Tasks that ran at once with the changed limits")]
    seconds: float
    rows: list[DelaysView]


@routes.post(
    "/v1/queues/{name}:simulate",
    SimulationView,
    problems.NOT_JSON,
    problems.NOT_FOUND,
    problems.BUSY,
    problems.TIMED_OUT,
)
async def simulate_queue(
    api: Asked,
    name: Name,
    fields: Fields,
    since: Annotated[
        Instant | None, Query(alias="from", description="Scheduled then or later; default: a day ago")
    ] = None,
    until: Annotated[Instant | None, Query(alias="to", description="Scheduled before; default: now")] = None,
    slots: Annotated[int | None, Query(ge=1, le=100_000, description="Tasks that run at once; default: as now")] = None,
) -> Response:
    """Simulate a past window of all queues with today's limits, and again with changed fields of this queue.

    Nothing runs and nothing is changed. No queue is paused unless `paused` is given.
    """
    plain, now = name_of(name), now_us()
    start = to_us(since) if since is not None else now - DAY_US
    question = Question(start, to_us(until) if until is not None else now, {plain: _wire(plain, fields)}, slots)
    found = await api.simulated(question)
    return answer(found._asdict())


def _tasks(api: Api, name: str) -> QueueTasks:
    return QueueTasks(api.scheduler.connection, api.pages, name_of(name))


def _patched(api: Api, name: str, what: Mapping[str, Any], if_match: str | None, author: str) -> Response:
    revision = _checked(name, api.plan.ask(lambda plan: plan.queues.get(name)), if_match, needs_match=False)
    expect = {name: revision} if if_match is not None else None
    ask(api, "put_queue", patch=True, expect=expect, author=author or None, **what)
    return _shown(api, name)


def _wire(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    found = {camel(field): value for field, value in fields.items()}
    if found.pop("name", name) != name:
        raise ArgumentError(f"The definition has another name than the path: {name!r}.", hint="Omit `name`.")
    return found


def _checked(name: str, stored: StoredDefinition | None, if_match: str | None, *, needs_match: bool) -> int:
    """The revision that is stored; 0: none.

    Raises:
        Problem: another is stored, or which is meant is not said.
    """
    revision = stored.revision if stored is not None else 0
    check(f"queue {name!r}", etag(revision), if_match, stored=revision > 0, needs_match=needs_match)
    return revision


def _shown(api: Api, name: str, status: int = 200) -> Response:
    found = api.plan.ask(lambda plan: statuses(plan, api.settings, name)).get(name)
    if found is None:
        raise NotFoundError(
            f"The queue {name!r} is not defined: its tasks run without limits.", hint="PUT a definition."
        )
    return answer(_view(found), status, {"ETag": etag(found.revision)})


def _view(one: QueueStatus) -> dict[str, Any]:
    return one._asdict() | {"etag": etag(one.revision)}
