"""What is decided becomes groups: records of the planner's log, each with how far the inputs are read for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from scylla_spark.core.plan.state.plan_log import MAX_GROUP_BYTES, Group, Partly, Position, change_bytes
from scylla_spark.core.plan.state.unwritten_changes import Journal
from scylla_spark.core.records.fact import Fence

COMMANDS: Final = -1
"""Stands for the partition of `schedules` where inputs are named."""
_TELL_EVERY_US: Final = 5_000_000  # how often positions alone are worth a group


class GroupWriter:
    """Cuts what the journal holds into groups, and knows how far each input is.

    Args:
        journal: with the changes.
        fence: under which we write.
        now: microseconds since the epoch.

    Attributes:
        resume: an input that a planner before us left in the midst, until it has come again; None: there is none.
        within: how far the input is in which timers and the like go off; None: it is none.
    """

    def __init__(self, journal: Journal, fence: Fence, now: int) -> None:
        self._journal = journal
        self._state = journal.state
        self._fence = fence
        self._groups: list[Group] = []
        self._moved: dict[int, Position] = {}
        self._commands_moved = False
        self._told_us = now
        self._sent = self._state.sent
        self.resume: Partly | None = self._state.partly
        self.within: Partly | None = None
        self._state.number += 1  # of the group in the making

    # -- how far inputs are read ----------------------------------------------------------------------------------------

    def command_is_read(self, offset: int) -> None:
        """A record of `schedules` is obeyed."""
        self._state.commands, self._commands_moved = offset + 1, True
        self._is_through(COMMANDS, offset)

    def outcome_is_read(self, partition: int, offset: int, after: Position) -> None:
        """A record of `outcomes` is taken.

        Args:
            partition: of the topic.
            offset: of the record.
            after: position behind it.
        """
        self._state.outcomes[partition] = self._moved[partition] = after
        self._is_through(partition, offset)

    def all_is_read(self) -> None:
        """The next group says of all inputs how far they are."""
        self._moved, self._commands_moved = dict(self._state.outcomes), True

    def done_before(self, at: Partly) -> str:
        """Up to which name a planner before us had gone through an input when it ended; empty: not at all."""
        return self.resume.name if self.resume is not None and self.resume[:3] == at[:3] else ""

    def sent(self, number: int) -> None:
        """All that groups up to a number asked to be sent was acknowledged."""
        self._sent = max(self._sent, number)
        self._state.was_sent(self._sent)

    def _is_through(self, source: int, offset: int) -> None:
        resume = self.resume
        if resume is not None and resume.source == source and resume.offset <= offset:
            self.resume = None

    # -- groups ---------------------------------------------------------------------------------------------------------

    def take(self, now: int) -> list[Group]:
        """The groups to be written next, in order."""
        idle = self._moved or self._commands_moved or self._sent > self._state.sent
        if self._journal.changes or (idle and now >= self._told_us + _TELL_EVERY_US):
            self.seal(now)
        groups, self._groups = self._groups, []
        return groups

    def rest(self, now: int) -> None:
        """Ends the group, if it is large; to be called between two inputs."""
        if self._journal.full:
            self.seal(now)

    def part(self, at: Partly, now: int) -> None:
        """Ends the group in the midst of an input, if it is large; not while another input of before is to go on first.

        Args:
            at: how far the input is.
            now: microseconds since the epoch.
        """
        if not self._journal.full:
            return
        place = at if at.source >= COMMANDS else self.within
        if place is None or self.resume is None or self.resume[:2] == place[:2]:
            self.seal(now, place)

    def seal(self, now: int, partly: Partly | None = None, *, begins: bool = False) -> None:
        """Ends the group.

        Args:
            now: microseconds since the epoch.
            partly: how far the input is in whose midst it ends; None: it ends between two.
            begins: it begins a snapshot.
        """
        state, partly = self._state, partly if partly is not None else self.resume
        group = Group(
            self._fence, state.number, now, state.commands if self._commands_moved else None, self._moved, partly, self._sent,
            state.snapshot, self._journal.take(), begins,
        )  # fmt: skip
        self._groups.append(group)
        state.number += 1
        state.partly = partly
        self._moved, self._commands_moved, self._told_us = {}, False, now

    def keep(self, change: Sequence[Any], now: int) -> None:
        """Writes a change that the state has already, in a group that has room for it.

        Args:
            change: of a snapshot.
            now: microseconds since the epoch.
        """
        if self._journal.changes and self._journal.size + change_bytes(change) > MAX_GROUP_BYTES:
            self.seal(now)
        self._journal.keep(*change)
        self.rest(now)
