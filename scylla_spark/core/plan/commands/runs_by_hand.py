"""Runs that somebody asks for: one, or those of past times."""

from __future__ import annotations

from scylla_spark.core.plan.backfill import chosen, planned_between, tag_of
from scylla_spark.core.plan.commands.answers import Answers
from scylla_spark.core.plan.commands.plan_command import PlanCommand
from scylla_spark.core.plan.launching import Backfilled, Launching
from scylla_spark.core.plan.state.group_writer import COMMANDS, GroupWriter
from scylla_spark.core.plan.state.plan_log import Partly
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.state.schedule_entry import MOST_RUNS, Entry
from scylla_spark.errors import ArgumentError, ConflictError, NotFoundError


class RunsByHand:
    """Launches what somebody asks for.

    Args:
        state: with the schedules.
        groups: ends groups between the launches of a backfill.
        launching: launches.
        answers: says what was launched.
    """

    def __init__(self, state: PlanState, groups: GroupWriter, launching: Launching, answers: Answers) -> None:
        self._state = state
        self._groups = groups
        self._launching = launching
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
        """Launches the runs of past times.

        Args:
            offset: of the record.
            command: which schedule and times.
            now: microseconds since the epoch.

        Raises:
            NotFoundError: there is no such schedule.
            ArgumentError: it does not fire by time, or these are too many times.
            ConflictError: with what is active it were too many.
        """
        fields, at = command.fields, Partly(COMMANDS, offset, 0, "")
        entry = self._asked_about(command)
        room = MOST_RUNS - len(entry.runs)
        planned = planned_between(entry, fields["begin"], fields["end"], self._state.calendars, MOST_RUNS)
        todo = chosen(planned, frozenset(fields.get("leaveOut", ())), fields.get("order", "oldest"))
        done = Backfilled(0, entry.generation + 1, 0)
        resume = self._groups.resume
        if resume is not None and resume[:2] == at[:2]:
            done = Backfilled(*map(int, resume.name.split("/")))
        elif len(todo) > room:
            raise ConflictError(
                f"{len(todo)} runs are asked for, and {len(entry.runs)} of {entry.name!r} are active; {MOST_RUNS} may be.",
                hint="Backfill in parts, or wait for some to end.",
            )
        lanes, priority = fields.get("maxRunning", 1), fields.get("priority", 0)
        for after in self._launching.backfill(entry, todo, now, lanes, priority, done):
            done = after
            self._groups.part(at._replace(name="/".join(map(str, done))), now)
        tag = tag_of(entry.name, done.first)
        self._answers.done(command.id, {"planned": len(planned), "launched": done.launched, "tag": tag})

    def _asked_about(self, command: PlanCommand) -> Entry:
        """The schedule that a command names."""
        name = command.fields["name"]
        entry = self._state.entries.get(name)
        if entry is None:
            raise NotFoundError(f"There is no schedule {name!r}.", hint="`scylla-spark schedule list` names all.")
        return entry
