"""What a task is, how it is retried, and what passes between the dispatcher and an executor."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, Protocol, TypedDict, Unpack

from scylla_spark.clock import from_us
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.follow_up import FollowUp
from scylla_spark.core.tasks.key import TaskKey, planned_at
from scylla_spark.core.tasks.output import FilePath
from scylla_spark.defaults import DEFAULT_QUEUE, MOST_RETRIES
from scylla_spark.duration import duration_ms, duration_us
from scylla_spark.errors import ArgumentError, shown
from scylla_spark.task_states import ENDED

SUCCEEDED: Final = "succeeded"
FAILED: Final = "failed"
ABORTED: Final = "aborted"
CANCELLED: Final = "cancelled"
EXPIRED: Final = "expired"  # it had not begun by the time it was to begin at the latest
DUPLICATE: Final = "duplicate"  # its name was to be unique, and an earlier task that is open bore it
TIMED_OUT: Final = "timed_out"
YIELDED: Final = "yielded"
STARTED: Final = "started"  # a start fact; not an outcome
CHILD_DIED: Final = "child_died"  # kind of a failure: the process that ran the handler is gone
WORKER_FAULT: Final = "worker_fault"  # likewise: a worker could not run it
CONTAINER_LOST: Final = "container_lost"
CONTAINER_NOT_STARTED: Final = "container_not_started"
RATE_LIMITED: Final = "rate_limited"  # kind of a failure of what yielded; its message is the key of the limit
NOT_STARTED: Final = "not_started"  # an executor hands the task back unrun; never recorded

TERMINAL: Final = frozenset(ENDED)
INHERITED: Final = "inherited"
NEVER_US: Final = 1 << 62
"""In place of an instant that does not come, microseconds."""
NOT_GIVEN: Final = -1
"""In place of a number of a retry policy that its task leaves out, on the wire between our parts and in tables."""
FAILURES: Final = frozenset({FAILED, ABORTED, TIMED_OUT})
"""Outcomes of what was run, and did not do what it was to."""
MAX_PAYLOAD_BYTES: Final = 256 * 1024
MAX_RESULT_BYTES: Final = 64 * 1024
MAX_ERROR_CHARS: Final = 16 * 1024
MAX_LAST_ERROR_CHARS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Retry:
    """When a failed task runs again.

    Before attempt n ≥ 2 the wait is uniform in [w/2, w] with w = min(cap, base · 2^(n-2)). What is left out comes from the
    handler of the task, then from its queue, then from the deployment.

    Args:
        max_retries: attempts after the first, at most 2³¹ - 1; None means for ever. Default: "inherited", left out.
        base: wait before the second attempt (duration, see `duration`). Default: None, left out.
        cap: longest wait (duration). Default: None, left out.

    Attributes:
        base_ms: `base` in milliseconds; NOT_GIVEN: it is left out.
        cap_ms: the same of `cap`.
    """

    max_retries: int | Literal["inherited"] | None = INHERITED
    base: timedelta | str | float | None = None
    cap: timedelta | str | float | None = None
    base_ms: int = field(init=False)
    cap_ms: int = field(init=False)

    def __post_init__(self) -> None:
        count: object = self.max_retries
        if count not in (None, INHERITED) and not (type(count) is int and 0 <= count <= MOST_RETRIES):
            raise ArgumentError(
                f"max_retries is {shown(count)}.",
                hint=f"Pass a whole number from 0 to {MOST_RETRIES}, or None for ever.",
                reason="wrong_value",
            )
        object.__setattr__(self, "base_ms", NOT_GIVEN if self.base is None else duration_ms(self.base))
        object.__setattr__(self, "cap_ms", NOT_GIVEN if self.cap is None else duration_ms(self.cap))

    @classmethod
    def from_ms(cls, max_retries: int | None, base_ms: int, cap_ms: int) -> Retry:
        """Policy from the units of tables and wire; the inverse of `terms`.

        Args:
            max_retries: attempts after the first; None: for ever; NOT_GIVEN: left out, as with the others.
            base_ms: wait before the second attempt.
            cap_ms: longest wait.
        """
        waits = (None if ms == NOT_GIVEN else timedelta(milliseconds=ms) for ms in (base_ms, cap_ms))
        return cls(INHERITED if max_retries == NOT_GIVEN else max_retries, *waits)

    @property
    def terms(self) -> tuple[int | None, int, int]:
        """Number of retries (None: for ever), base and cap in milliseconds; NOT_GIVEN in place of what is left out."""
        return (NOT_GIVEN if self.max_retries == INHERITED else self.max_retries), self.base_ms, self.cap_ms

    def filled(self, otherwise: Retry) -> Retry:
        """This policy, with what it leaves out as another one says."""
        pairs = zip(self.terms, otherwise.terms, strict=True)
        count, base_ms, cap_ms = (other if own == NOT_GIVEN else own for own, other in pairs)
        return Retry.from_ms(count, base_ms or 0, cap_ms or 0)

    def allows(self, attempts: int) -> bool:
        """Returns True if another attempt may follow after `attempts` attempts; of a policy that leaves nothing out."""
        most = self.terms[0]
        return most is None or attempts <= most

    def wait_us(self, next_attempt: int, rng: random.Random) -> int:
        """Microseconds to wait before attempt number `next_attempt`; before the first and second alike. As with `allows`."""
        longest = min(self.cap_ms, self.base_ms << max(0, min(next_attempt - 2, 40))) * 1000
        return rng.randint(longest // 2, longest)


@dataclass(frozen=True, slots=True)
class Task:
    """What a handler is given.

    Attributes:
        key: identity; `key.scheduled_time` is when it is due.
        payload: the JSON value that was enqueued (usually a dict).
        handler: name under which the function is registered.
        queue: the queue it came from.
        priority: 0-255, higher is more urgent.
    """

    key: TaskKey
    payload: Any
    handler: str
    queue: str = DEFAULT_QUEUE
    priority: int = 0

    @property
    def ordering_id(self) -> str:
        """The lane."""
        return self.key.ordering_id

    @property
    def scheduled_time(self) -> datetime:
        """Returns when it is due, aware UTC; of runs of schedules the context has the planned time."""
        return self.key.scheduled_time


class FollowUpOptions(TypedDict, total=False):
    """The options of a task that a handler enqueues.

    Attributes:
        ordering_id: the lane; tasks of one lane run one at a time, in the order of their keys. Default: a lane of its own.
        at: when it is due: an aware datetime, an instant as text, or a local time such as "monday noon Europe/Berlin" (see
            `local_time.due_us`). Default: at once, for a follow-up when its parent has succeeded.
        delay: or how long after that (duration).
        queue: queue.
        priority: 0-255, higher is more urgent.
        retry: when it runs again after a failure. Default: as its handler or the deployment says.
        timeout: longest run of an attempt (duration). Default: as its handler or the deployment says.
        expires: it ends as expired, without a run, if no attempt has begun so long after its scheduled time (duration). Default: it
            never does.
        tags: at most 16 texts of at most 64 characters by which it is found. Default: none.
        notify: channel of the settings that is notified of its end, if its definition has `tasks`. It becomes the tag
            "notify:CHANNEL". Default: none.
        description: what it is for, for people; at most 2,000 characters. Default: none.
        traceparent: trace and span that it belongs to, as W3C Trace Context writes them. Default: OpenTelemetry's current span, for
            a follow-up else that of its parent.
    """

    ordering_id: str | None
    at: datetime | str | None
    delay: object
    queue: str
    priority: int
    retry: Retry | None
    timeout: object
    expires: object
    tags: Iterable[str] | None
    notify: str | None
    description: str | None
    traceparent: str | None


class Notes(Protocol):
    """Where an attempt says how far it is."""

    def progress(self, value: float, note: str | None = None) -> None:
        """See `TaskContext.progress`."""

    def checkpoint(self, value: dict[str, Any]) -> None:
        """See `TaskContext.checkpoint`."""

    def enqueue(
        self, handler: str | Callable[..., Any] | None, payload: Any, name: str | None, options: FollowUpOptions
    ) -> None:
        """See `TaskContext.enqueue`."""

    def emit(self, event: str, fields: dict[str, Any] | None) -> None:
        """See `TaskContext.emit`."""

    def output(self, name: str, data: Any, media_type: str | None) -> None:
        """See `TaskContext.output`."""

    def extend(self, by_us: int) -> int:
        """The attempt wants to go on for so long; until when it may, microseconds since the epoch."""


Session = Callable[[], Any]
"""Opens the session of Spark Connect of an attempt, or gives the one that is open."""


class Flag(Protocol):
    """What a `threading.Event` is to those that do not set it."""

    def is_set(self) -> bool:
        """Returns True if it is set."""

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is set, or for so many seconds; whether it is."""


