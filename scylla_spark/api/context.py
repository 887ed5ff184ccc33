"""The parts that all routes share: access to the deployment, and the reading and answering of requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar, cast

import anyio
import anyio.to_thread
from fastapi import APIRouter, Depends, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import from_json
from starlette.responses import Response

from scylla_spark.api import problems
from scylla_spark.api.access.access import DRY_RUN, may
from scylla_spark.api.access.audit_trail import AuditTrail
from scylla_spark.api.access.enqueued_by import note_caller, signer
from scylla_spark.api.access.login_codes import LoginCodes
from scylla_spark.api.access.required_scopes import NEEDS, UNDECLARED, About
from scylla_spark.api.answer_json import answer_json
from scylla_spark.api.follow.activity import Activity
from scylla_spark.api.follow.log_followers import Followers
from scylla_spark.api.follow.records_tail import LogTail
from scylla_spark.api.follow.waits import Waits
from scylla_spark.api.http.effort import bounded_effort
from scylla_spark.api.http.metrics import ApiMetrics
from scylla_spark.api.http.readiness import Readiness
from scylla_spark.api.http.request_slots import waiting
from scylla_spark.api.leases.call_router import LeaseCalls
from scylla_spark.api.leases.lease_servers import LeaseServers
from scylla_spark.api.problems import BUSY, Problem
from scylla_spark.api.schedules.event_sender import EventSender
from scylla_spark.api.schedules.plan_mirror import PlanMirror
from scylla_spark.api.tasks.known_handlers import KnownHandlers
from scylla_spark.api.tasks.reader import TaskReader
from scylla_spark.api.undeclared import Declared
from scylla_spark.client.handlers import catalogue
from scylla_spark.client.queues.handle import is_reusable
from scylla_spark.client.scheduler import Scheduler
from scylla_spark.client.tasks.by_name import key_of_name
from scylla_spark.client.tasks.unique_keys import UniqueKeys
from scylla_spark.clock import iso, read_instant
from scylla_spark.config.settings import Settings
from scylla_spark.core.access.scopes import ALL_QUEUES, QueueBounds
from scylla_spark.core.plan.state.audit_entry import AuditEntry
from scylla_spark.core.tasks.key import instant_us, name_in
from scylla_spark.errors import ArgumentError
from scylla_spark.io.delta.lateness import Lateness
from scylla_spark.io.delta.task_pages import TaskPages
from scylla_spark.io.host.deployment_secret import desk_secret
from scylla_spark.services.interpreter_pauses import InterpreterPauses
from scylla_spark.services.simulate.what_if import Question, WhatIf, what_if_apart

JSON: Final = "application/json"
MOST_WAIT_MS: Final = 60_000
MOST_SIMULATED_S: Final = 120.0
SLOW_THREADS: Final = 8
LONG_THREADS: Final = 8
PLANNING_THREADS: Final = 4
SENDING_THREADS: Final = 64
MOST_QUEUED_S: Final = 10.0  # for a thread
MOST_PAGE_QUEUED_S: Final = 30.0
LARGE_PAGE: Final = 1_000  # rows
T = TypeVar("T")


class Api:
    """The access of routes to the deployment.

    Args:
        settings: of the deployment, with the broker's address.
        scheduler: the client that they all share.

    Attributes:
        settings: as given.
        scheduler: as given.
        tail: of both logs.
        tasks: reads single tasks.
        waits: requests that wait.
        pages: lists and counts of tasks.
        lateness: how late tasks started.
        plan: what the planner knows.
        unique_keys: sends tasks whose keys nobody else has.
        desks: of the dispatchers.
        leases: calls of workers.
        metrics: of this process.
        pauses: of the threads of this process.
        audit: who changed what, on its way to the tables.
        told: tells the planner of events, without waiting for answers to others.
        followers: of lines of tasks.
        pulse: how tasks start and end.
        login_codes: by which browsers log in.
        handlers: that dispatchers have told of lately.
    """

    def __init__(self, settings: Settings, scheduler: Scheduler) -> None:
        secret = desk_secret(settings)
        self.settings = settings
        self.scheduler = scheduler
        scheduler.connection.sender.sign = signer(scheduler.connection, secret)
        self.tail = LogTail(scheduler.connection)
        self.tasks = TaskReader(scheduler.connection, self.tail)
        self.waits = Waits(self.tail, settings.api.max_waiting)
        self.pages = TaskPages(scheduler.connection.readers)
        self.lateness = Lateness(scheduler.connection.readers)
        self.plan = PlanMirror(scheduler.connection)
        self.unique_keys = UniqueKeys(scheduler.connection, self._is_reusable)
        self.lease_servers = LeaseServers(scheduler.connection, secret)
        self.leases = LeaseCalls(self.lease_servers)
        self.told = EventSender(scheduler.connection)
        self.metrics = ApiMetrics()
        self.pauses = InterpreterPauses(self.metrics.registry)
        self.audit = AuditTrail(self._tell_audit, self.metrics)
        self._simulating = False
        self.followers = Followers()
        self.pulse = Activity(self.tail)
        self.login_codes = LoginCodes(secret)
        self.handlers = KnownHandlers(lambda: catalogue(scheduler.connection))
        self.readiness = Readiness(lambda: (scheduler.connection.readers.marks(), scheduler.connection.ends()))
        self._slow = anyio.CapacityLimiter(SLOW_THREADS)
        self._long = anyio.CapacityLimiter(LONG_THREADS)
        self._planning = anyio.CapacityLimiter(PLANNING_THREADS)
        self._paging = anyio.CapacityLimiter(1)
        self._sending = anyio.CapacityLimiter(SENDING_THREADS)

    def _tell_audit(self, entries: list[AuditEntry]) -> None:
        self.told.tell("audit", entries=[entry.to_wire() for entry in entries])

    def _is_reusable(self, queue: str) -> bool:
        return self.plan.ask(lambda plan: is_reusable(plan, self.settings, queue))

    async def slowly(self, call: Callable[[], T]) -> T:
        """Runs what may wait for others in a thread of its own kind: quick requests do not wait for it."""
        return await anyio.to_thread.run_sync(call, limiter=self._slow)

    async def at_length(self, call: Callable[[], T]) -> T:
        """Runs what goes through however many tasks or records there are: nobody who looks at one of them waits for that."""
        return await anyio.to_thread.run_sync(call, limiter=self._long)

    async def sent(self, call: Callable[[], T]) -> T:
        """Runs what waits for the acknowledgement of a record, and for nothing else, in a thread of its own kind."""
        return await _run(call, self._sending)

    async def paged(self, limit: int, call: Callable[[], T]) -> T:
        """Runs what makes a page; large ones are made one at a time, as each keeps the interpreter busy for long.

        Args:
            limit: most rows of the page.
            call: makes it.

        Raises:
            Problem: a large page has waited for too long for its turn.
        """
        if limit <= LARGE_PAGE:
            return await anyio.to_thread.run_sync(call)
        return await _run(call, self._paging, MOST_PAGE_QUEUED_S)

    async def planned(self, call: Callable[[], T]) -> T:
        """Runs what asks the planner, which may not be there: nobody else waits for that."""
        return await _run(call, self._planning)

    async def simulated(self, question: Question) -> WhatIf:
        """Plays a past window in a process of its own, one at a time.

        Raises:
            Problem: another is being played.
        """
        if self._simulating:
            raise Problem(BUSY, "Another simulation is running.", headers={"Retry-After": "5"})
        self._simulating = True
        try:
            return await self.at_length(lambda: what_if_apart(self.settings, question, MOST_SIMULATED_S))
        finally:
            self._simulating = False


async def _run(call: Callable[[], T], threads: anyio.CapacityLimiter, queued_s: float | None = None) -> T:
    """Runs what may wait for another server in one of some threads; meanwhile the request leaves its place to others.

    Raises:
        Problem: all threads have been taken for too long.
    """
    token = object()
    with waiting():
        try:
            with anyio.fail_after(MOST_QUEUED_S if queued_s is None else queued_s):
                await threads.acquire_on_behalf_of(token)
        except TimeoutError:
            raise Problem(BUSY, "Too many requests wait for Kafka, the planner or the tables.") from None
        try:
            return await anyio.to_thread.run_sync(call, limiter=anyio.CapacityLimiter(1))
        finally:
            threads.release_on_behalf_of(token)


async def _api(request: Request) -> Api:  # a plain function would wait for a thread where all are taken
    return cast(Api, request.app.state.api)


Asked = Annotated[Api, Depends(_api)]
"""The access to the deployment, as a dependency of routes."""


async def _own(request: Request) -> QueueBounds:
    return cast(QueueBounds, request.scope["own_queues"])


Own = Annotated[QueueBounds, Depends(_own)]
"""The queues of the caller, as a dependency of routes about all queues. Other queues do not exist for the caller."""

WaitMs = Annotated[int, Field(ge=0, le=MOST_WAIT_MS, description="How long to wait for it, in milliseconds")]


class Body(BaseModel):
    """A request body with strict types and without unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


