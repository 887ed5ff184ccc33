"""Days of calendars: stored, and the next times of all schedules that name the calendar are counted anew."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

from scylla_spark.core.plan.commands.answers import Answers
from scylla_spark.core.plan.commands.plan_command import PlanCommand
from scylla_spark.core.plan.defects import Defects
from scylla_spark.core.plan.state.group_writer import GroupWriter
from scylla_spark.core.plan.state.snapshot import calendar_change
from scylla_spark.core.plan.state.unwritten_changes import Journal
from scylla_spark.core.plan.times.breaks import Days
from scylla_spark.core.plan.triggers.due_times import Timing
from scylla_spark.errors import ArgumentError


class Calendars:
    """Stores days.

    Args:
        journal: takes them.
        groups: ends groups between two schedules.
        timing: counts anew.
        defects: sets schedules aside.
        answers: says that it is done.
        listeners: key → names of schedules.
    """

    def __init__(
        self, journal: Journal, groups: GroupWriter, timing: Timing, defects: Defects, answers: Answers,
        listeners: Mapping[str, Collection[str]],
    ) -> None:  # fmt: skip
        self._journal = journal
        self._groups = groups
        self._timing = timing
        self._defects = defects
        self._answers = answers
        self._listeners = listeners

    def put(self, offset: int, command: PlanCommand, now: int) -> None:
        """Stores the days of a calendar.

        Args:
            offset: of the record.
            command: with the days.
            now: microseconds since the epoch.

        Raises:
            ArgumentError: a day does not exist, or a note is of another day.
        """
        name, days = command.fields["name"], _read(command)
        self._journal.note(*calendar_change(name, days))
        for user in sorted(self._listeners.get(f"calendar:{name}", ())):
            entry = self._journal.state.entries[user]
            self._defects.guarded(user, partial(self._timing.count_anew, entry, now), now)
            self._groups.rest(now)  # all of it may be done again
        self._answers.done(command.id)


def _read(command: PlanCommand) -> Days:
    name, notes = command.fields["name"], command.fields.get("notes", {})
    try:
        days = Days.read(command.fields["days"], notes)
    except ValueError as error:
        raise ArgumentError(f"The calendar {name!r} has a day that does not exist: {error}.") from error
    if strange := sorted(set(notes) - set(command.fields["days"])):
        raise ArgumentError(f"There is a note of {strange[0]}, which is no day of the calendar {name!r}.")
    return days