@dataclass(frozen=True, slots=True)
class TaskContext:
    """What a handler may know of its attempt, and say of it.

    Attributes:
        attempt: number of this attempt, from 1.
        epoch: fencing number of the dispatcher that started it.
        deadline: when the attempt will be stopped, aware UTC.
        checkpointed: what an earlier attempt left behind by `checkpoint`; None: nothing.
        notes: where it says how far it is; None: nobody listens, as in a test that calls the handler itself.
        cancelled: is set when the attempt is to end, because its result does not matter any more: somebody cancelled the task
            while it runs, or a worker has lost its lease. Of `async def` handlers it is not: they get a CancelledError.
        session: opens its session of Spark Connect; None: it has none.
        last_error: why the attempt before did not succeed, its `kind` and the first 1,000 characters of its `message`; None: this is
            the first, or the one before yielded, or nobody knows how it ended.
        tags: of the task.
        traceparent: trace and span in which the task was enqueued, as W3C Trace Context writes them; None: in none. A span that is to
            belong to that trace takes it as its parent.
        host: name of the machine that runs the handler; None: not known, as in a test that calls the handler itself.
        executor_id: id of the Spark executor whose Spark worker runs the handler; None: no Spark worker does.
        planned_at: planned time of the run of a schedule that the task is, aware UTC. The task's own time is later by jitter, or is the
            moment of the decision where that came late. None: the task is no run.
        missing: conditions that did not hold when a schedule launched the run, since its job had waited for the whole job timeout:
            branches of the trigger, such as "event:stock", and constraints, such as "time_range". Empty: all held.
    """

    attempt: int
    epoch: int
    deadline: datetime
    checkpointed: Any = None
    notes: Notes | None = field(default=None, repr=False, compare=False)
    cancelled: Flag = field(default_factory=threading.Event, repr=False, compare=False)
    session: Session | None = field(default=None, repr=False, compare=False)
    last_error: LastError | None = None
    tags: tuple[str, ...] = ()
    traceparent: str | None = None
    planned_at: datetime | None = None
    missing: tuple[str, ...] = ()
    host: str | None = None
    executor_id: str | None = None

    @property
    def token(self) -> tuple[int, int]:
        """(epoch, attempt): grows with every attempt; pass it to stores that can refuse older writers."""
        return (self.epoch, self.attempt)

    def progress(self, value: float, note: str | None = None) -> None:
        """Says how far the work is; seen in the attempts of the task, about a second later.

        Args:
            value: from 0 to 1.
            note: in words, what it is at: one line, of which 200 characters are kept, without secrets as in lines of logs.
                Default: what was said last; "" takes that back.

        Raises:
            ArgumentError: it is no such number, or the note is no text.
        """
        if self.notes is not None:
            self.notes.progress(value, note)

    def checkpoint(self, value: dict[str, Any]) -> None:
        """Leaves behind from where another attempt can go on, which finds it in `checkpointed`.

        It holds whatever ends this attempt, a death of its child process included. After a crash of the dispatcher the next
        attempt may find one that is some seconds older.

        Args:
            value: a JSON object of at most 64 KiB.

        Raises:
            ArgumentError: it is none.
        """
        if self.notes is not None:
            self.notes.checkpoint(value)

    def enqueue(
        self,
        handler: str | Callable[..., Any] | None,
        payload: Any = None,
        *,
        name: str | None = None,
        **options: Unpack[FollowUpOptions],
    ) -> None:
        """Enqueues another task when this attempt has succeeded; it exists before this task counts as succeeded.

        What an attempt asked for that ends otherwise is not sent. The key is derived from that of this task and the name, so
        however often this task is tried, there is one such task.

        Args:
            handler: name, or a registered function; None leaves it to `ingest.default_handler`.
            payload: a JSON object; of a function that declares a type of payload, a value of that. Default: empty.
            name: tells it from others that this task enqueues; the last of a name counts. It is also its title for people, if it
                has only printable characters and no spaces around them. Default: its number in the attempt, and no title.
            **options: see `FollowUpOptions`.

        Raises:
            ArgumentError: it would be refused, or the attempt asks for too much.
        """
        if self.notes is not None:
            self.notes.enqueue(handler, payload, name, options)

    def emit(self, event: str, fields: dict[str, Any] | None = None) -> None:
        """Tells the planner of an event when this attempt has succeeded; after a crash in that moment perhaps twice.

        Args:
            event: its name, as triggers call it.
            fields: JSON values that triggers compare and templates read, at most 16 KiB.

        Raises:
            ArgumentError: it would be refused, or the attempt asks for too much.
        """
        if self.notes is not None:
            self.notes.emit(event, fields)

    def output(self, name: str, data: bytes | str | FilePath, *, media_type: str | None = None) -> None:
        """Leaves a file behind, which people find with the attempt; returns when it is stored, whole.

        It stays whatever ends this attempt. A name that was used before in the attempt gets the new content.

        Args:
            name: file name of any alphabet, at most 200 bytes, without folders.
            data: bytes, a text, or the path of a file, which is copied.
            media_type: such as "text/csv". Default: as the name ends.

        Raises:
            ArgumentError: the name is none, it is too much for one attempt, or outputs cannot be kept where the handler runs.
            OSError: the file cannot be read, or not be stored.
        """
        if self.notes is not None:
            self.notes.output(name, data, media_type)

    def extend(self, by: object) -> datetime:
        """Moves the end of the attempt's time, if it needs longer than was thought; never to an earlier one.

        Args:
            by: for how long from now it may go on (duration); it is stopped after `dispatch.longest_run` all the same.

        Returns:
            When it will be stopped now, aware UTC; `deadline` stays what it was at the start.
        """
        by_us = duration_us(by)
        if self.notes is None:
            return self.deadline
        return from_us(self.notes.extend(by_us))

    @property
    def spark(self) -> Any:
        """The session of Spark Connect of this attempt, a `pyspark.sql.SparkSession`; what it runs there ends with it.

        Raises:
            ArgumentError: the handler is registered without runs_on="connect".
        """
        if self.session is None:
            raise ArgumentError("This handler has no session of Spark.", hint='Register it with runs_on="connect".')
        return self.session()

    @property
    def log(self) -> logging.Logger:
        """Returns where a handler says what it does: its records stand with the lines of the attempt, `extra` as fields."""
        return logging.getLogger("scylla_spark.task")


