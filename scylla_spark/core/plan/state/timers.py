"""When the planner has to look again. A timer that has become pointless is found so when it goes off."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
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

    def add(self, timer: Timer) -> None:
        """Another one."""
        heappush(self._heap, timer)

    def fill(self, timers: list[Timer]) -> None:
        """Many at once."""
        self._heap += timers
        heapify(self._heap)

    def pop_due(self, now: int) -> Timer | None:
        """The first one, if its moment has come."""
        return heappop(self._heap) if self._heap and self._heap[0].at_us <= now else None

    @property
    def next_us(self) -> int | None:
        """When the first one goes off; None: there is none."""
        return self._heap[0].at_us if self._heap else None
