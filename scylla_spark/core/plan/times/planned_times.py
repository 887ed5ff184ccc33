"""The planned times of a whole trigger: those of all its leaves by time, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scylla_spark.core.plan.times.fire_times import Calendars, FireTimes
from scylla_spark.core.plan.triggers.trigger import AtTimes, Trigger, leaves


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
    while after := [at for one in series if (at := one.next_after(after_us, calendars)) is not None]:
        after_us = min(after)
        yield after_us
