"""Why a schedule ran or did not, as sentences: what was decided, and else what it waits for. Pure: rows and state in, words out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from scylla_spark.client.schedules.times import following, preceding
from scylla_spark.client.schedules.trigger_words import in_words
from scylla_spark.clock import from_us, iso, to_us
from scylla_spark.core.plan.constraint import decide
from scylla_spark.core.plan.handler_runs import runs_in
from scylla_spark.core.plan.schedule_policies import no_place_words
from scylla_spark.core.plan.schedule_state import state_of
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.state.schedule_entry import PENDING_CONSTRAINT, PENDING_TRIGGER, Entry, Job
from scylla_spark.core.plan.times.fire_times import Calendars
from scylla_spark.core.plan.times.planned_times import planned_after, times_of
from scylla_spark.core.plan.triggers.tree import described
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.status import TaskStatus
from scylla_spark.visible import as_clause, visible

Row = Mapping[str, Any]
_MINUTE_US: Final = 60_000_000
_MOST_MESSAGE: Final = 200  # letters of an error
NEWEST: Final = 3  # decisions that are told of where no time is asked about
_NO_DECISION: Final = frozenset({"late", "overdue", "silent", "trouble", "no_handler"})


def end_of(at_us: int) -> int:
    """Returns where the stretch ends that is asked about: a whole minute, a whole second, or the instant itself."""
    return at_us + (_MINUTE_US if at_us % _MINUTE_US == 0 else 1_000_000 if at_us % 1_000_000 == 0 else 1)


def told(rows: Iterable[Row], jobs: Iterable[Row], active: Collection[int]) -> Iterator[str]:
    """One sentence per decision.

    Args:
        rows: of `fires`.
        jobs: of `jobs`, for the ends of runs.
        active: generations of the runs that have not ended.
    """
    ends = {row["generation"]: row for row in jobs if row["state"] == "ended"}
    for row in rows:
        yield _sentence(row, ends.get(row["generation"]), active)


def undecided(entry: Entry, changes: Sequence[Row], calendars: Calendars, at_us: int, now: int) -> Iterator[str]:
    """Yields why there is no decision about a time.

    Args:
        entry: the schedule.
        changes: rows of `schedules`, the newest first.
        calendars: days by name.
        at_us: the time.
        now: both in microseconds since the epoch.
    """
    series = times_of(entry.schedule.trigger)
    last = next((row for row in changes if row["changed_at"] <= at_us), None)
    if at_us > now:
        yield f"{iso(at_us)} is still to come."
    elif last is None or last["change"] == "removed":
        there = iso(min((row["changed_at"] for row in changes if row["changed_at"] > at_us), default=entry.changed_us))
        yield f"The schedule was not there at {iso(at_us)}: it was put at {there}."
        return
    elif last["paused"]:
        yield f"It was paused at {iso(at_us)}, {_by(last)}."
        return
    if not series:
        yield f"It fires on what happens, not at times: {in_words(entry.schedule.trigger)}. Nothing was decided at {iso(at_us)}."
        return
    yield from _planned_nearby(entry, calendars, at_us)


def standing(entry: Entry, plan: PlanState, now: int, last_us: int | None = None) -> Iterator[str]:
    """Yields how a schedule stands: paused, running, waiting, completed, and when it is due.

    Args:
        entry: the schedule.
        plan: all that the planner knows.
        now: microseconds since the epoch.
        last_us: the planned time of its last run; None: it is not known.
    """
    if entry.paused:
        until = f" until {iso(entry.until_us)}" if entry.until_us else ""
        changed = {"author": entry.author, "note": entry.note, "changed_at": entry.changed_us}
        yield f"It is paused{until}, {_by(changed)}."
    for run in entry.runs.values():
        when = "is launched ahead of its time" if run.key.time_us > now else "has not ended"
        asked = ", and was asked to end" if run.cancelled else ""
        yield f"The run planned for {iso(run.planned_us)} {when}{asked}; its task: {run.key}"
    for job in entry.jobs.values():
        yield _waits(entry, job, plan, now)
    calendars = plan.calendars
    if entry.paused:
        return
    if state_of(entry, calendars, now) == "completed":
        ran = "" if last_us is None else f"it has run for the last time at {iso(last_us)}, and "
        yield f"It is completed: {ran}its trigger can never fire again."
        return
    yield from _waiting_times(entry, calendars, now)
    ahead = following(times_of(entry.schedule.trigger), calendars, now, 1)
    if ahead:
        yield f"It is due next at {iso(ahead[-1].at_us)}" + (f" ({ahead[-1].note})." if ahead[-1].note else ".")
    elif times_of(entry.schedule.trigger):
        yield "Its trigger names no time that is still to come."
    elif entry.collecting is None:
        waits = "; ".join(described(entry.schedule.trigger, {}))
        yield f"Its trigger has seen nothing since the last launch: {waits}."


def retried(status: TaskStatus) -> str:
    """Returns why a run failed that is tried again, with the class of its last error.

    Args:
        status: of its task.
    """
    planned = status.planned_at or from_us(status.key.time_us)
    times = "once" if status.attempts == 1 else f"{status.attempts} times"
    why = ""
    if status.error is not None:
        first = next(iter(status.error.message.splitlines()), "")[:_MOST_MESSAGE].rstrip(". ")
        why = f", the last time as {status.error.kind}" + (f" ({visible(first)})" if first else "")
    again = "" if status.next_attempt_at is None else f"; it is tried again at {iso(to_us(status.next_attempt_at))}"
    return f"The run planned for {iso(to_us(planned))} has failed {times}{why}{again}."


def last_run_us(rows: Iterable[Row]) -> int | None:
    """The planned time of the last run that nobody asked for; None: there is none among these.

    Args:
        rows: of `fires`, the newest first.
    """
    return next((row["planned_at"] for row in rows if row["verdict"] == "launched" and not row["by_hand"]), None)


def _sentence(row: Row, end: Row | None, active: Collection[int]) -> str:
    planned, verdict, why = iso(row["planned_at"]), row["verdict"], as_clause(row["why"] or "")
    if verdict == "launched":
        by = "by hand " if row["by_hand"] else ""
        seen, because = (f", for {row['values']}" if row["values"] else ""), (f": {why}" if why else "")
        return f"{planned}: launched {by}at {iso(row['decided_at'])}, revision {row['revision']}{seen}{because}. {_end(row, end, active)}"
    if verdict in _NO_DECISION:
        return f"{planned}: {verdict}, told of at {iso(row['decided_at'])}: {why}."
    if verdict == "missed":
        many = (
            f" and all times before {iso(row['until_at'] + 1)}"
            if row["until_at"] not in (None, row["planned_at"])
            else ""
        )
        return f"{planned}{many}: not run: {why}."
    words = "its run was taken back before it began" if row["uniqueness_key"] else _VERDICTS.get(verdict, verdict)
    return f"{planned}: {words}, decided at {iso(row['decided_at'])}: {why}."


def _end(row: Row, end: Row | None, active: Collection[int]) -> str:
    key = TaskKey(row["scheduled_time"], row["ordering_id"], row["uniqueness_key"])
    if end is None:
        what = (
            "Its run has not ended"
            if row["generation"] in active
            else "The planner did not wait for the end of its run"
        )
        return f"{what}; its task: {key}"
    return f"Its run ended as {end['outcome']} at {iso(end['finished_at'] or end['changed_at'])}; its task: {key}"


def _waits(entry: Entry, job: Job, plan: PlanState, now: int) -> str:
    since = f"Job {job.generation} waits since {iso(job.first_us)}"
    if job.state == PENDING_TRIGGER:
        return f"{since} for its trigger: {'; '.join(described(entry.schedule.trigger, job.latches))}."
    planned = f"it is planned for {iso(job.planned_us)}"
    if job.state == PENDING_CONSTRAINT:
        return f"{since} for its constraints: {_unmet(entry, job, plan, now)}; {planned}."
    if entry.paused:
        return f"{since} until it is resumed; {planned}."
    return f"{since} for another run to end; {planned}."


def _waiting_times(entry: Entry, calendars: Calendars, now: int) -> Iterator[str]:
    """Since when times of a schedule wait until there is a place for them: nothing is decided about these, so no row tells of them."""
    why = no_place_words(entry) if 0 < entry.next_us <= now else ""
    first = next(planned_after(times_of(entry.schedule.trigger), entry.cursor_us, calendars), now) if why else now
    if first < now:
        yield f"Its times from {iso(first)} on wait for a place, and are run when there is one: {why}."


def _unmet(entry: Entry, job: Job, plan: PlanState, now: int) -> str:
    """Returns which constraints do not hold now, as the planner judges them."""
    found = decide(entry.schedule.constraints, runs_in(plan).situation(entry, job, now), now)
    if not found.unmet:
        return "they hold by now, and the planner has not looked again yet"
    again_us = max([*found.room_us.values(), *([found.again_us] if found.again_us is not None else [])], default=None)
    again = f" (asked again at {iso(again_us)})" if again_us is not None else ""
    return "; ".join(found.unmet) + again


def _planned_nearby(entry: Entry, calendars: Calendars, at_us: int) -> Iterator[str]:
    """Yields what the trigger says of a time and its neighbours."""
    series = times_of(entry.schedule.trigger)
    end_us = at_us + (_MINUTE_US if at_us % _MINUTE_US == 0 else 1)
    ahead = following(series, calendars, at_us - 1, 1)
    here = [row for row in ahead if at_us <= row.at_us < end_us]
    if here:
        row = here[0]
        said = "The trigger names this time" if row.fires else f"Nothing fires at {row.local}: {row.note}"
        yield f"{said}, and no decision about it is recorded." if row.fires else f"{said}."
        return
    before = preceding(series, calendars, at_us, 1)
    earlier = f"the time before is {iso(before[-1].at_us)}" if before else "there is none before"
    later = f"the one after {iso(ahead[-1].at_us)}" if ahead else "none comes after"
    yield f"The trigger does not name {iso(at_us)}: {earlier}, {later}."


def _by(row: Row) -> str:
    author = f"by {row['author']}" if row["author"] else "by somebody unnamed"
    note = f": {row['note']}" if row["note"] else ""
    return f"{author} since {iso(row['changed_at'])}{note}"


_VERDICTS: Final = {
    "skipped": "not run", "waiting": "it waited", "obsolete": "what it had waited for was dropped", "failed": "could not be launched",
}  # fmt: skip
