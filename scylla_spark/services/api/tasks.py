"""Routes of single tasks: enqueue, look, wait, and end."""

from __future__ import annotations

import contextlib
from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from scylla_spark.clock import now_us
from scylla_spark.core.key import TaskKey
from scylla_spark.errors import TaskFailed, WaitTimeoutError
from scylla_spark.io.kafka.sender import Place
from scylla_spark.services.api import problems
from scylla_spark.services.api.context import Asked, WaitMs, answer, answers, router
from scylla_spark.services.api.task_ids import TaskId, key_of
from scylla_spark.services.api.task_views import (
    AcceptedView,
    NewTask,
    ResultView,
    TaskBody,
    TaskView,
    key_view,
    result_view,
    task_view,
)

routes = router()


@routes.put(
    "/v1/tasks/{key}",
    operation_id="put_a_task",
    status_code=202,
    responses=answers({202: AcceptedView}, problems.INVALID, problems.NOT_JSON),
)
def put(api: Asked, key: TaskId, task: TaskBody) -> Response:
    """Enqueue the task of a key, or overwrite its data: the same request again changes nothing. An ended task stays as it is."""
    command = task.command(key_of(key), now_us())
    return _accepted(command.key, api.scheduler.connection.send(command))


@routes.post(
    "/v1/tasks",
    operation_id="enqueue_a_task",
    status_code=202,
    responses=answers({202: AcceptedView}, problems.INVALID, problems.NOT_JSON),
)
def post(api: Asked, task: NewTask) -> Response:
    """Enqueue a task; of its key what is not given is made up."""
    command = task.new_command(now_us())
    return _accepted(command.key, api.scheduler.connection.send(command))


@routes.get(
    "/v1/tasks/{key}",
    operation_id="get_a_task",
    responses=answers({200: TaskView}, problems.INVALID, problems.NOT_FOUND),
)
def get(api: Asked, key: TaskId) -> Response:
    """How a task stands now, by tables and logs."""
    return answer(task_view(api.scheduler.task(key_of(key)).status()))


@routes.get(
    "/v1/tasks/{key}/result",
    operation_id="wait_for_the_result_of_a_task",
    responses=answers({200: ResultView, 202: ResultView}, problems.INVALID, problems.NOT_FOUND),
)
def result(api: Asked, key: TaskId, wait_ms: Annotated[WaitMs, Query()] = 0) -> Response:
    """How a task ended; 202 if it has not within the time given."""
    handle = api.scheduler.task(key_of(key))
    status = handle.status()
    if status.open and wait_ms:
        with contextlib.suppress(TaskFailed, WaitTimeoutError):
            handle.result(wait_ms / 1000)
        status = handle.status()
    return answer(result_view(status), 202 if status.open else 200)


def _accepted(key: TaskKey, place: Place) -> Response:
    receipt = {"partition": place.partition, "offset": str(place.offset)}
    return answer(key_view(key) | {"receipt": receipt, "repeated": False}, 202)
