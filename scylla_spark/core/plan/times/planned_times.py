"""The planned times of a whole trigger: those of all its leaves by time, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import Final

from scylla_spark.core.plan.times.fire_times import Calendars, FireTimes
from scylla_spark.core.plan.triggers.trigger import AtTimes, Trigger, leaves

_SPAN_US: Final = 1_000_000
_WIDER: Final = 8


def times_of(trigger: Trigger) -> list[FireTimes]:
    """The series of times in a trigger; none: it fires on what happens."""
    return [leaf.times for leaf in leaves(trigger) if isinstance(leaf, AtTimes)]


def planned_after(series: Sequence[FireTimes], after_us: int, calendars: Calendars) -> Iterator[int]:
    """Planned times later than an instant, each once, the first first; it may never end.

    Args:
        series: of a trigger.
        after_us: microseconds since the epoch.
        calendars: days by name.
    """
    return (at_us for at_us, _ in planned_with_series(series, after_us, calendars))


def planned_with_series(
    series: Sequence[FireTimes], after_us: int, calendars: Calendars
) -> Iterator[tuple[int, FireTimes]]:
    """As `planned_after`, each time with the first series that has it.

    Args:
        series: of a trigger; only those that have just fired are asked again.
        after_us: microseconds since the epoch.
        calendars: days by name.
    """
    heap: list[tuple[int, int]] = []
    for number, one in enumerate(series):
        if (at := one.next_after(after_us, calendars)) is not None:
            heappush(heap, (at, number))
    while heap:
        at_us, number = heap[0]
        yield at_us, series[number]
        while heap and heap[0][0] == at_us:
            _, number = heappop(heap)
            if (at := series[number].next_after(at_us, calendars)) is not None:
                heappush(heap, (at, number))


def planned_before(
    series: Sequence[FireTimes], before_us: int, calendars: Calendars, *, after_us: int = -1
) -> Iterator[int]:
    """Planned times earlier than an instant, each once, the last first: a few steps each, however many come before them.

    Args:
        series: of a trigger.
        before_us: microseconds since the epoch.
        calendars: days by name.
        after_us: none is told that is not later than this.
    """
    span_us = _SPAN_US
    while (at_us := _last(series, before_us, after_us, calendars, span_us)) is not None:
        yield at_us
        span_us, before_us = before_us - at_us, at_us  # the next distance may be the same


def _last(series: Sequence[FireTimes], before_us: int, after_us: int, calendars: Calendars, span_us: int) -> int | None:
    """The last planned time within (after, before); looked for in ever wider spans, and then in ever smaller halves of one."""

    def first(after_us: int) -> int | None:
        at_us = next(planned_after(series, after_us, calendars), None)
        return at_us if at_us is not None and at_us < before_us else None

    begin_us = before_us
    while (found := first(begin_us)) is None:
        if begin_us <= after_us:
            return None
        begin_us, span_us = max(before_us - 1 - span_us, after_us), span_us * _WIDER
    last_us, end_us = found, before_us  # none from the latter on
    while (following := first(last_us)) is not None:
        middle_us = (following + end_us) // 2
        later = first(middle_us)
        last_us, end_us = (following, middle_us + 1) if later is None else (later, end_us)
    return last_us
