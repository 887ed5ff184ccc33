"""Routes of queues: their definitions, which every dispatcher obeys within a second, and how many tasks they have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from fastapi import Body as JsonBody
from fastapi import Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from scylla_spark.api import problems
from scylla_spark.api.context import Api, Asked, Instant, Routes, answer
from scylla_spark.api.revisions import ask
from scylla_spark.api.schedules.definitions import Author, IfMatch, name_of
from scylla_spark.api.stored_definitions import WRITES, DefinitionView, Kind, Name, Unset, add_routes, schema_of
from scylla_spark.api.tasks.actions import Grace, Running, grace_of
from scylla_spark.client.queues.handle import statuses, warning_of_delete
from scylla_spark.client.queues.tasks import QueueTasks
from scylla_spark.clock import now_us, to_us
from scylla_spark.core.access.scopes import QueueBounds
from scylla_spark.core.tasks.filter import DAY_US
from scylla_spark.definitions.queue import Queue
from scylla_spark.io.delta.queue_stats import QueueStats
from scylla_spark.services.simulate.what_if import Question

routes = Routes()

Fields = Annotated[
    dict[str, Any],
    schema_of(Queue, "Fields that change; null is a value: no limit, of `max_retries` no end"),
    JsonBody(examples=[{"concurrency": 5, "rate": 10}]),
]


class QueueView(DefinitionView):
    """The definition of a queue that is in force."""

    source: Annotated[
        Literal["stored", "settings"], Field(description="Whether a definition was put, or the settings list it")
    ]
    fields: Annotated[dict[str, Any], schema_of(Queue, "All fields, defaults included")]


class QueuesView(BaseModel):
    """All queues that are defined, by name; others have no limits."""

    queues: list[QueueView]


KIND: Final = Kind(
    path="/v1/queues",
    model=Queue,
    view=QueueView,
    all=QueuesView,
    stored=lambda plan: plan.queues,
    statuses=lambda api, plan, only: statuses(plan, api.settings, only),
    example={"concurrency": 5, "rate": 10},
    warning=lambda api, plan, name: warning_of_delete(plan, api.settings, name),
    visible=QueueBounds.has,
)
add_routes(routes, KIND)


class QueueClearedView(BaseModel):
    """The result of clearing a queue."""

    matched: int
    sent: Annotated[int, Field(description="Cancels that Kafka has acknowledged; 0 with `dry_run`")]
    dry_run: bool


@routes.patch("/v1/queues/{name}", QueueView, *WRITES)
async def update_queue(
    api: Asked, name: Name, fields: Fields, unset: Unset = None, if_match: IfMatch = None, author: Author = ""
) -> Response:
    """Change some fields and keep the others. The base is the stored definition, or else the settings."""
    plain = name_of(name)
    given = Queue(**KIND.given(plain, fields)).definition
    gone = [Queue.wire_name(field) for field in unset or ()]
    return await api.planned(lambda: _patched(api, plain, {"queues": [given], "unset": gone or None}, if_match, author))


@routes.post("/v1/queues/{name}:pause", QueueView, *WRITES)
async def pause_queue(api: Asked, name: Name, author: Author = "") -> Response:
    """Start no more tasks of a queue. Running tasks go on."""
    plain = name_of(name)
    return await api.planned(lambda: _patched(api, plain, {"queues": [{"name": plain, "paused": True}]}, None, author))


@routes.post("/v1/queues/{name}:resume", QueueView, *WRITES)
async def resume_queue(api: Asked, name: Name, author: Author = "") -> Response:
    """Start tasks of a queue again."""
    plain = name_of(name)
    return await api.planned(lambda: _patched(api, plain, {"queues": [{"name": plain, "paused": False}]}, None, author))


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
    question = Question(
        start, to_us(until) if until is not None else now, {plain: Queue(**KIND.given(plain, fields)).definition}, slots
    )
    found = await api.simulated(question)
    return answer(found._asdict())


def _tasks(api: Api, name: str) -> QueueTasks:
    return QueueTasks(api.scheduler.connection, api.pages, name_of(name))


def _patched(api: Api, name: str, what: Mapping[str, Any], if_match: str | None, author: str) -> Response:
    revision = KIND.checked(name, KIND.read(api, name), if_match, needs_match=False)
    expect = {name: revision} if if_match is not None else None
    ask(api, "put_queue", patch=True, expect=expect, author=author or None, **what)
    return KIND.shown(api, name)
