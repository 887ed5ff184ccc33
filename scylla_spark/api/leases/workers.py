"""Routes of workers: one conversation for those with a session, and single steps for everybody else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from hashlib import sha256
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import unquote

from fastapi import Depends, Path, Query, Request
from pydantic import BaseModel, BeforeValidator
from starlette.responses import Response

from scylla_spark.api import problems
from scylla_spark.api.access.access import RECHECK_TOKEN
from scylla_spark.api.access.token_recheck import Judge
from scylla_spark.api.context import Asked, Own, Routes, answer
from scylla_spark.api.http.until_disconnect import until_disconnect
from scylla_spark.api.leases.views import (
    LeaseBody,
    LeasesView,
    LeaseTaskBody,
    LeaseView,
    Name,
    OrderView,
    Outcome,
    ReportsBody,
    ScaleView,
    SignsBody,
    StatusesView,
    SyncBody,
    SyncView,
    WorkerName,
    WorkerView,
    request_name,
    scale_view,
    statuses_view,
    sync_view,
)
from scylla_spark.api.problems import Problem
from scylla_spark.api.tasks.ids import TaskId
from scylla_spark.api.tasks.single import explained
from scylla_spark.core.leases.messages import DRAIN, STOP, UNAVAILABLE, Answer, Call, Want, lease_view
from scylla_spark.core.records.fact_fields import MAX_WORKER_CHARS
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import NotFoundError

routes = Routes()

_CROWDED_US: Final = 1_000_000
_SHOWN_CHARS: Final = 8
_IN = (problems.NOT_JSON,)
_AS_NAMED = BeforeValidator(lambda text: unquote(text, errors="strict"))  # paths reach routes as they were sent
Worker = Annotated[WorkerName, _AS_NAMED, Path(description="Its name, unique among the workers that run")]
Queue = Annotated[Name, _AS_NAMED, Path()]


class WorkerCaller(NamedTuple):
    """The caller in the name of a worker.

    Attributes:
        token: id of the token that the request shows; empty: none was needed.
        still_may: raises a problem if the token would no longer let him in.
    """

    token: str
    still_may: Judge

    def name(self, worker: str) -> str:
        """The name by which dispatchers know a worker: each token has names of its own, so that none can speak for another's.

        Args:
            worker: as the request calls it; empty: it calls none.

        Raises:
            Problem: the name is too long.
        """
        if not worker or not self.token:
            return worker
        name = f"{worker}@{self.token}"
        if len(name) > MAX_WORKER_CHARS:
            most = MAX_WORKER_CHARS - len(name) + len(worker)
            raise Problem(problems.INVALID, f"The name of a worker with a token has at most {most} characters.")
        return name


async def _speaker(request: Request) -> WorkerCaller:
    return WorkerCaller(request.scope["caller"].id, request.scope[RECHECK_TOKEN])


CallerOfWorker = Annotated[WorkerCaller, Depends(_speaker)]


class WorkerSessionEndedView(BaseModel):
    """A worker has left."""

    given_back: int


@routes.post("/v1/workers/{worker}/sync", SyncView, *_IN, problems.REPLACED, problems.OUT_OF_ORDER, problems.SUPERSEDED)
async def sync_worker(api: Asked, spoken: CallerOfWorker, worker: Worker, body: SyncBody) -> Response:
    """Report results, keep leases and wait for tasks: the whole conversation of a worker. A worker sends one call at a time."""
    told = await _waited(
        api, spoken, body.call(spoken.name(worker)), keeps=body.held is not None and bool(body.held.count)
    )
    _check(told)
    return answer(sync_view(body, told))


@routes.delete("/v1/workers/{worker}", WorkerSessionEndedView, *_IN)
async def end_worker_session(
    api: Asked, spoken: CallerOfWorker, worker: Worker, session: Annotated[str, Query(min_length=1, max_length=100)]
) -> Response:
    """End a session. Its leases go to other workers at once."""
    return answer({"given_back": await api.lease_servers.leave(spoken.name(worker), session)})


@routes.get("/v1/workers", list[WorkerView])
async def list_workers(api: Asked) -> Response:
    """List the workers that have called in the last ten minutes."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for one in await api.lease_servers.workers():
        shown = sha256(one["session"].encode(errors="replace")).hexdigest()[:_SHOWN_CHARS]
        about = json.loads(one["about"]) if one["about"] else None
        told = one | {"session": shown, "about": about, "order": one["order"] or None}
        known = found.setdefault((one["worker"], one["session"]), told)
        if known is not told:  # another dispatcher told of it, too
            known["leases"] += told["leases"]
            known["silent_ms"] = min(known["silent_ms"], told["silent_ms"])
            known["waits"] = known["waits"] or told["waits"]
            known["order"] = max(known["order"] or "", told["order"] or "") or None  # stop goes before drain
    return answer(sorted(found.values(), key=lambda worker: (worker["worker"], worker["session"])))


