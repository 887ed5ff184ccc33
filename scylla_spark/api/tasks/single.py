"""Routes of single tasks: enqueue, look, wait."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final, Literal

from fastapi import Header, Query
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from scylla_spark.api import problems
from scylla_spark.api.context import Api, Asked, Own, Routes, WaitMs, answer
from scylla_spark.api.problems import Problem
from scylla_spark.api.tasks.ids import TaskId
from scylla_spark.api.tasks.views import (
    AcceptedView,
    AttemptView,
    NewTask,
    ResultView,
    TaskBody,
    TaskView,
    Trace,
    attempt_view,
    result_view,
    task_view,
)
from scylla_spark.client.tasks.same_enqueue import is_same, stands
from scylla_spark.client.tasks.unique_keys import check_named
from scylla_spark.clock import now_us
from scylla_spark.core.access.scopes import ALL_QUEUES, QueueBounds
from scylla_spark.core.records.command import Command
from scylla_spark.core.tasks.key import TaskKey, key_view, names_a_task
from scylla_spark.core.tasks.status import TaskStatus
from scylla_spark.errors import ArgumentError, NotFoundError
from scylla_spark.io.kafka.command_sender import Place

routes = Routes()

Wait = Annotated[
    Literal["none", "visible", "done"],
    Query(
        description="For what the answer waits: that Kafka has the task, that the tables show it, or that it has ended"
    ),
]
Patience = Annotated[WaitMs, Query(description="How long it waits for that, in milliseconds; then it is 202")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        description="Makes the uniqueness key; `scheduled_time` must be given, or a repeat is another task",
    ),
]
Unique = Annotated[
    bool | Literal["open"],
    Query(
        description="true: refuse it (409, `key_exists`) where its lane has a task of its `uniqueness_key`, at any time; "
        "open: as the field `unique`"
    ),
]
_MOST_ATTEMPTS: Final = 100  # each may have an error of a quarter of a MiB
_IN = (problems.NOT_JSON,)
_ACCEPTS: dict[int, Any] = {202: AcceptedView, 200: ResultView | AcceptedView}


@routes.put("/v1/tasks/{key}", _ACCEPTS, *_IN)
async def put_task(
    api: Asked, key: TaskId, task: TaskBody, wait: Wait = "none", wait_ms: Patience = 10_000, trace: Trace = None
) -> Response:
    """Enqueue the task with this key, or replace its data. Repeating the same request changes nothing. An ended task stays as it is."""
    return await _put(api, task.within(trace).command(TaskKey.parse(key), now_us()), wait, wait_ms)


@routes.post("/v1/tasks", _ACCEPTS, *_IN, problems.KEY_REUSED, problems.CONFLICT)
async def enqueue_task(
    api: Asked,
    task: NewTask,
    wait: Wait = "none",
    wait_ms: Patience = 10_000,
    idempotency_key: IdempotencyKey = None,
    unique: Unique = False,
    trace: Trace = None,
) -> Response:
    """Enqueue a task. Missing parts of its key are generated. With all three parts given this is the same as PUT."""
    task = task.within(trace)
    if unique == "open":
        task = task.model_copy(update={"unique": unique})
    elif unique:
        return await _enqueued(api, _unique(task, idempotency_key), wait, wait_ms, api.unique_keys.send)
    if idempotency_key is None:
        send = _put if task.uniqueness_key is not None and task.scheduled_time is not None else _enqueued
        return await send(api, task.new_command(now_us()), wait, wait_ms)
    command = _named(task, idempotency_key)
    if await run_in_threadpool(_is_repeated, api, command):
        return await _repeated(api, command, wait, wait_ms)
    return await _enqueued(api, command, wait, wait_ms)


@routes.get("/v1/tasks/{key}", TaskView, problems.NOT_FOUND, problems.CONFLICT)
def get_task(api: Asked, key: TaskId) -> Response:
    """Return the current status of a task, from tables and logs."""
    return answer(task_view(api.tasks.status(TaskKey.parse(key), live=True)))


class AttemptsView(BaseModel):
    """Attempts of a task, the last ones of those that were asked for, in order."""

    attempts: list[AttemptView]
    next: Annotated[int | None, Field(description="`before` of the page with earlier ones; null: there are none")]


@routes.get("/v1/tasks/{key}/attempts", AttemptsView, problems.NOT_FOUND, problems.CONFLICT)
def list_attempts(
    api: Asked,
    key: TaskId,
    limit: Annotated[int, Query(ge=1, le=_MOST_ATTEMPTS, description="Most attempts of a page")] = _MOST_ATTEMPTS,
    before: Annotated[
        int | None, Query(ge=2, lt=2**31, description="Only those with smaller numbers: for earlier ones")
    ] = None,
) -> Response:
    """List the newest recorded attempts of a task, in order. Older attempts are on further pages."""
    task = TaskKey.parse(key)
    found = api.tasks.attempts(task, limit + 1, before)
    shown = found[-limit:]
    following = shown[0].number if len(found) > limit else None
    return answer({"attempts": [attempt_view(task, one) for one in shown], "next": following})


class ConditionView(BaseModel):
    """Something that must hold before a task starts."""

    name: str
    met: bool
    detail: str


class ExplanationView(BaseModel):
    """The explanation why a task is not running."""

    state: str
    why: str
    reason: Annotated[str, Field(description='A word of ours for why it waits: "no_handler", "no_worker"; empty: none')]
    attempts: int
    source: str
    conditions: Annotated[
        list[ConditionView], Field(description="All that must hold before it starts; empty once it has ended")
    ]


@routes.get("/v1/tasks/{key}/explain", ExplanationView, problems.NOT_FOUND, problems.CONFLICT)
async def explain_task(api: Asked, own: Own, key: TaskId) -> Response:
    """Explain why a task is not running, from its dispatcher or else from tables and logs."""
    said = await explained(api, own, TaskKey.parse(key))
    return answer({name: said[name] for name in ("state", "why", "reason", "attempts", "source", "conditions")})


@routes.get("/v1/tasks/{key}/result", {200: ResultView, 202: ResultView}, problems.NOT_FOUND, problems.CONFLICT)
async def get_task_result(api: Asked, key: TaskId, wait_ms: Annotated[WaitMs, Query()] = 0) -> Response:
    """Return how a task ended. The answer is 202 if it has not ended within the given time."""
    task = TaskKey.parse(key)
    status = await run_in_threadpool(api.tasks.status, task)
    if status.open and wait_ms:
        await api.waits.ended(task, api.tasks.partition(task), wait_ms / 1000)
        status = await run_in_threadpool(api.tasks.status, task)
    return answer(result_view(status), 202 if status.open else 200)


async def explained(api: Api, own: QueueBounds, key: TaskKey) -> dict[str, Any]:
    """Explains why a task is not running, limited to the queues of the caller. `state` may be that of its lane, `task_state` is its own.

    Args:
        api: to ask through.
        own: queues that the caller may ask about.
        key: of the task.

    Raises:
        NotFoundError: there is no such task.
    """
    said = await api.slowly(api.scheduler.task(key).explain)
    state = (await run_in_threadpool(api.tasks.status, key)).state
    return (said if own == ALL_QUEUES else _without_others(said, own)) | {"task_state": state}


def _without_others(said: dict[str, Any], own: QueueBounds) -> dict[str, Any]:
    """An explanation for who may not see all queues: no sentence may name a task or a queue of others."""

    def plain(text: str, instead: str) -> str:
        return instead if names_a_task(text.replace(str(said["key"]), "")) else text

    told = [one | {"detail": plain(one["detail"], "")} for one in said["conditions"]]
    if not all(map(own.has, said["holders"])):
        return said | {
            "why": "It is due and waits for room in the executor, which other queues hold.",
            "conditions": told,
        }
    return said | {"why": plain(said["why"], "It waits for what is before it in its lane."), "conditions": told}


async def _put(api: Api, command: Command, wait: str, wait_ms: int) -> Response:
    """Sends a command unless its key has ended: it would run nothing, and what is shown of the task would be about no run of it."""
    ended = await run_in_threadpool(api.tasks.ended, command.key, now_us())
    if ended is None:
        return await _open_put(api, command, wait, wait_ms)
    return _ended(ended, wait)


async def _open_put(api: Api, command: Command, wait: str, wait_ms: int) -> Response:
    """Sends a command; what is refused as too late, and was accepted before, is a repeat."""
    try:
        return await _enqueued(api, command, wait, wait_ms)
    except ArgumentError as error:
        if not await api.slowly(partial(stands, api.scheduler.connection, command, error)):
            raise
    return await _repeated(api, command, wait, wait_ms)


async def _repeated(api: Api, command: Command, wait: str, wait_ms: int) -> Response:
    """Answers a repeated request for a task that was accepted before."""
    key, partition = command.key, api.tasks.partition(command.key)
    status = await run_in_threadpool(api.tasks.status, key)
    if status.open and wait == "done" and await api.waits.ended(key, partition, wait_ms / 1000):
        status = await run_in_threadpool(api.tasks.status, key)
    if not status.open:
        return _ended(status, wait)
    before = await run_in_threadpool(api.tasks.command, key) if wait == "visible" else None
    visible = before is not None and await api.waits.visible(partition, before.offset, wait_ms / 1000)
    return answer(key_view(key) | {"receipt": None, "repeated": True}, 200 if visible else 202)


def _ended(status: TaskStatus, wait: str) -> Response:
    """Answers a request for a task that has ended. Nothing was sent."""
    if wait == "done":
        return answer(result_view(status))
    warning = f"Nothing was sent: the task of this key has ended ({status.state}), and no key runs twice."
    return answer(key_view(status.key) | {"receipt": None, "repeated": True, "warning": warning})


async def _enqueued(
    api: Api, command: Command, wait: str, wait_ms: int, send: Callable[[Command], Place] | None = None
) -> Response:
    """Sends a command, and waits for what was asked for."""
    if wait == "done":
        async with api.waits.waiting(command.key):  # so that the tail follows before it is sent
            place = await _sent(api, command, send)
        if await api.waits.ended(command.key, place.partition, wait_ms / 1000):
            return answer(result_view(await run_in_threadpool(api.tasks.status, command.key)))
    else:
        place = await _sent(api, command, send)
        if wait == "visible" and await api.waits.visible(place.partition, place.offset, wait_ms / 1000):
            return answer(_accepted(command, place))
    return answer(_accepted(command, place) | {"warning": await api.handlers.warning(command)}, 202)


async def _sent(api: Api, command: Command, send: Callable[[Command], Place] | None) -> Place:
    if send is None:
        place = await api.sent(partial(api.scheduler.connection.send, command))
    else:  # it reads tables first, which may take long
        place = await run_in_threadpool(send, command)
    api.tasks.sent(place)
    return place


def _accepted(command: Command, place: Place) -> dict[str, Any]:
    receipt = {"partition": place.partition, "offset": str(place.offset)}
    return key_view(command.key) | {"receipt": receipt, "repeated": False, "warning": None}


def _unique(task: NewTask, idempotency_key: str | None) -> Command:
    """The command of a task that names its key itself."""
    if idempotency_key is not None:
        raise Problem(problems.INVALID, "Both Idempotency-Key and `unique` are given.", hint="Omit one of them.")
    command = task.new_command(now_us())
    check_named(command, task.uniqueness_key)
    return command


def _named(task: NewTask, name: str) -> Command:
    """The command of a task whose uniqueness key comes from the header."""
    if task.uniqueness_key is not None:
        raise Problem(problems.INVALID, "Both Idempotency-Key and uniqueness_key are given.", hint="Omit one of them.")
    if task.scheduled_time is None:
        raise Problem(
            problems.INVALID,
            "With Idempotency-Key the scheduled_time must be given.",
            hint="It is a part of the task's key: a repeat at another time would be another task.",
        )
    return task.new_command(now_us(), f"idempotency-key:{name}")


def _is_repeated(api: Api, command: Command) -> bool:
    """Returns whether the same task was enqueued before.

    Raises:
        Problem: another was.
    """
    try:
        before = api.tasks.command(command.key)
    except NotFoundError:
        return False
    if is_same(before, command, api.scheduler.connection.rules.default_handler):
        return True
    raise Problem(
        problems.KEY_REUSED, "Another task was enqueued with this Idempotency-Key.", hint="Choose another key."
    )
