"""The models of tasks in requests and answers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote

from fastapi import Header
from pydantic import BaseModel, Field

from scylla_spark.api.context import Body, Instant
from scylla_spark.client.tasks import enqueue_arguments
from scylla_spark.client.tasks.enqueue_arguments import command
from scylla_spark.core.notifications.error_fingerprint import fingerprint_of
from scylla_spark.core.records.command import Command
from scylla_spark.core.records.field_types import Tags
from scylla_spark.core.tasks.about import Description, Label
from scylla_spark.core.tasks.key import TaskKey, id_of, key_view
from scylla_spark.core.tasks.output import OutputLink
from scylla_spark.core.tasks.status import Attempt, TaskStatus
from scylla_spark.core.tasks.status_view import attempt_fields, status_view
from scylla_spark.core.tasks.task import INHERITED, Failure, Retry
from scylla_spark.core.tasks.trace_context import Traceparent, is_traceparent
from scylla_spark.defaults import DEFAULT_QUEUE
from scylla_spark.errors import ArgumentError
from scylla_spark.task_states import State

Span = Annotated[
    str | int | float, Field(description='A duration: "30s", "1h30m", or a number of seconds', examples=["30s"])
]


At = Annotated[
    str,
    Field(
        max_length=200,
        description="An instant, or DAY TIME ZONE: a date, today, tomorrow or a weekday; a time, noon or midnight; and the name of a zone. "
        "A time that the clock skips means the end of the gap, one that comes twice the first",
        examples=["monday noon Europe/Berlin", "2026-01-31 09:00 Europe/Berlin"],
    ),
]


def only_one(scheduled_time: datetime | None, at: str | None) -> datetime | str | None:
    """The time of a body.

    Raises:
        ArgumentError: both forms of it are given.
    """
    if scheduled_time is not None and at is not None:
        raise ArgumentError("Both `scheduled_time` and `at` are given.", hint="Pass one of them.", reason="wrong_value")
    return at if scheduled_time is None else scheduled_time


class RetryBody(Body):
    """The retry policy of a task. Omitted fields come from its handler, its queue or the deployment."""

    max_retries: Annotated[
        int | Literal["inherited"] | None,
        Field(description='Attempts after the first; null: for ever; "inherited": left out'),
    ] = INHERITED
    base: Annotated[Span | None, Field(description="Wait before the second attempt; null: left out")] = None
    cap: Annotated[Span | None, Field(description="Longest wait; null: left out")] = None

    def policy(self) -> Retry:
        """The policy."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return Retry(**{name: value for name, value in given.items() if name == "max_retries" or value is not None})


class TaskBody(Body):
    """The data of a task."""

    handler: Annotated[
        str | None, Field(description="Name of a registered function; null: the default handler, or a lease")
    ] = None
    payload: Annotated[dict[str, Any] | None, Field(description="JSON object for the handler, at most 256 KiB")] = None
    queue: str = DEFAULT_QUEUE
    priority: Annotated[int, Field(ge=0, le=255, description="Higher is more urgent")] = 0
    retry: RetryBody | None = None
    timeout: Annotated[Span | None, Field(description="Longest run of an attempt; null: as the handler says")] = None
    expires: Annotated[
        Span | None, Field(description="It expires if it has not begun so long after its scheduled time; null: never")
    ] = None
    tags: Annotated[Tags | None, Field(description="Short texts by which it is found")] = None
    notify: Annotated[
        str | None,
        Field(
            description="Channel of the settings that is notified of its end, if its definition has `tasks`; a tag notify:CHANNEL"
        ),
    ] = None
    name: Annotated[Label | None, Field(description="A title for people; it need not be unique")] = None
    description: Annotated[Description | None, Field(description="What the task is for")] = None
    traceparent: Annotated[
        Traceparent | None, Field(description="Trace and span that it belongs to, as W3C Trace Context writes them")
    ] = None

    unique: Annotated[
        Literal["open"] | None,
        Field(
            description="open: it ends as a duplicate if an earlier task of its lane and uniqueness key is open; null: it does not"
        ),
    ] = None

    def within(self, header: str | None) -> Self:
        """The same as part of the trace of the request, if it names none itself; a header that is none is passed over, as W3C says."""
        if self.traceparent is not None or header is None or not is_traceparent(header):
            return self
        return self.model_copy(update={"traceparent": header})

    def command(self, key: TaskKey | None, now: int, **more: Any) -> Command:
        """The command that enqueues it.

        Args:
            key: of the task; None: made from `more`.
            now: microseconds since the epoch.
            **more: further arguments of `EnqueueOptions`, and the parts of the key.

        Raises:
            ArgumentError: a value cannot be written.
        """
        if key is not None:
            more |= {"ordering_id": key.ordering_id, "uniqueness_key": key.uniqueness_key, "at": key.scheduled_time}
        given = {name: getattr(self, name) for name in TaskBody.model_fields}
        retry = None if self.retry is None else self.retry.policy()
        return command(now, **(given | {"retry": retry} | more))


