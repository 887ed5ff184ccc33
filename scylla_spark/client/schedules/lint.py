"""What is suspicious about a schedule that could be stored: each finding says what will happen, since that may be what is meant."""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Collection, Iterable, Iterator
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple

from scylla_spark.client.schedules.schedule import Schedule
from scylla_spark.client.schedules.times import clock_changes
from scylla_spark.client.schedules.trigger_words import span
from scylla_spark.core.plan import schedule as plan
from scylla_spark.core.plan.constraint import Check, TimeRange
from scylla_spark.core.plan.schedule_format import read_schedule
from scylla_spark.core.plan.schedule_policies import can_be_ahead, runs_each
from scylla_spark.core.plan.times import zone
from scylla_spark.core.plan.times.cron import Cron
from scylla_spark.core.plan.times.fire_times import Dates, Every, FireTimes
from scylla_spark.core.plan.times.planned_times import planned_after
from scylla_spark.core.plan.times.zone import DAY_US, SECOND_US
from scylla_spark.core.plan.triggers.trigger import AtTimes, leaves, table_of
from scylla_spark.errors import ArgumentError
from scylla_spark.table_place import is_place, table_place

ERROR: Final = "error"
WARNING: Final = "warning"
_LOOKED_AT_US: Final = 2 * 366 * DAY_US  # clocks that are set later may be set otherwise by then
_TIMES_LOOKED_AT: Final = 50
_STEP: Final = re.compile(r"^(?:\*|\d+-\d+)/(\d+)$")
_WHOLE: Final = {"second": 60, "minute": 60, "hour": 24}
_UNITS: Final = {"second": "minute", "minute": "hour", "hour": "day"}


class Finding(NamedTuple):
    """Something that somebody should look at.

    Attributes:
        level: "error": it cannot work; "warning": it may not be what is meant.
        text: what, and what will happen.
    """

    level: str
    text: str


def findings(
    schedule: Schedule, now: int, handlers: Collection[str] | None = None, tables: Collection[str] = ()
) -> list[Finding]:
    """Returns what is suspicious about one schedule.

    Args:
        schedule: that could be stored.
        now: microseconds since the epoch.
        handlers: names that modules register; None: they are not known.
        tables: names to which the setting `plan.tables` gives a place.
    """
    read = read_schedule(schedule.definition)
    found = [Finding(WARNING, text) for text in (*_of_times(read, now), *_of_time_ranges(read, now))]
    found += [Finding(WARNING, text) for text in _of_overlap(schedule, read)]
    found += [Finding(WARNING, text) for text in _of_tables(read, tables)]
    wanted = [schedule.handler, *(one.handler for one in read.constraints if isinstance(one, Check))]
    for name in wanted if handlers is not None else ():
        if handlers is not None and name not in handlers:
            known = ", ".join(sorted(handlers)[:10]) or "none"
            found.append(Finding(ERROR, f"no module registers the handler {name!r}; registered: {known}"))
    return found


def _of_overlap(schedule: Schedule, read: plan.Schedule) -> Iterator[str]:
    if schedule.max_running is not None and read.policies.overlap != "skip":
        yield (
            f"max_running = {schedule.max_running} does nothing, since overlap is {read.policies.overlap}: it counts with skip only; for "
            'some at once and a queue behind them give the constraint max_running with otherwise = "wait", and overlap = "allow_all"'
        )
    if schedule.overlap is None and not all(isinstance(leaf, AtTimes) for leaf in leaves(read.trigger)):
        yield "overlap is not given: it is buffer_all, so runs queue up behind a slow one and none is left out"


def _of_tables(read: plan.Schedule, known: Collection[str]) -> Iterator[str]:
    for leaf in leaves(read.trigger):
        table = table_of(leaf)
        if table is None or table.table in known:
            continue
        if is_place(table.table):
            yield from _of_place(table.table)
        else:
            yield (
                f"the table {table.table!r} is neither an absolute path nor a URI, and the setting plan.tables does not name it: "
                "it sees nothing of the table unless plan.tables of the planner says where that lies"
            )


def _of_place(place: str) -> Iterator[str]:
    try:
        table_place(place)
    except ArgumentError as error:
        yield f"the planner will refuse it. {error}"


# -- times --------------------------------------------------------------------------------------------------------------


