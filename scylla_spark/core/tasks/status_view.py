"""How a task and its attempts stand, as plain JSON: the fields that the API, the command line and their users see alike."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any, Final

from scylla_spark.clock import iso, iso_of
from scylla_spark.core.records.command import OPEN_NAME
from scylla_spark.core.tasks.key import TaskKey, key_view, run_name
from scylla_spark.core.tasks.status import Attempt, TaskStatus
from scylla_spark.core.tasks.task import Retry
from scylla_spark.duration import duration, duration_text

_STATUS: Final = [
    one.name for one in fields(TaskStatus) if one.name not in ("key", "error", "fresh", "attempt_details")
]
_ATTEMPT: Final = [one.name for one in fields(Attempt) if one.name not in ("number", "error", "outputs")]


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
    """Returns how a task stands, without its error and its attempts."""
    unique = OPEN_NAME if status.unique else None
    return run_view(status.key) | {name: _plain(getattr(status, name)) for name in _STATUS} | {"unique": unique}


def attempt_fields(attempt: Attempt) -> dict[str, Any]:
    """Returns how one attempt stands, without its error and its files."""
    return {"attempt": attempt.number} | {name: _plain(getattr(attempt, name)) for name in _ATTEMPT}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso_of(value)
    if isinstance(value, timedelta):
        return duration_text(value)
    if isinstance(value, Retry):
        return _retry(value)
    return list(value) if isinstance(value, tuple) else value


def _retry(policy: Retry) -> dict[str, Any]:
    waits = {"base": policy.base, "cap": policy.cap}
    return {"max_retries": policy.max_retries} | {
        name: None if wait is None else duration_text(duration(wait)) for name, wait in waits.items()
    }
