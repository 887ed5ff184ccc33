"""The only reader of wall time. Everything else is given `now` as integer microseconds since the Unix epoch (UTC)."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ONE_MOMENT_US = 20
_CLOCK: Final = "([01][0-9]|2[0-3]):[0-5][0-9]"
RFC_3339: Final = rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[Tt]{_CLOCK}(:[0-5][0-9](\.[0-9]+)?)?([Zz]|[+-]{_CLOCK})?"
"""The grammar of RFC 3339, section 5.6, in which seconds may be left out; a zone is asked for apart, in words of its own."""
_FORM: Final = re.compile(RFC_3339)
EXAMPLE: Final = "2026-01-31T09:00:00Z"
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


def iso_of(moment: datetime | None) -> str | None:
    """RFC 3339 text of an instant; None for none."""
    return None if moment is None else iso(to_us(moment))


def read_instant(text: str, tz: tzinfo | None = None) -> datetime:
    """The aware datetime of a text of RFC 3339, section 5.6. Seconds may be left out; digits after the sixth of a second are cut.

    Args:
        text: such as 2026-01-31T09:00:00Z; `t` and `z` may be small.
        tz: zone of a text that names none; None: such a text is refused.

    Raises:
        ValueError: it has another form, names no day or has no zone.
    """
    if _FORM.fullmatch(text) is None:
        raise ValueError(f"it is not an instant such as {EXAMPLE}")
    moment = datetime.fromisoformat(text.upper())
    if moment.tzinfo is None and tz is None:
        raise ValueError(f"it has no time zone, such as the Z of {EXAMPLE}")
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=tz)
