"""The answer to why a schedule ran or did not: its decisions of the tables and the log, and how it stands, put together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from scylla_spark.client.connection import Connection
from scylla_spark.client.schedules import explanation_words as schedule_explain
from scylla_spark.client.schedules.history import ScheduleHistory, history
from scylla_spark.client.tasks.handle import TaskHandle
from scylla_spark.clock import iso
from scylla_spark.core.plan.schedule_state import state_of
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.state.schedule_entry import Entry
from scylla_spark.core.tasks.state import RETRY_WAIT
from scylla_spark.errors import NotFoundError
from scylla_spark.io.delta.plan_queries import Row

_MOST_RUNS: Final = 3  # active runs whose tasks are looked at: each may wait for Kafka
_LOOKED_AT: Final = 100  # decisions among which the last run is looked for


class Explained(NamedTuple):
    """What is known: sentences, and the rows of `fires` that they tell of, the oldest first."""

    said: list[str]
    fires: list[Row]


def explained(connection: Connection, plan: PlanState, name: str, at_us: int | None, now: int) -> Explained:
    """Returns why a schedule ran or did not, and what it waits for.

    Args:
        connection: to the deployment.
        plan: what the planner knows.
        name: of the schedule, which may be gone.
        at_us: the time that is asked about, microseconds since the epoch; None: the last decisions, and how it stands.
        now: microseconds since the epoch.

    Raises:
        NotFoundError: there never was one of that name.
    """
    past = history(connection, name)
    entry = plan.entries.get(name)
    if at_us is None:
        about = past.fires(limit=schedule_explain.NEWEST)[::-1]
    else:
        about = past.fires_about(at_us, schedule_explain.end_of(at_us))[::-1]
    active = entry.runs if entry is not None else ()
    said = list(schedule_explain.told(about, past.jobs_of(about), active))
    if entry is None:
        said.append(gone(past, name))
    elif at_us is None:
        said += _standing(past, entry, plan, now)
        said += _retried(connection, entry, now)
    elif not about:
        said += schedule_explain.undecided(entry, past.changes(), plan.calendars, at_us, now)
        said += _standing(past, entry, plan, now)
    return Explained(said, about)


def _standing(past: ScheduleHistory, entry: Entry, plan: PlanState, now: int) -> Iterator[str]:
    """Yields how a schedule stands; of one that is completed, with its last run."""
    is_over = state_of(entry, plan.calendars, now) == "completed"
    last_us = schedule_explain.last_run_us(past.fires(limit=_LOOKED_AT)) if is_over else None
    return schedule_explain.standing(entry, plan, now, last_us)


def _retried(connection: Connection, entry: Entry, now: int) -> Iterator[str]:
    """Yields why the newest active runs failed that are tried again, so that nobody takes them for runs that work."""
    active = sorted((run.key for run in entry.runs.values() if run.key.time_us <= now), reverse=True)
    for key in active[:_MOST_RUNS]:
        try:
            status = TaskHandle[object](connection, key).status(live=False)
        except NotFoundError:
            continue
        if status.state == RETRY_WAIT:
            yield schedule_explain.retried(status)
        if not status.fresh:
            return


def gone(past: ScheduleHistory, name: str) -> str:
    """Returns what is left of a schedule that is not there.

    Raises:
        NotFoundError: nothing is.
    """
    changes = past.changes()
    if not changes:
        raise missing(name)
    last = changes[0]
    author = f" by {last['author']}" if last["author"] else ""
    return f"There is no schedule {name!r} any more: it was removed at {iso(last['changed_at'])}{author}."


def missing(name: str) -> NotFoundError:
    """Returns what to say of a name that nobody knows."""
    return NotFoundError(f"There is no schedule {name!r}.", hint="`scylla-spark schedule list` names all.")
