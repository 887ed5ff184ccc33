"""A lease as a worker's code sees it: the task, how far it is, and how it ends."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol

from scylla_spark.clock import boot_us, from_us, now_us, to_us
from scylla_spark.core.leases.messages import CANCELLED, LOST, OK, LeasedLine
from scylla_spark.core.tasks.attempt_note import (
    MAX_CHECKPOINT_BYTES,
    MAX_METRICS_BYTES,
    MAX_SAID_NOTE_CHARS,
    checked_note,
    checked_progress,
)
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.output import checked_output_name
from scylla_spark.core.tasks.task import (
    ABORTED,
    AS_ENQUEUED,
    FAILED,
    MAX_RESULT_BYTES,
    SUCCEEDED,
    YIELDED,
    FollowUpOptions,
    Invocation,
    LastError,
    Task,
    TaskContext,
)
from scylla_spark.duration import duration_ms
from scylla_spark.errors import ArgumentError, ConflictError, SchedulerError, WaitTimeoutError
from scylla_spark.handlers.call import verdict_of
from scylla_spark.handlers.outputs import checked_media_type
from scylla_spark.io.host.output_files import Source, opened
from scylla_spark.worker.report_json import error_text, item_text, json_text

_NOT_YET: Final = ""


class Output(NamedTuple):
    """A file that is to be left behind.

    Attributes:
        name: what it is to be called.
        media_type: what it is said to be.
        file: where it lies on this machine.
    """

    name: str
    media_type: str
    file: str


class Reporter(Protocol):
    """Who brings what is said of leases to the server."""

    def report(self, lease: Lease, text: str) -> None:
        """A lease ends; `text` is the item of the call that says so."""

    def sign(self, lease: Lease, **fields: str) -> None:
        """A lease goes on; `fields` are JSON texts."""

    def output(self, lease: Lease, output: Output) -> None:
        """A file is left behind; returns when the server has stored it, or raises why not."""

    def lines(self, lease: Lease, lines: Sequence[LeasedLine]) -> None:
        """Lines for the logs of the attempt; returns when the server has them, or raises why not."""

    def refuse(self) -> SchedulerError | None:
        """Returns why nothing can be brought any more; None: it can."""


class Lease:
    """One leased task.

    As a context it reports by itself: left by an exception the task has failed (`Abort` and `Yield` mean what they mean in
    handlers), left without a report it has succeeded.

    Args:
        view: the lease, as the server told of it.
        reporter: who brings what is said of it to the server.

    Attributes:
        task: what is to be done.
        attempt: number of this attempt, from 1.
        epoch: (epoch, attempt) grows with every attempt; pass both to stores that can refuse older writers.
        checkpointed: what an earlier attempt left behind; None: nothing.
        invocation: the attempt, without what stands in `task` and `checkpointed`.
        cancelled: is set when the task was cancelled: stop working on it.
        view: as the server told of it.
        lost: is set when the lease is not held any more, for whatever reason: somebody else may work on the task.
        extended: is told for how many microseconds from now the handler may go on, when it has asked for longer than it had.
    """

    def __init__(self, view: dict[str, Any], reporter: Reporter) -> None:
        self.view = view
        told = view["task"]
        key = TaskKey.of(datetime.fromisoformat(told["scheduled_time"]), told["ordering_id"], told["uniqueness_key"])
        handler = told["handler"] or ""
        self.task = Task(key, told["payload"], handler, told["queue"], told["priority"])
        self.attempt: int = told["attempt"]
        self.epoch = int(told["epoch"])
        self.checkpointed: Any = told["checkpoint"]
        error, due_at = told.get("last_error"), told.get("due_at")  # an older server does not tell
        plain = {name: told[name] for name in AS_ENQUEUED if name in told} | {
            name: tuple(told.get(name, ())) for name in ("tags", "missing")
        }
        self.invocation = Invocation(
            0,
            key,
            self.attempt,
            self.epoch,
            handler,
            payload="",
            planned_us=0 if due_at is None else to_us(datetime.fromisoformat(due_at)),
            timeout_ms=0,
            last_error=None if error is None else LastError(error["kind"], error["message"]),
            **plain,
        )
        self.cancelled = threading.Event()
        self.lost = threading.Event()
        self.token: str = view["lease"]
        self.beat_ms: int = view["beat_every_ms"]
        self._lease_ms: int = view["expires_in_ms"]
        self._ends_us: int = now_us() + view["max_ms"] * 1000
        self._stops_us: int = self._ends_us  # unless the handler has a time-out
        self.extended: Callable[[int], object] | None = None
        self._kept_us = boot_us()
        self._reporter = reporter
        self._checkpoint: str | None = None
        self._reported = not self.token  # handed over once, and ended with that
        self._over = False  # of one without a token: its work has returned
        self._status = OK if self._reported else _NOT_YET
        self._settled = threading.Event()
        if self._reported:
            self._settled.set()

    # -- how far it is ----------------------------------------------------------------------------------------------------

    @property
    def context(self) -> TaskContext:
        """Returns what a handler may know of its attempt; the deadline is when the lease ends whatever happens."""
        return TaskContext(self.attempt, self.epoch, from_us(self._ends_us))

    @property
    def tags(self) -> tuple[str, ...]:
        """Returns the tags of the task."""
        return self.invocation.tags

    @property
    def last_error(self) -> LastError | None:
        """Returns why the attempt before did not succeed; None: there was none, or it is not known."""
        return self.invocation.last_error

    @property
    def seconds_left(self) -> float:
        """How long the lease surely lasts from now; negative: the server has not been reached for so long that it may have ended."""
        return (self._kept_us + self._lease_ms * 1000 - boot_us()) / 1e6

    @property
    def reported(self) -> bool:
        """Returns True if its end was reported, recorded or not."""
        return self._reported

    @property
    def takes_room(self) -> bool:
        """Returns True if somebody works on it, as far as it says: it is one of those that a worker may hold.

        One that was handed over once has ended for the server before its work begins, so it takes room until its code says how it
        ended, although nobody asks for that.
        """
        if not self.token:
            return not self._over
        return not (self._reported or self.lost.is_set())

    def progress(self, value: float, note: str | None = None) -> None:
        """Says how far the work is; goes with the next heartbeat.

        Args:
            value: from 0 to 1.
            note: in words, what it is at, see `TaskContext.progress`; default: what was said last.

        Raises:
            ArgumentError: it is no such number, or the note is no text.
        """
        number = json_text("progress", checked_progress(value), 100)
        self._sign(
            value=number,
            note=None if note is None else json_text("note", checked_note(note), 6 * MAX_SAID_NOTE_CHARS),
        )

    def checkpoint(self, value: dict[str, Any]) -> None:
        """Leaves behind from where another attempt could go on; recorded once a second at most.

        Args:
            value: a JSON object of at most 64 KiB.

        Raises:
            ArgumentError: it is none.
        """
        self._sign(checkpoint=_object_text("checkpoint", value, MAX_CHECKPOINT_BYTES))

    def enqueue(
        self, handler: str | Callable[..., Any] | None, payload: Any, name: str | None, options: FollowUpOptions
    ) -> None:
        """A leased worker may enqueue over HTTP itself; see `TaskContext.enqueue` for what is not done here.

        Raises:
            ArgumentError: always.
        """
        raise ArgumentError("A leased worker cannot enqueue through its context.", hint="POST /v1/tasks does it.")

    def emit(self, event: str, fields: dict[str, Any] | None) -> None:
        """A leased worker may tell events over HTTP itself; see `TaskContext.emit` for what is not done here.

        Raises:
            ArgumentError: always.
        """
        raise ArgumentError("A leased worker cannot emit through its context.", hint="POST /v1/events does it.")

    def output(self, name: str, data: Source, media_type: str | None = None) -> None:
        """Leaves a file behind; see `TaskContext.output`. It is sent to the server, and stored there when this returns.

        Args:
            name: file name, without folders.
            data: bytes, a text, or the path of a file.
            media_type: default: as the name ends.

        Raises:
            ArgumentError: it is refused, or the lease is over.
            UnreachableError: the server cannot be reached.
            OSError: the file cannot be read.
        """
        output = Output(checked_output_name(name), checked_media_type(media_type, name), "")
        with opened(data) as content, tempfile.NamedTemporaryFile(prefix="scyllaspark-output-") as copy:
            shutil.copyfileobj(content, copy)
            copy.flush()
            self.send_output(output._replace(file=copy.name))

    def send_output(self, output: Output) -> None:
        """Sends a file that lies in this machine; errors as of `output`."""
        if self._reported or self.lost.is_set():
            raise ArgumentError("The attempt is over.", hint="Leave files behind before the handler returns.")
        self._reporter.output(self, output)

    def tell_lines(self, lines: Sequence[LeasedLine]) -> None:
        """Brings what the work prints to the logs of its attempt.

        Args:
            lines: in order, at most 2,000.

        Raises:
            ArgumentError: they are refused, or the lease is over.
            UnreachableError: the server cannot be reached now.
        """
        if self._reported or self.lost.is_set():
            raise ArgumentError("The attempt is over.", hint="Tell lines before its end is reported.")
        self._reporter.lines(self, lines)

    def begin(self, timeout_ms: int | None) -> datetime:
        """A handler begins now; when it will be stopped, aware UTC.

        Args:
            timeout_ms: what its handler is given; None: as long as the lease can be kept.
        """
        if timeout_ms is not None:
            self._stops_us = min(self._ends_us, now_us() + timeout_ms * 1000)
        return from_us(self._stops_us)

    def extend(self, by_us: int) -> int:
        """The attempt wants to go on for so long; until when it may, microseconds since the epoch.

        Heartbeats keep the lease as long as they can without being asked, so it is the time-out of the handler that moves, and
        never beyond the end of the lease.
        """
        now: int = now_us()
        wanted_us = min(now + by_us, self._ends_us)
        if wanted_us > self._stops_us:
            self._stops_us = wanted_us
            if self.extended is not None:
                self.extended(wanted_us - now)
        return self._stops_us

    # -- how it ends ------------------------------------------------------------------------------------------------------

    def complete(self, result: Any = None, *, metrics: dict[str, Any] | None = None) -> None:
        """The task has succeeded. Returns at once; `recorded` waits until it is known.

        Args:
            result: any JSON value of at most 64 KiB; kept with the completion.
            metrics: a JSON object of at most 16 KiB; kept with the attempt.

        Raises:
            ArgumentError: something is no JSON, or too large.
            ConflictError: the lease was reported already.
        """
        self._report(
            SUCCEEDED,
            result=None if result is None else json_text("result", result, MAX_RESULT_BYTES),
            metrics=_object("metrics", metrics, MAX_METRICS_BYTES),
        )

    def fail(self, why: BaseException | str, description: str = "", *, after: object = None) -> None:
        """The attempt has failed; the retry policy says whether others follow.

        Args:
            why: an exception, of which class, message and stack are kept, or a code of yours.
            description: with a code: in words.
            after: how long to wait before the next attempt (a duration); default: as the retry policy says.

        Raises:
            ConflictError: the lease was reported already.
        """
        self._report(FAILED, error=error_text(why, description), after_ms=_after(after))

    def abort(self, why: BaseException | str, description: str = "") -> None:
        """The task has failed for good: no other attempt follows.

        Args:
            why: an exception, or a code of yours.
            description: with a code: in words.

        Raises:
            ConflictError: the lease was reported already.
        """
        self._report(ABORTED, error=error_text(why, description))

    def yield_(self, *, after: object = None, checkpoint: dict[str, Any] | None = None) -> None:
        """Gives the task back; that uses up no attempt.

        Args:
            after: how long to wait before the next attempt (a duration); default: not at all.
            checkpoint: from where it can go on.

        Raises:
            ConflictError: the lease was reported already.
        """
        text = _object("checkpoint", checkpoint, MAX_CHECKPOINT_BYTES)
        self._report(YIELDED, after_ms=_after(after), checkpoint=text)

    def recorded(self, timeout: float | None = None) -> bool:
        """Waits until the server has recorded the report: True if it counts, False if the lease had been lost before.

        Args:
            timeout: most seconds to wait; None: as long as the worker runs.

        Raises:
            WaitTimeoutError: it is not known yet.
            SchedulerError: it will not be known: the worker ended before.
        """
        if not self._settled.wait(timeout):
            raise WaitTimeoutError("It is not known yet whether the report was recorded.")
        error = self._reporter.refuse() if self._status == _NOT_YET else None
        if error is not None:
            raise error
        return self._status == OK

    @property
    def status(self) -> str:
        """Returns what the server said of the report: ok, lease_lost, task_cancelled …; empty: nothing yet."""
        return self._status

    def __enter__(self) -> Lease:
        """The lease."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Reports what has not been reported; an exception that is reported so goes no further, unless it ends the program."""
        if self._reported and (self.token or self._over):
            return False
        if error is None:
            self.complete()
        elif isinstance(error, Exception):
            self.report_exception(error)
            return True
        else:
            self.yield_()  # Ctrl-C: it is not the task's fault
        return False

    def report_exception(self, error: BaseException) -> None:
        """Reports what an exception of the work means: `Abort` and `Yield` as in handlers, any other: failed."""
        self.report_verdict(verdict_of(error))

    def report_verdict(self, verdict: Any, metrics: dict[str, Any] | None = None) -> None:
        """Reports how a handler ended.

        Args:
            verdict: of `handlers.call`.
            metrics: a JSON object of at most 16 KiB; kept with the attempt.
        """
        failure = verdict.failure
        self._report(
            verdict.outcome,
            result=verdict.result,
            error=None
            if failure is None
            else item_text(code=failure[0] or "failed", description=failure[1], stack=failure[2]),
            after_ms=verdict.after_ms if verdict.outcome == YIELDED else None,
            metrics=_object("metrics", metrics, MAX_METRICS_BYTES),
        )

    # -- for the conversation ---------------------------------------------------------------------------------------------

    def kept(self, sent_us: int) -> None:
        """A call that the server took was a sign of life.

        Args:
            sent_us: when it was sent, on the boot clock.
        """
        self._kept_us = max(sent_us, self._kept_us)

    def settle(self, status: str) -> None:
        """The server has said what becomes of it; empty: it will not say."""
        if status == CANCELLED:
            self.cancelled.set()
        if status not in (OK, _NOT_YET):
            self.lost.set()
        self._status = self._status or status
        if self._reported or status:
            self._settled.set()

    def end(self, *, cancelled: bool) -> None:
        """The server does not know it any more."""
        self.settle(CANCELLED if cancelled else LOST)

    def forget_checkpoint(self) -> None:
        """The server does not take what was left behind: the end of the attempt is told without it."""
        self._checkpoint = None

    def forward_report(self, text: str) -> None:
        """Reports what a child process says of the end; `text` is the item of the call."""
        if not self._reported:
            self._reported = True
            self._reporter.report(self, text)

    def forward_sign(self, fields: dict[str, str]) -> None:
        """Tells what a child process says of its work."""
        self._sign(**fields)

    def _sign(self, **fields: str | None) -> None:
        self._checkpoint = fields.get("checkpoint") or self._checkpoint
        if not self._reported and not self.lost.is_set():
            self._reporter.sign(self, **{name: text for name, text in fields.items() if text is not None})

    def _report(self, outcome: str, **fields: str | int | None) -> None:
        if self._reported:
            if not self.token:
                self._over = True
                self._reporter.report(self, "")  # there is room for another one
                return
            raise ConflictError("The lease was reported already.", hint="Report each lease once.")
        if outcome != SUCCEEDED and fields.get("checkpoint") is None:  # the last one may not have been told yet
            fields["checkpoint"] = self._checkpoint
        self.forward_report(item_text(lease=self.token, outcome=outcome, raw=fields))


def _object(name: str, value: Any, most: int) -> str | None:
    return None if value is None else _object_text(name, value, most)


def _object_text(name: str, value: Any, most: int) -> str:
    if not isinstance(value, dict):
        raise ArgumentError(f"{name} is a {type(value).__name__}.", hint="Pass a dict.")
    return json_text(name, value, most)


def _after(value: object) -> int | None:
    return None if value is None else duration_ms(value)
