"""What the planner has decided and not yet written: every change is made to the state at once, and kept for the next group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from scylla_spark.core.plan.state.plan_log import (
    MAX_GROUP_BYTES,
    MOST_RECORD_BYTES,
    SOFT_GROUP_BYTES,
    Change,
    Partly,
    change_bytes,
)
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.state.schedule_entry import Entry
from scylla_spark.core.plan.state.timers import Timer

_LARGE_BYTES: Final = 32 * 1024
_RESERVE_BYTES: Final = 512 * 1024  # for what ends a step that is too large: a refusal and answers


class GroupTooLargeError(Exception):
    """One step decides more than a record of the log can hold; what was noted of it before stands, what raised this does not."""


class StateInDoubt(BaseException):
    """A change was made by halves: the state is no longer what the log says, and the planner must begin again from the log.

    It is no `Exception`, so that no guard of one schedule, command or rule takes it for a defect of theirs.

    Attributes:
        schedule: whose step it was; empty: nobody's, or that of one that was paused before; None: nobody has said yet.
        input: the place of the command or fact, or the timer, in whose midst it was; None: it was none.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.schedule: str | None = None
        self.input: Partly | Timer | None = None

    def concerns(self, schedule: str) -> None:
        """Takes note of whose step it was, if no step within that one has said so before."""
        if self.schedule is None:
            self.schedule = schedule


class Journal:
    """The state, and the changes to it that no group holds yet.

    Args:
        state: fold of the log.
        group_bytes: a group should be written when it has so many.

    Attributes:
        changes: that no group holds yet.
        size: how many bytes they take in a record.
        watchers: called after each change, when all that belong to it are made and kept.
    """

    def __init__(self, state: PlanState, group_bytes: int = SOFT_GROUP_BYTES) -> None:
        self.state = state
        self._group_bytes = group_bytes
        self.changes: list[Change] = []
        self.size = 0
        self.watchers: list[Callable[[Change], None]] = []

    @property
    def full(self) -> bool:
        """Returns True if a group should be written before more is decided."""
        return self.size >= self._group_bytes

    def note(self, *change: Any) -> None:
        """Makes a change, and tells those who keep indexes.

        Raises:
            GroupTooLargeError: no record could hold it with what was decided before it; nothing is changed.
        """
        self.note_together(change)

    def note_together(self, *changes: Change) -> None:
        """Makes changes of which none may stand without the others, as `note` does: all, or none.

        Raises:
            GroupTooLargeError: no record could hold them with what was decided before them; nothing is changed.
            StateInDoubt: one of them cannot be made.
            Exception: a watcher has failed; all changes stand, and all other watchers know of them.
        """
        size = sum(map(change_bytes, changes))
        self._check(size)
        self._make(changes, size)

    def conclude(self, *change: Any) -> None:
        """Makes a change that ends a step, and is small: there is room for it when there is none for anything else."""
        self._make((change,), change_bytes(change))

    def keep(self, *change: Any) -> None:
        """Keeps a change that the state has already: a part of a snapshot."""
        self.changes.append(change)
        self.size += change_bytes(change)

    def fire(self, entry: Entry, **fields: Any) -> None:
        """Notes one decision about a schedule; a row of `fires`."""
        self.note(*fire_of(entry, **fields))

    def take(self) -> list[Change]:
        """The changes, which are nobody's concern afterwards."""
        changes, self.changes, self.size = self.changes, [], 0
        return changes

    def _make(self, changes: Sequence[Change], size: int) -> None:
        self._apply(changes)
        self.changes += changes
        self.size += size
        self._tell(changes)

    def _apply(self, changes: Sequence[Change]) -> None:
        for change in changes:
            try:
                self.state.apply(change)
            except MemoryError:
                raise
            except Exception as error:
                raise StateInDoubt(f"a change of kind {change[0]!r} cannot be made") from error

    def _tell(self, changes: Sequence[Change]) -> None:
        """Calls all watchers, also behind one that fails: what they keep must not fall behind for a defect of another."""
        met: Exception | None = None
        for change in changes:
            for watcher in self.watchers:
                try:
                    watcher(change)
                except MemoryError:
                    raise
                except Exception as error:
                    met = met or error
        if met is not None:
            raise met

    def _check(self, more: int) -> None:
        """Whether there is room: large changes have less of it, so that many small ones still fit behind them."""
        most = MAX_GROUP_BYTES if more > _LARGE_BYTES else MOST_RECORD_BYTES - _RESERVE_BYTES
        if self.size + more > most:
            raise GroupTooLargeError(
                f"what is decided in one step takes {self.size + more} bytes, and one record holds {most} of it"
            )


def fire_of(entry: Entry, **fields: Any) -> Change:
    """The change that says what was decided about a schedule."""
    return ("fire", entry.name, {"revision": entry.revision, **fields})
