"""The models of schedules in answers of the API."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from scylla_spark.api.context import iso_us
from scylla_spark.api.problems import Problem
from scylla_spark.client.schedules.handle import status_of
from scylla_spark.client.schedules.times import PlannedTime
from scylla_spark.client.schedules.trigger_progress import progress_of
from scylla_spark.client.schedules.trigger_words import brief, in_words
from scylla_spark.clock import iso, iso_of
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.state.schedule_entry import Entry
from scylla_spark.core.plan.triggers.tree import described
from scylla_spark.core.tasks.key import id_of
from scylla_spark.io.delta.plan_queries import Row


class ListedScheduleView(BaseModel):
    """The status of a schedule, in short."""

    name: str
    state: Annotated[
        Literal["active", "paused", "completed"],
        Field(description="completed: its trigger can never fire again, no job waits and no run is active"),
    ]
    handler: str
    trigger: Annotated[str, Field(description="In short; of a single schedule in words")]
    words: Annotated[str, Field(description="The trigger in words")]
    next_at: Annotated[
        str | None,
        Field(description="Planned time; of a schedule whose times take too long to compute, when it is decided next"),
    ]
    running: int
    waiting: int
    failures: Annotated[int, Field(description="Failed runs in a row")]
    note: str
    owner: str
    tags: list[str]
    revision: int
    etag: Annotated[str, Field(description="The version, for If-Match")]


class BranchView(BaseModel):
    """One node of a trigger."""

    depth: Annotated[int, Field(description="0: the whole trigger")]
    text: Annotated[str, Field(description="What it waits for, in words")]
    holds: Annotated[bool, Field(description="Whether it has come")]
    progress: Annotated[str, Field(description="How much of it has come; empty where that is all or nothing")]


class ScheduleView(ListedScheduleView):
    """The status of a schedule."""

    until: Annotated[str | None, Field(description="When a pause ends by itself")]
    last_success_at: str | None
    author: str
    changed_at: str | None
    overlap: str
    catch_up: str
    tree: Annotated[
        list[BranchView],
        Field(description="The trigger, parents before children, and what the round that waits has seen"),
    ]
    jobs: list[dict[str, Any]]
    runs: Annotated[list[str], Field(description="Ids of the tasks of runs that have not ended")]
    warnings: Annotated[
        list[str], Field(description="Calendars it names that are not stored, and that no dispatcher has its handler")
    ]
    definition: Annotated[dict[str, Any], Field(description="As it was put; names are camelCase, as on the wire")]


class PlannedView(BaseModel):
    """A planned time of a schedule, or one that was left out."""

    planned_at: str
    local: str
    tz: str
    fires: bool
    note: str


class FireView(BaseModel):
    """One decision about a schedule."""

    planned_at: str
    until_at: str | None
    decided_at: str
    verdict: str
    why: str | None
    generation: int | None
    revision: int | None
    by_hand: bool | None
    values: Annotated[
        dict[str, Any] | None,
        Field(description="What triggered it, as templates know it: of tables the range of versions"),
    ]
    task: Annotated[str | None, Field(description="Id of the task that was launched")]


def etag_of(entry: Entry | None) -> str:
    """The version of a schedule, as a header has it; of one that is not there, "0"."""
    return f'"{entry.changed_us}.{entry.revision}"' if entry is not None else '"0"'


def listed_schedule(entry: Entry, plan: PlanState, now: int) -> dict[str, Any]:
    """The status of a schedule, in short.

    Args:
        entry: the schedule.
        plan: for its calendars.
        now: microseconds since the epoch.
    """
    try:
        status = status_of(entry, plan, now)
    except Problem:  # it takes too many looks at rules; see `http.effort`
        status = status_of(entry, plan, now, is_exact=False)
    return {
        "name": entry.name,
        "state": status.state,
        "handler": status.handler,
        "trigger": brief(entry.schedule.trigger),
        "words": in_words(entry.schedule.trigger),
        "next_at": iso_of(status.next_at),
        "running": status.running,
        "waiting": status.waiting,
        "failures": status.failures,
        "note": status.note,
        "owner": status.owner,
        "tags": list(status.tags),
        "revision": entry.revision,
        "etag": etag_of(entry),
    }


def unknown_calendars(entry: Entry, plan: PlanState) -> list[str]:
    """Returns a warning for each calendar that a schedule names and that is not stored."""
    names = [key.removeprefix("calendar:") for key in entry.keys if key.startswith("calendar:")]
    return [
        f"There is no calendar {name!r}: until it is put it has no days."
        for name in names
        if name not in plan.calendars
    ]


def schedule_view(entry: Entry, plan: PlanState, now: int) -> dict[str, Any]:
    """Returns the status of a schedule; see `listed_schedule`."""
    policies = entry.schedule.policies
    jobs = [
        {
            "generation": job.generation,
            "state": job.state,
            "since": iso(job.first_us),
            "planned_at": iso(job.planned_us) if job.planned_us else None,
            "trigger": described(entry.schedule.trigger, job.latches),
        }
        for job in entry.jobs.values()
    ]
    return listed_schedule(entry, plan, now) | {
        "trigger": in_words(entry.schedule.trigger),
        "until": iso_us(entry.until_us or None),
        "last_success_at": iso_us(entry.last_success_us or None),
        "author": entry.author,
        "changed_at": iso_us(entry.changed_us or None),
        "overlap": policies.overlap,
        "catch_up": policies.catch_up,
        "jobs": jobs,
        "tree": [branch._asdict() for branch in progress_of(entry)],
        "runs": [id_of(run.key) for run in entry.runs.values()],
        "definition": json.loads(entry.text),
    }


def planned_view(row: PlannedTime) -> dict[str, Any]:
    """A planned time."""
    return {"planned_at": iso(row.at_us), "local": row.local, "tz": row.tz, "fires": row.fires, "note": row.note}


def fire_view(row: Row) -> dict[str, Any]:
    """One decision."""
    from scylla_spark.core.tasks.key import TaskKey

    launched = row["ordering_id"] is not None
    key = TaskKey(row["scheduled_time"], row["ordering_id"], row["uniqueness_key"]) if launched else None
    return {
        "planned_at": iso(row["planned_at"]),
        "until_at": iso_us(row["until_at"]),
        "decided_at": iso(row["decided_at"]),
        "verdict": row["verdict"],
        "why": row["why"],
        "generation": row["generation"],
        "revision": row["revision"],
        "by_hand": row["by_hand"],
        "values": json.loads(row["values"]) if row["values"] else None,
        "task": id_of(key) if key is not None else None,
    }