Trace = Annotated[
    str | None,
    Header(alias="traceparent", max_length=200, description="The trace that the task belongs to, if it names none"),
]


class NewTask(TaskBody):
    """A task with as much of its key as the client wants to say."""

    scheduled_time: Annotated[Instant | None, Field(description="When it is due; default: now")] = None
    at: Annotated[At | None, Field(description="Or a local time with a zone")] = None
    delay: Annotated[Span | None, Field(description="Or how long from now")] = None
    ordering_id: Annotated[str | None, Field(description="The lane; default: one of its own")] = None
    uniqueness_key: Annotated[str | None, Field(description="Default: a new one, sortable by time")] = None

    def new_command(self, now: int, uniqueness_key: str | None = None) -> Command:
        """The command that enqueues it.

        Args:
            now: microseconds since the epoch.
            uniqueness_key: instead of its own.
        """
        at = only_one(self.scheduled_time, self.at)
        named = {"uniqueness_key": uniqueness_key or self.uniqueness_key, "at": at}
        return self.command(None, now, ordering_id=self.ordering_id, delay=self.delay, **named)


class ErrorView(BaseModel):
    """The error of a task or an attempt."""

    kind: Annotated[str, Field(description="Class of the exception, or a code of ours")]
    message: str
    stack: str
    fingerprint: Annotated[
        str, Field(description="The same for errors that differ in nothing but numbers and quoted values")
    ]


class KeyView(BaseModel):
    """The key of a task."""

    id: Annotated[str, Field(description="Names the task in paths")]
    scheduled_time: str
    ordering_id: str
    uniqueness_key: str


class ReceiptView(BaseModel):
    """The position of the record of a command in the topic `tasks`. The record is stored."""

    partition: int
    offset: Annotated[str, Field(description="As text: offsets grow beyond 2^53")]


class AcceptedView(KeyView):
    """A task that was accepted."""

    receipt: ReceiptView | None
    repeated: bool = False
    warning: Annotated[
        str | None, Field(description="What keeps it from running, or probably will; null: nothing known")
    ] = None


class OutputView(BaseModel):
    """A file that an attempt has left behind."""

    name: str
    bytes: int
    sha256: str
    media_type: Annotated[str, Field(description="What it is said to be; nobody has looked")]


class KeptOutputView(OutputView):
    """A file that an attempt has left behind, and where it is read."""

    url: Annotated[str, Field(description="Where it is read, behind the address of the API: /v1/…")]


class AttemptView(BaseModel):
    """One attempt of a task."""

    attempt: int
    outcome: str
    planned_at: str | None
    started_at: str | None
    finished_at: str | None
    next_at: str | None
    error: ErrorView | None
    isolation: Annotated[
        str | None, Field(description="level at which it ran, where its handler asks for one; told when it has ended")
    ]
    outputs: Annotated[list[KeptOutputView], Field(description="Files that it has left behind")]
    logs_url: Annotated[str, Field(description="Where its lines are read, behind the address of the API: /v1/…")]
    worker: Annotated[
        str | None,
        Field(
            description="That leased it, or executor and host of its Spark worker; null: a child of its dispatcher runs it"
        ),
    ]
    progress: Annotated[float | None, Field(description="From 0 to 1, as its handler or worker says")]
    progress_note: Annotated[str | None, Field(description="In words, what it said last that it is at")]
    metrics: Annotated[Any, Field(description="What its worker reported with its end")]
    heard_at: Annotated[
        str | None,
        Field(
            description="Its last sign of life: its end, or while it runs what its dispatcher says; null: nobody says"
        ),
    ]
    lease_until: Annotated[
        str | None, Field(description="When its lease ends unless its worker gives another sign of life")
    ]
    deadline: Annotated[str | None, Field(description="When it is ended at the latest, while it runs")]


