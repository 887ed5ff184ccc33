"""Fires by time: which planned times are due, and which of those are run that were missed while nobody planned."""

from __future__ import annotations

from itertools import islice, takewhile
from typing import Final, NamedTuple

from scylla_spark import failpoint
from scylla_spark.clock import iso
from scylla_spark.core.plan.launching import Launching
from scylla_spark.core.plan.schedule import Schedule
from scylla_spark.core.plan.schedule_policies import can_be_ahead, runs_each
from scylla_spark.core.plan.state.plan_log import Change
from scylla_spark.core.plan.state.schedule_entry import MOST_KEPT, PENDING_TRIGGER, Entry, Job, Latch, Run
from scylla_spark.core.plan.state.timers import Timer, Timers
from scylla_spark.core.plan.state.unwritten_changes import Journal
from scylla_spark.core.plan.times.fire_times import Calendars, FireTimes
from scylla_spark.core.plan.times.planned_times import planned_after, planned_before, times_of
from scylla_spark.core.plan.triggers.observations import Watching
from scylla_spark.core.plan.triggers.trigger import AnyOf, AtTimes, Trigger, leaves
from scylla_spark.core.plan.verdicts import OBSOLETE, SKIPPED

MISSED: Final = "missed"
MOST_AT_ONCE: Final = 100
_MOST_COUNTED: Final = (
    1_000  # times that a pause drops: each takes up to 0.1 ms, and one tag may resume thousands of schedules
)


class Planned(NamedTuple):
    """One fire by time.

    Attributes:
        at_us: the time it is named by.
        leaf: number of the leaf that says so.
        starts_us: when it starts, which jitter may make later.
    """

    at_us: int
    leaf: int
    starts_us: int


