"""Jobs that wait for a constraint or another run: what they collect meanwhile, and when they are looked at again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from scylla_spark.clock import iso
from scylla_spark.core.plan.constraint import MaxLoad
from scylla_spark.core.plan.schedule_policies import groups_asked, may_wait_alone, since_us
from scylla_spark.core.plan.state.plan_log import Change
from scylla_spark.core.plan.state.schedule_entry import (
    MOST_KEPT,
    PENDING_CONSTRAINT,
    PENDING_LAUNCH,
    PENDING_TRIGGER,
    Entry,
    Job,
    Run,
)
from scylla_spark.core.plan.state.timers import Timer, Timers
from scylla_spark.core.plan.state.unwritten_changes import Journal
from scylla_spark.core.plan.verdicts import SKIPPED, WAITING, Verdicts, busy_words


class WaitingJobs:
    """Holds jobs whose trigger holds and that are not launched.

    Args:
        journal: takes them.
        timers: when to look at them again.
        verdicts: says that they wait.
    """

    def __init__(self, journal: Journal, timers: Timers, verdicts: Verdicts) -> None:
        self._journal = journal
        self._timers = timers
        self._say = verdicts.say
        self._by_group: dict[str | MaxLoad, set[str]] = defaultdict(set)  # group of runs, or limit → who waits for it

    def load(self, entry: Entry) -> None:
        """Takes over a schedule of the log: all its jobs that wait are looked at."""
        for job in entry.jobs.values():
            if job.state != PENDING_TRIGGER:
                self._waits(entry)
                self._timers.add(Timer(0, entry.name, "again", job.generation))
                self._limit_wait(entry, job)

    @property
    def loads(self) -> list[MaxLoad]:
        """Returns the limits of the load that jobs may wait for, each once."""
        return [one for one, names in self._by_group.items() if names and isinstance(one, MaxLoad)]

    def of_groups(self, groups: Iterable[str | MaxLoad]) -> set[str]:
        """Schedules with jobs that may wait for the end of a run of some groups, or for less load."""
        return {name for group in groups for name in self._by_group.get(group, ())}

    def looked_at(self, entry: Entry) -> None:
        """All jobs of a schedule were looked at: none may wait any more."""
        if all(job.state == PENDING_TRIGGER for job in entry.jobs.values()):
            for group in groups_asked(entry.schedule):
                self._by_group[group].discard(entry.name)

    def collected(self, entry: Entry, job: Job, joined: int = 0) -> None:
        """A job that waits to be launched has seen more.

        Args:
            entry: of its schedule.
            job: as it is now.
            joined: number of the job whose round it has taken; 0: none.
        """
        before = entry.jobs[job.generation]
        changes: list[Change] = [("job", entry.name, job.generation, job.to_json())]
        if joined in entry.jobs:
            changes.append(("job", entry.name, joined, None))
        self._journal.note_together(*changes)
        if job.planned_us != before.planned_us:
            self._limit_expiry(entry, job)

    def wait_for_constraints(self, entry: Entry, job: Job, now: int, why: str, timed: Mapping[str, Any]) -> int:
        """Lets a job wait for its constraints; number of the job that does, which may be one of before.

        Who hands it over has seen to it that there is a place for it.

        Args:
            entry: its schedule.
            job: the job.
            now: microseconds since the epoch.
            why: which constraint does not hold, for people.
            timed: fields of the decision that move the schedule's cursor.
        """
        known = entry.jobs.get(job.generation)
        if known is not None and known.state == PENDING_CONSTRAINT:
            return job.generation
        before = _replaced(entry, job) if known is None else None  # what has waited for a run keeps its place
        if before is not None:
            instead = f"the run planned for {iso(job.planned_us)} takes its place"
            self._say(entry, before, now, SKIPPED, instead, {}, ends_job=False)
            job = job._replace(generation=before.generation, first_us=before.first_us, asked=before.asked)
        self._hold(entry, job, now, PENDING_CONSTRAINT, why, timed)
        return job.generation

    def wait_for_runs(self, entry: Entry, job: Job, now: int, active: list[Run], timed: Mapping[str, Any]) -> None:
        """Lets a job wait until no run of its schedule is active, if no other one does.

        Args:
            entry: its schedule.
            job: the job.
            now: microseconds since the epoch.
            active: the runs.
            timed: fields of the decision that move the schedule's cursor.
        """
        known = entry.jobs.get(job.generation)
        if known is not None and known.state == PENDING_LAUNCH:
            return
        if any(other.state == PENDING_LAUNCH for other in entry.jobs.values()):
            self._say(entry, job, now, SKIPPED, f"another one waits already, and {busy_words(active)}", timed)
            return
        self._hold(entry, job, now, PENDING_LAUNCH, busy_words(active), timed)

    def wait_for_place(self, entry: Entry, job: Job, now: int, timed: Mapping[str, Any]) -> None:
        """Lets a job wait until fewer runs of its schedule are active; who hands it over has seen to it that it may. See `wait_for_runs`.

        Args:
            entry: its schedule.
            job: the job.
            now: microseconds since the epoch.
            timed: fields of the decision that move the schedule's cursor.
        """
        known = entry.jobs.get(job.generation)
        if known is None or known.state != PENDING_LAUNCH:
            self._hold(entry, job, now, PENDING_LAUNCH, f"{len(entry.runs)} runs are active", timed)

    def wait_for_resume(self, entry: Entry, job: Job, now: int, timed: Mapping[str, Any]) -> None:
        """Lets a job wait until its schedule is resumed; of too many, the oldest is dropped.

        Args:
            entry: its schedule, which is paused and keeps what comes.
            job: the job.
            now: microseconds since the epoch.
            timed: fields of the decision that move the schedule's cursor.
        """
        kept = [one for one in entry.jobs.values() if one.state != PENDING_TRIGGER]
        if len(kept) >= MOST_KEPT:
            oldest = min(kept, key=lambda one: one.generation)
            self._say(entry, oldest, now, SKIPPED, f"newer jobs came, and a pause keeps {MOST_KEPT:,}", {})
        self._hold(entry, job, now, PENDING_LAUNCH, "its schedule is paused", timed)

    def _hold(self, entry: Entry, job: Job, now: int, state: str, why: str, timed: Mapping[str, Any]) -> None:
        held = job._replace(state=state)
        self._journal.note("job", entry.name, job.generation, held.to_json())
        self._say(entry, job, now, WAITING, why, timed, ends_job=False)
        self._waits(entry)
        self._limit_wait(entry, held)

    def _waits(self, entry: Entry) -> None:
        """A job of a schedule waits: the end of any run that its constraints look at may be what it waits for."""
        for group in groups_asked(entry.schedule):
            self._by_group[group].add(entry.name)

    def _limit_wait(self, entry: Entry, job: Job) -> None:
        """Looks again at a job that waits when it has waited for too long, and when its run would have expired."""
        schedule = entry.schedule
        self._timers.add(
            Timer(since_us(entry, job) + schedule.policies.timeout_us, entry.name, "timeout", job.generation)
        )
        self._limit_expiry(entry, job)

    def _limit_expiry(self, entry: Entry, job: Job) -> None:
        schedule = entry.schedule
        if schedule.work.expires_ms is not None:
            expires_us = job.planned_us + schedule.work.expires_ms * 1000
            self._timers.add(Timer(expires_us, entry.name, "again", job.generation))


def _replaced(entry: Entry, job: Job) -> Job | None:
    """The job that waits for its constraints at an earlier planned time, and whose place a job of a later one takes; None: none does."""
    schedule = entry.schedule
    if job.latches or not may_wait_alone(schedule) or schedule.policies.catch_up == "all":
        return None
    waiting = (one for one in entry.jobs.values() if one.state == PENDING_CONSTRAINT and not one.latches)
    return max(waiting, default=None, key=lambda one: one.planned_us)
