"""Requests of tokens that are not for all queues: whether what is asked for is in a queue of theirs. Others' objects are not found."""

from __future__ import annotations

from typing import Any, Final

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from scylla_spark.api import problems
from scylla_spark.api.access.required_scopes import NEEDS, UNDECLARED, About
from scylla_spark.api.context import Api
from scylla_spark.api.problems import Problem
from scylla_spark.api.schedules.definitions import name_of
from scylla_spark.api.tasks.views import NewTask
from scylla_spark.client.schedules.explanation import missing
from scylla_spark.clock import now_us
from scylla_spark.core.access.scopes import Rights
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.defaults import DEFAULT_QUEUE
from scylla_spark.errors import NotFoundError

_ANYWHERE: Final = frozenset({About.NOTHING, About.LEASES, About.OWN})


async def check_queues(api: Api, request: Request, operation: str, rights: Rights) -> None:
    """Compares a request with the queues that a token is for.

    Args:
        api: to look tasks up.
        request: whose body is read, if it names queues.
        operation: which is asked for.
        rights: of the token; they have its scope for one queue at least.

    Raises:
        NotFoundError: what is asked for is in no queue of theirs.
        Problem: they may not do it there.
    """
    need = NEEDS.get(operation, UNDECLARED)
    scope, about = need.scope or "", need.about
    if about in _ANYWHERE:
        return
    if about is About.ALL:
        raise Problem(problems.FORBIDDEN, "The operation is about all queues, and the token is limited to some.")
    if about is About.PATH_QUEUE:
        _check_named(rights, scope, request.path_params.get("name") or request.path_params["queue"])
    elif about is About.PATH_TASK:
        await _check_task(api, rights, scope, TaskKey.parse(request.path_params["key"]))
    elif about is About.PATH_SCHEDULE:
        await run_in_threadpool(_check_schedule, api, rights, scope, name_of(request.path_params["name"]))
    else:
        await _check_body(api, request, rights, scope, about)


def _check_named(rights: Rights, scope: str, text: str) -> None:
    queue = name_of(text)
    if not rights.sees(queue):
        raise NotFoundError(f"There is no queue {queue!r}.")
    _check_allowed(rights, scope, queue)


def _check_allowed(rights: Rights, scope: str, queue: Any) -> None:
    if not isinstance(queue, str) or not rights.has_for(scope, queue):
        raise Problem(problems.FORBIDDEN, f"The token has no scope {scope!r} for the queue {str(queue)[:200]!r}.")


async def _check_task(api: Api, rights: Rights, scope: str, key: TaskKey) -> None:
    queue = await _queue_of(api, key)
    if queue is None or not rights.has_for(scope, queue):
        raise NotFoundError("There is no such task.", hint="Check all three parts of its key.")


def _check_schedule(api: Api, rights: Rights, scope: str, name: str) -> None:
    entry_queue = api.plan.ask(lambda plan: plan.entries[name].schedule.work.queue if name in plan.entries else None)
    if entry_queue is None or not rights.has_for(scope, entry_queue):
        raise missing(name)


async def _queue_of(api: Api, key: TaskKey) -> str | None:
    """The queue of a task; None: there is no such task."""
    try:
        return (await run_in_threadpool(api.tasks.status, key)).queue
    except NotFoundError:
        return None


async def _check_body(api: Api, request: Request, rights: Rights, scope: str, about: About) -> None:
    """Checks the queues that a body names; one that cannot be read is refused by the route itself."""
    try:
        body = await request.json()
    except ValueError:
        return
    if not isinstance(body, dict):
        return
    if about is About.WANTS:
        wants = body.get("want") or []
        for want in wants if isinstance(wants, list) else []:
            if isinstance(want, dict):
                _check_allowed(rights, scope, want.get("queue"))
        return
    _check_allowed(rights, scope, body.get("queue", DEFAULT_QUEUE))
    key = TaskKey.parse(request.path_params["key"]) if about is About.PUT_TASK else _given_key(request, body)
    if key is not None:
        queue = await _queue_of(api, key)
        if queue is not None and not rights.has_for(scope, queue):
            raise Problem(problems.NOT_FOUND, "There is no such task.")


def _given_key(request: Request, body: dict[str, Any]) -> TaskKey | None:
    """The key that a body would overwrite; None: it is a new one, or the route refuses the body."""
    named = request.headers.get("idempotency-key")
    if named is None and body.get("uniqueness_key") is None:
        return None
    try:
        task = NewTask.model_validate(body)
        return task.new_command(now_us(), f"idempotency-key:{named}" if named is not None else None).key
    except ValueError:
        return None
