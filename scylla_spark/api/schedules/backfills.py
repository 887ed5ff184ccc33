"""Routes of backfills: past times or versions that a schedule is to run, and how each backfill stands."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import BaseModel, Field
from starlette.responses import Response

from scylla_spark.api import problems
from scylla_spark.api.context import Api, Asked, Body, Instant, Routes, answer
from scylla_spark.api.schedules.definitions import STEERS, Author, Name, name_of
from scylla_spark.api.schedules.plan_mirror import excerpt
from scylla_spark.api.schedules.views import instants
from scylla_spark.client.schedules.backfills import BackfillStatus, backfills_of
from scylla_spark.client.schedules.explanation import missing
from scylla_spark.clock import iso_of, now_us
from scylla_spark.core.plan.state.backfill_entry import tag_of

routes = Routes()

Version = Annotated[int, Field(ge=-1, strict=True)]
Pair = Annotated[list[Instant], Field(min_length=2, max_length=2)]
Number = Annotated[
    int, Path(ge=1, lt=2**53, description="Of the backfill, as the list of them has it: the end of its tag")
]


class BackfillBody(Body):
    """Which past times are to run, or which past versions of the table that the schedule watches."""

    begin: Annotated[
        Version | Instant, Field(description="The first planned time …, or the last version before those that run")
    ]
    end: Annotated[
        Version | Instant,
        Field(description="… and the first that is too late, or the last version; these are at most 1,000 runs"),
    ]
    order: Literal["oldest", "newest"] = "oldest"
    max_running: Annotated[int, Field(ge=1, le=100)] = 1
    priority: Annotated[int, Field(ge=0, le=255)] = 0
    reprocess: Annotated[
        Literal["none", "failed", "all"], Field(description="Which of those that ran before run again")
    ] = "none"
    exclude: Annotated[
        list[Instant | Pair],
        Field(max_length=1_000, description="Planned times that are left out, or [begin, end] for all before the end"),
    ] = Field(default_factory=list)
    dry_run: bool = False


class RangeView(BaseModel):
    """Versions of a table that one run is about: those after the first number, up to the second."""

    from_version: int
    to_version: int
    rows: Annotated[int, Field(description="That were written, as far as the table's log says")]
    commits: Annotated[int, Field(description="That count for the trigger")]
    bytes: Annotated[int, Field(description="Of their new files")]
    partition: Annotated[str | None, Field(description="Value of the partition column; null: the whole table")]


class BackfillView(BaseModel):
    """Planned times, or versions, that run, or would, in their order."""

    planned: Annotated[
        list[str], Field(description="By which the runs are named; of versions, when the last of each was written")
    ]
    versions: Annotated[list[RangeView], Field(description="Of a table, in the same order; empty: planned times run")]
    tag: Annotated[str, Field(description="of its tasks, by which they are listed and cancelled; empty: none runs")]
    dry_run: bool


class BackfillStatusView(BaseModel):
    """How a backfill stands."""

    tag: Annotated[str, Field(description="Of its tasks")]
    number: Annotated[int, Field(description="Of it among those of its schedule")]
    state: Literal["running", "paused", "cancelled", "ended"]
    total: Annotated[int, Field(description="How many runs it is")]
    done: Annotated[int, Field(description="Runs that have ended: succeeded, failed and cancelled")]
    succeeded: int
    failed: Annotated[int, Field(description="Or could not be launched")]
    cancelled: Annotated[int, Field(description="Or ended unrun")]
    running: Annotated[int, Field(description="Launched, and not ended")]
    left: Annotated[int, Field(description="To be launched")]
    max_running: int
    priority: int
    author: str
    begun_at: str
    ends_at: Annotated[
        str | None,
        Field(
            description="When it will be over at its own pace; null: it does not go on, or no run of it has ended yet"
        ),
    ]
    over_at: str | None


class BackfillsView(BaseModel):
    """Backfills of a schedule, the newest first; the last ten that are over are kept."""

    backfills: list[BackfillStatusView]


@routes.post("/v1/schedules/{name}:backfill", BackfillView, *STEERS)
async def backfill_schedule(api: Asked, name: Name, how: BackfillBody, author: Author = "") -> Response:
    """Run past planned times, or past versions of the watched table, in addition to the regular runs."""
    plain = name_of(name)
    found = await api.planned(
        lambda: api.scheduler.schedule(plain, author=author).backfill(
            how.begin,
            how.end,
            order=how.order,
            max_running=how.max_running,
            priority=how.priority,
            reprocess=how.reprocess,
            exclude=[one if isinstance(one, datetime) else (one[0], one[1]) for one in how.exclude],
            dry_run=how.dry_run,
        )
    )
    versions = [one._asdict() for one in found.versions]
    return answer({"planned": instants(found.planned), "versions": versions, "tag": found.tag, "dry_run": how.dry_run})


@routes.get("/v1/schedules/{name}/backfills", BackfillsView, problems.NOT_FOUND)
def list_backfills(api: Asked, name: Name) -> Response:
    """List the backfills of a schedule with their progress and estimated ends."""
    return answer({"backfills": [_view(one) for one in _backfills(api, name_of(name))]})


@routes.post("/v1/schedules/{name}/backfills/{number}:pause", BackfillStatusView, *STEERS)
async def pause_backfill(api: Asked, name: Name, number: Number, author: Author = "") -> Response:
    """Pause a backfill. When the answer is sent, nothing of it starts that has not started before.

    An attempt that a dispatcher runs goes on to its end. If it fails, its run is launched again when the backfill resumes. Tasks leased
    by workers end at once and run again after the resume.
    """
    return await _steered(api, "pause", name_of(name), number, author)


@routes.post("/v1/schedules/{name}/backfills/{number}:resume", BackfillStatusView, *STEERS)
async def resume_backfill(api: Asked, name: Name, number: Number, author: Author = "") -> Response:
    """Resume a paused backfill with its remaining runs."""
    return await _steered(api, "resume", name_of(name), number, author)


@routes.post("/v1/schedules/{name}/backfills/{number}:cancel", BackfillStatusView, *STEERS)
async def cancel_backfill(api: Asked, name: Name, number: Number, author: Author = "") -> Response:
    """Cancel a backfill. Runs that have not started never start.

    An attempt that a dispatcher runs goes on to its end. If it fails, it is not tried again, and its run counts as cancelled. Tasks leased
    by workers end at once and do not run again.
    """
    return await _steered(api, "cancel", name_of(name), number, author)


async def _steered(api: Api, what: str, name: str, number: int, author: str) -> Response:
    """Pauses, resumes or cancels a backfill; how it stands then."""
    handle, tag = api.scheduler.schedule(name, author=author), tag_of(name, number)
    act = {"pause": handle.pause_backfill, "resume": handle.resume_backfill, "cancel": handle.cancel_backfill}[what]
    await api.planned(lambda: act(tag))
    found = await api.planned(lambda: [one for one in _backfills(api, name) if one.number == number])
    if not found:
        raise missing(name)
    return answer(_view(found[0]))


def _backfills(api: Api, name: str) -> list[BackfillStatus]:
    entry = api.plan.ask(lambda plan: excerpt(plan, name)).entries.get(name)
    if entry is None:
        raise missing(name)
    return backfills_of(entry, now_us())


def _view(one: BackfillStatus) -> dict[str, Any]:
    times = {"begun_at": iso_of(one.begun_at), "ends_at": iso_of(one.ends_at), "over_at": iso_of(one.over_at)}
    return one._asdict() | {"done": one.done} | times
