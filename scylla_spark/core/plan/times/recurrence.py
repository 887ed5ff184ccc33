"""Recurrences: the times that a rule of RFC 5545 names, found without stepping through the times of a day.

A rule is split in two. Its *steps* are walked from one soon before the time in question: days by the library dateutil, hours and
minutes by ourselves, since it goes through each minute of a day. The times within a step are numbers in order, and the first of them
that is late enough is found by bisection. So what one question costs depends on how rare steps are, never on how many times a day has;
and it is counted, so that it has an end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import copy
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice, takewhile
from typing import Any, Final, NamedTuple

from dateutil.rrule import DAILY, HOURLY, MINUTELY, MONTHLY, WEEKLY, YEARLY, rrulestr

from scylla_spark.core.plan.times import zone
from scylla_spark.core.plan.times.rule_parts import check_rule, local_of, parts_of
from scylla_spark.errors import ArgumentError, shown

MOST_DAYS_WALKED: Final = 20_000  # in search of one time: 54 years, or that many hours or minutes
_MOST_DAYS_COUNTED: Final = 100_000  # in search of the last time of a rule that counts
_MOMENT: Final = timedelta(microseconds=1)
_SLACK_US: Final = 7_200 * zone.SECOND_US  # more than the times of a step lie around its beginning
_STRETCH_US: Final = 3_653 * zone.DAY_US  # at most looked through at once for settings of the clock
_FIRST_YEAR: Final = 1601  # as some calendars write a start that says nothing
_LATEST_US: Final = (datetime(zone.LAST_YEAR + 1, 1, 1) - zone.EPOCH) // timedelta(microseconds=1)  # noqa: DTZ001
_NEVER: Final = datetime(9999, 12, 31)  # noqa: DTZ001  local times are naive here
# The library does not publish what `noqa: SLF001` below reads of it.


class Recurrence(NamedTuple):
    """A rule of RFC 5545.

    Of days and more it is expanded in local time: a skipped local time comes at the end of the gap, a repeated one once. Hours and minutes
    are real ones, counted from the start as if no clock were ever set; what its BY… parts name are local times.

    Attributes:
        rule: the text after "RRULE:".
        start: its DTSTART, a local time in ISO form.
        tz: IANA name.
    """

    rule: str
    start: str
    tz: str = "UTC"

    def next_after(self, after_us: int) -> int | None:
        """The first instant later than another; None: there is none in MOST_DAYS_WALKED days that the rule looks at."""
        hourly = parts_of(self.rule)["FREQ"] in _FIRST_WITHIN
        found = _next_of_hours(self, after_us) if hourly else self._next_of_days(after_us)
        until_us = _until_us(self.rule)
        return None if found is None or (until_us is not None and found > until_us) else found

    def _next_of_days(self, after_us: int) -> int | None:
        series = _series(self.rule, self.start)
        for at in series.later_than(zone.watershed(self.tz, after_us)):
            found = zone.instant_of(self.tz, at)
            if found > after_us:
                return found
        return None


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
    check_rule(text)
    try:
        begin = datetime.fromisoformat(start)
        if begin.tzinfo is not None:
            raise ValueError("the start is a local time: without an offset")
        if not _FIRST_YEAR <= begin.year <= zone.LAST_YEAR:
            raise ValueError(f"the start lies in the years {_FIRST_YEAR} to {zone.LAST_YEAR}")
        endless = _series(text, begin.isoformat())._replace(end=_NEVER)  # one that has ended by now is a rule
        found = next(endless.later_than(begin - _MOMENT), None)
    except Exception as error:  # whatever the library raises, the text is no rule
        raise ArgumentError(
            f"The rule {text!r} from {start!r} cannot be read: {shown(str(error))}.",
            hint="Look at its start and its parts.",
        ) from error
    if found is None:
        raise ArgumentError(f"The rule {text!r} names no time.", hint="Look at its BY… parts.")
    return Recurrence(text, begin.isoformat(), tz)


def default_start(rule: str) -> str:
    """The start of a rule for which none is given: the beginning of the epoch's first day, in the rule's zone.

    Args:
        rule: the rule.

    Raises:
        ArgumentError: it counts its times, so that it says nothing without a start.
    """
    if "COUNT" in parts_of(rule.strip().upper().removeprefix("RRULE:")):
        raise ArgumentError("A rule with COUNT needs a start, from which it counts.", hint="Give start.")
    return "1970-01-01T00:00:00"


@lru_cache(maxsize=4_096)
def _until_us(rule: str) -> int | None:
    """The last possible instant of a rule whose UNTIL is an instant in UTC; None: it has no such part."""
    until = parts_of(rule).get("UNTIL", "")
    return zone.instant(local_of(until), 0) if until.endswith("Z") else None


# -- below: steps, and the times within them --------------------------------------------------------------------------------


class _Unit(NamedTuple):
    """A part of a rule that names times within a step, the field of a local time it is about, and how many there are."""

    part: str
    field: str
    size: int


_UNITS: Final = (_Unit("BYHOUR", "hour", 24), _Unit("BYMINUTE", "minute", 60), _Unit("BYSECOND", "second", 60))
_FIRST_WITHIN: Final = {"HOURLY": 1, "MINUTELY": 2}  # of _UNITS; before it: what names steps
_WHOLE: Final = ((0,), (0,), (0,))


class _Series(NamedTuple):
    """The local times of a rule.

    Attributes:
        steps: the library's rule, of one time per step.
        within: units of time that are a number within steps; of a rule with BYSETPOS none are: it looks at all times together.
        clocks: hours, minutes and seconds that come on top of a step.
        start: none is earlier.
        end: none is later.
    """

    steps: Any
    within: tuple[_Unit, ...]
    clocks: tuple[tuple[int, ...], ...]
    start: datetime
    end: datetime

    def later_than(self, at: datetime, most_days: int = MOST_DAYS_WALKED) -> Iterator[datetime]:
        """Local times later than one, in order, until so many days were looked at."""
        at = max(at, self.start - _MOMENT)
        for step in _steps_from(self.steps, _cut(at, self.within), most_days):
            for found in self.later_of(step, at):
                if found > self.end:
                    return
                yield found

    def later_of(self, step: datetime, at: datetime) -> Iterator[datetime]:
        """The times of a step that are later than a local time."""
        hours, minutes, seconds = self.clocks
        h, m, s = _elapsed(step, at)
        for hour in hours[bisect_left(hours, h) :]:
            for minute in minutes if hour > h else minutes[bisect_left(minutes, m) :]:
                for second in seconds if (hour, minute) > (h, m) else seconds[bisect_right(seconds, s) :]:
                    yield step + timedelta(hours=hour, minutes=minute, seconds=second)


@lru_cache(maxsize=4_096)
def _series(rule: str, start: str) -> _Series:
    parts = parts_of(rule)
    begin = datetime.fromisoformat(start).replace(microsecond=0)
    within = () if "BYSETPOS" in parts else _UNITS[_FIRST_WITHIN.get(parts["FREQ"], 0) :]
    left_out = {"COUNT", "UNTIL", *(unit.part for unit in within)}
    text = ";".join(f"{name}={value}" for name, value in parts.items() if name not in left_out)
    steps: Any = rrulestr(text, dtstart=_cut(begin, within))
    clocks = (*_WHOLE[len(within) :], *(_numbers(parts, unit, begin) for unit in within))
    if parts["FREQ"] == "WEEKLY" and not within:  # positions count in the whole first week
        day = begin.replace(hour=0, minute=0, second=0)
        steps._dtstart = day - timedelta(days=(day.weekday() - steps._wkst) % 7)  # noqa: SLF001
    until = _NEVER if parts.get("UNTIL", "Z").endswith("Z") else local_of(parts["UNTIL"])
    series = _Series(steps, within, clocks, begin, until)
    return series._replace(end=_end_of(series, int(parts["COUNT"]))) if "COUNT" in parts else series


def _end_of(series: _Series, count: int) -> datetime:
    """The last time of a rule that counts, reckoned once: from then on it is like any other with an end."""
    times = series.later_than(series.start - _MOMENT, _MOST_DAYS_COUNTED)
    last = next(islice(takewhile(lambda at: at.year <= zone.LAST_YEAR, times), count - 1, None), None)
    return last or series.end


def _numbers(parts: Mapping[str, str], unit: _Unit, begin: datetime) -> tuple[int, ...]:
    if unit.part not in parts:
        return (getattr(begin, unit.field),)
    numbers = sorted({int(number) for number in parts[unit.part].split(",")})
    if not 0 <= numbers[0] <= numbers[-1] < unit.size:
        raise ValueError(f"{unit.part} lies between 0 and {unit.size - 1}")
    return tuple(numbers)


def _cut(at: datetime, within: tuple[_Unit, ...]) -> datetime:
    """The beginning of the step that a local time lies in."""
    fields: dict[str, Any] = {unit.field: 0 for unit in within}
    return at.replace(**fields, microsecond=0) if within else at


def _elapsed(step: datetime, at: datetime) -> tuple[int, int, int]:
    """Hours, minutes and seconds from a step to a local time; all are less than any clock's if the step is later."""
    if step > at:
        return -1, -1, -1
    seconds = (at - step) // timedelta(seconds=1)
    return seconds // 3_600, seconds // 60 % 60, seconds % 60


