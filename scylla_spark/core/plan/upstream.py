"""Ended runs, as those that wait for them know them."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import datetime
from typing import Any, Final

from scylla_spark.clock import iso, to_us
from scylla_spark.core.plan.state.plan_log import change_bytes
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.records.bounded_text import cut
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.key import TaskKey

ENDS: Final = {
    "succeeded": "succeeded",
    "cancelled": "cancelled",
    "expired": "cancelled",  # it has ended, and nothing was run
    "duplicate": "cancelled",  # likewise
    "failed": "failed",
    "aborted": "failed",
    "timed_out": "failed",
}
"""Outcome of a task → what triggers call it."""
_MOST_WORDS_BYTES: Final = 8_192
_MOST_VALUE_CHARS: Final = 64 * 1024  # of a result that is read
_MOST_LEVELS: Final = 30  # … and what it may go through


def named(key: TaskKey) -> tuple[str, str]:
    """Name of the schedule whose run a task is, and the time it was planned for; empty: it is no run."""
    name, planned, number = (["", "", *key.uniqueness_key.rsplit("/", 2)])[-3:]
    return (name, planned) if planned and number else ("", "")


def was_run(state: PlanState, key: TaskKey) -> bool:
    """Returns True if a task was a run of a schedule that is there, as far as that has counted its runs; others may be named alike.

    Args:
        state: with the schedules.
        key: of the task.
    """
    name, planned = named(key)
    number, entry = key.uniqueness_key.rpartition("/")[2], state.entries.get(name)
    if entry is None or not (number.isascii() and number.isdecimal() and 0 < int(number[:18]) <= entry.generation):
        return False
    try:
        return iso(to_us(datetime.fromisoformat(planned))) == planned
    except (ValueError, OverflowError, TypeError):  # TypeError: it names no zone
        return False


def upstream_of(fact: Fact, schedule: str, handler: str, planned: str) -> dict[str, Any]:
    """Returns what templates may know of the end of a task, by name.

    Args:
        fact: the end.
        schedule: whose run it was; empty: none's.
        handler: that ran.
        planned: the time it was planned for.
    """
    failure = fact.failure
    error = {"kind": failure.kind, "message": cut(failure.message, _MOST_WORDS_BYTES)} if failure is not None else None
    ended = {
        "schedule": schedule,
        "handler": handler,
        "planned": planned,
        "key": str(fact.key),
        "outcome": fact.outcome,
        "result": _value(fact.result),
        "error": error,
        "attempts": fact.attempt,
    }
    return {"upstream": ended}


def _value(result: str | None) -> Any:
    """Returns what a run has returned; the text of it, if it is too large, or nothing that a record of ours can hold."""
    if result is None or len(result) > _MOST_VALUE_CHARS:
        return result
    try:
        value = json.loads(result)
        json.dumps(value, allow_nan=False)  # a record would say null
        change_bytes([value])
        return value if _levels(value) <= _MOST_LEVELS else result
    except (ValueError, RecursionError):
        return result


def _levels(value: Any) -> int:
    """Returns how deep a value goes, at most one more than is allowed."""
    within, levels = [value], 0
    while within and levels <= _MOST_LEVELS:
        within = [item for one in within for item in _items(one)]
        levels += 1
    return levels


def _items(value: Any) -> Collection[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
