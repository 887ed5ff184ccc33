"""What no fact tells of an attempt under way: asked of the dispatcher that owns its partition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from scylla_spark.client.tasks.explain import ask
from scylla_spark.clock import iso
from scylla_spark.core.tasks.attempt_note import read_said
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.status import Attempt, TaskStatus
from scylla_spark.core.tasks.task import STARTED

_PATIENCE_S: Final = 1.0  # a look at a task is not to hang on a dispatcher that does


def with_word_of_owner(status: TaskStatus, address: Callable[[], str]) -> TaskStatus:
    """How a task stands, its attempt under way by the word of its dispatcher.

    Args:
        status: as the facts tell it.
        address: where its owner serves its state; "" if none is known.
    """
    if not status.open:
        return status
    return replace(status, attempt_details=tuple(told_by_owner(status.attempt_details, status.key, address)))


def told_by_owner(
    attempts: list[Attempt] | tuple[Attempt, ...], key: TaskKey, address: Callable[[], str]
) -> list[Attempt]:
    """The attempts of a task, the last of them by the word of its dispatcher where it is under way and that one answers.

    Args:
        attempts: in order, as the facts tell them.
        key: of the task.
        address: where its owner serves its state; "" if none is known.
    """
    last = attempts[-1] if attempts else None
    if last is None or last.outcome != STARTED:
        return list(attempts)
    time_us, ordering_id, uniqueness_key = key
    asked = ask(
        address(), "attempt", timeout_s=_PATIENCE_S, scheduled_time=iso(time_us), ordering_id=ordering_id, uniqueness_key=uniqueness_key
    )  # fmt: skip
    return [*attempts[:-1], _told(last, asked) if asked is not None else last]


def _told(attempt: Attempt, asked: dict[str, Any]) -> Attempt:
    """An attempt with what is said of it: any program may have said so."""
    if asked.get("known") is not True or asked.get("attempt") != attempt.number:
        return attempt
    return replace(
        attempt,
        **read_said(asked),
        heard_at=_instant(asked.get("heard_at")), lease_until=_instant(asked.get("lease_until")),
        deadline=_instant(asked.get("deadline")) or attempt.deadline,
    )  # fmt: skip


def _instant(text: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
        return moment.astimezone(UTC) if moment is not None and moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