def _instant(value: object) -> datetime:
    """An aware datetime of an RFC 3339 text.

    Raises:
        ValueError: it is none, or no task could have it.
    """
    if not isinstance(value, str):
        raise ValueError("an instant is a text such as 2026-01-31T09:00:00Z")
    moment = read_instant(value)
    try:
        instant_us(moment)
    except (ArgumentError, OverflowError):
        raise ValueError("it is before 1970 or after 2261") from None
    return moment


Instant = Annotated[
    datetime,
    BeforeValidator(_instant),
    WithJsonSchema({"type": "string", "format": "date-time", "examples": ["2026-01-31T09:00:00Z"]}),
]
"""An instant: RFC 3339 with a zone."""


class _StrictRequest(Request):
    """A request whose JSON is JSON: no NaN, no lone surrogates, no more than two hundred levels."""

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            body = await self.body()
            try:
                self._json = from_json(body, allow_inf_nan=False)
            except ValueError as error:
                raise json.JSONDecodeError(str(error), "", 0) from None
        return self._json


class _StrictRoute(APIRoute):
    """A route that lets nobody do what he may not, reads requests strictly, and ignores nothing that they say."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        inner = super().get_route_handler()
        declared = Declared(self)
        operation = self.operation_id or ""

        async def handle(request: Request) -> Response:
            strict = _StrictRequest(request.scope, request.receive)
            note_caller(strict.scope.get("caller"))
            rights = may(request.scope, operation)
            scope = NEEDS.get(operation, UNDECLARED).scope or ""
            strict.scope["own_queues"] = ALL_QUEUES if rights is None else rights.bounds(scope)
            if NEEDS.get(operation, UNDECLARED).about is About.PATH_TASK:
                await _name_resolved(await _api(request), strict)
            if rights is not None:
                await request.app.state.check_queues(await _api(request), strict, operation, rights)
            await declared.check(strict)
            with bounded_effort(strict):
                answer: Response = await inner(strict)
            request.scope[DRY_RUN] = isinstance(answer, _DryAnswer)
            return answer

        return handle


async def _name_resolved(api: Api, request: Request) -> None:
    """Puts the id of a task in the place of its name in the path, so that every route of a task takes both."""
    name = name_in(request.path_params["key"])
    if name is not None:
        own = request.scope["own_queues"]
        key = await api.slowly(lambda: key_of_name(api.scheduler.connection, api.pages, name, own))
        request.scope["path_params"] = request.path_params | {"key": str(key)}


F = TypeVar("F", bound=Callable[..., Any])


class Routes:
    """A group of routes. The name of a function is the id of its operation.

    Attributes:
        routes: for the application.
    """

    def __init__(self) -> None:
        self._router = APIRouter(route_class=_StrictRoute)
        self.routes = self._router.routes
        self.get, self.put, self.post = partial(self._add, "GET"), partial(self._add, "PUT"), partial(self._add, "POST")
        self.patch, self.delete = partial(self._add, "PATCH"), partial(self._add, "DELETE")

    def _add(
        self,
        method: str,
        path: str,
        model: Any,
        *kinds: problems.Kind,
        shown: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Callable[[F], F]:
        """Adds a route.

        Args:
            method: of HTTP.
            path: of the route.
            model: of the answer; or status → model, where the first status is the usual one. None stands for another document.
            *kinds: problems that may be the answer, besides those of every operation.
            shown: further members of the description of the usual answer.
            **more: further arguments of FastAPI.
        """
        models = model if isinstance(model, Mapping) else {200: model}
        status = next(iter(models))
        responses = _responses(models, kinds)
        responses[status] |= shown or {}

        def add(function: F) -> F:
            self._router.add_api_route(
                path,
                function,
                methods=[method],
                operation_id=function.__name__,
                status_code=status,
                responses=responses,
                **more,
            )
            return function

        return add


class _DryAnswer(Response):
    """The answer of a dry run. It has changed nothing and is not audited."""


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer; one whose `dry_run` is true tells the audit trail that nothing was changed.

    Args:
        value: of plain JSON types.
        status: of the answer.
        headers: further ones.
    """
    kind = _DryAnswer if isinstance(value, dict) and value.get("dry_run") is True else Response
    return kind(answer_json(value).encode(errors="replace"), status, dict(headers or {}), media_type=JSON)


def _responses(models: Mapping[int, Any], kinds: Iterable[problems.Kind]) -> dict[int | str, dict[str, Any]]:
    """The answers of an operation for its description: those of its models, and the problems that may come instead."""
    found: dict[int | str, dict[str, Any]] = {
        status: {"description": HTTPStatus(status).phrase} | ({"model": model} if model is not None else {})
        for status, model in models.items()
    }
    for kind in dict.fromkeys((*kinds, *_ALWAYS)):
        known = found.get(kind.status, {}).get("description", "")
        found[kind.status] = {
            "description": f"{known}; {kind.type}" if known else kind.type,
            "content": {problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    return found


_ALWAYS: Final = (
    problems.BAD_REQUEST,
    problems.UNAUTHENTICATED,
    problems.FORBIDDEN,
    problems.FOREIGN_SITE,
    problems.WRONG_HOST,
    problems.HEADERS_TOO_LARGE,
    problems.BUSY,
    problems.TOO_SLOW,
    problems.TOO_LARGE,
    problems.UNREACHABLE,
    problems.INVALID,
)


def iso_us(us: int | None) -> str | None:
    """RFC 3339 text of microseconds since the epoch; None for none."""
    return None if us is None else iso(us)
