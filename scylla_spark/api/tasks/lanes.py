"""Routes of lanes: what one is doing, and how to get it past its head."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import Path, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from scylla_spark.api import problems
from scylla_spark.api.context import Api, Asked, Own, Routes, answer
from scylla_spark.api.problems import Problem
from scylla_spark.api.tasks.actions import CancelView, Patience, cancelled
from scylla_spark.api.tasks.views import KeyView
from scylla_spark.client.tasks.explain import LaneAnswer, ask_lane
from scylla_spark.clock import iso
from scylla_spark.core.access.scopes import ALL_QUEUES, QueueBounds
from scylla_spark.core.tasks.key import TaskKey, id_of, key_view, partition_of
from scylla_spark.errors import ArgumentError, NotFoundError

routes = Routes()

_MOST_LOOKED_AT = 100  # tasks of a lane of which the queue is looked up, for who may not see all

Lane = Annotated[str, Path(min_length=1, max_length=12_000, description="The ordering id, percent-encoded")]


class LaneTaskView(KeyView):
    """A task of a lane that has not ended."""

    attempts: int | None
    next_start: str | None
    cancelled: bool


class LaneView(BaseModel):
    """The state of a lane."""

    ordering_id: str
    partition: int
    state: str
    why: Annotated[str, Field(description="Why it does not go on, as a sentence")]
    head: Annotated[
        str | None, Field(description="`id` of its head; null: that is in a queue that the caller may not ask about")
    ]
    tasks: Annotated[list[LaneTaskView], Field(description="In key order")]


@routes.get("/v1/lanes/{ordering_id}", LaneView, problems.NOT_FOUND)
async def get_lane(
    api: Asked, own: Own, ordering_id: Lane, limit: Annotated[int, Query(ge=1, le=1_000)] = 20
) -> Response:
    """Return the state of a lane and its next tasks. A dispatcher reports at most 50 tasks; without one the tables are read."""
    lane = _name(ordering_id)
    return answer(await api.slowly(lambda: _seen(api, lane, limit, own)))


@routes.post(
    "/v1/lanes/{ordering_id}:skip_head", {200: CancelView, 202: CancelView}, problems.NOT_FOUND, problems.CONFLICT
)
async def skip_lane_head(
    api: Asked,
    own: Own,
    ordering_id: Lane,
    head: Annotated[str, Query(min_length=1, description="`head` of the lane as it was seen")],
    wait_ms: Patience = 5_000,
) -> Response:
    """Cancel the head of a lane, so that the next task follows. The answer is 409 if it runs or is no longer the head."""
    lane, wanted = _name(ordering_id), TaskKey.parse(head)
    found = await api.slowly(lambda: _lane(api, lane, 1))
    if not await api.slowly(lambda: own.has(_queue(api, found["tasks"][0], own))):
        raise _empty()
    if found["head"] != id_of(wanted):
        raise Problem(
            problems.CONFLICT,
            "Another task is the head of the lane now. Nothing was done.",
            hint="Read the lane again.",
        )
    return await cancelled(api, wanted, wait_ms)


def _name(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise ArgumentError("The ordering id is not UTF-8.", hint="Percent-encode it.") from None


def _lane(api: Api, lane: str, limit: int) -> dict[str, Any]:
    connection = api.scheduler.connection
    partition = partition_of(lane, connection.rules.partitions)
    asked = ask_lane(connection.owner_address(partition), lane)
    if asked is not None and asked.loaded:
        tasks = [_task(one.key, one.attempts, one.next_start, cancelled=one.cancelled) for one in asked.tasks[:limit]]
    else:
        stored = connection.readers.lane(partition, lane, None, limit)
        tasks = [
            _task(row.command.key, row.attempt, iso(max(row.next_us, row.command.key.time_us)), cancelled=row.cancelled)
            for row in stored
        ]
    if not tasks:
        if asked is not None:
            asked.check_known()
        raise _empty()
    state, why = _words(asked)
    return {
        "ordering_id": lane,
        "partition": partition,
        "state": state,
        "why": why,
        "head": tasks[0]["id"],
        "tasks": tasks,
    }


def _seen(api: Api, lane: str, limit: int, own: QueueBounds) -> dict[str, Any]:
    """Returns the state of a lane with the tasks in queues of the caller. A lane may have tasks of several queues."""
    if own == ALL_QUEUES:
        return _lane(api, lane, limit)
    found = _lane(api, lane, _MOST_LOOKED_AT)
    tasks = found["tasks"]
    seen = [one for one in tasks if own.has(_queue(api, one, own))][:limit]
    if not seen:
        raise _empty()
    if seen[0] is not tasks[0]:  # words about the head could name it
        found |= {
            "state": "waiting",
            "why": "What is before it in its lane is not for this token to see.",
            "head": None,
        }
    return found | {"tasks": seen}


def _queue(api: Api, task: dict[str, Any], own: QueueBounds) -> str | None:
    """The queue of a task; None: nobody knows it by now, or need not know it."""
    if own == ALL_QUEUES:
        return None
    try:
        return api.tasks.status(TaskKey.parse(task["id"])).queue
    except NotFoundError:
        return None


def _empty() -> NotFoundError:
    return NotFoundError("The lane has no open task.", hint="New tasks reach the tables within seconds.")


def _words(asked: LaneAnswer | None) -> tuple[str, str]:
    return (asked.state, asked.why) if asked is not None else ("unknown", "No dispatcher answers for its partition.")


def _task(key: TaskKey, attempts: int | None, start: str | None, *, cancelled: bool) -> dict[str, Any]:
    return key_view(key) | {"attempts": attempts, "next_start": start, "cancelled": cancelled}
