"""Routes of backfills: past times or versions that a schedule is to run, and how each backfill stands."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from fastapi import Path
from pydantic import BaseModel, Field
from starlette.responses import Response

from scylla_spark.api import problems
from scylla_spark.api.context import Api, Asked, Body, Instant, Routes, answer
from scylla_spark.api.schedules.definitions import STEERS, Author, Name, name_of
from scylla_spark.api.schedules.plan_mirror import excerpt
from scylla_spark.client.schedules.backfills import Backfill, BackfillStatus, backfills_of
from scylla_spark.client.schedules.explanation import missing
from scylla_spark.clock import now_us
from scylla_spark.core.plan.state.backfill_entry import tag_of

routes = Routes()

Version = Annotated[int, Field(ge=-1, strict=True)]
Pair = Annotated[list[Instant], Field(min_length=2, max_length=2)]
Number = Annotated[
    int, Path(ge=1, lt=2**53, description="Of the backfill, as the list of them has it: the end of its tag")
]


class BackfillBody(Body):
    """The past times to run, or the past versions of the table that the schedule watches."""

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


class BackfillView(Backfill):
    """The runs of a backfill, in order."""

    dry_run: bool


class BackfillsView(BaseModel):
    """Backfills of a schedule, the newest first; the last ten that are over are kept."""

    backfills: list[BackfillStatus]


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
    return answer(dict(found) | {"dry_run": how.dry_run})


@routes.get("/v1/schedules/{name}/backfills", BackfillsView, problems.NOT_FOUND)
def list_backfills(api: Asked, name: Name) -> Response:
    """List the backfills of a schedule with their progress and estimated ends."""
    return answer({"backfills": _backfills(api, name_of(name))})


@routes.post("/v1/schedules/{name}/backfills/{number}:pause", BackfillStatus, *STEERS)
async def pause_backfill(api: Asked, name: Name, number: Number, author: Author = "") -> Response:
    """Pause a backfill. When the answer is sent, nothing of it starts that has not started before.

    An attempt that a dispatcher runs goes on to its end. If it fails, its run is launched again when the backfill resumes. Tasks leased
    by workers end at once and run again after the resume.
    """
    return await _steered(api, "pause", name_of(name), number, author)


@routes.post("/v1/schedules/{name}/backfills/{number}:resume", BackfillStatus, *STEERS)
async def resume_backfill(api: Asked, name: Name, number: Number, author: Author = "") -> Response:
    """Resume a paused backfill with its remaining runs."""
    return await _steered(api, "resume", name_of(name), number, author)


@routes.post("/v1/schedules/{name}/backfills/{number}:cancel", BackfillStatus, *STEERS)
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
    return answer(found[0])


def _backfills(api: Api, name: str) -> list[BackfillStatus]:
    entry = api.plan.ask(lambda plan: excerpt(plan, name)).entries.get(name)
    if entry is None:
        raise missing(name)
    return backfills_of(entry, now_us())