@routes.post("/v1/workers/{worker}:drain", OrderView, *_IN, problems.NOT_FOUND)
async def drain_worker(api: Asked, worker: Worker) -> Response:
    """Tell a worker to take no more tasks, to finish its leases, and to end. Use the name from the list of workers."""
    return await _ordered(api, worker, DRAIN)


@routes.post("/v1/workers/{worker}:stop", OrderView, *_IN, problems.NOT_FOUND)
async def stop_worker(api: Asked, worker: Worker) -> Response:
    """Tell a worker to give its leases back, and to end. Use the name from the list of workers."""
    return await _ordered(api, worker, STOP)


async def _ordered(api: Asked, worker: str, order: str) -> Response:
    if not await api.lease_servers.order(worker, order):
        raise NotFoundError(
            f"No worker {worker!r} has called in the last ten minutes.", hint="GET /v1/workers lists them."
        )
    return answer({"worker": worker, "order": order})


@routes.post("/v1/queues/{queue}/leases", LeasesView, *_IN, problems.SUPERSEDED)
async def lease_tasks(api: Asked, request: Request, spoken: CallerOfWorker, queue: Queue, body: LeaseBody) -> Response:
    """Lease the most urgent tasks of a queue without a session. Each lease lasts until it is reported or not extended."""
    call = body.call(queue)
    told = await until_disconnect(request, _waited(api, spoken, call._replace(worker=spoken.name(call.worker))))
    _check(told)
    return answer(
        {"leases": [lease_view(one) for one in told.leases], "queues": [scale_view(one) for one in told.queues]}
    )


@routes.post(
    "/v1/tasks/{key}:lease",
    LeaseView,
    *_IN,
    problems.NOT_FOUND,
    problems.CONFLICT,
    problems.NOT_READY,
    problems.SUPERSEDED,
)
async def lease_task(
    api: Asked, own: Own, request: Request, spoken: CallerOfWorker, key: TaskId, body: LeaseTaskBody
) -> Response:
    """Lease one task by its name. The answer is 409 if it is not due, not the head of its lane, or not for workers."""
    wanted = TaskKey.parse(key)
    want = Want("", 1, None, body.lease_ms, wanted)
    call = Call(
        0,
        spoken.name(body.worker),
        until_us=body.wait_ms * 1000,
        wants=(want,),
        request=request_name(key, body.request_id),
    )
    told = await until_disconnect(request, _waited(api, spoken, call))
    _check(told)
    if not told.leases:
        said = await explained(api, own, wanted)
        raise Problem(
            problems.NOT_READY,
            f"The task cannot be leased now. {said['why']}",
            hint="GET …/explain lists all conditions.",
            state=said["task_state"],
        )
    return answer(lease_view(told.leases[0]))


