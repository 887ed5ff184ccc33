"""When a time trigger fires: its rule, within bounds, on the days that calendars allow, later by its jitter.

A fire is named by its planned time, which jitter does not change. All instants are integer microseconds since the epoch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol

from scylla_spark.core.plan.times import zone
from scylla_spark.core.plan.times.breaks import Break, Breaks, Days, OnHoliday, breaks_of
from scylla_spark.core.plan.times.cron import Cron
from scylla_spark.core.plan.times.recurrence import Recurrence
from scylla_spark.core.plan.times.zone import DAY_US
from scylla_spark.core.tasks.key import EARLIEST_US, LATEST_US
from scylla_spark.errors import ArgumentError

Calendars = Mapping[str, Days]

MOST_DATES: Final = 10_000
_DAY: Final = timedelta(days=1)
_NONE: Final = Days()
_MOST_SKIPPED: Final = 100_000  # fire times passed over in a row before a trigger counts as silent


_effort: Final[ContextVar[Callable[[], None] | None]] = ContextVar("effort", default=None)


@contextmanager
def effort(counted: Callable[[], None]) -> Iterator[None]:
    """Bounds what the times of schedules cost in this context, and in threads that are started with a copy of it.

    Args:
        counted: is called before each look at a rule; what it raises ends the work.
    """
    reset = _effort.set(counted)
    try:
        yield
    finally:
        _effort.reset(reset)


def spend() -> None:
    """Counts a look at a rule where looks are bounded; whoever looks at rules in a loop of their own calls it.

    Raises:
        Exception: what the bound raises.
    """
    if (counted := _effort.get()) is not None:
        counted()


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


@dataclass(frozen=True, slots=True)
class FireTimes:
    """The planned times of a time trigger.

    Attributes:
        rule: a series of instants.
        start_us: none is earlier.
        end_us: none is later.
        last_us: the rule's last time, where its times are counted; holidays may move it, and it counts all the same.
        jitter_us: a fire starts later than planned by less than this.
        calendar: name of the calendar of holidays; empty: none.
        on_holiday: what becomes of a time on one of its days: it goes to the same local time of the next or previous day that is none.
        tz: zone of those days.
        blackouts: (begin, end) within which none lies; the end is outside. They are in order and do not overlap.
    """

    rule: Cron | Every | Dates | Recurrence
    start_us: int = EARLIEST_US
    end_us: int = LATEST_US - 1
    last_us: int = LATEST_US - 1
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
        holidays = calendars.get(self.calendar, _NONE) if self.calendar else _NONE
        at_us: int | None = max(after_us, self.start_us - 1)
        for _ in range(_MOST_SKIPPED):
            assert at_us is not None
            at_us = self._next(at_us, holidays)
            if at_us is None or at_us > self.end_us:
                return None
            until_us = self.blackout_end(at_us)
            if until_us is None:
                return at_us
            at_us = until_us - 1
        return None

    def blackout_end(self, at_us: int) -> int | None:
        """Returns where the blackout around an instant ends; None: it is in none."""
        number = bisect_right(self.blackouts, at_us, key=_begin) - 1
        return self.blackouts[number][1] if number >= 0 and at_us < self.blackouts[number][1] else None

    def starts_us(self, name: str, planned_us: int) -> int:
        """Returns when a fire starts: the planned time, and a jitter that is the same whenever it is asked for."""
        if not self.jitter_us:
            return planned_us
        digest = blake2b(f"{name}\0{planned_us}".encode(), digest_size=8).digest()
        return planned_us + int.from_bytes(digest, "big") % self.jitter_us

    def _of_rule(self, after_us: int) -> int | None:
        spend()
        at_us = self.rule.next_after(after_us)
        return at_us if at_us is not None and at_us <= self.last_us else None

    def _next(self, after_us: int, holidays: Days) -> int | None:
        if not holidays:
            return self._of_rule(after_us)
        if self.on_holiday == "skip":
            return self._next_on_open_day(after_us, breaks_of(holidays))
        return min(self._next_or_moved(after_us, breaks_of(holidays)), default=None)

    def _next_on_open_day(self, after_us: int, breaks: Breaks) -> int | None:
        for _ in range(_MOST_SKIPPED):
            at_us = self._of_rule(after_us)
            if at_us is None or (around := breaks.around(self._day(at_us))) is None:
                return at_us
            after_us = self._end_us(around.last) - 1
        return None

    def _next_or_moved(self, after_us: int, breaks: Breaks) -> list[int]:
        """Times later than an instant, of open days and moved ones; the first time that there is, is one of them."""
        here, cursor_us = self._day(after_us), after_us
        found: list[int] = []
        if self.on_holiday == "next" and (over := breaks.around(here) or breaks.around(here - _DAY)) is not None:
            found = list(self._moved(after_us, over))
            cursor_us = max(after_us, self._end_us(over.last) - 1)
        for _ in range(_MOST_SKIPPED):
            settled, at_us = bool(found), self._of_rule(cursor_us)
            if at_us is None:
                return found
            around = breaks.around(self._day(at_us))
            if around is None:
                coming = breaks.around(self._day(at_us) + _DAY) if self.on_holiday == "previous" else None
                return [*found, at_us, *(self._moved(after_us, coming) if coming is not None else ())]
            found += self._moved(after_us, around)
            if settled or (found and self.on_holiday == "previous"):
                return found
            cursor_us = self._end_us(around.last) - 1
        return found

    def _moved(self, after_us: int, over: Break) -> Iterator[int]:
        """Yields where the times of a break go to, of each of its days the first that is later than an instant."""
        to, days = over.way(self.on_holiday)
        bound, ahead_us = zone.watershed(self.tz, after_us), 0
        for day in days:
            for begin_us, end_us, offset in self._stretches(day):
                asked_us = max(begin_us - 1, zone.instant(bound - (to - day), offset))
                if asked_us >= end_us or ahead_us >= end_us:
                    continue
                at_us = self._of_rule(asked_us)
                if at_us is None:
                    return
                ahead_us = at_us
                if at_us < end_us:
                    yield zone.instant_of(self.tz, zone.local(at_us, offset) + (to - day))

    def _stretches(self, day: date) -> Iterator[tuple[int, int, int]]:
        """Begin, end and offset of the parts of a day between which its clock is set."""
        begin_us, end_us = self._end_us(day - _DAY), self._end_us(day)
        while (step := zone.step_between(self.tz, begin_us, end_us - 1)) is not None:
            yield begin_us, step.at_us, step.before_us
            begin_us = step.at_us
        yield begin_us, end_us, zone.offset_us(self.tz, begin_us)

    def _day(self, at_us: int) -> date:
        return zone.local(at_us, zone.offset_us(self.tz, at_us)).date()

    def _end_us(self, day: date) -> int:
        return zone.instant_of(self.tz, _midnight(day + _DAY))


def merged_blackouts(given: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Blackouts as `FireTimes` takes them: in order, those that overlap or meet as one; microseconds since the epoch."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(given):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return tuple(found)


def _begin(blackout: tuple[int, int]) -> int:
    return blackout[0]


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


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day)  # noqa: DTZ001  local times are naive here
