"""How a task stands, for people and programs that ask: built from its commands and facts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from scylla_spark.clock import from_us
from scylla_spark.core.records.command import Command
from scylla_spark.core.records.enqueued_by import is_proven
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.fold_commands import Folded
from scylla_spark.core.tasks.key import TaskKey, run_name
from scylla_spark.core.tasks.output import OutputLink, read_links
from scylla_spark.core.tasks.state import attempts_of, completion_of, state_of
from scylla_spark.core.tasks.task import STARTED, Failure, Retry
from scylla_spark.defaults import DEFAULT_QUEUE
from scylla_spark.errors import TaskFailed
from scylla_spark.json_text import read_json
from scylla_spark.task_states import OPEN

DETAILS: Final = 20


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a task.

    Attributes:
        number: from 1.
        outcome: succeeded, failed, aborted, cancelled, expired, duplicate, timed_out, yielded, or "started" while no end is known.
        started_at: when the handler began.
        finished_at: when it ended; None while no end is known.
        planned_at: when it was to start.
        next_at: earliest start of the next attempt; None if there is none.
        error: why it did not succeed.
        isolation: level at which it ran, where its handler asks for one; None: it asks for none, or it has not ended yet.
        outputs: files that it left behind.
        worker: name of the worker that leased the task for it, or executor and host of the Spark worker that runs it; None: a child
            of its dispatcher runs it.
        progress: from 0 to 1, as far as its handler or worker has said; None: neither has.
        metrics: JSON that its worker reported with its end; None: none.
        heard_at: its last sign of life: its end, or while it runs what its dispatcher says; None: not said.
        lease_until: when its lease ends unless its worker gives another sign of life; None: not a lease, ended, or nobody says.
        deadline: when it is ended at the latest; None: it has ended, or nobody says.
        progress_note: what it has said last in words of what it is at; None: nothing.
        leased: a worker has leased the task for it over HTTP.
    """

    number: int
    outcome: str
    started_at: datetime | None
    finished_at: datetime | None
    planned_at: datetime | None
    next_at: datetime | None
    error: Failure | None
    isolation: str | None = None
    outputs: tuple[OutputLink, ...] = ()
    worker: str | None = None
    progress: float | None = None
    metrics: Any = None
    heard_at: datetime | None = None
    lease_until: datetime | None = None
    deadline: datetime | None = None
    progress_note: str | None = None
    leased: bool = False


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """How a task stands.

    Attributes:
        key: identity.
        state: scheduled, ready, running, retry_wait (these are open), succeeded, failed, aborted, cancelled,
            expired or duplicate.
        handler: registered name; None: waits for a lease, or only a cancel of this key was seen.
        payload: the JSON object that was enqueued.
        attempts: how many attempts were begun.
        next_attempt_at: earliest start of the next attempt; None for an ended task.
        cancel_requested: a cancel was sent.
        ended_at: when it ended.
        result: what the handler returned.
        error: why it did not succeed, or why the last attempt did not.
        fresh: False where no broker answered, so that this is only what the tables say.
        expires_at: when it ends as expired unless it has begun; None: never.
        tags: by which it is found.
        traceparent: trace and span in which it was enqueued, as W3C Trace Context writes them; None: in none.
        timeout: longest run of an attempt; None: as its handler says.
        expires: how long after its scheduled time it ends as expired unless it has begun; None: it never does.
        retry: its own policy; None: that of its handler.
        unique: whether it ends as a duplicate if an earlier task of its lane and uniqueness key is open.
        name: a title for people; None: none.
        description: what the task is for; None: not said.
        enqueued_by: who enqueued it, as its record says; None: not said.
        enqueued_by_verified: whether the API signed that for the token of a request. False also where the secret of the deployment,
            with which that is checked, is not known.
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
    expires_at: datetime | None = None
    tags: tuple[str, ...] = ()
    traceparent: str | None = None
    timeout: timedelta | None = None
    expires: timedelta | None = None
    retry: Retry | None = None
    unique: bool = False
    name: str | None = None
    description: str | None = None
    enqueued_by: str | None = None
    enqueued_by_verified: bool = False
    attempt_details: tuple[Attempt, ...] = ()

    @property
    def schedule(self) -> str | None:
        """The schedule whose run it is; None: it is none."""
        run = run_name(self.key.uniqueness_key)
        return None if run is None else run.schedule

    @property
    def planned_at(self) -> datetime | None:
        """The time that its schedule planned it for; None: it is no run."""
        run = run_name(self.key.uniqueness_key)
        return None if run is None else from_us(run.planned_us)

    @property
    def open(self) -> bool:
        """Returns True if it has not ended."""
        return self.state in OPEN


def status_of(
    key: TaskKey, folded: Folded, facts: Sequence[Fact], now: int, *, fresh: bool = True, secret: str | None = None
) -> TaskStatus:
    """Returns how the task of a key stands.

    Args:
        key: identity.
        folded: its commands.
        facts: its counting facts; repeats are tolerated.
        now: microseconds since the epoch.
        fresh: whether the logs were read to their ends.
        secret: that the services of the deployment share; None: it is not known here.
    """
    attempts, ended = attempts_of(facts), completion_of(facts)
    last = attempts[-1] if attempts else None
    next_us = max(key.time_us, (last.next_us or 0) if last is not None else 0)
    data = folded.data
    state = state_of(ended.outcome if ended else None, last.outcome if last else None, next_us, now)
    final = ended or last
    return TaskStatus(
        key=key,
        state=state,
        handler=data.handler if data else None,
        queue=data.queue if data else DEFAULT_QUEUE,
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
        expires_at=_instant(data.expires_us or 0) if data else None,
        tags=data.tags if data else (),
        traceparent=data.traceparent if data else None,
        timeout=_span(data.timeout_ms or None) if data else None,
        expires=_span(data.expires_ms) if data else None,
        retry=Retry.from_ms(*data.retry) if data and data.retry is not None else None,
        unique=folded.first is not None and folded.first.unique,
        **_about(data, secret),
        attempt_details=tuple(attempt_of(fact) for fact in attempts[-DETAILS:]),
    )


def _about(data: Command | None, secret: str | None) -> dict[str, Any]:
    """Fields of what people read of a task."""
    if data is None or data.about is None:
        return {}
    said = data.about
    proven = is_proven(data, secret)
    return {
        "name": said.name,
        "description": said.description,
        "enqueued_by": said.enqueued_by,
        "enqueued_by_verified": proven,
    }


def attempt_of(fact: Fact) -> Attempt:
    """An attempt as it stands after a fact."""
    work, runs = fact.work or WorkNote(), fact.outcome == STARTED
    return Attempt(
        fact.attempt,
        fact.outcome,
        _instant(fact.started_us),
        _instant(fact.finished_us),
        _instant(fact.planned_us),
        _instant(fact.next_us or 0),
        fact.failure,
        work.isolation,
        read_links(work.outputs),
        work.worker,
        work.progress,
        _read(work.metrics),
        heard_at=_instant(fact.finished_us),
        deadline=_instant(work.until_us) if runs else None,
        progress_note=work.progress_note,
        leased=work.lease is not None,
    )


def task_failed(key: TaskKey, outcome: str, attempt: int, failure: Failure | None) -> TaskFailed:
    """The error for somebody who waits for the result of a task that ended otherwise than succeeded.

    Args:
        key: identity.
        outcome: how it ended.
        attempt: number of its last attempt; 0: there was none.
        failure: why.
    """
    why = failure or Failure("")
    said = ": ".join(part for part in (why.kind, why.message) if part)
    return TaskFailed(
        f"{key} {outcome}" + (f" in attempt {attempt}" if attempt else "") + (f" ({said})." if said else "."),
        key=str(key),
        outcome=outcome,
        attempt=attempt,
        error_class=why.kind,
        error_message=why.message,
        error_stack=why.stack,
    )


def _span(ms: int | None) -> timedelta | None:
    return None if ms is None else timedelta(milliseconds=ms)


def _read(text: str | None) -> Any:
    """Returns what a worker reported, if that is JSON: any program may have written the fact."""
    try:
        return None if text is None else read_json(text)
    except ValueError:
        return None


def _instant(us: int) -> datetime | None:
    return from_us(us) if us else None
