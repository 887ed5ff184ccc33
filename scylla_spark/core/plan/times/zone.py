"""Time zones: where their clocks are set, as instants in UTC. All instants are integer microseconds since the epoch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from scylla_spark.errors import ArgumentError

SECOND_US: Final = 1_000_000
DAY: Final = timedelta(days=1)
DAY_US: Final = 86_400 * SECOND_US
EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001  local times are naive here
_UTC_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
LAST_YEAR: Final = 2261  # as for any instant of ours


class Step(NamedTuple):
    """A clock is set.

    Attributes:
        at_us: when.
        before_us: local time less UTC until then.
        after_us: … and from then on.
    """

    at_us: int
    before_us: int
    after_us: int


@lru_cache(maxsize=1_000)
def zone(name: str) -> ZoneInfo:
    """The zone of an IANA name.

    Raises:
        ArgumentError: there is none of that name.
    """
    try:
        return ZoneInfo(name)
    except Exception as error:  # whatever the library raises, it has no such zone
        raise ArgumentError(
            f"There is no time zone {name!r}.", hint='Use an IANA name such as "Europe/Berlin" or "UTC".'
        ) from error


def offset_us(name: str, at_us: int) -> int:
    """Local time less UTC at an instant."""
    at = _UTC_EPOCH + timedelta(microseconds=at_us)
    offset = at.astimezone(zone(name)).utcoffset()
    assert offset is not None
    return offset // timedelta(microseconds=1)


def last_step(name: str, at_us: int) -> Step | None:
    """The last time that the clock was set until then, in the year before; None: it was not."""
    year = _year(at_us)
    steps = [step for step in (*_steps(name, year - 1), *_steps(name, year)) if step.at_us <= at_us]
    return steps[-1] if steps else None


def step_between(name: str, after_us: int, until_us: int) -> Step | None:
    """The first time that the clock is set later than one instant and not later than another; None: it is not.

    Args:
        name: of the zone.
        after_us: microseconds since the epoch, excluded.
        until_us: likewise, included.
    """
    for year in range(_year(after_us), _year(until_us) + 1):
        for step in _steps(name, year):
            if step.at_us > until_us:
                return None
            if step.at_us > after_us:
                return step
    return None


def local(at_us: int, offset: int) -> datetime:
    """The naive local time at an instant."""
    return EPOCH + timedelta(microseconds=at_us + offset)


def instant(at: datetime, offset: int) -> int:
    """The instant of a naive local time."""
    return (at - EPOCH) // timedelta(microseconds=1) - offset


def instant_of(name: str, at: datetime) -> int:
    """The instant of a naive local time in a zone: of two the first; of a skipped one the end of the gap."""
    before = (at - EPOCH) // timedelta(microseconds=1) - offset_us(
        name, (at - EPOCH) // timedelta(microseconds=1) - DAY_US
    )
    step = step_between(name, before - 2 * DAY_US, before + 2 * DAY_US)
    if step is None:
        return instant(at, offset_us(name, before))
    if at < local(step.at_us, step.before_us):
        return instant(at, step.before_us)
    return max(step.at_us, instant(at, step.after_us))


def watershed(name: str, at_us: int) -> datetime:
    """The naive local time that divides others: those later than it are the ones whose instant (`instant_of`) is later than `at_us`.

    It is what the clock shows; within an hour that comes again it is the end of that hour, since each of its times has been there.
    """
    here, step = local(at_us, offset_us(name, at_us)), last_step(name, at_us)
    if step is None:
        return here
    return max(here, local(step.at_us, step.before_us) - timedelta(microseconds=1))


def _year(at_us: int) -> int:
    return (EPOCH + timedelta(microseconds=at_us)).year


def _start_of(year: int) -> int:
    return (datetime(min(year, LAST_YEAR + 1), 1, 1) - EPOCH) // timedelta(microseconds=1)  # noqa: DTZ001


@lru_cache(maxsize=10_000)
def _steps(name: str, year: int) -> tuple[Step, ...]:
    """The steps of one year; offsets are compared day by day, then hour by hour, down to the second."""
    found: list[Step] = []
    day, end = _start_of(year), _start_of(year + 1)
    before = offset_us(name, day - 1)
    for start in (day - 1, *range(day - 1 + DAY_US, end, DAY_US)):
        after = offset_us(name, min(start + DAY_US, end - 1))
        if after != before:
            found.append(Step(_first_with_other(name, start, min(start + DAY_US, end - 1), before), before, after))
            before = after
    return tuple(found)


def _first_with_other(name: str, low: int, high: int, offset: int) -> int:
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if offset_us(name, middle) == offset else (low, middle)
    return high
