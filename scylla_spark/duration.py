"""Durations as people write them: "250ms", "30s", "2m", "1h30m", "7d"."""

from __future__ import annotations

import re
from datetime import timedelta

from scylla_spark.errors import ArgumentError, shown

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")
_MOST_CHARS = 100
_WHOLE = re.compile(rf"(?:{_PART.pattern}\s*)+")


def duration_ms(value: object) -> int:
    """Milliseconds of a duration.

    Args:
        value: a timedelta, a text of at most 100 characters such as "30s" or "1h30m", or a number of seconds. Not negative.

    Raises:
        ArgumentError: another type or form, a negative or a non-finite value, or more than a century.
    """
    ms = _milliseconds(value)
    if not 0 <= ms <= 36_525 * 86_400_000:
        raise ArgumentError(f"Duration {shown(value)} is out of range.", hint="Durations lie between 0 and 100 years.")
    return round(ms)


def duration_us(value: object) -> int:
    """The same in microseconds, the unit of all instants."""
    return duration_ms(value) * 1000


def duration(value: object) -> timedelta:
    """The same as a timedelta."""
    return timedelta(milliseconds=duration_ms(value))


def duration_text(value: timedelta) -> str:
    """The shortest text that `duration` reads back as `value`, such as "1h30m"."""
    rest, text = duration_ms(value), ""
    for unit in ("d", "h", "m", "s", "ms"):
        whole, rest = divmod(rest, _UNITS_MS[unit])
        text += f"{whole}{unit}" if whole else ""
    return text or "0s"


def duration_shown(value: object) -> str:
    """The same as a text with units, such as "1m" for 60, for messages; "" for None."""
    return "" if value is None else duration_text(duration(value))


def _milliseconds(value: object) -> float:
    if isinstance(value, timedelta):
        return value / timedelta(milliseconds=1)
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value != value or value in (float("inf"), float("-inf")):
            return -1
        return value * 1000
    if isinstance(value, str) and len(value) <= _MOST_CHARS and _WHOLE.fullmatch(value.strip()):
        return sum(float(number) * _UNITS_MS[unit] for number, unit in _PART.findall(value))
    raise ArgumentError(
        f"{shown(value)} is not a duration.", hint='Write a timedelta, seconds, or text such as "30s" or "1h30m".'
    )
