"""When the planner has to look again. A timer that has become pointless is found so when it goes off."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple


class Timer(NamedTuple):
    """One moment.

    Attributes:
        at_us: when.
        name: of a schedule.
        kind: what is looked at, such as "time" or "again".
        number: of the job, run or leaf that it is about; 0: none.
    """

    at_us: int
    name: str
    kind: str
    number: int = 0


class Timers:
    """Timers in order."""

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._known: set[Timer] = set()

    def add(self, timer: Timer) -> None:
        """Another one; of two that are the same, one goes off: what waits is looked at often, and says each time until when."""
        if timer not in self._known:
            self._known.add(timer)
            heappush(self._heap, timer)

    def pop_due(self, now: int) -> Timer | None:
        """The first one, if its moment has come."""
        if not self._heap or self._heap[0].at_us > now:
            return None
        timer = heappop(self._heap)
        self._known.discard(timer)
        return timer

    @property
    def next_us(self) -> int | None:
        """Returns when the first one goes off; None: there is none."""
        return self._heap[0].at_us if self._heap else None
