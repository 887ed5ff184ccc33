"""Planned times of a schedule for people: in local time, with what clock changes, holidays and blackouts do to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from heapq import heappop, heappush
from itertools import islice
from typing import Final, NamedTuple

from scylla_spark.core.plan.constraint import Constraint, TimeRange
from scylla_spark.core.plan.times import zone
from scylla_spark.core.plan.times.breaks import MOST_DAYS_MOVED, Days
from scylla_spark.core.plan.times.cron import Cron, Gap, goes_on_each_hour, is_fixed
from scylla_spark.core.plan.times.fire_times import Calendars, Every, FireTimes, spend
from scylla_spark.core.plan.times.planned_times import planned_before, planned_with_series
from scylla_spark.core.plan.times.zone import Step

MOST_LEFT_OUT: Final = 20  # between two times; more are told of in one line
_HOUR_US: Final = 3_600 * zone.SECOND_US
_OLDEST_US: Final = 50 * 366 * zone.DAY_US
_MOST_MOVED_US: Final = (MOST_DAYS_MOVED + 1) * zone.DAY_US


class PlannedTime(NamedTuple):
    """A time of a schedule, or one that was left out.

    Attributes:
        at_us: microseconds since the epoch.
        local: the same on the wall, such as "Sun 2027-03-28 03:00".
        tz: of that.
        fires: something is to run.
        note: what a clock, a holiday or a blackout does to it; mostly empty.
    """

    at_us: int
    local: str
    tz: str
    fires: bool = True
    note: str = ""


def following(series: list[FireTimes], calendars: Calendars, after_us: int, count: int) -> list[PlannedTime]:
    """The next planned times, with those that are left out between them.

    Args:
        series: of the trigger.
        calendars: days by name.
        after_us: later than this, microseconds since the epoch.
        count: how many that fire, at most.
    """
    rows: list[PlannedTime] = []
    left_out = _LeftOut(series, calendars, after_us)
    for at_us, source in islice(planned_with_series(series, after_us, calendars), max(count, 0)):
        rows += left_out.before(at_us)
        rows.append(PlannedTime(at_us, local_text(source.tz, at_us), source.tz, True, _note(source, calendars, at_us)))
    return rows


def preceding(series: list[FireTimes], calendars: Calendars, before_us: int, count: int) -> list[PlannedTime]:
    """The last planned times before an instant, the first first; those that the definition names, whether it was there or not.

    Args:
        series: of the trigger.
        calendars: days by name.
        before_us: earlier than this, microseconds since the epoch.
        count: how many that fire, at most.
    """
    before_us = min(before_us, max((min(one.end_us, one.last_us + _MOST_MOVED_US) + 1 for one in series), default=0))
    oldest_us = max(before_us - _OLDEST_US, 0)
    times = list(islice(planned_before(series, before_us, calendars, after_us=oldest_us - 1), max(count, 0)))
    return following(series, calendars, times[-1] - 1, len(times)) if times else []


def under_time_ranges(rows: list[PlannedTime], constraints: Sequence[Constraint]) -> list[PlannedTime]:
    """The rows with what time ranges do to them: outside of one a run is dropped, or it waits.

    Args:
        rows: planned times.
        constraints: of the schedule.
    """
    ranges = [one for one in constraints if isinstance(one, TimeRange)]
    return [_in_range(row, ranges) if row.fires else row for row in rows]


def _in_range(row: PlannedTime, ranges: Sequence[TimeRange]) -> PlannedTime:
    judged = [(one, one.at(row.at_us)) for one in ranges]
    against = [(one, judgement.why) for one, judgement in judged if not judgement.met]
    if not against:
        return row
    dropped = any(one.otherwise == "abort" for one, _ in against)
    does = "dropped" if dropped else "waits for its time range"
    note = "; ".join(filter(None, (row.note, *(f"{does}: {why}" for _, why in against))))
    return row._replace(fires=not dropped, note=note)


def clock_changes(cron: Cron, after_us: int, until_us: int) -> Iterator[tuple[Step, datetime, str]]:
    """Local times of an expression that a clock skips or repeats: the step, the time, and what becomes of it.

    An expression that names times in each hour goes on at its distance when a clock is set by whole hours, so that has no such times.

    Args:
        cron: the expression and its zone.
        after_us: clocks that are set later than this …
        until_us: … and not later than this; microseconds since the epoch.
    """
    each_hour = goes_on_each_hour(cron.expression)
    while (step := zone.step_between(cron.tz, after_us, until_us)) is not None:
        after_us = step.at_us
        if each_hour and (step.after_us - step.before_us) % _HOUR_US == 0:
            continue
        before, after = zone.local(step.at_us, step.before_us), zone.local(step.at_us, step.after_us)
        for local in _naive(cron, min(before, after), max(before, after)):
            yield step, local, _effect(cron, skipped=after > before)


def local_text(tz: str, at_us: int) -> str:
    """Returns what the clocks of a zone show."""
    return _shown(zone.local(at_us, zone.offset_us(tz, at_us)))


# -- below: what is special about a time ---------------------------------------------------------------------------------------


class _LeftOut:
    """Times of rules at which nothing fires, and why; asked for in order, so that each series goes on where it is.

    Args:
        series: of a trigger.
        calendars: days by name.
        after_us: later than this, microseconds since the epoch.
    """

    def __init__(self, series: list[FireTimes], calendars: Calendars, after_us: int) -> None:
        self._calendars = calendars
        self._after_us = after_us
        self._skipping: dict[str, list[FireTimes]] = {}  # by time zone
        for one in series:
            if isinstance(one.rule, Cron) and _gap(one.rule) == "skip":
                self._skipping.setdefault(one.rule.tz, []).append(one)
        self._bounded = [one for one in series if one.calendar or one.blackouts]
        self._plain = [replace(one, calendar="", blackouts=()) for one in self._bounded]
        self._coming: list[tuple[int, int]] = []  # the next time of each of `_plain`, and its number
        for number in range(len(self._plain)):
            self._go_on(number, after_us)

    def before(self, until_us: int) -> list[PlannedTime]:
        """The first of those before a planned time, and after the one that was asked for before it."""
        changed = (tz for tz in self._skipping if zone.step_between(tz, self._after_us, until_us) is not None)
        skipping = (one for tz in changed for one in self._skipping[tz])
        found = {row for one in skipping for row in _skipped(one, self._after_us, until_us)}
        while self._coming and self._coming[0][0] < until_us and len(found) < MOST_LEFT_OUT:
            at_us, number = heappop(self._coming)
            one = self._bounded[number]
            if why := _why_left_out(one, self._calendars, at_us):
                found.add(PlannedTime(at_us, local_text(one.tz, at_us), one.tz, False, why))
            self._go_on(number, at_us)
        while self._coming and self._coming[0][0] <= until_us:
            self._go_on(heappop(self._coming)[1], until_us)
        self._after_us = until_us
        return [row for row in sorted(found) if row.at_us != until_us][:MOST_LEFT_OUT]

    def _go_on(self, number: int, after_us: int) -> None:
        if (at_us := self._plain[number].next_after(after_us, {})) is not None:
            heappush(self._coming, (at_us, number))


def _skipped(times: FireTimes, after_us: int, until_us: int) -> Iterator[PlannedTime]:
    """Times within (after, until] that a clock skips and the expression leaves out."""
    assert isinstance(times.rule, Cron)
    spend()
    for step, local, effect in clock_changes(times.rule, after_us, until_us):
        if step.after_us > step.before_us:
            yield PlannedTime(step.at_us, _shown(local), times.tz, False, effect)


def _why_left_out(times: FireTimes, calendars: Calendars, at_us: int) -> str:
    day = zone.local(at_us, zone.offset_us(times.tz, at_us)).date()
    days = calendars.get(times.calendar, Days())
    if day in days:
        moved = {"next": "moved to the next open day", "previous": "moved to the open day before"}
        which = f"{note}, " if (note := days.notes.get(day)) else ""
        return f"{moved.get(times.on_holiday, 'left out')}: {which}a day of the calendar {times.calendar!r}"
    return "left out: within a blackout" if times.blackout_end(at_us) is not None else ""


def _note(times: FireTimes, calendars: Calendars, at_us: int) -> str:
    rule = times.rule
    if times.calendar and times.on_holiday != "skip" and rule.next_after(at_us - 1) != at_us:
        return f"moved here from a day of the calendar {times.calendar!r}"
    if isinstance(rule, Every) or times.tz == "UTC":
        return ""
    return _clock_note(times, at_us)


def _clock_note(times: FireTimes, at_us: int) -> str:
    step = zone.last_step(times.tz, at_us)
    if step is None or at_us - step.at_us >= zone.DAY_US:
        step = zone.step_between(times.tz, at_us, at_us + zone.DAY_US)
    if step is None:
        return ""
    before, after = zone.local(step.at_us, step.before_us), zone.local(step.at_us, step.after_us)
    local = zone.local(at_us, zone.offset_us(times.tz, at_us))
    if after > before:
        cron = times.rule
        skipped = list(_naive(cron, before, after)) if isinstance(cron, Cron) and at_us == step.at_us else []
        moved = isinstance(cron, Cron) and _gap(cron) == "next" and skipped
        return (
            f"{skipped[0]:%H:%M} does not exist: the clock goes from {before:%H:%M} to {after:%H:%M}" if moved else ""
        )
    if after <= local < before:
        which = "the first" if at_us < step.at_us else "the second"
        return f"{local:%H:%M} comes twice, this is {which}: the clock goes from {before:%H:%M} back to {after:%H:%M}"
    return ""


def _effect(cron: Cron, *, skipped: bool) -> str:
    if skipped:
        return (
            "left out: the clock skips it"
            if _gap(cron) == "skip"
            else "the clock skips it: it runs at the end of the gap"
        )
    once = cron.fold == "first" and is_fixed(cron.expression)
    return "it comes twice, and runs the first time" if once else "it comes twice, and runs twice"


def _gap(cron: Cron) -> Gap:
    """Returns what becomes of a local time that a clock skips: an expression that goes on at short intervals makes up for none."""
    return cron.gap if is_fixed(cron.expression) else "skip"


def _naive(cron: Cron, begin: datetime, end: datetime) -> Iterator[datetime]:
    """Local times of an expression within [begin, end), as if no clock had been set."""
    plain = cron._replace(tz="UTC")
    at_us: int | None = zone.instant(begin, 0) - 1
    while at_us is not None and (at_us := plain.next_after(at_us)) is not None and at_us < zone.instant(end, 0):
        spend()
        yield zone.EPOCH + timedelta(microseconds=at_us)


def _shown(local: datetime) -> str:
    return f"{local:%a %Y-%m-%d %H:%M}" + (f":{local:%S}" if local.second else "")