class LastError(NamedTuple):
    """Why the attempt before did not succeed, as the next one is told.

    Attributes:
        kind: class of the exception, or a code of ours.
        message: its first 1,000 characters.
    """

    kind: str
    message: str


class Invocation(NamedTuple):
    """One attempt, released to an executor.

    Attributes:
        id: unique within the dispatcher process.
        payload: JSON text.
        planned_us: when this attempt could start at the earliest, microseconds since the epoch; see `could_start_us`.
        timeout_ms: how long the handler may run.
        start_by_us: boot clock after which it must not start any more: until then we certainly own its partition.
        checkpoint: JSON text that an earlier attempt left behind; None: nothing.
        last_error: why the attempt before did not succeed; None: there was none, it yielded, or nobody knows how it ended.
        expires_us: it must not start after this either, microseconds since the epoch: by then it has expired.
        tags: of the task.
        traceparent: trace and span in which it was enqueued; None: in none.
        missing: conditions that did not hold when a schedule launched the run.
    """

    id: int
    key: TaskKey
    attempt: int
    epoch: int
    handler: str
    queue: str
    payload: str
    priority: int
    planned_us: int
    timeout_ms: int
    start_by_us: int = NEVER_US
    checkpoint: str | None = None
    last_error: LastError | None = None
    expires_us: int = NEVER_US
    tags: tuple[str, ...] = ()
    traceparent: str | None = None
    missing: tuple[str, ...] = ()

    def in_time(self, offset_us: int) -> Invocation:
        """The same for executors, which know the boot clock alone: it must not start after it has expired.

        Args:
            offset_us: how far the boot clock is behind the time, microseconds.
        """
        latest_us = self.expires_us - offset_us
        return self if latest_us >= self.start_by_us else self._replace(start_by_us=latest_us)

    def context(
        self, deadline: datetime, checkpointed: Any, notes: Notes | None, cancelled: Flag, **place: Any
    ) -> TaskContext:
        """The context of this attempt for its handler, with `host` and `executor_id` as `place`; see `TaskContext`."""
        return TaskContext(
            self.attempt,
            self.epoch,
            deadline,
            checkpointed,
            notes,
            cancelled,
            last_error=self.last_error,
            tags=self.tags,
            traceparent=self.traceparent,
            planned_at=planned_at(self.key.uniqueness_key),
            missing=self.missing,
            **place,
        )

    @property
    def fields(self) -> list[Any]:
        """Its fields, and those of its key, as JSON on its way to a child or a worker; without the last if they say nothing; see `read`."""
        if self[_USUAL:] == _NOTHING_MORE:
            return [self.id, *self.key, *self[2:_USUAL]]
        return [self.id, *self.key, *self[2:]]

    @classmethod
    def read(cls, fields: list[Any]) -> Invocation:
        """The invocation whose `fields` these are."""
        if len(fields) == _USUAL_FIELDS:
            key = _new(TaskKey, fields[1:4])
            return _new(cls, (fields[0], key, *fields[4:], *_NOTHING_MORE))
        item = cls(fields[0], TaskKey(*fields[1:4]), *fields[4:])
        error = None if item.last_error is None else LastError(*item.last_error)
        return item._replace(last_error=error, tags=tuple(item.tags), missing=tuple(item.missing))


