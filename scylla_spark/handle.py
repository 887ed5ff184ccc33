"""A handle on one task: how it stands, how it ended, and the wish to end it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from scylla_spark.clock import boot_us, from_us, now_us
from scylla_spark.core.duration import duration_ms
from scylla_spark.core.fact import Fact
from scylla_spark.core.fold import Folded
from scylla_spark.core.key import TaskKey, partition_of
from scylla_spark.core.state import OPEN, attempts_of, completion_of, state_of
from scylla_spark.core.task import CANCELLED, SUCCEEDED, Failure
from scylla_spark.core.wire import ENQUEUE, Command
from scylla_spark.errors import (
    ConflictError,
    NotFoundError,
    SchedulerError,
    TaskFailed,
    UnreachableError,
    WaitTimeoutError,
)
from scylla_spark.io.follower import Follower
from scylla_spark.io.readers import Readers

if TYPE_CHECKING:
    from scylla_spark.client import Scheduler

DETAILS: Final = 20
_ROUND_US: Final = 10_000_000  # a waiting client looks into the tables again this often
_CATCH_UP_US: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a task.

    Attributes:
        number: from 1.
        outcome: succeeded, failed, aborted, cancelled, timed_out, yielded, or "started" while no end is known.
        started_at: when the handler began.
        finished_at: when it ended; None while no end is known.
        planned_at: when it was to start.
        next_at: earliest start of the next attempt; None if there is none.
        error: why it did not succeed.
    """

    number: int
    outcome: str
    started_at: datetime | None
    finished_at: datetime | None
    planned_at: datetime | None
    next_at: datetime | None
    error: Failure | None


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """How a task stands.

    Attributes:
        key: identity.
        state: scheduled, ready, running, retry_wait (these are open), succeeded, failed, aborted or cancelled.
        handler: registered name; None: waits for a lease, or only a cancel of this key was seen.
        payload: the JSON object that was enqueued.
        attempts: how many attempts were begun.
        next_attempt_at: earliest start of the next attempt; None for an ended task.
        cancel_requested: a cancel was sent.
        ended_at: when it ended.
        result: what the handler returned.
        error: why it did not succeed, or why the last attempt did not.
        fresh: False where no broker answered, so that this is only what the tables say.
        attempt_details: the newest 20 attempts, in order; `TaskHandle.attempts` has all.
    """

    key: TaskKey
    state: str
    handler: str | None
    queue: str
    priority: int
    payload: dict[str, Any]
    enqueued_at: datetime | None
    attempts: int
    next_attempt_at: datetime | None
    cancel_requested: bool
    ended_at: datetime | None = None
    result: Any = None
    error: Failure | None = None
    fresh: bool = True
    attempt_details: tuple[Attempt, ...] = ()

    @property
    def open(self) -> bool:
        """Whether it has not ended."""
        return self.state in OPEN


