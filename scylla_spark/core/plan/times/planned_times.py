"""The planned times of a whole trigger: those of all its leaves by time, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice, takewhile
from typing import Final

from scylla_spark.core.plan.times.fire_times import Calendars, FireTimes
from scylla_spark.core.plan.triggers.trigger import AtTimes, Trigger, leaves

_SPAN_US: Final = 1_000_000
_WIDER: Final = 8
_MOST_AT_ONCE: Final = 256  # each look asks all series once, so many times are looked at together


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
    span_us, most = _SPAN_US, 1
    while before_us > after_us + 1:
        begin_us = max(before_us - 1 - span_us, after_us)
        found = list(islice(_between(series, begin_us, before_us, calendars), most + 1))
        if len(found) > most:
            span_us = (before_us - 1 - begin_us) // 2
            continue
        yield from reversed(found)
        before_us, most = begin_us + 1, min(2 * most, _MOST_AT_ONCE) if found else most
        span_us = span_us if 2 * len(found) > most else span_us * _WIDER


def _between(series: Sequence[FireTimes], after_us: int, before_us: int, calendars: Calendars) -> Iterator[int]:
    """Planned times within (after, before), the first first."""
    return takewhile(lambda at_us: at_us < before_us, planned_after(series, after_us, calendars))