AS_ENQUEUED: Final = ("queue", "priority", "tags", "traceparent")
"""Fields of an invocation that workers are told as they were enqueued."""
_USUAL: Final = Invocation._fields.index("checkpoint")
_USUAL_FIELDS: Final = _USUAL + len(TaskKey._fields) - 1
_new = tuple.__new__  # makes a named tuple in half the time of a call of its class
_NOTHING_MORE: Final = tuple(Invocation._field_defaults[name] for name in Invocation._fields[_USUAL:])


class Failure(NamedTuple):
    """Why an attempt did not succeed: class of the exception (or a code of ours), message and stack."""

    kind: str
    message: str = ""
    stack: str = ""

    @property
    def raised(self) -> bool:
        """Returns True if the handler raised it: only exceptions have a stack, and processes that died in the midst of something."""
        return bool(self.stack) and self.kind != CHILD_DIED

    @property
    def reported(self) -> bool:
        """Whether a worker reports it of the work, and not of itself; what consumers report has codes of theirs, and often no stack."""
        return self.kind not in (CHILD_DIED, WORKER_FAULT, CONTAINER_LOST, CONTAINER_NOT_STARTED)

    @property
    def brief(self) -> LastError:
        """Returns what the next attempt is told of it."""
        return LastError(self.kind, self.message[:MAX_LAST_ERROR_CHARS])


class Outcome(NamedTuple):
    """How an invocation ended.

    Attributes:
        id: the invocation's id.
        outcome: succeeded, failed, aborted, timed_out, yielded or not_started.
        started_us: when the handler began (0 for not_started), microseconds since the epoch.
        finished_us: when it ended.
        result: JSON text, at most 64 KiB.
        failure: set unless succeeded, yielded or not_started.
        after_ms: for yielded: wait before the next start.
        wait_ms: for failed and timed_out: wait before the next start; None: as the retry policy says.
        least_wait_ms: for failed: wait so long at least, should the retry policy say less.
        work: who had it, and what it left behind.
        final: for failed: no other attempt follows, whatever the retry policy says.
        follow_ups: for succeeded: what is to be sent before that counts.
    """

    id: int
    outcome: str
    started_us: int = 0
    finished_us: int = 0
    result: str | None = None
    failure: Failure | None = None
    after_ms: int = 0
    wait_ms: int | None = None
    work: WorkNote | None = None
    final: bool = False
    follow_ups: tuple[FollowUp, ...] = ()
    least_wait_ms: int = 0
