"""How long the tasks of each handler take, and how many of them one child may have ahead."""

from __future__ import annotations

from typing import Final

FAST_US: Final = 1_000
SLOW_US: Final = 5_000
MAX_DEPTH: Final = 512
_AHEAD_US: Final = 8_000  # queue no more than this in one child


class HandlerDurations:
    """Moving average of durations by handler."""

    __slots__ = ("_average",)

    def __init__(self) -> None:
        self._average: dict[str, float] = {}

    def note(self, handler: str, duration_us: int) -> None:
        """Takes the duration of one call into account."""
        average = self._average.get(handler)
        if average is None:
            self._average[handler] = min(duration_us, 2 * SLOW_US)
        else:
            sample = min(
                duration_us, 2 * average + 500
            )  # one outlier, a busy machine perhaps, changes little; several do
            self._average[handler] = average + (0.3 if sample > average else 0.1) * (sample - average)

    def average_us(self, handler: str) -> float | None:
        """The average, or None for a handler that has not run yet."""
        return self._average.get(handler)

    def depth(self, handler: str) -> int:
        """Returns how many calls one child may have at a time: many of a fast handler, 1 of an unknown or slow one."""
        average = self._average.get(handler)
        if average is None or average > SLOW_US:
            return 1
        if average > FAST_US:
            return 2
        return min(MAX_DEPTH, max(2, int(_AHEAD_US / (average + 10))))
