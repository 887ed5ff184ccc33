"""Backfills under way: a few runs of each are launched at a time, and the next one when one of them has ended."""

from __future__ import annotations

from typing import Final

from scylla_spark.core.plan.launching import Launching
from scylla_spark.core.plan.state.backfill_entry import CANCELLED, ENDED, PAUSED, RUNNING, BackfillEntry, begins, tag_of
from scylla_spark.core.plan.state.plan_log import BACKFILL_STANDS, Change
from scylla_spark.core.plan.state.schedule_entry import MOST_RUNS, Entry
from scylla_spark.core.plan.state.timers import Timer, Timers
from scylla_spark.core.plan.state.unwritten_changes import Journal
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import ConflictError

NEXT_RUN: Final = "backfill"
"""Kind of the timers at which a backfill may launch its next runs."""
_WORDS: Final = {
    RUNNING: "is not paused",
    PAUSED: "is paused already",
    CANCELLED: "was cancelled",
    ENDED: "has ended",
}


class Backfilling:
    """Lets backfills go on.

    Args:
        journal: takes what is decided.
        timers: when to look again.
        launching: launches their runs.
    """

    def __init__(self, journal: Journal, timers: Timers, launching: Launching) -> None:
        self._journal = journal
        self._timers = timers
        self._launching = launching
        journal.watchers.append(self._watch)

    def _watch(self, change: Change) -> None:
        """Goes on with the backfills of a schedule that is resumed or changed: a defect may have kept them from launching.

        A change may mend that also where the schedule is paused, since its backfills go on then.
        """
        if change[0] == "put" or (change[0] == "set" and change[2].get("paused") is False):
            self.go_on(self._journal.state.entries[change[1]], change[2].get("changed_us", 0))

    def load(self, entry: Entry) -> None:
        """Takes over the backfills of a schedule of the log."""
        self.go_on(entry, 0)

    def go_on(self, entry: Entry, at_us: int) -> None:
        """Has the backfills of a schedule launch what they may, in a step of its own.

        Args:
            entry: the schedule.
            at_us: when, microseconds since the epoch.
        """
        for backfill in entry.backfills.values():
            if backfill.may_launch:
                self._timers.add(Timer(max(at_us, backfill.since_us), entry.name, NEXT_RUN, backfill.number))

    def begin(self, entry: Entry, backfill: BackfillEntry) -> None:
        """Begins a backfill; its first runs are launched as soon as that is written.

        Args:
            entry: of the schedule.
            backfill: with all its runs left.

        Raises:
            ConflictError: with what others of the schedule have left these are too many runs.
        """
        open_runs = sum(len(one.left) + len(one.running) for one in entry.backfills.values())
        if backfill.total + open_runs > MOST_RUNS:
            raise ConflictError(
                f"{backfill.total} runs are asked for, and {open_runs} of other backfills of {entry.name!r} have not ended; "
                f"{MOST_RUNS} may be open.",
                hint="Backfill in parts, or wait for some to end.",
            )
        self._journal.note(*begins(entry.name, backfill))
        self.load(entry)

    def steer(self, entry: Entry, backfill: BackfillEntry, state: str, now: int) -> list[TaskKey]:
        """Pauses a backfill, lets it go on, or cancels it.

        Args:
            entry: of the schedule.
            backfill: of it.
            state: "paused", "running" or "cancelled", from now on.
            now: microseconds since the epoch.

        Returns:
            Keys of runs that were launched, and may not have begun: these are taken back.

        Raises:
            ConflictError: it is over, or in that state already.
        """
        if backfill.is_over or backfill.state == state:
            raise ConflictError(
                f"The backfill {tag_of(entry.name, backfill.number)} {_WORDS[backfill.state]}.",
                hint="Nothing is to be done.",
            )
        self._journal.note(BACKFILL_STANDS, entry.name, backfill.number, state, now)
        if state == RUNNING:
            self.go_on(entry, now)
            return []
        why = f"its backfill was {state}"
        return [self._launching.take_back(entry, entry.runs[number], now, why) for number in backfill.running]

    def room(self, entry: Entry, now: int) -> None:
        """A run of a schedule has ended: its backfills may go on.

        Args:
            entry: the schedule.
            now: microseconds since the epoch.
        """
        for number in list(entry.backfills):
            self.launch(entry, number, now)

    def launch(self, entry: Entry, number: int, now: int) -> None:
        """Launches as many runs of a backfill as may run at once; some later, if many are decided already.

        Args:
            entry: of the schedule.
            number: of the backfill.
            now: microseconds since the epoch.
        """
        while (backfill := entry.backfills.get(number)) and backfill.may_launch and not entry.has_no_room:
            if self._journal.full:
                self._timers.add(Timer(now, entry.name, NEXT_RUN, number))
                return
            self._launching.next_of(entry, backfill, now)
