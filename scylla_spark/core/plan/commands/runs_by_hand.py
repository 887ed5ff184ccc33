"""Runs that somebody asks for: one, or those of a backfill, which is steered as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scylla_spark.core.plan.backfill import chosen, planned_between, watched_table
from scylla_spark.core.plan.backfilling import Backfilling
from scylla_spark.core.plan.commands.answers import Answers
from scylla_spark.core.plan.commands.plan_command import PlanCommand
from scylla_spark.core.plan.launching import Launching
from scylla_spark.core.plan.state.backfill_entry import (
    CANCELLED,
    PAUSED,
    RUNNING,
    BackfillEntry,
    Item,
    Source,
    Versions,
    tag_of,
)
from scylla_spark.core.plan.state.group_writer import COMMANDS, GroupWriter
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.state.schedule_entry import MOST_RUNS, Entry
from scylla_spark.core.plan.triggers.trigger import leaves
from scylla_spark.errors import ArgumentError, NotFoundError


class RunsByHand:
    """Launches what somebody asks for.

    Args:
        state: with the schedules.
        groups: knows how far a planner before us was with a backfill.
        launching: launches.
        backfilling: begins backfills.
        answers: says what was launched.
    """

    def __init__(
        self, state: PlanState, groups: GroupWriter, launching: Launching, backfilling: Backfilling, answers: Answers
    ) -> None:
        self._state = state
        self._groups = groups
        self._launching = launching
        self._backfilling = backfilling
        self._answers = answers

    def run(self, offset: int, command: PlanCommand, now: int) -> None:
        """Launches one run, whatever else runs.

        Args:
            offset: of the record.
            command: which schedule, and with which payload.
            now: microseconds since the epoch.

        Raises:
            NotFoundError: there is no such schedule.
            ArgumentError: its payload cannot be made.
        """
        entry = self._asked_about(command)
        trouble = self._launching.by_hand(entry, now, command.fields.get("payload"))
        if trouble is not None:
            raise ArgumentError(f"The run was not launched: {trouble}.", hint="Give a payload.")
        self._answers.done(command.id, {entry.name: str(entry.runs[entry.generation].key)})

    def backfill(self, offset: int, command: PlanCommand, now: int) -> None:
        """Begins the runs of past times, or of past versions of the table that a schedule watches.

        Args:
            offset: of the record.
            command: which schedule and times, or versions.
            now: microseconds since the epoch.

        Raises:
            NotFoundError: there is no such schedule.
            ArgumentError: it does not fire by time, or these are too many times; or versions are given, and it does not watch one table.
            ConflictError: with what other backfills of it have left it were too many.
        """
        fields, entry = command.fields, self._asked_about(command)
        source = _source(entry, fields["tableId"]) if "versions" in fields else None
        planned, wanted = self._of_times(entry, fields) if source is None else _of_versions(fields, now)
        launched, number = self._launched_before(offset, entry)
        items = wanted[launched:]
        if items:
            self._backfilling.begin(
                entry,
                BackfillEntry(
                    number, len(items), fields.get("maxRunning", 1), fields.get("priority", 0), command.author, now,
                    source, since_us=now, left=items,
                ),
            )  # fmt: skip
        done = {"planned": planned, "launched": len(wanted), "tag": tag_of(entry.name, number)}
        self._answers.done(command.id, done)

    def pause_backfill(self, offset: int, command: PlanCommand, now: int) -> None:
        """Launches nothing of a backfill any more; answers when nothing of it can begin that had not begun. See `_steer`."""
        self._steer(command, PAUSED, now)

    def resume_backfill(self, offset: int, command: PlanCommand, now: int) -> None:
        """Lets a paused backfill go on with what it has left. See `_steer`."""
        self._steer(command, RUNNING, now)

    def cancel_backfill(self, offset: int, command: PlanCommand, now: int) -> None:
        """Forgets what a backfill has left; an attempt of a dispatcher is its run's last, what is leased ends at once. See `_steer`."""
        self._steer(command, CANCELLED, now)

    def _steer(self, command: PlanCommand, state: str, now: int) -> None:
        """Brings a backfill into a state.

        Args:
            command: which schedule, and number of its backfill.
            state: from now on.
            now: microseconds since the epoch.

        Raises:
            NotFoundError: there is no such schedule, or it has no such backfill.
            ConflictError: the backfill is over, or in that state already.
        """
        entry = self._asked_about(command)
        backfill = entry.backfills.get(command.fields["backfill"])
        if backfill is None:
            raise NotFoundError(
                f"The schedule {entry.name!r} has no backfill {command.fields['backfill']}.",
                hint="`scylla-spark schedule backfills NAME` lists them.",
            )
        taken_back = self._backfilling.steer(entry, backfill, state, now)
        done = {"tag": tag_of(entry.name, backfill.number), "state": state}
        self._answers.done_when_ended(command.id, set(taken_back), done, now)

    def _of_times(self, entry: Entry, fields: Mapping[str, Any]) -> tuple[int, tuple[Item, ...]]:
        """Returns how many times are planned, and the runs of those that are wanted."""
        planned = planned_between(entry, fields["begin"], fields["end"], self._state.calendars, MOST_RUNS)
        todo = chosen(planned, frozenset(fields.get("leaveOut", ())), fields.get("order", "oldest"))
        return len(planned), tuple(Item(place, at_us) for place, at_us in enumerate(todo))

    def _launched_before(self, offset: int, entry: Entry) -> tuple[int, int]:
        """How many runs of a backfill were launched, and its number: planners of before launched all at once, and may end in the midst."""
        resume = self._groups.resume
        if resume is None or resume[:2] != (COMMANDS, offset):
            return 0, entry.generation + 1
        launched, number, _ = map(int, resume.name.split("/"))
        return launched, number

    def _asked_about(self, command: PlanCommand) -> Entry:
        """The schedule that a command names."""
        name = command.fields["name"]
        entry = self._state.entries.get(name)
        if entry is None:
            raise NotFoundError(f"There is no schedule {name!r}.", hint="`scylla-spark schedule list` names all.")
        return entry


def _source(entry: Entry, table_id: str) -> Source:
    """Returns which table versions are of.

    Raises:
        ArgumentError: the schedule does not watch one table.
    """
    trigger = watched_table(entry)
    handed = entry.tables.get(leaves(entry.schedule.trigger).index(trigger))
    return Source(trigger.table, trigger.per, table_id, "" if handed is None else handed.table_id)


def _of_versions(fields: Mapping[str, Any], now: int) -> tuple[int, tuple[Item, ...]]:
    """Returns how many ranges are given, and their runs: each is named by the time of its last commit, as far as that has come."""
    ranges = fields["versions"]
    items = (Item(place, min(one["at"], now) or now, _versions(one)) for place, one in enumerate(ranges))
    return len(ranges), tuple(items)


def _versions(one: Mapping[str, Any]) -> Versions:
    return Versions(
        one["fromVersion"], one["toVersion"], one["rows"], one["commits"], one["bytes"], one.get("part", "")
    )
