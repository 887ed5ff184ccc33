"""Local times with a zone, as `at` takes them: a datetime of a ZoneInfo, or a text such as "monday noon Europe/Berlin".

The policy is the default of schedules: a local time that a clock skips means the end of the gap, one that comes twice the first.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from scylla_spark.clock import from_us, read_instant, to_us
from scylla_spark.core.tasks.key import instant_us
from scylla_spark.errors import ArgumentError, shown

_DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_TIMES: Final = {"noon": "12:00", "midnight": "00:00"}
_FORM: Final = re.compile(
    r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2}|[a-z]+)[ t](?P<time>noon|midnight|[0-9]{2}:[0-9]{2}(?::[0-9]{2})?) (?P<zone>\S{1,100})",
    re.IGNORECASE,
)
_HINT: Final = (
    "Write an instant such as 2026-01-31T09:00:00Z, or DAY TIME ZONE, such as 2026-01-31 09:00 Europe/Berlin or "
    "monday noon Europe/Berlin. A day is a date, today, tomorrow or a weekday."
)


def due_us(at: datetime | str, now: int) -> int:
    """Returns the instant that `at` means, in microseconds since the epoch.

    Args:
        at: an aware datetime, or a text: an instant of RFC 3339, or DAY TIME ZONE. A weekday means its next one: today, if the time
            is still to come.
        now: microseconds since the epoch.

    Raises:
        ArgumentError: it is none, its zone is missing or unknown, or it lies before 1970 or after 2261.
    """
    if isinstance(at, str):
        return _of_text(at, now)
    if isinstance(at, datetime) and isinstance(at.tzinfo, ZoneInfo):
        return _settled_us(at)
    return instant_us(at)


def _of_text(text: str, now: int) -> int:
    found = _FORM.fullmatch(text.strip())
    if found is None:
        try:
            return instant_us(read_instant(text))
        except ArgumentError:
            raise
        except (ValueError, OverflowError) as error:
            raise ArgumentError(f"{shown(text)} is not a time: {error}.", hint=_HINT, reason="wrong_value") from None
    try:
        zone = ZoneInfo(found["zone"])
    except Exception as error:  # the library raises many kinds; each means that there is no such zone
        raise ArgumentError(
            f"There is no time zone {found['zone']!r}.",
            hint='Use an IANA name such as "Europe/Berlin" or "UTC".',
            reason="no_time_zone",
        ) from error
    try:
        clock = time.fromisoformat(_TIMES.get(found["time"].lower(), found["time"]))
        return _on_day(found["day"].lower(), clock, zone, now)
    except (ValueError, OverflowError) as error:
        raise ArgumentError(f"{shown(text)} is not a time: {error}.", hint=_HINT, reason="wrong_value") from None


def _on_day(day: str, clock: time, zone: ZoneInfo, now: int) -> int:
    """Raises ValueError if there is no such day."""
    today = from_us(now).astimezone(zone).date()
    if day in ("today", "tomorrow"):
        days = [today + timedelta(days=int(day == "tomorrow"))]
    elif day[0].isdigit():
        days = [date.fromisoformat(day)]
    else:
        wanted = [number for number, name in enumerate(_DAYS) if day in (name, name[:3])]
        if not wanted:
            raise ValueError(f"{day!r} is not a day")
        days = [first := today + timedelta(days=(wanted[0] - today.weekday()) % 7), first + timedelta(days=7)]
    times = [_settled_us(datetime.combine(one, clock, zone)) for one in days]
    return next((us for us in times if us > now), times[-1])


def _settled_us(at: datetime) -> int:
    """The instant of a local time; of one that its clock skips the end of the gap."""
    us = instant_us(at)
    if from_us(us).astimezone(at.tzinfo).replace(tzinfo=None, fold=0) == at.replace(tzinfo=None, fold=0):
        return us
    low, high = (to_us(at.replace(fold=fold)) for fold in (1, 0))  # the clock is set between these two
    before = from_us(low).astimezone(at.tzinfo).utcoffset()
    while high - low > 1:
        middle = (low + high) // 2
        if from_us(middle).astimezone(at.tzinfo).utcoffset() == before:
            low = middle
        else:
            high = middle
    return instant_us(from_us(high).astimezone(UTC))