class TaskHandle:
    """One task, by its key; making one asks nobody.

    Args:
        scheduler: the deployment.
        key: identity of the task.
    """

    def __init__(self, scheduler: Scheduler, key: TaskKey) -> None:
        self.key = key
        self._scheduler = scheduler

    def __repr__(self) -> str:
        return f"TaskHandle({self.key})"

    def status(self) -> TaskStatus:
        """How the task stands now: tables and both logs.

        Raises:
            NotFoundError: no such task was ever enqueued or cancelled, or it was purged.
        """
        folded, facts, fresh = self._look()
        return _status(self.key, folded, facts, fresh=fresh)

    def attempts(self) -> list[Attempt]:
        """Every recorded attempt in order: one entry each, with how it ended."""
        self._caught_up()
        facts = self._facts()
        return [_attempt(fact) for fact in attempts_of(self._stored() + facts)]

    def result(self, timeout: object = None) -> Any:
        """Waits for the end of the task and returns what its handler returned.

        Args:
            timeout: how long to wait (duration); None: for ever.

        Raises:
            TaskFailed: it ended otherwise; the fields hold outcome, attempt, error_class, error_message and error_stack.
            WaitTimeoutError: it has not ended in time; it goes on.
            UnreachableError: Kafka does not answer.
        """
        ended = self._end(_deadline(timeout))
        if ended is None:
            raise WaitTimeoutError(
                f"{self.key} has not ended within {timeout}.",
                hint="It goes on; `.explain()` says why it waits.",
                key=str(self.key),
            )
        if ended.outcome != SUCCEEDED:
            raise _failed(self.key, ended)
        return None if ended.result is None else json.loads(ended.result)

    def cancel(self, timeout: object = "10s") -> str:
        """Ends the task without running it (again), and waits for the owner's answer.

        Returns:
            "cancelled", or "too_late" where it runs or has ended otherwise.

        Raises:
            WaitTimeoutError: no answer in time; the cancel stands and is honoured when a dispatcher runs.
        """
        deadline = _deadline(timeout)
        request_id = self._scheduler.request_cancel(self.key)

        def look() -> str | None:
            ended = completion_of(self._facts())
            if ended is not None:
                return ended.outcome
            return "" if self._follower.answer(self._partition, request_id) is not None else None

        self._follower.catch_up(self._partition, deadline + _CATCH_UP_US)
        outcome = self._follower.until(self._partition, look, deadline)
        if outcome is None:
            raise WaitTimeoutError(
                f"No dispatcher answered the cancel of {self.key} within {timeout}.",
                hint="The cancel stands: the task ends as cancelled when a dispatcher runs, unless it has already ended.",
                key=str(self.key),
            )
        if outcome == "":  # answered as too late: it runs, or it ended before what we read
            stored = self._readers.completion(self.key)
            outcome = stored.outcome if stored is not None else ""
        return CANCELLED if outcome == CANCELLED else "too_late"

    def reschedule(self, at: datetime | None = None, *, delay: object = None, timeout: object = "10s") -> TaskHandle:
        """Moves the task to another time: cancels it and enqueues a copy under the new key.

        Args:
            at: the new time (aware).
            delay: or how long from now (duration).
            timeout: how long to wait for the cancel to be answered.

        Returns:
            A handle on the copy.

        Raises:
            ConflictError: it runs or has ended; nothing was enqueued.
            NotFoundError: there is no such task.
        """
        copy = self._scheduler.copy_of(self.command(), self._scheduler.moment(at, delay))
        if not self.status().open or self.cancel(timeout) != CANCELLED:
            raise ConflictError(
                f"{self.key} cannot be moved: it runs or has ended.", hint="`task retry` enqueues an ended task again."
            )
        return self._scheduler.send(copy)

    def retry(self) -> TaskHandle:
        """Enqueues a copy of the ended task, due now, under a new uniqueness key; its field `retryOf` names this one.

        Raises:
            ConflictError: the task has not ended; nothing was enqueued.
            NotFoundError: there is no such task.
        """
        folded, facts, fresh = self._look()
        if folded.data is None or _status(self.key, folded, facts, fresh=fresh).open:
            raise ConflictError(f"{self.key} has not ended.", hint="Cancel it first, or wait for it.")
        fields = json.loads(folded.data.extra or "{}") | {"retryOf": str(self.key)}
        return self._scheduler.send(
            self._scheduler.copy_of(folded.data, now_us(), again=True, extra=json.dumps(fields))
        )

    def explain(self) -> dict[str, Any]:
        """Why the task is not running: the owner's answer, or what tables and logs say.

        Returns:
            At least `state`, and `why` as a sentence for people.

        Raises:
            NotFoundError: there is no such task.
        """
        from scylla_spark.explain import explain

        return explain(self, self._scheduler.owner_address(self._partition))

    # -- below: how the answers are found -------------------------------------------------------------------------------

    @property
    def _partition(self) -> int:
        return partition_of(self.key.ordering_id, self._scheduler.rules.partitions)

    @property
    def _readers(self) -> Readers:
        return self._scheduler.readers

    @property
    def _follower(self) -> Follower:
        return self._scheduler.follower

    def command(self) -> Command:
        """The newest enqueue of the key.

        Raises:
            NotFoundError: there is none.
        """
        folded, _, _ = self._look()
        if folded.data is None:
            raise NotFoundError(f"{self.key} was never enqueued, only cancelled.", hint="Enqueue it under another key.")
        return folded.data

    def _look(self) -> tuple[Folded, list[Fact], bool]:
        """Everything known of the key, and whether the logs answered."""
        fresh = self._caught_up()
        facts = self._facts()  # log before tables: what ingest moves meanwhile is seen twice, never not at all
        commands = self._follower.commands(self._partition, self.key) if fresh else []
        facts = self._stored() + facts
        row, folded = self._readers.task(self.key), Folded()
        for command in (
            [] if row is None else [row.command, *_cancels(row.command, cancelled=row.cancelled)]
        ) + commands:
            folded.add(command)
        if folded.data is None and folded.cancel is None and not facts:
            raise NotFoundError(
                f"There is no task {self.key}.",
                hint="Check all three parts of the key; `scylla-spark task list` shows what is there.",
            )
        return folded, facts, fresh

    def _facts(self) -> list[Fact]:
        return self._follower.facts(self._partition, self.key)

    def _stored(self) -> list[Fact]:
        ended = self._readers.completion(self.key)
        return [*self._readers.attempts(self.key), *([ended] if ended is not None else [])]

    def _caught_up(self) -> bool:
        try:
            self._follower.catch_up(self._partition, boot_us() + _CATCH_UP_US)
        except UnreachableError:
            return False
        return True

    def _end(self, deadline: int) -> Fact | None:
        look: Callable[[], Fact | None] = lambda: completion_of(self._facts())  # noqa: E731
        while (ended := look()) is None:
            self._follower.catch_up(self._partition, boot_us() + _CATCH_UP_US)
            ended = look() or self._readers.completion(self.key)
            if ended is not None:
                break
            ended = self._follower.until(self._partition, look, min(deadline, boot_us() + _ROUND_US))
            if ended is not None or boot_us() >= deadline:
                break
        return ended


