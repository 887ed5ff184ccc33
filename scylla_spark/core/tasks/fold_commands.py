"""Folding the commands of a key into one: the same result in any order and grouping."""

from __future__ import annotations

from collections.abc import Iterable

from scylla_spark.core.records.command import ENQUEUE, Command
from scylla_spark.core.tasks.key import TaskKey


class Folded:
    """What is known of one key: the data of the highest offset, the enqueue of the lowest, and whether any cancel was seen.

    Attributes:
        data: the newest enqueue, or None if only cancels were seen.
        first: the oldest enqueue, which says whether the name of the task is to be unique.
        cancel: the newest cancel, or None.
    """

    __slots__ = ("cancel", "data", "first")

    def __init__(self) -> None:
        self.data: Command | None = None
        self.cancel: Command | None = None
        self.first: Command | None = None

    def add(self, command: Command) -> None:
        """Joins one command; idempotent and commutative."""
        if command.kind == ENQUEUE:
            if self.data is None or command.offset > self.data.offset:
                self.data = command
            if self.first is None or command.offset < self.first.offset:
                self.first = command
        elif self.cancel is None or command.offset > self.cancel.offset:
            self.cancel = command


def fold(commands: Iterable[Command]) -> dict[TaskKey, Folded]:
    """One entry per key."""
    folded: dict[TaskKey, Folded] = {}
    for command in commands:
        entry = folded.get(command.key)
        if entry is None:
            entry = folded[command.key] = Folded()
        entry.add(command)
    return folded