class Timing:
    """Decides what is due by time.

    Args:
        journal: takes what is decided.
        timers: when to look again.
        launching: launches what fires.
        watching: latches leaves of larger triggers.
        ahead_us: how long before their time tasks may be launched.
        since_us: since when this planner plans; what was due before was missed.
    """

    def __init__(
        self, journal: Journal, timers: Timers, launching: Launching, watching: Watching, ahead_us: int, since_us: int
    ) -> None:
        self._journal = journal
        self._timers = timers
        self._launching = launching
        self._watching = watching
        self._ahead_us = ahead_us
        self._since_us = since_us
        self._held: set[str] = set()  # schedules whose next time waits until fewer jobs do
        journal.watchers.append(self._watch)

    def _watch(self, change: Change) -> None:
        """Goes on with times that wait, once a job has gone."""
        if self._held and change[0] == "fire" and change[1] in self._held:
            self._held.discard(change[1])
            self._timers.add(Timer(change[2]["at_us"], change[1], "time"))

    def begin(self, schedule: Schedule, after_us: int) -> int:
        """Returns when the first fire after an instant is to be decided; 0: none is."""
        failpoint.reach("plan.begin", schedule.name)
        first = self._next(schedule, after_us)
        return self._decided_us(schedule, first) if first is not None else 0

    def count_anew(self, entry: Entry, now: int) -> None:
        """The days of a calendar have changed: the next time of a schedule may be another one; what is due is decided first.

        Times that have passed and are open only now are not run.
        """
        if entry.is_deaf or 0 < entry.next_us <= now:
            return
        cursor_us = self._passed(entry, now)
        next_us = self.begin(entry.schedule, cursor_us)
        self._journal.note("set", entry.name, {"cursor_us": cursor_us, "next_us": next_us})
        if next_us:
            self._timers.add(Timer(next_us, entry.name, "time"))

    def give_up(self, entry: Entry, now: int, why: str) -> None:
        """Notes in one row the times that have come and are not decided, since jitter puts them off or there was no place for them.

        Args:
            entry: the schedule.
            now: microseconds since the epoch.
            why: for people.
        """
        if entry.is_deaf or not _has_jobs_of_their_own(schedule := entry.schedule):
            return
        first = self._next(schedule, entry.cursor_us)
        if first is None or first.at_us > now:
            return
        calendars: Calendars = self._journal.state.calendars
        last_us = next(
            planned_before(times_of(schedule.trigger), now + 1, calendars, after_us=entry.cursor_us), first.at_us
        )
        self._journal.fire(
            entry,
            planned_us=first.at_us,
            until_us=last_us,
            at_us=now,
            verdict=OBSOLETE,
            why=why,
            timed=True,
            ends_job=False,
            next_us=0,
        )

    def waits_for_resume(self, entry: Entry, schedule: Schedule) -> bool:
        """Returns True if no time of a schedule is decided, since it is paused. A branch of a larger trigger is, if that is kept."""
        return entry.is_deaf or (entry.paused and _has_jobs_of_their_own(schedule))

    def drop_more_than_kept(self, entry: Entry, now: int) -> None:
        """Leaves of the times that came during a pause as many as `on_pause` keeps, the newest; one row reports the others."""
        schedule = entry.schedule
        if not _has_jobs_of_their_own(schedule):
            return
        most = 1 if schedule.policies.on_pause == "keep" else MOST_KEPT
        calendars: Calendars = self._journal.state.calendars
        newest = planned_before(times_of(schedule.trigger), now + 1, calendars, after_us=entry.cursor_us)
        last_us = next(islice(newest, most, None), None)
        if last_us is None:
            return
        times = planned_after(times_of(schedule.trigger), entry.cursor_us, calendars)
        dropped = list(islice(takewhile(lambda at_us: at_us <= last_us, times), _MOST_COUNTED))
        many = f"{len(dropped):,}" if len(dropped) < _MOST_COUNTED else f"{_MOST_COUNTED:,} or more"
        self._journal.fire(
            entry,
            planned_us=dropped[0],
            until_us=last_us,
            at_us=now,
            verdict=SKIPPED,
            why=f"{many} times of the pause came before the newest {most:,}, which are kept",
            timed=True,
            ends_job=False,
            next_us=0,
        )

    def _passed(self, entry: Entry, now: int) -> int:
        """The instant that all planned times have to be later than which have not started yet, jitter included."""
        schedule = entry.schedule
        longest_us = max((one.jitter_us for one in times_of(schedule.trigger)), default=0)
        passed_us = max(entry.cursor_us, now - longest_us)
        while (one := self._next(schedule, passed_us)) is not None and one.starts_us <= now:
            passed_us = one.at_us
        return passed_us if one is not None and one.at_us <= now else max(entry.cursor_us, now)

    def decide(self, entry: Entry, now: int) -> None:
        """Decides all that is due of a schedule; of much, a part, and the rest soon."""
        schedule = entry.schedule
        if self.waits_for_resume(entry, schedule):
            return
        failpoint.reach("plan.decide", entry.name)
        due = self._next(schedule, entry.cursor_us)
        for _ in range(MOST_AT_ONCE):
            if due is None or self._decided_us(schedule, due) > now or self._journal.full:
                break
            if self._waits_for_room(entry, schedule, due) or _may_have_run(entry, due):
                return  # `room` and `_watch` go on
            kept = self._catch_up(entry, schedule, due, now) if self._is_missed(entry, due) else due
            if kept == due:
                kept = self._next(schedule, due.at_us)
                self._fire(entry, schedule, due, kept, now)
            due = kept
        if due is not None:
            self._timers.add(Timer(max(self._decided_us(schedule, due), entry.next_us), entry.name, "time"))

    def _waits_for_room(self, entry: Entry, schedule: Schedule, due: Planned) -> bool:
        """Returns True if a time has to wait until fewer runs are active, or fewer jobs wait: it is decided then, as if it came then."""
        own = _has_jobs_of_their_own(schedule)
        if entry.has_no_room and (self._all_run(entry, schedule, due) or (own and runs_each(schedule))):
            return True
        if entry.is_full and own:
            self._held.add(entry.name)
            return True
        return False

    def _is_missed(self, entry: Entry, due: Planned) -> bool:
        """Returns True if a time had come before anybody planned again, and neither waits for room nor was kept during a pause."""
        return max(entry.held_us, entry.kept_us) < due.starts_us < self._since_us

    def has_run(self, entry: Entry, run: Run) -> None:
        """A run that a pause took back had begun by then: its time, which the pause has kept, is not run again."""
        schedule = entry.schedule
        due = self._next(schedule, entry.cursor_us)
        if due is None or due.at_us != run.planned_us:
            return
        next_us = self.begin(schedule, due.at_us)
        self._journal.note("set", entry.name, {"cursor_us": due.at_us, "next_us": next_us})
        if next_us:
            self._timers.add(Timer(next_us, entry.name, "time"))

    def room(self, entry: Entry, now: int) -> None:
        """A run has ended: goes on with times for which there was no place, where so many runs were active."""
        if not entry.is_deaf and 0 < entry.next_us <= now:
            self._timers.add(Timer(now, entry.name, "time"))

    def _all_run(self, entry: Entry, schedule: Schedule, due: Planned) -> bool:
        """Returns True if a time is run regardless of other runs.

        It was kept during a pause. Or it was missed, or has waited for a place among the jobs that wait, and all such are run.
        """
        if due.starts_us <= entry.kept_us:
            return True
        if schedule.policies.catch_up != "all":
            return False
        return due.starts_us < self._since_us or due.starts_us <= entry.held_us

    def _fire(self, entry: Entry, schedule: Schedule, due: Planned, following: Planned | None, now: int) -> None:
        next_us = self._decided_us(schedule, following) if following is not None else 0
        if not _has_jobs_of_their_own(schedule):
            self._journal.note("set", entry.name, {"cursor_us": due.at_us, "next_us": next_us})
            self._watching.latch(entry, due.leaf, Latch(fired=True), now, due.at_us)
            return
        job = Job(entry.generation + 1, PENDING_TRIGGER, now, due.at_us)
        caught_up = self._all_run(entry, schedule, due)
        self._launching.fired(entry, job, now, due.starts_us, caught_up=caught_up, timed=True, next_us=next_us)

    def _catch_up(self, entry: Entry, schedule: Schedule, first: Planned, now: int) -> Planned | None:
        """The next fire to run, of those that were missed or come after them; what is not run is noted."""
        policies = schedule.policies
        oldest_us = self._since_us - policies.catch_up_window_us
        if policies.catch_up == "all":
            keep_us = oldest_us
        else:
            last = self._last_missed(schedule, entry.cursor_us)
            keep_us = max(oldest_us, last if policies.catch_up == "latest" else last + 1)
        if first.at_us >= keep_us:
            return first
        kept = self._next(schedule, keep_us - 1)
        until_us = keep_us - 1
        why = f"nobody planned between {iso(first.at_us)} and {iso(self._since_us)}, and catch_up is {policies.catch_up!r}"
        self._journal.fire(
            entry,
            planned_us=first.at_us,
            until_us=until_us,
            at_us=now,
            verdict=MISSED,
            why=why,
            timed=True,
            ends_job=False,
            next_us=self._decided_us(schedule, kept) if kept is not None else 0,
        )
        return kept

    def _last_missed(self, schedule: Schedule, cursor_us: int) -> int:
        """The last planned time that should have started before somebody planned again, later than an instant; 0: there is none.

        It is looked for backwards, since there may be millions. What was planned within the longest jitter before is looked at forwards.
        """
        series = times_of(schedule.trigger)
        certain_us = self._since_us - max((one.jitter_us for one in series), default=0)
        before = planned_before(series, certain_us, self._journal.state.calendars, after_us=cursor_us)
        found = next(before, 0)
        after_us = max(found, cursor_us)
        while (one := self._next(schedule, after_us)) is not None and one.starts_us < self._since_us:
            found = after_us = one.at_us
        return found

    def _next(self, schedule: Schedule, after_us: int) -> Planned | None:
        """The first planned time later than an instant."""
        calendars: Calendars = self._journal.state.calendars
        found: list[Planned] = []
        for number, times in _times(schedule.trigger):
            at_us = times.next_after(after_us, calendars)
            if at_us is not None:
                found.append(Planned(at_us, number, times.starts_us(schedule.name, at_us)))
        return min(found, default=None)

    def _decided_us(self, schedule: Schedule, due: Planned) -> int:
        """When a time is decided. Times are decided in order, so a jitter must not make one hold up the next where that can be helped."""
        if not can_be_ahead(schedule):
            return due.starts_us
        following = self._next(schedule, due.at_us) if runs_each(schedule) and due.starts_us > due.at_us else None
        return min(due.starts_us, following.at_us if following is not None else due.starts_us) - self._ahead_us


def _may_have_run(entry: Entry, due: Planned) -> bool:
    """Returns True if a pause has kept a time, and the run that it took back for that has not ended: it may have begun."""
    taken_back = (run for run in entry.runs.values() if run.cancelled and not run.by_hand)
    return due.starts_us <= entry.kept_us and any(run.planned_us == due.at_us for run in taken_back)


def _has_jobs_of_their_own(schedule: Schedule) -> bool:
    """Returns True if each time of a schedule makes a job, and is no branch of a larger trigger."""
    return isinstance(schedule.trigger, AtTimes) or _is_simple(schedule.trigger)


def _times(trigger: Trigger) -> list[tuple[int, FireTimes]]:
    return [(number, leaf.times) for number, leaf in enumerate(leaves(trigger)) if isinstance(leaf, AtTimes)]


def _is_simple(trigger: Trigger) -> bool:
    """Returns True if any of several times is enough."""
    return (
        isinstance(trigger, AnyOf)
        and trigger.at_least == 1
        and all(isinstance(branch, AtTimes) or _is_simple(branch) for branch in trigger.branches)
    )
