"""Promises of schedules: that runs begin and end in time, and that one succeeds now and then. What is not kept is told of, once.

By when a run is to start and end stands with its launch; so a change of the definition concerns later runs, and a planner that takes over
knows what was told and what has started.
"""

from __future__ import annotations

from typing import Final

from scylla_spark.clock import iso
from scylla_spark.core.plan.state.plan_log import PROMISED, STARTED, Change
from scylla_spark.core.plan.state.plan_state import LATE, OVERDUE, SILENT
from scylla_spark.core.plan.state.schedule_entry import Entry, Run
from scylla_spark.core.plan.state.timers import Timer, Timers
from scylla_spark.core.plan.state.unwritten_changes import Journal
from scylla_spark.core.plan.triggers.observations import Occurrence
from scylla_spark.core.plan.triggers.telling import Telling
from scylla_spark.core.records.fact import Fact

_SLACK_US: Final = 2_000_000  # what runs this long has a start fact


class Deadlines:
    """Looks whether promises are kept.

    Args:
        journal: takes what is not kept.
        timers: when to look.
        telling: tells those who listen to that.
    """

    def __init__(self, journal: Journal, timers: Timers, telling: Telling) -> None:
        self._journal = journal
        self._entries = journal.state.entries
        self._timers = timers
        self._telling = telling
        journal.watchers.append(self._watch)

    def load(self, entry: Entry) -> None:
        """Takes over a schedule of the log."""
        for run in entry.runs.values():
            self._look_at(entry.name, run)
        if "deadline" in entry.keys and not entry.paused:
            self.expect(entry)

    def _watch(self, change: Change) -> None:
        if change[0] == "fire" and PROMISED in change[2]:
            self._look_at(change[1], self._entries[change[1]].runs[change[2]["generation"]])

    def _look_at(self, name: str, run: Run) -> None:
        """Looks, in time, whether a run has started and ended."""
        if run.start_by_us:
            at_us = max(run.start_by_us, run.key.time_us) + _SLACK_US
            self._timers.add(Timer(at_us, name, LATE, run.generation))
        if run.end_by_us:
            self._timers.add(Timer(run.end_by_us, name, OVERDUE, run.generation))

    def expect(self, entry: Entry) -> None:
        """Looks, in time, whether a schedule has succeeded again."""
        every_us = entry.schedule.policies.expect_every_us
        if every_us:
            self._timers.add(Timer(_heard_us(entry) + every_us, entry.name, SILENT))

    def started(self, entry: Entry, run: Run, started_us: int, now: int) -> None:
        """An attempt of a run has begun; the first one counts.

        Args:
            entry: the schedule.
            run: of it.
            started_us: when, microseconds since the epoch.
            now: likewise.
        """
        if run.start_by_us >= started_us:
            self._journal.note(STARTED, entry.name, run.generation)
        elif run.start_by_us:
            self._note(entry, run, LATE, _late_words(run, started_us), now)

    def ended(self, entry: Entry, run: Run, fact: Fact, now: int) -> None:
        """A run has ended: it may have started late, which its end alone tells where it was short, or ended late while nobody planned.

        Args:
            entry: the schedule.
            run: of it.
            fact: its end.
            now: microseconds since the epoch.
        """
        if 0 < run.start_by_us < fact.started_us:
            self._note(entry, run, LATE, _late_words(run, fact.started_us), now)
        if 0 < run.end_by_us < fact.finished_us and not run.cancelled:
            why = f"it ended {_seconds(fact.finished_us - run.planned_us)} after its planned time"
            self._note(entry, run, OVERDUE, why, now)

    def timer(self, entry: Entry, timer: Timer, now: int) -> None:
        """A timer of a promise has gone off.

        Args:
            entry: the schedule.
            timer: of kind "late", "overdue" or "silent".
            now: microseconds since the epoch.
        """
        if timer.kind == SILENT:
            self._silent(entry, now)
            return
        run = entry.runs.get(timer.number)
        if run is None or run.cancelled:
            return
        if timer.kind == OVERDUE and run.end_by_us:
            self._note(entry, run, OVERDUE, "it has not ended by the time that end_within gives", now)
        elif timer.kind == LATE and run.start_by_us:
            self._note(entry, run, LATE, "it has not started by the time that late_after gives", now)

    def _silent(self, entry: Entry, now: int) -> None:
        every_us = entry.schedule.policies.expect_every_us
        if every_us and not entry.paused and _heard_us(entry) + every_us <= now:
            self._note(entry, None, SILENT, f"no run has succeeded for {_seconds(every_us)}", now)
            self.expect(entry)

    def _note(self, entry: Entry, run: Run | None, verdict: str, why: str, now: int) -> None:
        """Notes that a promise is not kept, and tells those who listen to that."""
        planned_us = run.planned_us if run is not None else now
        generation = run.generation if run is not None else 0
        self._journal.fire(
            entry, generation=generation, planned_us=planned_us, at_us=now, verdict=verdict, why=why, ends_job=False
        )
        fields = {"schedule": entry.name, "planned": iso(planned_us)}
        name = f"schedule.{verdict}"
        self._telling.later(Occurrence(f"event:{name}", {"event": {"name": name, **fields}}, fields))


def _heard_us(entry: Entry) -> int:
    """Since when the silence of a schedule counts, microseconds since the epoch."""
    return max(entry.last_success_us, entry.changed_us, entry.silent_us)


def _late_words(run: Run, started_us: int) -> str:
    return f"it started {_seconds(started_us - run.planned_us)} late"


def _seconds(us: int) -> str:
    return f"{us / 1e6:g} s"
