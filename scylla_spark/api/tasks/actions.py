"""Routes that do something to one task: cancel it, move it, run it now, run it again."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final, Literal, NamedTuple

from fastapi import Query
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from scylla_spark.api import problems
from scylla_spark.api.context import MOST_WAIT_MS, Api, Asked, Body, Instant, Routes, answer
from scylla_spark.api.follow.waits import came
from scylla_spark.api.problems import Problem
from scylla_spark.api.tasks.ids import TaskId
from scylla_spark.api.tasks.views import At, KeyView, Span, only_one
from scylla_spark.client.tasks.enqueue_arguments import moment, new_key
from scylla_spark.clock import now_us
from scylla_spark.core.records.command import CANCEL, Command
from scylla_spark.core.tasks.key import TaskKey, id_of, key_view
from scylla_spark.core.tasks.state import RUNNING
from scylla_spark.core.tasks.task import CANCELLED
from scylla_spark.errors import NotFoundError, UnreachableError
from scylla_spark.io.kafka.command_sender import line_of
from scylla_spark.task_states import ENDED

routes = Routes()
MOST_GRACE_MS: Final = 3_600_000
_GRACE_MS: Final = 10_000

Patience = Annotated[
    int, Query(ge=0, le=MOST_WAIT_MS, description="How long to wait for the owner's answer, in milliseconds")
]
Grace = Annotated[
    int | None,
    Query(
        ge=1,
        le=MOST_GRACE_MS,
        description="With `running`: how long it is only asked to end, in milliseconds; else 10000. No leased task has that time",
    ),
]
Running = Annotated[
    bool,
    Query(
        description="End also what a dispatcher runs: it is asked to, and killed after the grace. What a worker has leased ends at once, "
        "with or without it"
    ),
]
_OF_ONE = (problems.NOT_FOUND, problems.CONFLICT, problems.TIMED_OUT)


class CancelView(KeyView):
    """The result of a cancel."""

    answer: Annotated[
        Literal["cancelled", "sent"], Field(description='"sent": it stands, and is honoured when a dispatcher reads it')
    ]


class CopyView(KeyView):
    """The task that was enqueued instead."""

    instead_of: Annotated[str, Field(description="`id` of the task that was asked about")]


class MoveBody(Body):
    """The new time of a task: an instant or a delay."""

    scheduled_time: Instant | None = None
    at: Annotated[At | None, Field(description="Or a local time with a zone")] = None
    delay: Annotated[Span | None, Field(description="From now")] = None


@routes.post("/v1/tasks/{key}:cancel", {200: CancelView, 202: CancelView}, problems.CONFLICT)
async def cancel_task(
    api: Asked, key: TaskId, wait_ms: Patience = 5_000, running: Running = False, grace_ms: Grace = None
) -> Response:
    """End a task without running it again.

    The answer is 409 if a dispatcher runs it or it has ended, and 202 if no dispatcher has answered yet. A cancel also holds for a key
    that does not exist yet. A task that a worker has leased ends at once, and its worker is told to drop it. With `running`, a task that a
    dispatcher runs is answered when it has ended. If it succeeds all the same, the answer is 409.
    """
    return await cancelled(api, TaskKey.parse(key), wait_ms, grace_of(grace_ms, running=running))


def grace_of(grace_ms: int | None, *, running: bool) -> int | None:
    """Returns the grace of a cancel in milliseconds: how long a running task may take to end before it is killed. None: it goes on.

    Raises:
        Problem: a grace is given for what is not to be ended.
    """
    if grace_ms is not None and not running:
        raise Problem(problems.INVALID, "`grace_ms` is given without `running`.", hint="Add running=true.")
    return (grace_ms or _GRACE_MS) if running else None


@routes.post("/v1/tasks/{key}:reschedule", {201: CopyView}, problems.NOT_JSON, *_OF_ONE)
async def reschedule_task(api: Asked, key: TaskId, when: MoveBody, wait_ms: Patience = 5_000) -> Response:
    """Cancel a task, and enqueue a copy at another time under a new key once this cancel has ended it.

    Lane and uniqueness key stay. If they have had exactly that time before, the copy is due some microseconds later.
    """
    now = now_us()
    return await _moved(
        api, TaskKey.parse(key), moment(now, only_one(when.scheduled_time, when.at), when.delay), wait_ms
    )


@routes.post("/v1/tasks/{key}:run_now", {201: CopyView}, *_OF_ONE)
async def run_task(api: Asked, key: TaskId, wait_ms: Patience = 5_000) -> Response:
    """Cancel a waiting task, and enqueue a copy that is due now."""
    return await _moved(api, TaskKey.parse(key), now_us(), wait_ms)


@routes.post("/v1/tasks/{key}:retry", {201: CopyView}, *_OF_ONE)
async def retry_task(api: Asked, key: TaskId) -> Response:
    """Enqueue a copy of an ended task that is due now, under a new uniqueness key."""
    old = TaskKey.parse(key)
    copy = await api.slowly(api.scheduler.task(old).retry)
    return _copied(old, copy.key)


class _PendingAnswer(NamedTuple):
    """The result of a cancel.

    Attributes:
        state: of the task now; "" where nothing is known of it.
        is_answered: whether anybody has said so in time.
        by_request: whether this very request has ended the task.
    """

    state: str
    is_answered: bool
    by_request: bool


async def cancelled(api: Api, key: TaskKey, wait_ms: int, grace_ms: int | None = None) -> Response:
    """Cancels a task, and waits for the answer.

    Args:
        api: to ask through.
        key: of the task.
        wait_ms: how long, at most.
        grace_ms: what a dispatcher runs is ended, too, after it was asked to for so long; None: it is left alone.

    Raises:
        Problem: a dispatcher runs it, or it has ended.
    """
    asked = await _asked_to_end(api, key, wait_ms, grace_ms)
    if asked.state == CANCELLED:
        return answer(key_view(key) | {"answer": "cancelled"})
    if asked.is_answered:
        raise _stands(asked.state, "`running=true` ends it also where it runs.")
    return answer(key_view(key) | {"answer": "sent"}, 202)


async def _asked_to_end(api: Api, key: TaskKey, wait_ms: int, grace_ms: int | None = None) -> _PendingAnswer:
    """Sends a cancel, and waits for the answer without a thread."""
    request = new_key(now_us())
    async with api.waits.waiting(key, request) as future:
        command = Command(CANCEL, key, 0, enqueued_us=now_us(), request_id=request, grace_ms=grace_ms)
        place = await api.sent(partial(api.scheduler.connection.send, command))
        api.tasks.sent(place)
        heard = await came(future, wait_ms / 1000)
    ended = await run_in_threadpool(api.tail.ended, key, place.partition)
    by_request = ended is not None and ended.request_id == request
    try:
        state = (await run_in_threadpool(api.tasks.status, key)).state
    except NotFoundError:
        state = ""
    return _PendingAnswer(state, heard, by_request)


async def _moved(api: Api, key: TaskKey, time_us: int, wait_ms: int) -> Response:
    """Cancels a task, and enqueues a copy at another time once this very cancel has ended it.

    Raises:
        Problem: it runs, has ended, or another request has cancelled it; or nobody answered in time; nothing was enqueued.
        ArgumentError: it has that time, or the copy would be refused; nothing was sent.
        NotFoundError: there is no such task.
    """
    handle = api.scheduler.task(key)
    copy = await api.slowly(partial(handle.copy_for_move, time_us, now_us()))
    standing = await api.slowly(partial(handle.status, live=False))
    if not standing.open:
        raise _stands(standing.state)
    asked = await _asked_to_end(api, key, wait_ms)
    if asked.state == CANCELLED and not asked.by_request:
        raise Problem(
            problems.CONFLICT,
            "Another request has cancelled or moved the task.",
            hint="No copy was made. `:retry` enqueues it once more, under a new key.",
            state=asked.state,
        )
    if asked.state != CANCELLED and asked.is_answered:
        hint = "What runs cannot be moved: `:cancel?running=true` ends it, then `:retry` enqueues it again."
        raise _stands(asked.state, hint)
    if asked.state != CANCELLED:
        raise Problem(
            problems.TIMED_OUT,
            "No dispatcher answered the cancel in time: it stands, and no copy was made.",
            hint="Once the task is cancelled, `:retry` makes a copy that is due at once.",
        )
    await _send_copy(api, copy)
    return _copied(key, copy.key)


async def _send_copy(api: Api, copy: Command) -> None:
    """Sends the copy of a task that was cancelled for it.

    Raises:
        Problem: it was not acknowledged; it may exist nevertheless.
    """
    try:
        api.tasks.sent(await api.sent(partial(api.scheduler.connection.send, copy)))
    except UnreachableError as error:
        raise Problem(
            problems.UNREACHABLE,
            f"The task is cancelled, but its copy was not acknowledged: {error.message}",
            hint="Look for the task `copy`. If there is none, `scylla-spark task import` takes `record` as a line, or `:retry` makes a "
            "copy that is due at once.",
            copy=id_of(copy.key),
            record=line_of(copy),
        ) from error


def _stands(state: str, while_it_runs: str = "") -> Problem:
    """The problem of a task that has ended, or runs, with what is allowed then.

    Args:
        state: of the task; what is none of the open ones that wait.
        while_it_runs: what may be done about one that runs.
    """
    if state in ENDED:
        hint = "`:retry` enqueues it once more, under a new key."
        return Problem(problems.CONFLICT, f"The task has ended: {state}.", hint=hint, state=state)
    if state == RUNNING:
        return Problem(problems.CONFLICT, "The task runs.", hint=while_it_runs, state=state)
    return Problem(
        problems.CONFLICT,
        "The task was running when the cancel arrived, and will be tried again.",
        hint="Repeat the request before its next attempt.",
        state=state or "unknown",
    )


def _copied(old: TaskKey, copy: TaskKey) -> Response:
    return answer(key_view(copy) | {"instead_of": id_of(old)}, 201)
