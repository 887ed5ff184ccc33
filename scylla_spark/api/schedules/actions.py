"""Routes that steer a schedule, and that tell when it fires and why it did not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from scylla_spark.api import problems
from scylla_spark.api.context import Asked, Body, Instant, Own, Routes, answer
from scylla_spark.api.schedules.definitions import STEERS, Author, ChangesView, Name, losses_of, name_of
from scylla_spark.api.schedules.plan_mirror import StoredText, excerpt
from scylla_spark.api.schedules.views import FireView, PlannedView, fire_view, planned_view
from scylla_spark.api.tasks.views import KeyView
from scylla_spark.client.handlers import check_payload
from scylla_spark.client.schedules.explanation import explained, gone, missing
from scylla_spark.client.schedules.handle import MOST_RUNS_LISTED
from scylla_spark.client.schedules.history import history
from scylla_spark.client.schedules.selection import Selection, is_now, steer, to_steer
from scylla_spark.client.schedules.times import PlannedTime, following, preceding, under_time_ranges
from scylla_spark.client.schedules.trigger_words import in_words
from scylla_spark.clock import now_us, to_us
from scylla_spark.core.access.scopes import QueueBounds
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.times.fire_times import Calendars, FireTimes
from scylla_spark.core.plan.times.planned_times import times_of
from scylla_spark.core.tasks.key import TaskKey, key_view
from scylla_spark.errors import ArgumentError, NotFoundError

routes = Routes()

Count = Annotated[int, Query(ge=1, le=MOST_RUNS_LISTED)]
Begin = Annotated[
    Literal["pause", "now"],
    Field(
        description="Whether versions of watched tables that came during the pause are run (pause), or left out (now)"
    ),
]
_LOOK_S = 0.02
_LOOKS_FOR_RUN = 100
_LOOKS = (problems.NOT_FOUND,)


class SteeredView(BaseModel):
    """The result of a pause or a resume of one schedule."""

    name: str
    done: Literal["paused", "resumed"]


class PauseBody(Body):
    """The reason and the end of a pause."""

    note: str = ""
    until: Annotated[Instant | None, Field(description="When it goes on by itself")] = None


class ManyBody(Body):
    """The selection of schedules. All given conditions must hold."""

    tag: str | None = None
    changed_from: Annotated[Instant | None, Field(description="Changed, paused or resumed last at or after this …")] = (
        None
    )
    changed_until: Annotated[Instant | None, Field(description="… and before this")] = None
    dry_run: bool = False

    def selection(self) -> Selection:
        """The same for the client."""
        window = [None if one is None else to_us(one) for one in (self.changed_from, self.changed_until)]
        return Selection(None, None, self.tag, None, *window)


class PauseManyBody(ManyBody):
    """The selection of schedules, and the reason and the end of their pause."""

    note: str = ""
    until: Annotated[Instant | None, Field(description="When they go on by themselves")] = None


class ResumeBody(Body):
    """The point from which a schedule continues."""

    begin: Begin = "pause"


class ResumeManyBody(ManyBody):
    """The selection of schedules, and the point from which they continue."""

    begin: Begin = "pause"


class RunBody(Body):
    """The payload of a run."""

    payload: Annotated[dict[str, Any] | None, Field(description="Instead of the schedule's own")] = None


class TimesView(BaseModel):
    """Planned times, with those that are left out between them."""

    paused: bool
    times: list[PlannedView]


class ScheduleExplanationView(BaseModel):
    """The explanation why a schedule ran or did not run."""

    name: str
    said: Annotated[list[str], Field(description="Sentences")]
    fires: list[FireView]


class FiresView(BaseModel):
    """Decisions, the newest first."""

    fires: list[FireView]
    complete: Annotated[
        bool, Field(description="False where Kafka does not answer, so that these are what the tables say")
    ]


@routes.post("/v1/schedules/{name}:pause", SteeredView, *STEERS)
async def pause_schedule(api: Asked, name: Name, how: PauseBody | None = None, author: Author = "") -> Response:
    """Pause a schedule. Tasks launched ahead of their time are taken back before the answer is sent."""
    plain, wanted = name_of(name), how or PauseBody()
    await api.planned(lambda: api.scheduler.schedule(plain, author=author).pause(wanted.note, wanted.until))
    return answer({"name": plain, "done": "paused"})


@routes.post("/v1/schedules/{name}:resume", SteeredView, *STEERS)
async def resume_schedule(api: Asked, name: Name, how: ResumeBody | None = None, author: Author = "") -> Response:
    """Let a schedule fire again from now on."""
    plain, begin = name_of(name), how.begin if how is not None else "pause"
    await api.planned(lambda: api.scheduler.schedule(plain, author=author).resume(begin=begin))
    return answer({"name": plain, "done": "resumed"})


@routes.post("/v1/schedules:pause", ChangesView, problems.NOT_JSON, problems.CONFLICT, problems.TIMED_OUT)
async def pause_schedules(api: Asked, own: Own, wanted: PauseManyBody, author: Author = "") -> Response:
    """Pause all active schedules that have a tag, or that were last changed within a time range."""
    until_us = None if wanted.until is None else to_us(wanted.until)
    return await _steered(api, own, "pause", wanted, author, note=wanted.note or None, until=until_us)


@routes.post("/v1/schedules:resume", ChangesView, problems.NOT_JSON, problems.CONFLICT, problems.TIMED_OUT)
async def resume_schedules(api: Asked, own: Own, wanted: ResumeManyBody, author: Author = "") -> Response:
    """Resume all paused schedules that have a tag, or that were last changed within a time range."""
    return await _steered(api, own, "resume", wanted, author, fromNow=is_now(wanted.begin))


@routes.post("/v1/schedules:delete", ChangesView, problems.NOT_JSON, problems.CONFLICT, problems.TIMED_OUT)
async def delete_schedules(api: Asked, own: Own, wanted: ManyBody, author: Author = "") -> Response:
    """Delete all schedules that have a tag, or that were last changed within a time range.

    Schedules that wait for them lose that branch, or are deleted too. The answer is 409 if the caller may not change one of these
    others. Then nothing is changed.
    """
    names = await _meant(api, own, "delete", wanted)
    if wanted.dry_run or not names:
        also = await api.planned(lambda: losses_of(api, own, names))
        expected = {name: loss.becomes for name, loss in also.items()} | dict.fromkeys(names, "removed")
        return answer({"changes": expected, "dry_run": wanted.dry_run})
    return await _steered_names(api, own, "delete", names, author)


@routes.post("/v1/schedules/{name}:run", {201: KeyView}, *STEERS)
async def run_schedule(api: Asked, name: Name, how: RunBody | None = None, author: Author = "") -> Response:
    """Launch a run at once, regardless of other runs. The answer names its task.

    A payload that does not match the schema of the handler is refused with 422.
    """
    plain, payload = name_of(name), how.payload if how is not None else None
    if payload is not None:
        handler = api.plan.ask(lambda plan: plan.entries[plain].handler if plain in plan.entries else "")
        known = await api.handlers.now()
        await api.slowly(lambda: check_payload(known, handler, payload))
    handle = await api.planned(lambda: api.scheduler.schedule(plain, author=author).run_unchecked(payload))
    await _there(api, handle.key)
    return answer(key_view(handle.key), 201)


@routes.get("/v1/schedules/{name}:next", TimesView, *_LOOKS)
def list_next_times(api: Asked, name: Name, count: Count = 5) -> Response:
    """List the next planned times, with the effects of clock changes and holidays."""
    return _times(api, name, lambda series, calendars: following(series, calendars, now_us(), count))


@routes.get("/v1/schedules/{name}:previous", TimesView, *_LOOKS)
def list_previous_times(api: Asked, name: Name, count: Count = 5) -> Response:
    """List the last planned times by the current definition. `GET …/fires` has the decisions about them."""
    return _times(api, name, lambda series, calendars: preceding(series, calendars, now_us(), count))


@routes.get("/v1/schedules/{name}:explain", ScheduleExplanationView, *_LOOKS)
async def explain_schedule(
    api: Asked,
    name: Name,
    at: Annotated[Instant | None, Query(description="Of this time; default: the last decisions")] = None,
) -> Response:
    """Explain in sentences why a schedule ran or did not run, and what it waits for."""
    plain = name_of(name)
    at_us = None if at is None else to_us(at)
    connection = api.scheduler.connection
    found = await api.slowly(lambda: explained(connection, _about(api, plain), plain, at_us, now_us()))
    return answer({"name": plain, "said": found.said, "fires": [fire_view(row) for row in found.fires]})


@routes.get("/v1/schedules/{name}/fires", FiresView, *_LOOKS)
async def list_schedule_fires(
    api: Asked,
    name: Name,
    since: Annotated[Instant | None, Query(description="Decided at or after this")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
) -> Response:
    """List the decisions about a schedule with their reasons, newest first: launched, skipped, missed and others."""
    plain = name_of(name)

    def look() -> dict[str, Any]:
        past = history(api.scheduler.connection, plain)
        rows = past.fires(None if since is None else to_us(since), limit)
        if not rows and not api.plan.ask(lambda plan: plain in plan.entries):
            gone(past, plain)
        return {"fires": [fire_view(row) for row in rows], "complete": past.complete}

    return answer(await api.slowly(look))


async def _steered(api: Asked, own: QueueBounds, kind: str, wanted: ManyBody, author: str, **more: Any) -> Response:
    """Pauses or resumes those of the caller's that are meant; name → what became of it, or would."""
    names, said = await _meant(api, own, kind, wanted), f"{kind}d"
    if wanted.dry_run:
        return answer({"changes": dict.fromkeys(names, said), "dry_run": True})
    return await _steered_names(api, own, kind, names, author, **more)


