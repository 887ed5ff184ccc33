"""Writes the state once more, in groups among others, so that nobody has to read the log from its beginning."""

from __future__ import annotations

from typing import Final

from scylla_spark.core.plan.state import snapshot
from scylla_spark.core.plan.state.group_writer import GroupWriter
from scylla_spark.core.plan.state.unwritten_changes import Journal

_PART_BYTES: Final = 64 * 1024  # small, so that decisions need not wait for it


class SnapshotWriter:
    """Writes a snapshot, part by part.

    Args:
        journal: takes what is written.
        groups: cuts it into records.
    """

    def __init__(self, journal: Journal, groups: GroupWriter) -> None:
        self._journal = journal
        self._state = journal.state
        self._groups = groups

    def begin(self, now: int) -> list[str]:
        """Writes what is not of one schedule or queue; the names of all these, for `go_on`."""
        if self._journal.changes:
            self._groups.seal(now)
        self._groups.all_is_read()
        self._groups.seal(now, begins=True)
        for change in snapshot.common_changes(self._state):
            self._groups.keep(change, now)
        self._groups.seal(now)
        return snapshot.names_of(self._state)

    def go_on(self, names: list[str], now: int) -> None:
        """Writes some schedules and queues; takes their names off the list."""
        if self._journal.changes:
            self._groups.seal(now)
        before = self._state.number
        while names and self._journal.size < _PART_BYTES and self._state.number == before:
            for change in snapshot.changes_of(self._state, names.pop()):
                self._groups.keep(change, now)
        self._groups.seal(now)

    def end(self, begins: int) -> None:
        """All was read back; it begins at an offset."""
        self._state.snapshot = begins
        self._groups.all_is_read()