# -- below: hours and minutes, which go on when clocks are set ---------------------------------------------------------------


def _next_of_hours(rule: Recurrence, after_us: int) -> int | None:
    last_us = _last_of_hours(rule)
    found = next(_instants(rule, after_us, MOST_DAYS_WALKED), None)
    return None if found is None or (last_us is not None and found > last_us) else found


def _instants(rule: Recurrence, after_us: int, most: int) -> Iterator[int]:
    """Instants of a rule by hours or minutes that are later than one, in order, until so many of these were looked at.

    Between two settings of the clock local time is UTC and a number, so there the rule is like any other; its start is the same instant
    in each such stretch.
    """
    start_us = zone.instant_of(rule.tz, datetime.fromisoformat(rule.start).replace(microsecond=0))
    text = ";".join(part for part in rule.rule.split(";") if not part.startswith("COUNT="))
    left = iter(range(most))
    after_us = max(after_us, start_us - 1)
    while next(left, None) is not None:
        after_us = _near_step(after_us, start_us, _period_us(rule))
        if after_us >= _LATEST_US:
            return
        offset = zone.offset_us(rule.tz, after_us + 1)
        end_us = _end_of_offset(rule.tz, after_us + 1)
        at, end = zone.local(after_us, offset), zone.local(end_us - 1, offset)
        after_us = end_us - 1
        try:
            series = _series(text, zone.local(start_us, offset).isoformat())
        except ValueError:
            continue  # none of its steps lies in an hour that it names, until the clock is set again
        for step in _short_steps_until(series.steps, _cut(max(at, series.start - _MOMENT), series.within), left, end):
            for found in series.later_of(step, at):
                if found > series.end:
                    return
                if found <= end:
                    yield zone.instant(found, offset)


