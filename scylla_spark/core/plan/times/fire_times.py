"""When a time trigger fires: its rule, within bounds, on the days that calendars allow, later by its jitter.

A fire is named by its planned time, which jitter does not change. All instants are integer microseconds since the epoch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple, Protocol

from dateutil.rrule import DAILY, HOURLY, MINUTELY, MONTHLY, WEEKLY, YEARLY, rrulestr

from scylla_spark.core.instant import EARLIEST_US, LATEST_US
from scylla_spark.core.plan.times import zone
from scylla_spark.core.plan.times.cron import Cron
from scylla_spark.core.plan.times.zone import DAY_US
from scylla_spark.errors import ArgumentError

OnHoliday = Literal["skip", "next", "previous"]
Calendars = Mapping[str, frozenset[date]]

MOST_DATES: Final = 10_000
_MOST_RRULE_CHARS: Final = 500
_COUNT_DIGITS: Final = 4  # a rule that counts is expanded from its start, each time
_LONGEST_BREAK_DAYS: Final = 31  # no run of holidays is longer
_MOST_SKIPPED: Final = 100_000  # fire times passed over in a row before a trigger counts as silent


class Rule(Protocol):
    """A series of instants."""

    def next_after(self, after_us: int) -> int | None:
        """The first instant later than another; None: there is none."""


class Every(NamedTuple):
    """Instants at a fixed distance, on a grid that begins at the epoch: nobody's restart or edit moves it.

    Attributes:
        period_us: distance.
        phase_us: of the first instant, from the epoch.
    """

    period_us: int
    phase_us: int = 0

    def next_after(self, after_us: int) -> int | None:
        """The first instant of the grid later than another."""
        return after_us + self.period_us - (after_us - self.phase_us) % self.period_us


class Dates(NamedTuple):
    """Single instants, in order."""

    instants_us: tuple[int, ...]

    def next_after(self, after_us: int) -> int | None:
        """The first of them later than an instant."""
        at = bisect_right(self.instants_us, after_us)
        return self.instants_us[at] if at < len(self.instants_us) else None


class Recurrence(NamedTuple):
    """A rule of RFC 5545, expanded in local time; a skipped local time comes at the end of the gap, a repeated one once.

    Attributes:
        rule: the text after "RRULE:".
        start: its DTSTART, a local time in ISO form.
        tz: IANA name.
    """

    rule: str
    start: str
    tz: str = "UTC"

    def next_after(self, after_us: int) -> int | None:
        """The first instant later than another; None: there is none."""
        local = zone.local(after_us, zone.offset_us(self.tz, after_us)) - timedelta(days=1)
        for at in _near(_recurrence(self.rule, self.start), local).xafter(local):
            found = zone.instant_of(self.tz, at)
            if found > after_us:
                return found
        return None


@dataclass(frozen=True, slots=True)
class FireTimes:
    """The planned times of a time trigger.

    Attributes:
        rule: a series of instants.
        start_us: none is earlier.
        end_us: none is later.
        jitter_us: a fire starts later than planned by less than this.
        calendar: name of the calendar of holidays; empty: none.
        on_holiday: what becomes of a time on one of its days: it goes to the same local time of the next or previous day that is none.
        tz: zone of those days.
        blackouts: (begin, end) within which none lies; the end is outside.
    """

    rule: Cron | Every | Dates | Recurrence
    start_us: int = EARLIEST_US
    end_us: int = LATEST_US - 1
    jitter_us: int = 0
    calendar: str = ""
    on_holiday: OnHoliday = "skip"
    tz: str = "UTC"
    blackouts: tuple[tuple[int, int], ...] = ()

    def next_after(self, after_us: int, calendars: Calendars) -> int | None:
        """The first planned time later than an instant; None: there is none.

        Args:
            after_us: microseconds since the epoch.
            calendars: days by name; an unknown name has none.
        """
        holidays = calendars.get(self.calendar, frozenset()) if self.calendar else frozenset()
        at_us: int | None = max(after_us, self.start_us - 1)
        for _ in range(_MOST_SKIPPED):
            assert at_us is not None
            at_us = self._next(at_us, holidays)
            if at_us is None or at_us > self.end_us:
                return None
            until_us = next((end for begin, end in self.blackouts if begin <= at_us < end), None)
            if until_us is None:
                return at_us
            at_us = until_us - 1
        return None

    def starts_us(self, name: str, planned_us: int) -> int:
        """When a fire starts: the planned time, and a jitter that is the same whenever it is asked for."""
        if not self.jitter_us:
            return planned_us
        digest = blake2b(f"{name}\0{planned_us}".encode(), digest_size=8).digest()
        return planned_us + int.from_bytes(digest, "big") % self.jitter_us

    def _next(self, after_us: int, holidays: frozenset[date]) -> int | None:
        if not holidays:
            return self.rule.next_after(after_us)
        plain = self._next_on_open_day(after_us, holidays)
        if self.on_holiday == "skip":
            return plain
        moved = [at for at in self._moved(after_us, holidays) if at > after_us]
        return min([*moved, *([plain] if plain is not None else [])], default=None)

    def _next_on_open_day(self, after_us: int, holidays: frozenset[date]) -> int | None:
        for _ in range(_MOST_SKIPPED):
            at_us = self.rule.next_after(after_us)
            if at_us is None:
                return None
            day = zone.local(at_us, zone.offset_us(self.tz, at_us)).date()
            if day not in holidays:
                return at_us
            after_us = zone.instant_of(self.tz, _midnight(day + timedelta(days=1))) - 1
        return None

    def _moved(self, after_us: int, holidays: frozenset[date]) -> Iterator[int]:
        """Where the times of holidays nearby go to."""
        here = zone.local(after_us, zone.offset_us(self.tz, after_us)).date()
        near = timedelta(days=_LONGEST_BREAK_DAYS + 1)
        way = timedelta(days=1 if self.on_holiday == "next" else -1)
        for day in sorted(day for day in holidays if here - near <= day <= here + near):
            other = day
            while other in holidays:
                other += way
            yield from (zone.instant_of(self.tz, at + (other - day)) for at in self._times_of(day))

    def _times_of(self, day: date) -> Iterator[datetime]:
        begin_us = zone.instant_of(self.tz, _midnight(day))
        end_us = zone.instant_of(self.tz, _midnight(day + timedelta(days=1)))
        at_us = self.rule.next_after(begin_us - 1)
        while at_us is not None and at_us < end_us:
            yield zone.local(at_us, zone.offset_us(self.tz, at_us))
            at_us = self.rule.next_after(at_us)


def every(period_us: int, phase_us: int = 0) -> Every:
    """A checked interval.

    Raises:
        ArgumentError: it is shorter than a second or longer than a century.
    """
    if not 1_000_000 <= period_us <= 36_525 * DAY_US:
        raise ArgumentError("An interval lies between a second and a century.", hint='Such as every("15m").')
    return Every(period_us, phase_us % period_us)


def dates(instants_us: tuple[int, ...]) -> Dates:
    """Checked instants.

    Raises:
        ArgumentError: there are none, too many, or one that tables cannot hold.
    """
    if not 1 <= len(instants_us) <= MOST_DATES:
        raise ArgumentError(f"{len(instants_us)} dates are given; there may be 1 to {MOST_DATES}.")
    if not EARLIEST_US <= min(instants_us) <= max(instants_us) < LATEST_US:
        raise ArgumentError("A date lies outside of what tables can hold.", hint="Dates lie between 1970 and 2261.")
    return Dates(tuple(sorted(set(instants_us))))


def recurrence(rule: str, start: str, tz: str = "UTC") -> Recurrence:
    """A checked rule of RFC 5545.

    Args:
        rule: such as "FREQ=MONTHLY;BYDAY=-1FR".
        start: its first possible local time, ISO form without offset.
        tz: IANA name.

    Raises:
        ArgumentError: it is none, or names no day.
    """
    zone.zone(tz)
    text = rule.strip().upper().removeprefix("RRULE:")
    parts = dict(part.partition("=")[::2] for part in text.split(";") if part)
    if len(text) > _MOST_RRULE_CHARS or "\n" in text or parts.get("FREQ") not in _PARTS:
        raise ArgumentError(
            f"{rule[:100]!r} is no rule.", hint=f"Begin with FREQ= and one of {', '.join(_PARTS)}; one rule, one line."
        )
    unknown = sorted(parts.keys() - _PARTS[parts["FREQ"]])
    if unknown:
        raise ArgumentError(
            f"A rule with FREQ={parts['FREQ']} cannot have {', '.join(unknown)}.",
            hint=f"It can have {', '.join(sorted(_PARTS[parts['FREQ']]))}.",
        )
    if len(parts.get("COUNT", "")) > _COUNT_DIGITS or not parts.get("COUNT", "1").isdecimal():
        raise ArgumentError(f"A rule counts to {10**_COUNT_DIGITS - 1} at most.", hint="Give UNTIL, or no end.")
    try:
        begin = datetime.fromisoformat(start)
        if begin.tzinfo is not None:
            raise ValueError("the start is a local time: without an offset")
        found = (
            _recurrence(text, begin.isoformat()).replace(until=begin + timedelta(days=29 * 366)).after(begin, inc=True)
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise ArgumentError(f"The rule {text!r} from {start!r} cannot be read: {error}.") from error
    if found is None:
        raise ArgumentError(f"The rule {text!r} names no time.", hint="Look at its BY… parts, COUNT and UNTIL.")
    return Recurrence(text, begin.isoformat(), tz)


_OF_DAY: Final = {"FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYDAY", "BYHOUR", "BYMINUTE", "BYSECOND"}
_OF_YEAR: Final = _OF_DAY | {"BYMONTH", "BYMONTHDAY", "BYYEARDAY", "BYWEEKNO", "BYSETPOS"}
# Rules that step by less than a day and look at months may pass over millions of steps between two times.
_PARTS: Final = {
    "YEARLY": _OF_YEAR, "MONTHLY": _OF_YEAR, "WEEKLY": _OF_YEAR, "DAILY": _OF_YEAR,
    "HOURLY": _OF_DAY, "MINUTELY": _OF_DAY,
}  # fmt: skip


@lru_cache(maxsize=4_096)
def _recurrence(rule: str, start: str) -> Any:
    return rrulestr(rule, dtstart=datetime.fromisoformat(start))


_STEPS: Final = {
    WEEKLY: timedelta(weeks=1), DAILY: timedelta(days=1), HOURLY: timedelta(hours=1), MINUTELY: timedelta(minutes=1)
}  # fmt: skip
_MONTHS: Final = {YEARLY: 12, MONTHLY: 1}


def _near(rule: Any, local: datetime) -> Any:
    """The same rule from a start soon before a local time: the library counts from its start, which may take millions of steps."""
    start: datetime = rule._dtstart  # noqa: SLF001  the library tells these nowhere else
    frequency, interval, count = rule._freq, rule._interval, rule._count  # noqa: SLF001
    if count is not None or local <= start:
        return rule
    if frequency in _STEPS:
        every = _STEPS[frequency] * interval
        return rule.replace(dtstart=start + (local - start) // every * every)
    months = _MONTHS[frequency] * interval
    steps = max(((local.year - start.year) * 12 + local.month - start.month - 1) // months, 0)
    while steps > 0:
        year, month = divmod(start.year * 12 + start.month - 1 + steps * months, 12)
        try:
            return rule.replace(dtstart=start.replace(year=year, month=month + 1))
        except ValueError:  # that month has no such day
            steps -= 1
    return rule


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day)  # noqa: DTZ001  local times are naive here
