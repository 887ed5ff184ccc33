"""What was being done when the state came in doubt: the next planner of this process sets just that aside, and goes on with all else.

Without that it would meet the same again after each beginning, and all schedules would stand still for one record. What is set aside first
is the schedule whose step it was; where it was no schedule's, or that one is paused already, the input: a command, a fact, or a timer.
"""

from __future__ import annotations

import traceback
from typing import Any, Final, NamedTuple

from scylla_spark.core.plan.state.group_writer import COMMANDS
from scylla_spark.core.plan.state.plan_log import Partly
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.state.timers import Timer
from scylla_spark.core.plan.state.unwritten_changes import StateInDoubt
from scylla_spark.core.records.bounded_text import clean

_AGAIN_S: Final = 1.0
_LONGEST_S: Final = 60.0
_MOST_DOUBLED: Final = 6  # 2 ** 6 s is longer than the longest pause
_MOST_STACK_CHARS: Final = 8_000
_MOST_TIMERS: Final = 1_000
_WAYS: Final = 2  # a schedule: as by hand, then its pause alone; a fact: its end alone, then nothing of it


class Met(NamedTuple):
    """A doubt, as it is told of.

    Attributes:
        times: how often it was met; the second time less is tried.
        error: what was raised where a change was made.
        stack: where that was.
    """

    times: int
    error: str
    stack: str


class Doubts:
    """Outlives the planners of one process.

    Attributes:
        schedules: name → doubt; to be paused before anything else is done.
        inputs: place of a command or a fact, or timer → doubt; to be passed over.
    """

    def __init__(self) -> None:
        self.schedules: dict[str, Met] = {}
        self.inputs: dict[Partly | Timer, Met] = {}
        self._in_vain = 0

    def note(self, doubt: StateInDoubt) -> float:
        """Remembers what a doubt was about; for how many seconds nobody should plan, which are more where it was set aside in vain."""
        tried = self._remember(doubt)
        self._in_vain = 0 if tried else self._in_vain + 1
        return min(_AGAIN_S * (1 << min(self._in_vain, _MOST_DOUBLED)), _LONGEST_S)

    def _remember(self, doubt: StateInDoubt) -> bool:
        """Returns True if there is something left to set aside."""
        if doubt.schedule:
            return _count(self.schedules, doubt.schedule, _WAYS, doubt)
        if doubt.input is None:
            return False
        is_fact = isinstance(doubt.input, Partly) and doubt.input.source > COMMANDS
        return _count(self.inputs, doubt.input, _WAYS if is_fact else 1, doubt)

    def are_paused(self) -> None:
        """That the schedules are paused stands in the log: who resumes one means it."""
        self.schedules.clear()

    def begin(self, state: PlanState) -> None:
        """Forgets inputs that the log is past, and the oldest of very many timers."""
        for one in [one for one in self.inputs if isinstance(one, Partly) and one.offset < _read_until(state, one)]:
            del self.inputs[one]
        timers = [one for one in self.inputs if isinstance(one, Timer)]
        for timer in timers[:-_MOST_TIMERS]:
            del self.inputs[timer]


def _count(known: dict[Any, Met], thing: Any, most: int, doubt: StateInDoubt) -> bool:
    """Counts a doubt; whether it was met so seldom that there is another way to set aside what it is about."""
    times = known[thing].times + 1 if thing in known else 1
    cause = doubt.__cause__ or doubt
    stack = clean("".join(traceback.format_exception(cause))[-_MOST_STACK_CHARS:])
    known[thing] = Met(times, f"{type(cause).__name__}: {cause}", stack)
    return times <= most


def _read_until(state: PlanState, place: Partly) -> int:
    return state.commands if place.source == COMMANDS else state.outcomes.get(place.source, (0,))[0]
