"""Answers to those who have asked for something: at once, or when what was taken back for it cannot begin any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from scylla_spark.core.plan.state.plan_log import change_bytes
from scylla_spark.core.plan.state.plan_state import ANSWER, OK, PENDING
from scylla_spark.core.plan.state.timers import Timer, Timers
from scylla_spark.core.plan.state.unwritten_changes import Journal
from scylla_spark.core.tasks.key import TaskKey

_TAKEN_BACK_US: Final = 5_000_000  # how long an answer waits for the ends of what was taken back
_MOST_ANSWER_BYTES: Final = 256 * 1024


class _Waiting(NamedTuple):
    keys: set[TaskKey]  # of what was taken back, and has not ended
    to: str
    done: Mapping[str, Any]


class Answers:
    """Writes answers.

    Args:
        journal: takes them.
        timers: when one has waited for long enough.
    """

    def __init__(self, journal: Journal, timers: Timers) -> None:
        self._journal = journal
        self._timers = timers
        self._waiting: dict[int, _Waiting] = {}
        self._number = 0

    def answer(self, to: str, code: str, message: str, hint: str = "", done: Mapping[str, Any] | None = None) -> None:
        """Answers at once.

        Args:
            to: id of the command.
            code: "ok", or what became of it.
            message: for people.
            hint: likewise.
            done: what became of each that it was about.
        """
        change: tuple[Any, ...] = (ANSWER, to, code, message, hint, dict(done or {}))
        if change_bytes(change) > _MOST_ANSWER_BYTES:
            change = (ANSWER, to, code, message or "What became of each of so many is too long to be told.", hint, {})
        self._journal.conclude(*change)

    def is_repeated(self, to: str | None) -> bool:
        """Returns True if a request was carried out before, or waits for its answer. The answer is given again, if there is one."""
        if to is None:
            return False
        before = self._journal.state.answers.get(to)
        if before is not None:
            self.answer(to, *before)
        return before is not None or any(waiting.to == to for waiting in self._waiting.values())

    def done(self, to: str | None, done: Mapping[str, Any] | None = None) -> None:
        """Answers that it is done; nobody, if the command has no id."""
        if to is not None:
            self.answer(to, OK, "", "", done)

    def done_when_ended(self, to: str | None, keys: set[TaskKey], done: Mapping[str, Any], now: int) -> None:
        """Answers that it is done once nothing that was taken back can begin any more.

        Args:
            to: id of the command; None: nobody waits for an answer.
            keys: of what was taken back.
            done: what became of each that it was about.
            now: microseconds since the epoch.
        """
        if to is None:
            return
        state = self._journal.state
        keys &= state.runs.keys() | state.handlers.keys()  # … of schedules that are there, and that went
        if not keys:
            self.done(to, done)
            return
        self._number += 1
        self._waiting[self._number] = _Waiting(keys, to, done)
        self._timers.add(Timer(now + _TAKEN_BACK_US, "", ANSWER, self._number))

    def ended(self, key: TaskKey) -> None:
        """A run has ended, or has begun and can no more be taken back: gives the answers that have waited for it last."""
        for number in [number for number, waiting in self._waiting.items() if key in waiting.keys]:
            self._waiting[number].keys.discard(key)
            if not self._waiting[number].keys:
                self.give(number)

    def give(self, number: int) -> None:
        """Answers: all was taken back, or it takes too long to wait for that."""
        waiting = self._waiting.pop(number, None)
        if waiting is None:
            return
        keys, to, done = waiting
        if not keys:
            self.done(to, done)
            return
        words = f"It is done, but {len(keys)} runs that were launched already may still begin, such as {min(keys)}."
        self.answer(to, PENDING, words, "A dispatcher takes them back as soon as it reads that.")