def _of_times(read: plan.Schedule, now: int) -> Iterator[str]:
    for leaf in leaves(read.trigger):
        if not isinstance(leaf, AtTimes):
            continue
        times = leaf.times
        if times.next_after(now, {}) is None:
            yield "all its times lie in the past: it never fires"
            continue
        past = sum(at <= now for at in times.rule.instants_us) if isinstance(times.rule, Dates) else 0
        if past:
            yield f"{past} of its times lie in the past: they are not run, and no row of `fires` tells of them"
        if read.work.expires_ms is not None and times.jitter_us >= read.work.expires_ms * 1000:
            yield "jitter may let it start after it expires: such times are skipped"
        if times.jitter_us and not (can_be_ahead(read) and runs_each(read)) and _has_times_within_jitter(times, now):
            yield (
                f"jitter is longer than the distance of its times: a run may wait for those that are planned before it, but never longer "
                f'than {span(times.jitter_us)} after its planned time; overlap = "allow_all" without constraints keeps them apart'
            )
        if _is_every_second(times.rule, now):
            yield "it fires every second"
        if isinstance(times.rule, Every) and times.rule.period_us % DAY_US == 0 and times.tz != "UTC":
            yield (
                f"every {span(times.rule.period_us)} counts days of 24 hours: its local time in {times.tz} moves when clocks are set; "
                "cron keeps it"
            )
        if isinstance(times.rule, Cron):
            yield from _of_cron(times.rule, now)


def _of_time_ranges(read: plan.Schedule, now: int) -> Iterator[str]:
    series = [leaf.times for leaf in leaves(read.trigger) if isinstance(leaf, AtTimes)]
    times = list(islice(planned_after(series, now, {}), _TIMES_LOOKED_AT))
    for one in read.constraints:
        if isinstance(one, TimeRange) and times and not any(one.at(at_us).met for at_us in times):
            does = "each run is dropped" if one.otherwise == "abort" else "each run waits until it begins"
            yield f"none of its next {len(times)} times lies in its time range: {one.at(times[0]).why}; {does}"


def _has_times_within_jitter(times: FireTimes, now: int) -> bool:
    some = list(islice(planned_after([times], now, {}), _TIMES_LOOKED_AT))
    return any(later - earlier < times.jitter_us for earlier, later in pairwise(some))


def _is_every_second(rule: Any, now: int) -> bool:
    if isinstance(rule, Every):
        return rule.period_us <= SECOND_US
    first = rule.next_after(now)
    return first is not None and rule.next_after(first) == first + SECOND_US


def _of_cron(cron: Cron, now: int) -> Iterator[str]:
    fields = cron.expression.split()
    names = ("second", "minute", "hour", "day", "month", "weekday")[6 - len(fields) :]
    by_name = dict(zip(names, fields, strict=True))
    yield from _of_steps(by_name)
    yield from _of_days(by_name)
    yield from _of_clock(cron, now)


def _of_steps(fields: dict[str, str]) -> Iterator[str]:
    for name, whole in _WHOLE.items():
        found = _STEP.match(fields.get(name, ""))
        step = int(found[1]) if found and fields[name].startswith("*") else 0
        if step and whole % step:
            yield (
                f"{fields[name]} {name}s do not divide the {_UNITS[name]}: the last distance is {whole % step} {name}s; "
                f"every = \"{step}{name[0]}\" keeps its distance"
            )  # fmt: skip
    if fields["day"].startswith("*/"):
        yield f"{fields['day']} days begin anew on the 1st of each month, so the distance across its end differs"


def _of_days(fields: dict[str, str]) -> Iterator[str]:
    day, weekday = fields["day"], fields["weekday"]
    if "*" not in (day, weekday):
        whole = "both are true, since one begins with *" if "*" in (day[0], weekday[0]) else "either is true"
        yield f"day-of-month {day} and day-of-week {weekday} are both set: it fires on days for which {whole}"
    elif day.isdigit() and int(day) > 28:
        without = [month for month in _months(fields["month"]) if monthrange(2028, month)[1] < int(day)]
        rarely = fields["month"] == "2" or (int(day) == 29 and 2 in _months(fields["month"]))
        if without:
            yield f"{len(without)} of its months have no day {day}, and it does not fire in them; L is the last day"
        elif rarely:
            yield "29 February comes in leap years only; L is the last day"


def _months(field: str) -> Iterable[int]:
    from cronsim import CronSim

    found: set[int] = CronSim(f"0 0 1 {field} *", zone.EPOCH).months
    return sorted(found)


def _of_clock(cron: Cron, now: int) -> Iterator[str]:
    told: set[str] = set()
    for step, local, effect in clock_changes(cron, now, now + _LOOKED_AT_US):
        if effect not in told:
            told.add(effect)
            day = zone.local(step.at_us, step.before_us)
            yield f"{local:%H:%M} lies in the hour in which clocks in {cron.tz} are set, next on {day:%Y-%m-%d}: {effect}"
