"""How a task and its attempts stand, as plain JSON: the fields that the API, the command line and their users see alike."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from scylla_spark.clock import iso, iso_of
from scylla_spark.core.records.command import OPEN_NAME
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.key_view import key_view
from scylla_spark.core.tasks.run_name import run_name
from scylla_spark.core.tasks.status import Attempt, TaskStatus
from scylla_spark.core.tasks.task import Retry
from scylla_spark.duration import duration, duration_text


def run_view(key: TaskKey) -> dict[str, Any]:
    """The parts of a key, and what it says of a run of a schedule."""
    run = run_name(key.uniqueness_key)
    said = (
        {"schedule": None, "planned_at": None}
        if run is None
        else {"schedule": run.schedule, "planned_at": iso(run.planned_us)}
    )
    return key_view(key) | said


def status_view(status: TaskStatus) -> dict[str, Any]:
    """How a task stands, without its error and its attempts."""
    return run_view(status.key) | {
        "state": status.state, "handler": status.handler, "queue": status.queue, "priority": status.priority,
        "payload": status.payload, "enqueued_at": iso_of(status.enqueued_at), "attempts": status.attempts,
        "next_attempt_at": iso_of(status.next_attempt_at), "cancel_requested": status.cancel_requested,
        "expires_at": iso_of(status.expires_at), "expires": _span(status.expires), "timeout": _span(status.timeout),
        "retry": _retry(status.retry) if status.retry is not None else None,
        "unique": OPEN_NAME if status.unique else None, "tags": list(status.tags), "traceparent": status.traceparent,
        "ended_at": iso_of(status.ended_at), "result": status.result,
    }  # fmt: skip


def attempt_fields(attempt: Attempt) -> dict[str, Any]:
    """How one attempt stands, without its error and its files."""
    return {
        "attempt": attempt.number, "outcome": attempt.outcome, "planned_at": iso_of(attempt.planned_at),
        "started_at": iso_of(attempt.started_at), "finished_at": iso_of(attempt.finished_at), "next_at": iso_of(attempt.next_at),
        "isolation": attempt.isolation,
        "worker": attempt.worker, "progress": attempt.progress, "progress_note": attempt.progress_note, "metrics": attempt.metrics,
        "heard_at": iso_of(attempt.heard_at), "lease_until": iso_of(attempt.lease_until), "deadline": iso_of(attempt.deadline),
    }  # fmt: skip


def _span(value: timedelta | None) -> str | None:
    return None if value is None else duration_text(value)


def _retry(policy: Retry) -> dict[str, Any]:
    waits = {"base": policy.base, "cap": policy.cap}
    return {"max_retries": policy.max_retries} | {
        name: None if wait is None else duration_text(duration(wait)) for name, wait in waits.items()
    }
