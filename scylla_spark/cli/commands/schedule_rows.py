"""What the commands about schedules show, as rows, and small things that they share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from scylla_spark.client.schedules.handle import ScheduleStatus, status_of
from scylla_spark.client.schedules.trigger_words import brief, in_words
from scylla_spark.clock import iso, to_us
from scylla_spark.errors import ArgumentError

if TYPE_CHECKING:
    from scylla_spark.core.plan.state.plan_state import PlanState
    from scylla_spark.core.plan.state.schedule_entry import Entry


def listed(
    found: Iterable[Entry], plan: PlanState, before_us: int | None, limit: int, now: int
) -> list[dict[str, Any]]:
    """Rows of a list.

    Args:
        found: schedules, in order.
        plan: for its calendars.
        before_us: only those that are due before this; None: all.
        limit: most rows.
        now: microseconds since the epoch.
    """
    rows: list[dict[str, Any]] = []
    for entry in found:
        if len(rows) == limit:
            break
        status = status_of(entry, plan, now)
        if before_us is None or (status.next_at is not None and to_us(status.next_at) < before_us):
            rows.append(_row(entry, status))
    return rows


def shown(entry: Entry, status: ScheduleStatus) -> dict[str, Any]:
    """One schedule with all that is known of it."""
    row = _row(entry, status)
    waits = [
        {"job": job.generation, "state": job.state, "since": iso(job.first_us), "trigger": "; ".join(_seen(entry, job.latches))}
        for job in entry.jobs.values()
    ]  # fmt: skip
    return row | {
        "trigger": in_words(entry.schedule.trigger), "until": iso(entry.until_us) if entry.until_us else None,
        "last_success_at": _iso(status.last_success_at), "changed_at": _iso(status.changed_at), "author": status.author,
        "overlap": entry.schedule.policies.overlap, "catch_up": entry.schedule.policies.catch_up, "owner": status.owner,
        "tags": ", ".join(status.tags), "jobs": waits, "runs": [str(run.key) for run in entry.runs.values()],
        "definition": status.definition,
    }  # fmt: skip


def with_verdicts(rows: list[dict[str, Any]], fires: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Planned times with the newest decision about each.

    Args:
        rows: of times, with `planned_at` as text.
        fires: rows of the table, the newest first.
    """
    single: dict[int, Mapping[str, Any]] = {}
    many: list[Mapping[str, Any]] = []
    for fire in fires:
        if fire["until_at"] is not None:
            many.append(fire)
        elif not fire["by_hand"]:
            single.setdefault(fire["planned_at"], fire)
    for row in rows:
        at_us = _us(row["planned_at"])
        missed = next((fire for fire in many if fire["planned_at"] <= at_us <= fire["until_at"]), {})
        about = single.get(at_us, missed)
        row |= {"verdict": about.get("verdict"), "why": about.get("why")}
    return rows


def json_object(text: str, what: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ArgumentError: the text is none.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ArgumentError(f"The {what} is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise ArgumentError(f"The {what} is not a JSON object.", hint='Such as \'{"region": "eu"}\'.')
    return value


def _row(entry: Entry, status: ScheduleStatus) -> dict[str, Any]:
    return {
        "name": entry.name, "state": status.state, "trigger": brief(entry.schedule.trigger), "next_at": _iso(status.next_at),
        "running": status.running, "waiting": status.waiting, "failures": status.failures, "handler": status.handler,
        "revision": status.revision, "note": status.note,
    }  # fmt: skip


def _seen(entry: Entry, latches: Mapping[int, Any]) -> list[str]:
    from scylla_spark.core.plan.triggers.tree import described

    return described(entry.schedule.trigger, latches)


def _iso(moment: Any) -> str | None:
    return None if moment is None else iso(to_us(moment))


def _us(text: str) -> int:
    from datetime import datetime

    return to_us(datetime.fromisoformat(text))
