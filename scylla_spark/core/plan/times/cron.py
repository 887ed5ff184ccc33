"""Cron: the times that an expression names in a time zone, also where clocks are set.

The fields mean what they mean to Debian's cron (by the library cronsim). An expression with fixed hours names local times: one
that a clock skips comes at the end of the gap (`gap="next"`) or not at all ("skip"), one that comes twice counts once
(`fold="first"`) or twice ("both"). An expression that repeats within the hour or from hour to hour (`*`, `*/n`, `0/n` or a whole
range in seconds, minutes or hours) names what the clock shows: times that a clock skips do not run, times that come twice run twice.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from copy import copy
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from cronsim import CronSim

from scylla_spark.core.plan.times import zone
from scylla_spark.core.plan.times.zone import EPOCH
from scylla_spark.errors import ArgumentError

Gap = Literal["next", "skip"]
Fold = Literal["first", "both"]

MAX_CHARS: Final = 1_000
_FIELDS: Final = ("second", "minute", "hour", "day-of-month", "month", "day-of-week")
_RANGES: Final = ("0-59", "0-59", "0-23", "1-31", "1-12 or JAN-DEC", "0-7 or SUN-SAT")
_NAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class Cron(NamedTuple):
    """A cron expression in a zone.

    Attributes:
        expression: five fields, or six with seconds first.
        tz: IANA name.
        gap: what becomes of a local time that a clock skips.
        fold: what becomes of one that comes twice.
    """

    expression: str
    tz: str = "UTC"
    gap: Gap = "next"
    fold: Fold = "first"

    def next_after(self, after_us: int) -> int | None:
        """The first time later than an instant, microseconds since the epoch; None: there is none for fifty years."""
        offset = zone.offset_us(self.tz, after_us)
        begin = zone.local(after_us, offset) + timedelta(microseconds=1)
        once = self.fold == "first" and is_fixed(self.expression)
        last = zone.last_step(self.tz, after_us)
        if once and last is not None:
            begin = max(begin, zone.local(last.at_us, last.before_us))  # what came before must not come again
        while (found := _match(self.expression, begin)) is not None:
            at_us = zone.instant(found, offset)
            step = zone.step_between(self.tz, after_us, at_us)
            if step is None:
                return at_us
            earlier, begin = zone.local(step.at_us, step.before_us), zone.local(step.at_us, step.after_us)
            if found < begin and self.gap == "next" and is_fixed(self.expression):
                return step.at_us
            begin = max(begin, earlier) if once else begin
            after_us, offset = step.at_us, step.after_us
        return None


@lru_cache(maxsize=4_096)
def cron(expression: str, tz: str = "UTC", gap: Gap = "next", fold: Fold = "first") -> Cron:
    """A checked expression.

    Args:
        expression: five or six fields, or a name such as @daily.
        tz: IANA name of a time zone.
        gap: "next" or "skip".
        fold: "first" or "both".

    Raises:
        ArgumentError: it is none; the message names the field, the hint what was probably meant.
    """
    zone.zone(tz)
    if gap not in ("next", "skip") or fold not in ("first", "both"):
        raise ArgumentError(
            f"There is no gap={gap!r} with fold={fold!r}.", hint='gap: "next" or "skip"; fold: "first" or "both".'
        )
    text = " ".join(expression.split())
    if len(text) > MAX_CHARS:
        raise ArgumentError(f"The cron expression has {len(text)} characters; at most {MAX_CHARS} are read.")
    text = _NAMES.get(text.lower(), text)
    if text.startswith("@"):
        near = difflib.get_close_matches(text.lower(), _NAMES, 1)
        meant = f"Did you mean {near[0]}?" if near else "A schedule has no start of a machine to go by; name times."
        raise ArgumentError(f"There is no cron expression {text!r}.", hint=meant)
    _check(text)
    return Cron(text.upper(), tz, gap, fold)


@lru_cache(maxsize=4_096)
def is_fixed(expression: str) -> bool:
    """Returns True if it names local times of the day, rather than going on at short intervals."""
    times = _parsed(expression)
    clocks = zip(times.parts, (times.seconds, times.minutes, times.hours), (60, 60, 24), strict=False)
    return not any(_repeats(field, values, size) for field, values, size in clocks)


def goes_on_each_hour(expression: str) -> bool:
    """Whether it names times in every hour of the day, so that a clock that is set by an hour neither adds a run nor takes one away."""
    return len(_parsed(expression).hours) == 24


def _repeats(field: str, values: Collection[int], size: int) -> bool:
    """Returns True if a field goes on at a distance: as Debian's cron decides by its first character, whatever the spelling."""
    going_on = field.startswith(("*", "0/", f"0-{size - 1}/"))
    return len(values) == size or (going_on and len(values) > 1)


def _check(text: str) -> None:
    fields = text.split()
    if len(fields) not in (5, 6):
        raise ArgumentError(
            f"The cron expression {text!r} has {len(fields)} fields.",
            hint="Five: minute hour day-of-month month day-of-week; or six, with the second first.",
        )
    if not _wrong(text) and _match(text, datetime(2000, 1, 1)) is not None:  # noqa: DTZ001
        return
    names = _FIELDS[6 - len(fields) :]
    for number, name in enumerate(names):
        alone = ["*"] * len(fields)
        alone[number] = fields[number]
        if _wrong(" ".join(alone)):
            raise ArgumentError(
                f"The field {name} of the cron expression {text!r} is {fields[number]!r}.",
                hint=_meant(fields[number], _RANGES[_FIELDS.index(name)]),
            )
    raise ArgumentError(
        f"The cron expression {text!r} names no day that exists.", hint="Look at its day-of-month and month."
    )


def _wrong(text: str) -> bool:
    try:
        CronSim(text, EPOCH)
    except Exception:  # whatever the library raises, the text is no expression
        return True
    return False


def _meant(field: str, allowed: str) -> str:
    if "?" in field:
        return "Write * where Quartz has ?."
    first, dash, last = field.partition("-")
    if dash and first.isdigit() and last.isdigit() and int(first) > int(last):
        return f"A range goes upwards; across the end write two: {first}-…,…-{last}."
    return f"Allowed: {allowed}; with * , - / between, as in */5 or 1,15 or 2-6."


@lru_cache(maxsize=4_096)
def _parsed(expression: str) -> CronSim:
    return CronSim(expression, EPOCH)


def _match(expression: str, begin: datetime) -> datetime | None:
    """The first naive local time from `begin` on; None: there is none for fifty years."""
    ceiling = begin.replace(microsecond=0) + timedelta(seconds=1 if begin.microsecond else 0)
    times = copy(_parsed(expression))
    times.dt, times.fixup_tz = ceiling - timedelta(seconds=1), None
    try:
        return next(times)
    except (StopIteration, OverflowError, ValueError):
        return None