@dataclass(frozen=True, slots=True)
class Refused:
    """A task that was not sent: its place among those given, a stable reason code, and the reason in words."""

    index: int
    reason: str
    detail: str


class EnqueueResult:
    """What became of a bulk.

    Attributes:
        sent: records acknowledged by Kafka.
        refused: those that were not sent, and why.
    """

    def __init__(
        self, scheduler: Scheduler, sent: int, ends: dict[int, int], refused: tuple[Refused, ...] = ()
    ) -> None:
        self.sent = sent
        self.refused = refused
        self._scheduler = scheduler
        self._ends = ends

    def __repr__(self) -> str:
        return f"EnqueueResult(sent={self.sent}, refused={len(self.refused)})"

    def wait(self, timeout: object = None) -> EnqueueResult:
        """Waits until everything sent is visible in Delta.

        Raises:
            WaitTimeoutError: it was not in time; nothing is lost.
        """
        deadline, pause = _deadline(timeout), threading.Event()
        while behind := self._behind():
            if boot_us() >= deadline:
                raise WaitTimeoutError(
                    f"{behind} records are not in the tables after {timeout}.",
                    hint="They are safe in Kafka; is ingest running?",
                )
            pause.wait(0.2)
        return self

    def _behind(self) -> int:
        marks = self._scheduler.readers.marks()
        positions = {number: mark.tasks_offset for (topic, number), mark in marks.items() if topic == "tasks"}
        return sum(max(0, end - positions.get(number, 0)) for number, end in self._ends.items())


def _deadline(timeout: object) -> int:
    return 1 << 62 if timeout is None else boot_us() + duration_ms(timeout) * 1000


def _cancels(command: Command, *, cancelled: bool) -> list[Command]:
    return [command._replace(kind="cancel")] if cancelled and command.kind == ENQUEUE else []


def _status(key: TaskKey, folded: Folded, facts: list[Fact], *, fresh: bool) -> TaskStatus:
    attempts, ended = attempts_of(facts), completion_of(facts)
    last = attempts[-1] if attempts else None
    next_us = max(key.time_us, (last.next_us or 0) if last is not None else 0)
    data = folded.data
    state = state_of(ended.outcome if ended else None, last.outcome if last else None, next_us, now_us())
    final = ended or last
    return TaskStatus(
        key=key,
        state=state,
        handler=data.handler if data else None,
        queue=data.queue if data else "default",
        priority=data.priority if data else 0,
        payload=json.loads(data.payload) if data else {},
        enqueued_at=from_us(data.enqueued_us) if data else None,
        attempts=last.attempt if last else 0,
        next_attempt_at=None if ended else from_us(next_us),
        cancel_requested=folded.cancel is not None,
        ended_at=_instant(ended.finished_us) if ended else None,
        result=json.loads(ended.result) if ended and ended.result is not None else None,
        error=final.failure if final else None,
        fresh=fresh,
        attempt_details=tuple(_attempt(fact) for fact in attempts[-DETAILS:]),
    )


def _attempt(fact: Fact) -> Attempt:
    return Attempt(
        fact.attempt, fact.outcome, _instant(fact.started_us), _instant(fact.finished_us), _instant(fact.planned_us),
        _instant(fact.next_us or 0), fact.failure,
    )  # fmt: skip


def _failed(key: TaskKey, ended: Fact) -> SchedulerError:
    failure = ended.failure or Failure("")
    said = ": ".join(part for part in (failure.kind, failure.message) if part)
    return TaskFailed(
        f"{key} {ended.outcome}" + (f" in attempt {ended.attempt}" if ended.attempt else "") + (f" ({said})." if said else "."),
        key=str(key), outcome=ended.outcome, attempt=ended.attempt,
        error_class=failure.kind, error_message=failure.message, error_stack=failure.stack,
    )  # fmt: skip


def _instant(us: int) -> datetime | None:
    return from_us(us) if us else None
