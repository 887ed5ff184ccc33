"""Promises of schedules: that runs begin and end in time, and that one succeeds now and then. What is not kept is told of."""

from __future__ import annotations

from typing import Final

from scylla_spark.clock import iso
from scylla_spark.core.plan.handler_runs import HandlerRuns
from scylla_spark.core.plan.state.entry import Entry, Run
from scylla_spark.core.plan.state.timers import Timer, Timers
from scylla_spark.core.plan.state.unwritten_changes import Journal
from scylla_spark.core.plan.triggers.observations import Occurrence
from scylla_spark.core.plan.triggers.telling import Telling
from scylla_spark.core.records.fact import Fact

LATE: Final = "late"
OVERDUE: Final = "overdue"
SILENT: Final = "silent"


class Deadlines:
    """Looks whether promises are kept.

    Args:
        journal: takes what is not kept.
        timers: when to look.
        runs: which of them have begun.
        telling: tells those who listen to that.
    """

    def __init__(self, journal: Journal, timers: Timers, runs: HandlerRuns, telling: Telling) -> None:
        self._journal = journal
        self._timers = timers
        self._runs = runs
        self._telling = telling

    def expect(self, entry: Entry) -> None:
        """Looks, in time, whether a schedule has succeeded again."""
        every_us = entry.schedule.policies.expect_every_us
        if every_us:
            at_us = max(entry.last_success_us, entry.changed_us) + every_us
            self._timers.add(Timer(at_us, entry.name, SILENT))

    def ended(self, entry: Entry, run: Run, fact: Fact, now: int) -> None:
        """A run has ended: it may have started late, which its end alone tells where it was short.

        Args:
            entry: the schedule.
            run: of it.
            fact: its end.
            now: microseconds since the epoch.
        """
        late_us = entry.schedule.policies.late_after_us
        if late_us and fact.started_us > run.planned_us + late_us:
            self._note(entry, run, LATE, f"it started {_seconds(fact.started_us - run.planned_us)} late", now)

    def timer(self, entry: Entry, timer: Timer, now: int) -> None:
        """A timer of a promise has gone off.

        Args:
            entry: the schedule.
            timer: of kind "late", "overdue" or "silent".
            now: microseconds since the epoch.
        """
        run = entry.runs.get(timer.number)
        if timer.kind == SILENT:
            every_us = entry.schedule.policies.expect_every_us
            if every_us and not entry.paused and max(entry.last_success_us, entry.changed_us) + every_us <= now:
                self._note(entry, None, SILENT, f"no run has succeeded for {_seconds(every_us)}", now)
                self._timers.add(Timer(now + every_us, entry.name, SILENT))
        elif run is not None and not run.cancelled:
            if timer.kind == OVERDUE:
                self._note(entry, run, OVERDUE, "it has not ended by the time that end_within gives", now)
            elif run.key not in self._runs.started:
                self._note(entry, run, LATE, "it has not started by the time that late_after gives", now)

    def _note(self, entry: Entry, run: Run | None, verdict: str, why: str, now: int) -> None:
        """Notes that a promise is not kept, and tells those who listen to that."""
        planned_us = run.planned_us if run is not None else now
        generation = run.generation if run is not None else 0
        self._journal.fire(
            entry, generation=generation, planned_us=planned_us, at_us=now, verdict=verdict, why=why, ends_job=False
        )  # fmt: skip
        fields = {"schedule": entry.name, "planned": iso(planned_us)}
        name = f"schedule.{verdict}"
        self._telling.later(Occurrence(f"event:{name}", {"event": {"name": name, **fields}}, fields))


def _seconds(us: int) -> str:
    return f"{us / 1e6:g} s"