def _near_step(after_us: int, start_us: int, period_us: int) -> int:
    """An instant soon before the next step after another: of a rule with a long period nothing lies between."""
    last_us = start_us + (after_us - start_us) // period_us * period_us
    return max(after_us, last_us + period_us - _SLACK_US) if after_us > last_us + _SLACK_US else after_us


def _end_of_offset(tz: str, at_us: int) -> int:
    """Returns when the clock is next set after an instant, or ten years later."""
    step = zone.step_between(tz, at_us, at_us + _STRETCH_US)
    return at_us + _STRETCH_US if step is None else step.at_us


def _period_us(rule: Recurrence) -> int:
    parts = parts_of(rule.rule)
    return (3_600 if parts["FREQ"] == "HOURLY" else 60) * int(parts.get("INTERVAL", "1")) * zone.SECOND_US


@lru_cache(maxsize=4_096)
def _last_of_hours(rule: Recurrence) -> int | None:
    """The last instant of such a rule that counts; None: it does not count, or not so far."""
    count = parts_of(rule.rule).get("COUNT")
    if count is None:
        return None
    return next(islice(_instants(rule, -_LATEST_US, _MOST_DAYS_COUNTED), int(count) - 1, None), None)


# -- below: the library's walk, from near by and with an end ------------------------------------------------------------------


