"""What others tell of: events, and partitions that have come to a dataset."""

from __future__ import annotations

from scylla_spark.core.plan.commands.answers import Answers
from scylla_spark.core.plan.commands.plan_command import PlanCommand
from scylla_spark.core.plan.state.group_writer import COMMANDS
from scylla_spark.core.plan.state.plan_log import Partly
from scylla_spark.core.plan.triggers.observations import Occurrence
from scylla_spark.core.plan.triggers.telling import Telling


class Happenings:
    """Tells schedules of what has happened.

    Args:
        telling: tells them.
        answers: says that they know.
    """

    def __init__(self, telling: Telling, answers: Answers) -> None:
        self._telling = telling
        self._answers = answers

    def event(self, offset: int, command: PlanCommand, now: int) -> None:
        """An event was emitted.

        Args:
            offset: of the record.
            command: with the event.
            now: microseconds since the epoch.
        """
        name, fields = command.fields["name"], command.fields.get("fields", {})
        happened = Occurrence(f"event:{name}", {"event": {"name": name, **fields}}, fields)
        self._telling.tell(Partly(COMMANDS, offset, 0, ""), happened, now)
        self._answers.done(command.id)

    def partitions(self, offset: int, command: PlanCommand, now: int) -> None:
        """Partitions have come to a dataset.

        Args:
            offset: of the record.
            command: with the partitions.
            now: microseconds since the epoch.
        """
        given = command.fields["partitions"]
        count = sum(one.get("count", 1) for one in given)
        rows, size = (sum(one.get(name, 0) for one in given) for name in ("rows", "bytes"))
        known = [one.get("values", {}) for one in given]
        values = {"partitions": {"dataset": command.fields["name"], "values": known[-1], "all": known}}
        happened = Occurrence(f"dataset:{command.fields['name']}", values, seen=count, rows=rows, size=size)
        self._telling.tell(Partly(COMMANDS, offset, 0, ""), happened, now)
        self._answers.done(command.id)