async def _steered_names(
    api: Asked, own: QueueBounds, kind: str, names: list[str], author: str, **more: Any
) -> Response:
    plan, bounds = api.scheduler.connection.plan, own.to_wire()
    done = await api.planned(lambda: steer(plan, kind, names, author, bounds=bounds, **more))
    return answer({"changes": done, "dry_run": False})


async def _meant(api: Asked, own: QueueBounds, kind: str, wanted: ManyBody) -> list[str]:
    """Names of those of the caller's that are meant."""

    def meant(plan: PlanState) -> list[StoredText]:
        return [StoredText.of(entry) for entry in to_steer(plan.entries, kind, wanted.selection())]

    return await api.planned(lambda: [one.name for one in api.plan.ask(meant) if one.is_of(own)])


async def _there(api: Asked, key: TaskKey) -> None:
    """Waits a moment until the task can be looked at: the planner answers before it sends."""
    for _ in range(_LOOKS_FOR_RUN):
        try:
            await run_in_threadpool(api.tasks.status, key)
        except NotFoundError:
            await asyncio.sleep(_LOOK_S)
        else:
            return


def _about(api: Asked, name: str) -> PlanState:
    return api.plan.ask(lambda plan: excerpt(plan, name))


def _times(api: Asked, name: str, listed: Callable[[list[FireTimes], Calendars], list[PlannedTime]]) -> Response:
    plain = name_of(name)
    plan = _about(api, plain)
    entry = plan.entries.get(plain)
    if entry is None:
        raise missing(plain)
    series = times_of(entry.schedule.trigger)
    if not series:
        raise ArgumentError(
            f"{plain} has a trigger without planned times.", hint=f"It fires {in_words(entry.schedule.trigger)}."
        )
    rows = under_time_ranges(listed(series, plan.calendars), entry.schedule.constraints)
    return answer({"paused": entry.paused, "times": [planned_view(row) for row in rows]})
