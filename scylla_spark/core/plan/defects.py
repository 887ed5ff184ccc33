"""Defects of ours: what one schedule meets pauses that schedule, with the reason, and everything else goes on."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from scylla_spark.core.plan.state.schedule_entry import Entry
from scylla_spark.core.plan.state.unwritten_changes import GroupTooLargeError, Journal, StateInDoubt
from scylla_spark.core.plan.suspect_inputs import Met
from scylla_spark.core.records import rejection_reason
from scylla_spark.core.records.bounded_text import cut

_MOST_KEPT: Final = 100  # that the shell has not told of yet
_MOST_NOTE_BYTES: Final = 2_000
_MOST_WORDS_CHARS: Final = 300
_MOST_STACK_CHARS: Final = 1_200
_MOST_ERROR_CHARS: Final = 1_000


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
            StateInDoubt: a change cannot be made; it says whose step that was.
        """
        whom = name if self._is_active(name) else ""  # a pause would keep nothing from a schedule that does nothing
        try:
            step()
        except StateInDoubt as doubt:
            doubt.concerns(whom)
            raise
        except MemoryError:
            raise
        except Exception as error:
            self.set_aside(name, error, now)

    def set_aside(self, name: str, error: Exception, now: int) -> None:
        """A step that concerns a schedule has failed, or decides more than a record holds: the schedule is paused.

        Args:
            name: of the schedule; one that is not there, or is paused and keeps nothing, stays as it is.
            error: what was raised.
            now: microseconds since the epoch.
        """
        if not isinstance(error, GroupTooLargeError):
            self._note(name, error)
        self._pause(name, _reason(error), now, self._stop_or_pause)

    def set_aside_in_doubt(self, name: str, met: Met, now: int) -> None:
        """A step that concerns a schedule has brought the state of the planner before us in doubt: the schedule is paused.

        Args:
            name: of the schedule; one that is not there, or is paused and keeps nothing, stays as it is.
            met: the doubt; if it was met twice, taking back its runs is a part of it, and these stay.
            now: microseconds since the epoch.
        """
        reason = _of_defect(met.error, met.stack)
        self._pause(name, reason, now, self._stop_or_pause if met.times == 1 else self._only_pause)

    def _is_active(self, name: str) -> bool:
        entry = self._journal.state.entries.get(name)
        return entry is not None and not entry.is_deaf

    def _pause(self, name: str, reason: str, now: int, pause: Callable[[Entry, str, int], None]) -> None:
        if not self._is_active(name):
            return
        try:
            pause(self._journal.state.entries[name], cut(f"paused {reason}", _MOST_NOTE_BYTES), now)
        except StateInDoubt as doubt:
            doubt.concerns(name)
            raise

    def _stop_or_pause(self, entry: Entry, why: str, now: int) -> None:
        try:
            self._stop(entry, why, "planner", now)
        except MemoryError:
            raise
        except Exception as again:  # its runs that are ahead stay
            self._only_pause(entry, why, now)
            if not isinstance(again, GroupTooLargeError):
                self._note(entry.name, again)

    def take(self) -> list[Defect]:
        """Returns what was met since the last time, for the shell to tell."""
        met, self._met = self._met, []
        return met

    def _only_pause(self, entry: Entry, why: str, now: int) -> None:
        fields = {"paused": True, "note": why, "author": "planner", "changed_us": now, "until_us": 0, "next_us": 0}
        fields |= {"keeps": False} if entry.keeps else {}
        try:
            self._journal.conclude("set", entry.name, fields)
        except MemoryError:
            raise
        except Exception as error:  # the pause stands; who keeps an index of it has failed
            self._note(entry.name, error)

    def note(self, stack: str) -> None:
        """Keeps a defect that concerns no schedule, for the shell to log and count.

        Args:
            stack: what was raised and where, as Python writes it.
        """
        error = stack.rstrip().rpartition("\n")[2]
        self._keep(Defect("", error[:_MOST_ERROR_CHARS], stack))

    def _note(self, name: str, error: Exception) -> None:
        stack = "".join(traceback.format_exception(error))
        self._keep(Defect(name, f"{type(error).__name__}: {error}"[:_MOST_ERROR_CHARS], stack))

    def _keep(self, defect: Defect) -> None:
        self._met = [*self._met[1 - _MOST_KEPT :], defect]


def _reason(error: Exception) -> str:
    if isinstance(error, GroupTooLargeError):
        return f"since {error}"
    return _of_defect(f"{type(error).__name__}: {error}", rejection_reason.of_defect(error).detail)


def _of_defect(error: str, stack: str) -> str:
    return (
        f"for a defect of the planner: {error[:_MOST_WORDS_CHARS]}\n{stack[-_MOST_STACK_CHARS:]}"  # its end says where
    )