@routes.get("/v1/queues/{queue}/scale", ScaleView, *_IN)
async def get_queue_scale(api: Asked, queue: Queue) -> Response:
    """Return the numbers that autoscalers need: ready tasks, the age of the oldest, and whether more workers would help."""
    return answer(scale_view(await api.lease_servers.scarcity(queue)))


@routes.post("/v1/leases:extend", StatusesView, *_IN)
async def extend_leases(api: Asked, spoken: CallerOfWorker, body: SignsBody) -> Response:
    """Extend leases by another term, and report progress."""
    signs = tuple(item.sign() for item in body.leases)
    told = await api.leases.call(Call(0, spoken.name(body.worker or ""), signs=signs))
    return _statuses([sign.token for sign in signs], told)


@routes.post("/v1/leases:complete", StatusesView, *_IN)
async def complete_leases(api: Asked, spoken: CallerOfWorker, body: ReportsBody) -> Response:
    """End tasks as succeeded. The answer is sent once that is recorded."""
    return await _ended(api, spoken, body, "succeeded")


@routes.post("/v1/leases:fail", StatusesView, *_IN)
async def fail_leases(api: Asked, spoken: CallerOfWorker, body: ReportsBody) -> Response:
    """End attempts as failed. The retry policy decides on further attempts."""
    return await _ended(api, spoken, body, "failed")


@routes.post("/v1/leases:abort", StatusesView, *_IN)
async def abort_leases(api: Asked, spoken: CallerOfWorker, body: ReportsBody) -> Response:
    """End tasks as aborted. They are not tried again."""
    return await _ended(api, spoken, body, "aborted")


@routes.post("/v1/leases:yield", StatusesView, *_IN)
async def yield_leases(api: Asked, spoken: CallerOfWorker, body: ReportsBody) -> Response:
    """Give tasks back without using up an attempt."""
    return await _ended(api, spoken, body, "yielded")


async def _waited(api: Asked, spoken: WorkerCaller, call: Call, *, keeps: bool = False) -> Answer:
    """Waits for the answer to a call. Leases go back if the token of the caller was revoked meanwhile.

    Raises:
        Problem: too many wait, and this would do nothing else; or the token no longer holds.
    """
    told = await _answered(api, call, keeps=keeps)
    if told.leases and call.until_us:
        try:
            await spoken.still_may()
        except BaseException:
            api.leases.give_back(call, told)
            raise
    return told


async def _answered(api: Asked, call: Call, *, keeps: bool) -> Answer:
    """The answer to a call; one that keeps or ends leases is let in where too many wait, and waits for a moment only.

    Raises:
        Problem: too many wait, and this would do nothing else.
    """
    if not api.waits.has_room() and (keeps or call.reports or call.signs):
        return await api.leases.call(call._replace(until_us=min(call.until_us, _CROWDED_US)))
    with api.waits.room() if call.until_us else nullcontext():
        return await api.leases.call(call)


async def _ended(api: Asked, spoken: CallerOfWorker, body: ReportsBody, outcome: Outcome) -> Response:
    reports = tuple(item.ended(outcome) for item in body.leases)
    return _statuses(
        [report.token for report in reports],
        await api.leases.call(Call(0, spoken.name(body.worker or ""), reports=reports)),
    )


def _statuses(tokens: Sequence[str], told: Answer) -> Response:
    _check(told)
    return answer({"leases": statuses_view(tokens, told.statuses)})


_REFUSED = {
    UNAVAILABLE: (problems.UNREACHABLE, "The dispatcher is not certain to own its partitions at the moment."),
    "worker_replaced": (problems.REPLACED, "Another session calls itself by this worker's name."),
    "sequence_out_of_order": (problems.OUT_OF_ORDER, "A later call of this session has been taken."),
    "superseded": (problems.SUPERSEDED, "The session has called again meanwhile, or the same request was sent again."),
}


def _check(told: Answer) -> None:
    if told.refusal:
        kind, detail = _REFUSED[told.refusal]
        raise Problem(kind, detail)
