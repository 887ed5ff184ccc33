"""Shifts of an instant: calendar units, which a zone decides, and durations, which are the same everywhere."""

from __future__ import annotations

import re
from calendar import monthrange
from functools import lru_cache
from typing import Final, NamedTuple

from scylla_spark.core.plan.times import zone
from scylla_spark.duration import duration_us
from scylla_spark.errors import ArgumentError, shown

_CALENDAR: Final = re.compile(r"(?<![\d.])(\d+)\s*(y|mo|w|d)(?![a-z])", re.ASCII)
_SIZES: Final = {"y": (12, 0), "mo": (1, 0), "w": (0, 7), "d": (0, 1)}
_MOST_DAYS, _MOST_MONTHS = 36_525, 1_200
_MOST_CHARS: Final = 100


class Shift(NamedTuple):
    """How far an instant is shifted.

    Attributes:
        sign: 1 or -1.
        months: calendar months.
        days: calendar days, which have 23 to 25 hours where clocks are set.
        us: a duration in microseconds, which comes last.
    """

    sign: int
    months: int
    days: int
    us: int

    def applied(self, at_us: int, tz: str) -> int:
        """The shifted instant. A month that is too short ends at its last day; a local time that a clock skips is the end of the gap.

        Args:
            at_us: microseconds since the epoch.
            tz: IANA name of the zone whose days and months count.

        Raises:
            OverflowError: the result lies outside of the years 1 to 9999.
            ValueError: likewise.
        """
        if self.months or self.days:
            local = zone.local(at_us, zone.offset_us(tz, at_us))
            year, month = divmod(local.year * 12 + local.month - 1 + self.sign * self.months, 12)
            day = min(local.day, monthrange(year, month + 1)[1])
            moved = local.replace(year=year, month=month + 1, day=day) + self.sign * self.days * zone.DAY
            at_us = zone.instant_of(tz, moved)
        return at_us + self.sign * self.us


@lru_cache(maxsize=4_096)
def shift(text: str) -> Shift:
    """A shift as people write it: "-1d", "+1mo", "1d12h", "-90m".

    Args:
        text: a sign, if you like; then numbers with y, mo, w, d (calendar units, whole) and h, m, s, ms (durations).

    Raises:
        ArgumentError: it is none, or more than a century.
    """
    plain = text[1:] if text[:1] in ("-", "+") else text
    months = days = 0
    for number, unit in _CALENDAR.findall(plain[:_MOST_CHARS]):
        months, days = months + int(number) * _SIZES[unit][0], days + int(number) * _SIZES[unit][1]
    rest = _CALENDAR.sub("", plain).strip()
    hint = 'Write whole y, mo, w or d, and durations such as 1h30m: add("-1d"), add("1mo"), add("12h").'
    if len(text) > _MOST_CHARS or not plain.strip() or "d" in rest or "w" in rest:
        raise ArgumentError(f"{shown(text)} is no shift of a time.", hint=hint)
    if months > _MOST_MONTHS or days > _MOST_DAYS:
        raise ArgumentError(f"{shown(text)} is more than a century.", hint="Shift by less.")
    try:
        return Shift(-1 if text.startswith("-") else 1, months, days, duration_us(rest) if rest else 0)
    except ArgumentError:
        raise ArgumentError(f"{shown(text)} is no shift of a time.", hint=hint) from None
