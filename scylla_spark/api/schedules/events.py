"""Routes by which schedules hear of the world: events, new partitions, and calendars of days on which nothing fires."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema
from starlette.responses import Response

from scylla_spark.api import problems
from scylla_spark.api.context import Asked, Body, Routes, answer
from scylla_spark.api.schedules.definitions import name_of
from scylla_spark.core.plan.commands.plan_command import MOST_COUNTED
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.strict_json import Text
from scylla_spark.core.plan.times.breaks import Days
from scylla_spark.errors import ArgumentError, NotFoundError

routes = Routes()

Name = Annotated[str, Path(min_length=1, max_length=3_000, description="Name of the calendar, percent-encoded")]


def _day(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError("a day is a text such as 2027-12-24")
    try:
        return date.fromisoformat(value) if len(value) == 10 else value
    except ValueError:
        raise ValueError("it is not a day such as 2027-12-24") from None


Day = Annotated[date, BeforeValidator(_day), WithJsonSchema({"type": "string", "format": "date"})]


class EventBody(Body):
    """Something that has happened."""

    name: Annotated[str, Field(min_length=1, max_length=1_024, description="As triggers call it")]
    fields: Annotated[
        dict[str, Any],
        Field(description="Values that triggers compare and templates read, at most 16 KiB", default_factory=dict),
    ]


class PartitionBody(Body):
    """One or more new partitions."""

    values: dict[str, Any] | None = None
    count: Annotated[int | None, Field(ge=1, lt=MOST_COUNTED)] = None
    rows: Annotated[int | None, Field(ge=0, lt=MOST_COUNTED)] = None
    bytes: Annotated[int | None, Field(ge=0, lt=MOST_COUNTED)] = None


class PartitionsBody(Body):
    """New partitions of a dataset."""

    dataset: Annotated[str, Field(min_length=1, max_length=1_024, description="As triggers call it")]
    partitions: Annotated[list[PartitionBody], Field(min_length=1, max_length=10_000)]


class CalendarBody(Body):
    """Days on which nothing fires."""

    days: Annotated[list[Day], Field(max_length=10_000)]
    notes: Annotated[
        dict[Day, Text],
        Field(description="What days are, such as names of holidays, by day", max_length=10_000, default_factory=dict),
    ]


class EventAcceptedView(BaseModel):
    """The planner will count it, once."""

    accepted: bool


class CalendarView(BaseModel):
    """Days on which nothing fires."""

    name: str
    days: list[str]
    notes: dict[str, str]


class CalendarsView(BaseModel):
    """Calendars by name: how many days each has."""

    calendars: dict[str, int]


@routes.post("/v1/events", {202: EventAcceptedView}, problems.NOT_JSON)
async def emit_event(api: Asked, event: EventBody) -> Response:
    """Send an event to the schedules. It is counted once."""
    await api.planned(lambda: api.told.tell("event", name=event.name, fields=event.fields))
    return answer({"accepted": True}, 202)


@routes.post("/v1/partitions", {202: EventAcceptedView}, problems.NOT_JSON)
async def report_partitions(api: Asked, told: PartitionsBody) -> Response:
    """Report new partitions of a dataset to the schedules."""
    new = [one.model_dump(exclude_none=True) for one in told.partitions]
    await api.planned(lambda: api.told.tell("partitions", name=told.dataset, partitions=new))
    return answer({"accepted": True}, 202)


@routes.get("/v1/calendars", CalendarsView)
def list_calendars(api: Asked) -> Response:
    """List all calendars."""
    return answer(
        {"calendars": api.plan.ask(lambda plan: {name: len(days) for name, days in sorted(plan.calendars.items())})}
    )


@routes.get("/v1/calendars/{name}", CalendarView, problems.NOT_FOUND)
def get_calendar(api: Asked, name: Name) -> Response:
    """Return the days of a calendar."""
    plain = name_of(name)

    def look(plan: PlanState) -> Days:
        if plain not in plan.calendars:
            raise NotFoundError(f"There is no calendar {plain!r}.", hint="PUT its days.")
        return plan.calendars[plain]

    return _view(plain, api.plan.ask(look))


@routes.put("/v1/calendars/{name}", CalendarView, problems.NOT_JSON, problems.CONFLICT)
async def put_calendar(api: Asked, name: Name, wanted: CalendarBody) -> Response:
    """Replace the days of a calendar. An empty list deletes it."""
    plain = name_of(name)
    days = Days(wanted.days, wanted.notes)
    if strange := sorted(wanted.notes.keys() - days):
        raise ArgumentError(f"There is a note for {strange[0]}, which is not one of the days.")
    await api.planned(lambda: api.scheduler.put_calendar(plain, {day: days.notes.get(day, "") for day in days}))
    return _view(plain, days)


def _view(name: str, days: Days) -> Response:
    notes = {day.isoformat(): note for day, note in sorted(days.notes.items())}
    return answer({"name": name, "days": [day.isoformat() for day in sorted(days)], "notes": notes})
