"""What the planner has decided and not yet written: every change is made to the state at once, and kept for the next group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scylla_spark.core.plan.entry import Entry
from scylla_spark.core.plan.plan_log import SOFT_GROUP_BYTES, Change
from scylla_spark.core.plan.plan_state import PlanState

_CHANGE_BYTES = 120  # of a change without texts
_LONGEST_ESCAPE = 6  # bytes that a control character becomes in JSON


class Journal:
    """The state, and the changes to it that no group holds yet.

    Args:
        state: fold of the log.

    Attributes:
        changes: that no group holds yet.
        size: about how many bytes they take in a record.
        watchers: called after each change.
    """

    def __init__(self, state: PlanState) -> None:
        self.state = state
        self.changes: list[Change] = []
        self.size = 0
        self.watchers: list[Callable[[Change], None]] = []

    @property
    def full(self) -> bool:
        """Whether a group should be written before more is decided."""
        return self.size >= SOFT_GROUP_BYTES

    def note(self, *change: Any) -> None:
        """Makes a change, and tells those who keep indexes."""
        self.state.apply(change)
        self.changes.append(change)
        self.size += _CHANGE_BYTES + sum(map(_size, change))
        for watcher in self.watchers:
            watcher(change)

    def keep(self, *change: Any) -> None:
        """Keeps a change that the state has already: a part of a snapshot."""
        self.changes.append(change)
        self.size += _CHANGE_BYTES + sum(map(_size, change))

    def fire(self, entry: Entry, **fields: Any) -> None:
        """Notes one decision about a schedule; a row of `fires`."""
        self.note("fire", entry.name, {"revision": entry.revision, **fields})

    def take(self) -> list[Change]:
        """The changes, which are nobody's concern afterwards."""
        changes, self.changes, self.size = self.changes, [], 0
        return changes


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value) * (2 if value.isascii() and value.isprintable() else _LONGEST_ESCAPE)
    if isinstance(value, dict):
        return sum(_size(item) + 20 for item in value.values())
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    return 20