class RunView(KeyView):
    """A task that may be a run of a schedule."""

    schedule: Annotated[str | None, Field(description="The schedule whose run it is, by its key; null: none")]
    planned_at: Annotated[str | None, Field(description="The time that its schedule planned it for")]


class RetryView(BaseModel):
    """The retry policy of a task. "inherited" and null: the value of its handler, its queue or the deployment."""

    max_retries: Annotated[
        int | Literal["inherited"] | None, Field(description="Attempts after the first; null: for ever")
    ]
    base: Annotated[str | None, Field(description="Wait before the second attempt")]
    cap: Annotated[str | None, Field(description="Longest wait")]


class EnqueuedView(BaseModel):
    """A task as it was enqueued."""

    handler: str | None
    queue: str
    priority: int
    tags: list[str]
    traceparent: Annotated[str | None, Field(description="Trace and span in which it was enqueued (W3C Trace Context)")]


class TaskView(RunView, EnqueuedView):
    """Returns the status of a task."""

    name: Annotated[str | None, Field(description="A title for people")]
    description: Annotated[str | None, Field(description="What the task is for")]
    enqueued_by: Annotated[str | None, Field(description="Who enqueued it, as its record says; null: not said")]
    enqueued_by_verified: Annotated[
        bool,
        Field(
            description="True: it is the name of the token of a request to the API, which signed it; false: the record only claims it"
        ),
    ]
    state: State
    payload: dict[str, Any]
    enqueued_at: str | None
    attempts: Annotated[int, Field(description="How many were begun")]
    next_attempt_at: str | None
    cancel_requested: bool
    expires_at: Annotated[str | None, Field(description="When it expires unless it has begun; null: never")]
    expires: Annotated[str | None, Field(description="How long after its scheduled time that is, such as 10m")]
    timeout: Annotated[str | None, Field(description="Longest run of an attempt; null: as its handler says")]
    retry: Annotated[RetryView | None, Field(description="Its own policy; null: as its handler says")]
    unique: Annotated[
        Literal["open"] | None, Field(description="open: it ends as a duplicate if an earlier one of its name is open")
    ]
    ended_at: str | None
    result: Any
    error: ErrorView | None
    fresh: Annotated[bool, Field(description="False where Kafka does not answer, so that this is what the tables say")]
    last_attempt: Annotated[
        AttemptView | None, Field(description="The newest that is recorded: who has it, how far it is; null: none")
    ]


class ResultView(KeyView):
    """The result of a task, or its state if it has not ended."""

    ended: bool
    state: State
    attempts: int
    result: Any
    error: ErrorView | None


def task_view(status: TaskStatus) -> dict[str, Any]:
    """Returns the status of a task."""
    return status_view(status) | {
        "error": error_view(status.error),
        "fresh": status.fresh,
        "last_attempt": attempt_view(status.key, status.attempt_details[-1]) if status.attempt_details else None,
    }


def result_view(status: TaskStatus) -> dict[str, Any]:
    """The result of a task, or its state if it has not ended."""
    return key_view(status.key) | {
        "ended": not status.open,
        "state": status.state,
        "attempts": status.attempts,
        "result": status.result,
        "error": error_view(status.error),
    }


def attempt_view(key: TaskKey, attempt: Attempt) -> dict[str, Any]:
    """One attempt of the task with this key."""
    return attempt_fields(attempt) | {
        "error": error_view(attempt.error),
        "outputs": [kept_output_view(key, attempt.number, link) for link in attempt.outputs],
        "logs_url": f"/v1/tasks/{id_of(key)}/logs?attempt={attempt.number}",
    }


def output_view(link: OutputLink) -> dict[str, Any]:
    """Returns the fields of an output."""
    return link._asdict()


def kept_output_view(key: TaskKey, attempt: int, link: OutputLink) -> dict[str, Any]:
    """The same, with where it is read.

    Args:
        key: of the task.
        attempt: its number.
        link: to the file.
    """
    return output_view(link) | {"url": f"/v1/tasks/{id_of(key)}/attempts/{attempt}/outputs/{quote(link.name, safe='')}"}


def error_view(error: Failure | None) -> dict[str, str] | None:
    """Returns the fields of an error."""
    if error is None:
        return None
    told = {"kind": error.kind, "message": error.message, "stack": error.stack}
    return told | {"fingerprint": fingerprint_of(error.kind, error.message)}


new_key = enqueue_arguments.new_key
