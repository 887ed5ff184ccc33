"""The only reader of wall time. Everything else is given `now` as integer microseconds since the Unix epoch (UTC)."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ONE_MOMENT_US = 20
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_us() -> int:
    """Wall time in microseconds since the Unix epoch."""
    return time.time_ns() // 1000


def boot_us() -> int:
    """Microseconds of a clock that never steps and counts suspended time; only differences mean something."""
    return time.clock_gettime_ns(_BOOT_CLOCK) // 1000


def both_us() -> tuple[int, int]:
    """Wall and boot time of one moment: a thread that is held up between the two readings reads again (three times at most)."""
    for _ in range(3):
        before = boot_us()
        wall = now_us()
        boot = boot_us()
        if boot - before <= _ONE_MOMENT_US:
            break
    return wall, boot


def to_us(moment: datetime) -> int:
    """Microseconds since the epoch of an aware datetime.

    Raises:
        ValueError: `moment` has no time zone.
    """
    if moment.tzinfo is None:
        raise ValueError(f"{moment.isoformat()} has no time zone; pass an aware datetime such as datetime.now(UTC)")
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds  # twice as fast as a division


def from_us(us: int) -> datetime:
    """The aware UTC datetime of microseconds since the epoch."""
    return _EPOCH + timedelta(microseconds=us)


def iso(us: int) -> str:
    """RFC 3339 text in UTC, with as many fraction digits as needed (0, 3 or 6)."""
    moment = from_us(us)
    fraction = us % 1_000_000
    spec = "seconds" if fraction == 0 else "milliseconds" if fraction % 1000 == 0 else "microseconds"
    return moment.isoformat(timespec=spec).replace("+00:00", "Z")