class _TooFarError(Exception):
    """So many days were looked at that the walk ends."""


class _CountedPositions(tuple[int, ...]):
    """Positions of BYSETPOS, or none. The library asks once in each step whether there are any, and that is how steps are counted."""

    left: int

    def __bool__(self) -> bool:
        self.left -= 1
        if self.left < 0:
            raise _TooFarError
        return len(self) > 0


_DAYS: Final = {YEARLY: 366, MONTHLY: 31, WEEKLY: 7, DAILY: 1}  # looked at in one step, at most
_SHORT: Final = (HOURLY, MINUTELY)
_PERIODS: Final = {
    WEEKLY: timedelta(weeks=1),
    DAILY: timedelta(days=1),
    HOURLY: timedelta(hours=1),
    MINUTELY: timedelta(minutes=1),
}


def _steps_from(rule: Any, at: datetime, most_days: int) -> Iterator[datetime]:
    """Steps not earlier than a local time, in order, until so many days (or hours, or minutes) were looked at."""
    walk = _short_steps if rule._freq in _SHORT else _long_steps  # noqa: SLF001
    try:
        yield from walk(rule, at, most_days)
    except (_TooFarError, OverflowError):  # so many days, or beyond the last of all
        return


def _long_steps(rule: Any, at: datetime, most_days: int) -> Iterator[datetime]:
    near = copy(rule)
    positions = _CountedPositions(rule._bysetpos or ())  # noqa: SLF001
    positions.left = max(most_days // _DAYS[rule._freq], 1)  # noqa: SLF001
    near._bysetpos, near._dtstart = positions, _start_near(rule, at)  # noqa: SLF001
    yield from near.xafter(at, inc=True)


def _short_steps(rule: Any, at: datetime, most: int) -> Iterator[datetime]:
    """Hours or minutes; the library would walk each minute of a day that has none."""
    yield from _short_steps_until(rule, at, iter(range(most)), _NEVER)


def _short_steps_until(rule: Any, at: datetime, left: Iterator[int], end: datetime) -> Iterator[datetime]:
    """Hours or minutes between two local times, as long as there is something left to be looked at."""
    period = _PERIODS[rule._freq] * rule._interval  # noqa: SLF001
    step = _start_near(rule, at)
    step -= (step - max(at, step)) // period * period
    with suppress(OverflowError):  # beyond the last of all
        for _ in left:
            goal = _allowed_from(rule, step)
            if max(goal, step) > end:
                return
            if goal == step:
                yield step
                goal += _MOMENT
            step -= (step - goal) // period * period  # the first of the grid that is not earlier than the goal


def _allowed_from(rule: Any, step: datetime) -> datetime:
    """A step that the rule names, or a time before which it names none."""
    if rule._byweekday and step.weekday() not in rule._byweekday:  # noqa: SLF001
        return step.replace(hour=0, minute=0) + timedelta(days=1)
    if rule._byhour and step.hour not in rule._byhour:  # noqa: SLF001
        return step.replace(minute=0) + timedelta(hours=1)
    if rule._byminute and step.minute not in rule._byminute:  # noqa: SLF001
        return step + timedelta(minutes=1)
    return step


def _start_near(rule: Any, at: datetime) -> datetime:
    """A start soon before a local time from which the rule names the same steps: the library counts from its start."""
    start: datetime = rule._dtstart  # noqa: SLF001
    frequency: int = rule._freq  # noqa: SLF001
    interval: int = rule._interval  # noqa: SLF001
    if at <= start:
        return start
    if frequency in _PERIODS:
        period = _PERIODS[frequency] * interval
        return start + (at - start) // period * period
    if frequency == YEARLY:
        years = (at.year - start.year) // interval * interval
        return datetime(start.year + years, 1, 1) if years else start  # noqa: DTZ001  local times are naive here
    months = ((at.year - start.year) * 12 + at.month - start.month) // interval * interval
    year, month = divmod(start.year * 12 + start.month - 1 + months, 12)
    return datetime(year, month + 1, 1) if months else start  # noqa: DTZ001
