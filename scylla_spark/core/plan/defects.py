"""Defects of ours: what one schedule meets pauses that schedule, with the reason, and everything else goes on."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from scylla_spark.core.bounded_text import cut
from scylla_spark.core.plan.state.schedule_entry import Entry
from scylla_spark.core.plan.state.unwritten_changes import GroupTooLargeError, Journal
from scylla_spark.core.records import rejection_reason

_MOST_KEPT: Final = 100  # that the shell has not told of yet
_MOST_NOTE_BYTES: Final = 2_000
_MOST_WORDS_CHARS: Final = 300
_MOST_STACK_CHARS: Final = 1_200


class Defect(NamedTuple):
    """One that was met.

    Attributes:
        name: of the schedule; empty: it concerns none.
        error: what was raised.
        stack: where, for those who mend it.
    """

    name: str
    error: str
    stack: str


class Defects:
    """Takes every step that concerns one schedule, and sets that schedule aside where the step fails.

    Args:
        journal: takes the pause.
        stop: pauses a schedule: drops what it waits for, and takes back what is ahead.
    """

    def __init__(self, journal: Journal, stop: Callable[[Entry, str, str, int], Any]) -> None:
        self._journal = journal
        self._stop = stop
        self._met: list[Defect] = []

    def guarded(self, name: str, step: Callable[[], Any], now: int) -> None:
        """Takes a step; what it meets there stops no other.

        Args:
            name: of the schedule that it concerns; empty: none.
            step: the step.
            now: microseconds since the epoch.

        Raises:
            MemoryError: memory is short, which is no defect of one schedule.
        """
        try:
            step()
        except MemoryError:
            raise
        except Exception as error:
            self.set_aside(name, error, now)

    def set_aside(self, name: str, error: Exception, now: int) -> None:
        """A step that concerns a schedule has failed, or decides more than a record holds: the schedule is paused.

        Args:
            name: of the schedule; one that is not there, or is paused, stays as it is.
            error: what was raised.
            now: microseconds since the epoch.
        """
        if not isinstance(error, GroupTooLargeError):
            self._note(name, error)
        entry = self._journal.state.entries.get(name)
        if entry is None or entry.paused:
            return
        why = cut(f"paused {_reason(error)}", _MOST_NOTE_BYTES)
        try:
            self._stop(entry, why, "planner", now)
        except MemoryError:
            raise
        except Exception as again:  # its runs that are ahead stay
            self._only_pause(entry, why, now)
            if not isinstance(again, GroupTooLargeError):
                self._note(name, again)

    def take(self) -> list[Defect]:
        """What was met since the last time, for the shell to tell."""
        met, self._met = self._met, []
        return met

    def _only_pause(self, entry: Entry, why: str, now: int) -> None:
        fields = {"paused": True, "note": why, "author": "planner", "changed_us": now, "until_us": 0, "next_us": 0}
        try:
            self._journal.conclude("set", entry.name, fields)
        except MemoryError:
            raise
        except Exception as error:  # the pause stands; who keeps an index of it has failed
            self._note(entry.name, error)

    def _note(self, name: str, error: Exception) -> None:
        stack = "".join(traceback.format_exception(error))
        self._met = [*self._met[1 - _MOST_KEPT :], Defect(name, f"{type(error).__name__}: {error}"[:1_000], stack)]


def _reason(error: Exception) -> str:
    if isinstance(error, GroupTooLargeError):
        return f"since {error}"
    stack = rejection_reason.of_defect(error).detail[-_MOST_STACK_CHARS:]  # its end says where
    return f"for a defect of the planner: {type(error).__name__}: {str(error)[:_MOST_WORDS_CHARS]}\n{stack}"
