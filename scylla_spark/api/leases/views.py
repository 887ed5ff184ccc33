"""The models of requests and answers of workers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, Field, model_validator

from scylla_spark.api import problems
from scylla_spark.api.context import Body, WaitMs
from scylla_spark.api.problems import Problem
from scylla_spark.api.tasks.views import EnqueuedView, KeyView
from scylla_spark.core.leases.messages import (
    MOST_WANTED,
    UNAVAILABLE,
    Answer,
    Call,
    Report,
    Scarcity,
    Sign,
    Want,
    folded,
    lease_view,
)
from scylla_spark.core.records.fact_fields import MAX_WORKER_CHARS
from scylla_spark.core.tasks.attempt_note import MAX_CHECKPOINT_BYTES, MAX_METRICS_BYTES, WorkNote, bounded_note
from scylla_spark.core.tasks.kept_json import MAX_LEVELS, kept_text, size_of
from scylla_spark.core.tasks.task import ABORTED, FAILED, MAX_RESULT_BYTES, Failure
from scylla_spark.errors import ArgumentError
from scylla_spark.name import PATTERN

MOST_ITEMS: Final = 1_000
MOST_MS: Final = 30 * 24 * 3_600_000

Millis = Annotated[int, Field(ge=0, le=MOST_MS)]
LeaseMs = Annotated[
    Millis | None,
    Field(
        description="How long a lease lasts without a sign of life; default: as the queue says; 0: the task ends with being handed over"
    ),
]
Token = Annotated[str, Field(min_length=1, max_length=100, description="As it was given with the lease")]
WorkerName = Annotated[
    str, Field(min_length=1, max_length=MAX_WORKER_CHARS, description="Of a worker, unique among those that run")
]
Name = Annotated[str, Field(pattern=f"^{PATTERN}$")]
Json = dict[str, Any]
Outcome = Literal["succeeded", "failed", "aborted", "yielded"]


class ErrorBody(Body):
    """The error of a task."""

    code: Annotated[str, Field(min_length=1, max_length=500)]
    args: Annotated[
        Json | list[Any],
        Field(
            description="Values of the message, for programs: an object or a list, kept as JSON behind the description"
        ),
    ] = Field(default_factory=dict)
    description: Annotated[str, Field(max_length=65_536)] = ""
    stack: Annotated[str, Field(max_length=262_144)] = ""

    def failure(self) -> Failure:
        """As it is stored."""
        told = (
            f"{self.description} {json.dumps(self.args, ensure_ascii=False)}".strip() if self.args else self.description
        )
        return Failure(self.code, told, self.stack)


class ReportItem(Body):
    """One lease that ends."""

    lease: Token
    result: Annotated[Any, Field(description="Any JSON value, at most 64 KiB")] = None
    error: ErrorBody | None = None
    after_ms: Annotated[
        Millis | None, Field(description="Wait before the next attempt; default: by the retry policy, none for yielded")
    ] = None
    checkpoint: Annotated[Json | None, Field(description="What the next attempt is given, at most 64 KiB")] = None
    metrics: Annotated[Json | None, Field(description="Kept with the attempt, at most 16 KiB")] = None

    def ended(self, outcome: Outcome) -> Report:
        """As the engine takes it.

        Raises:
            ArgumentError: something is too large, or missing.
        """
        if outcome in (FAILED, ABORTED) and self.error is None:
            raise ArgumentError(f"{outcome!r} needs an `error` with a `code`.")
        return Report(
            self.lease,
            outcome,
            bounded("result", self.result, MAX_RESULT_BYTES),
            self.error.failure() if self.error is not None else None,
            self.after_ms,
            bounded("checkpoint", self.checkpoint, MAX_CHECKPOINT_BYTES),
            bounded("metrics", self.metrics, MAX_METRICS_BYTES),
        )


class ReportBody(ReportItem):
    """The end of a lease."""

    outcome: Outcome


class SignBody(Body):
    """A sign of life of a lease."""

    lease: Token
    value: Annotated[float | int | None, Field(ge=0, le=1, description="How far it is, from 0 to 1")] = None
    note: Annotated[
        str | None,
        Field(
            max_length=65_536, description="In words, what it is at: 200 characters are kept; empty: nothing any more"
        ),
    ] = None
    checkpoint: Annotated[Json | None, Field(description="What the next attempt would be given, at most 64 KiB")] = None

    def sign(self) -> Sign:
        """As the engine takes it.

        Raises:
            ArgumentError: something is too large.
        """
        value = float(self.value) if self.value is not None else None
        note = None if self.note is None else bounded_note(self.note)
        checkpoint = bounded("checkpoint", self.checkpoint, MAX_CHECKPOINT_BYTES)
        return Sign(self.lease, WorkNote.heard(value, checkpoint, note))


class WantBody(Body):
    """The tasks that a worker wants from one queue."""

    queue: Name
    max: Annotated[int, Field(ge=0, le=MOST_WANTED, description="Free slots")] = 1
    handlers: Annotated[list[Name] | None, Field(max_length=1_000, description="Only tasks of these; default: all")] = (
        None
    )
    lease_ms: LeaseMs = None

    def want(self) -> Want:
        """As the engine takes it."""
        return Want(
            self.queue, self.max, frozenset(self.handlers) if self.handlers is not None else None, self.lease_ms
        )


class HeldBody(Body):
    """The leases that a worker believes to hold."""

    count: Annotated[int, Field(ge=0)] = 0
    digest: Annotated[
        str | None,
        Field(pattern="^[0-9a-f]{8}$", description="Exclusive or of the last 8 hexadecimal digits of all tokens"),
    ] = None
    leases: Annotated[
        list[Token] | None, Field(max_length=10_000, description="All of them; the answer to `list_leases`")
    ] = None


class SyncBody(Body):
    """One call of a worker. It keeps all leases of the session."""

    seq: Annotated[int, Field(ge=1, lt=2**53, description="Grows by one; the same again gets the same answer")]
    session: Annotated[str, Field(min_length=1, max_length=100, description="New with every start of the worker")]
    want: Annotated[list[WantBody], Field(max_length=100)] = Field(default_factory=list)
    wait_ms: Annotated[
        WaitMs, Field(description="How long to wait for work; without effect where `results` are sent")
    ] = 0
    held: HeldBody | None = None
    results: Annotated[list[ReportBody], Field(max_length=MOST_ITEMS)] = Field(default_factory=list)
    progress: Annotated[list[SignBody], Field(max_length=MOST_ITEMS)] = Field(default_factory=list)
    about: Annotated[
        Json | None, Field(alias="self", description="What it says of itself: version, host, slots …, at most 4 KiB")
    ] = None

    def call(self, worker: str) -> Call:
        """As the engine takes it.

        Raises:
            ArgumentError: something is too large, or missing.
        """
        return Call(
            0,
            worker,
            self.session,
            self.seq,
            self.wait_ms * 1000,
            tuple(want.want() for want in self.want),
            tuple(result.ended(result.outcome) for result in self.results),
            tuple(sign.sign() for sign in self.progress),
            tuple(self.held.leases) if self.held is not None and self.held.leases is not None else None,
            bounded("self", self.about, 4_096),
        )


RequestId = Annotated[
    str,
    Field(
        max_length=100,
        description="Unique among the requests of this `worker`, which has to be named: the same again, if the answer was lost, gets "
        "the same leases",
    ),
]


class _RequestBody(Body):
    """A request without a session that has the same effect if it is repeated."""

    worker: WorkerName = "http"
    request_id: RequestId = ""

    @model_validator(mode="after")
    def _names_itself(self) -> Self:
        """Two that call themselves nothing would have their requests in common, and the same leases.

        Raises:
            ValueError: it does not say who it is.
        """
        if self.request_id and "worker" not in self.model_fields_set:
            raise ValueError("A `request_id` needs a `worker`: both identify the request")
        return self


class LeaseBody(_RequestBody):
    """A caller without a session wants to lease."""

    max: Annotated[int, Field(ge=1, le=MOST_WANTED)] = 1
    handlers: Annotated[list[Name] | None, Field(max_length=1_000)] = None
    wait_ms: WaitMs = 0
    lease_ms: LeaseMs = None

    def call(self, queue: str) -> Call:
        """As the engine takes it."""
        handlers = frozenset(self.handlers) if self.handlers is not None else None
        want = Want(queue, self.max, handlers, self.lease_ms)
        return Call(
            0, self.worker, until_us=self.wait_ms * 1000, wants=(want,), request=request_name(queue, self.request_id)
        )


class LeaseTaskBody(_RequestBody):
    """A caller wants to lease one task by its name."""

    wait_ms: WaitMs = 0
    lease_ms: LeaseMs = None


def request_name(what: str, request_id: str) -> str:
    """The name of a request; with the same id for something else it is another. Empty: it has none.

    Args:
        what: it wants.
        request_id: as the caller says.
    """
    return f"{what} {request_id}" if request_id else ""


class ReportsBody(Body):
    """Leases that end in the same way."""

    worker: Annotated[WorkerName | None, Field(description="Who has them; default: whoever shows the tokens")] = None
    leases: Annotated[list[ReportItem], Field(min_length=1, max_length=MOST_ITEMS)]


class SignsBody(Body):
    """Leases that go on."""

    worker: WorkerName | None = None
    leases: Annotated[list[SignBody], Field(min_length=1, max_length=MOST_ITEMS)]


class LastErrorView(BaseModel):
    """The error of the previous attempt."""

    kind: str
    message: str


class LeasedTaskView(KeyView, EnqueuedView):
    """A task as its worker sees it."""

    payload: Any
    attempt: int
    epoch: Annotated[
        str, Field(description="(epoch, attempt) grows with every attempt, for stores that refuse older writers")
    ]
    checkpoint: Any
    last_error: Annotated[
        LastErrorView | None, Field(description="Why the attempt before did not succeed, if that is known")
    ]
    missing: Annotated[
        list[str],
        Field(description="Conditions that did not hold when a schedule launched the run after its job timeout"),
    ]
    due_at: Annotated[str, Field(description="When this attempt could start at the earliest: it is late from then on")]


class LeaseView(BaseModel):
    """A lease."""

    lease: Annotated[
        str, Field(description="The token that proves it; empty: the task has ended with being handed over")
    ]
    expires_in_ms: int
    beat_every_ms: Annotated[int, Field(description="How often to call, so that it lasts")]
    max_ms: Annotated[int, Field(description="How long it can be kept at most")]
    task: LeasedTaskView


class StatusView(BaseModel):
    """The result of a report or a heartbeat."""

    lease: str
    status: Annotated[
        str,
        Field(
            description="ok, also of a report whose lease was reported with this outcome before: the first one counts; or lease_lost, "
            "lease_ended, lease_of_another_worker, task_cancelled, unavailable"
        ),
    ]


class ScaleView(BaseModel):
    """The amount of work that waits for workers."""

    queue: str
    ready: Annotated[int, Field(description="About how many tasks could be worked on now, by as many workers")]
    oldest_ready_ms: Annotated[
        int | None, Field(description="How long ago the scheduled time of the most urgent of them was")
    ]
    limited_by: Annotated[
        str | None,
        Field(
            description="paused, concurrency, rate, group: more workers would not help; push: dispatchers run what names a handler; "
            "tables: what is due waits until the tables have been scanned up to its time; null: nothing"
        ),
    ]


class CommandView(BaseModel):
    """A command to a worker."""

    type: Annotated[
        Literal["cancel", "list_leases", "drain", "stop"],
        Field(description="drain: take nothing more, finish what is held, and end; stop: give it back, and end"),
    ]
    lease: str | None = None
    grace_ms: Annotated[
        int | None, Field(description="Of a cancel: always 0, because the task has ended already; drop it")
    ] = None


class SyncView(BaseModel):
    """The answer to a call of a worker."""

    seq: int
    accepted: list[StatusView]
    leases: list[LeaseView]
    lost: list[str]
    commands: list[CommandView]
    queues: list[ScaleView]


class LeasesView(BaseModel):
    """The leases that were granted."""

    leases: list[LeaseView]
    queues: list[ScaleView]


class StatusesView(BaseModel):
    """The result of each item, in order."""

    leases: list[StatusView]


class WorkerView(BaseModel):
    """A worker."""

    worker: Annotated[
        str, Field(description="Its name; where tokens are needed, with `@` and the id of its token behind")
    ]
    session: Annotated[str, Field(description="Tells sessions of a name apart; not what the worker calls it")]
    leases: int
    waits: bool
    silent_ms: int
    about: Any
    order: Annotated[
        Literal["drain", "stop"] | None, Field(description="What an operator wants it to do; it is leased nothing more")
    ]


class OrderView(BaseModel):
    """An order to a worker."""

    worker: str
    order: Literal["drain", "stop"]


def not_held(said: str) -> Problem:
    """Returns the problem for a worker whose lease is not held: its owner is not available, or the lease has ended."""
    if said == UNAVAILABLE:
        return Problem(problems.UNREACHABLE, "The partition of the lease has no owner at the moment.")
    return Problem(problems.CONFLICT, "The lease has ended, or never existed.", hint="Stop working on it.")


def bounded(name: str, value: Any, most: int) -> str | None:
    """The JSON text of a value that is stored; None for None.

    Args:
        name: of the field, for the error.
        value: plain JSON.
        most: bytes.

    Raises:
        ArgumentError: it has too many bytes, is nested too deep, or holds a number that JSON cannot.
    """
    if value is None:
        return None
    try:
        text = kept_text(value)
    except ValueError as error:  # 1e400 is JSON for a parser, and then a number that is not
        raise ArgumentError(
            f"{name} cannot be kept: {error}.", hint=f"Numbers are finite, and values have {MAX_LEVELS} levels at most."
        ) from None
    size = size_of(text)
    if size > most:
        raise ArgumentError(
            f"{name} has {size} bytes; {most} are stored.", hint="Store it elsewhere and pass a reference."
        )
    return text


def scale_view(queue: Scarcity) -> dict[str, Any]:
    """Returns the work that waits in a queue."""
    oldest = queue.oldest_us // 1000 if queue.oldest_us is not None else None
    return {"queue": queue.queue, "ready": queue.ready, "oldest_ready_ms": oldest, "limited_by": queue.limit or None}


def statuses_view(tokens: Sequence[str], statuses: Sequence[str]) -> list[dict[str, str]]:
    """Returns the result of each token."""
    return [{"lease": token, "status": status} for token, status in zip(tokens, statuses, strict=True)]


def sync_view(body: SyncBody, answer: Answer) -> dict[str, Any]:
    """Returns the answer to a call of a worker."""
    tokens = [result.lease for result in body.results] + [sign.lease for sign in body.progress]
    commands: list[dict[str, Any]] = [{"type": "cancel", "lease": token, "grace_ms": 0} for token in answer.cancelled]
    if answer.order:
        commands.append({"type": answer.order, "lease": None, "grace_ms": None})
    held = body.held
    if held is not None and held.leases is None and held.digest is not None:
        before = answer.held - len([lease for lease in answer.leases if lease.token])
        told = answer.digest ^ folded(lease.token for lease in answer.leases if lease.token)
        if (held.count, held.digest) != (before, f"{told:08x}"):
            commands.append({"type": "list_leases", "lease": None, "grace_ms": None})
    return {
        "seq": body.seq,
        "accepted": statuses_view(tokens, answer.statuses),
        "leases": [lease_view(one) for one in answer.leases],
        "lost": list(answer.lost),
        "commands": commands,
        "queues": [scale_view(one) for one in answer.queues],
    }
