"""The parts of a recurrence rule, held to the grammar of RFC 5545, section 3.3.10.

The library dateutil passes over some parts, counts others wrongly, and fails on others at some later time. So a rule is checked here
before it comes to the library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from scylla_spark.errors import ArgumentError, shown

_MOST_CHARS: Final = 500
_OF_HOURS: Final = {"FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYDAY", "BYHOUR", "BYMINUTE", "BYSECOND"}
_OF_DAYS: Final = _OF_HOURS | {"BYMONTH", "BYSETPOS"}
# Rules that step by less than a day and look at months may pass over millions of steps between two times.
_PARTS: Final = {
    "YEARLY": _OF_DAYS | {"BYMONTHDAY", "BYYEARDAY", "BYWEEKNO"},
    "MONTHLY": _OF_DAYS | {"BYMONTHDAY"},
    "WEEKLY": _OF_DAYS,
    "DAILY": _OF_DAYS | {"BYMONTHDAY"},
    "HOURLY": _OF_HOURS,
    "MINUTELY": _OF_HOURS,
}
_DAY: Final = re.compile(r"([+-]?\d{1,2})?(?:MO|TU|WE|TH|FR|SA|SU)", re.ASCII)
_UNTIL: Final = re.compile(r"\d{8}T\d{6}Z?", re.ASCII)


class _Bounds(NamedTuple):
    """What numbers a part may hold.

    Attributes:
        least: the smallest.
        most: the largest.
        signed: a minus sign counts from the end.
        several: separated by commas.
    """

    least: int
    most: int
    signed: bool = False
    several: bool = True


_NUMBERS: Final = {
    "COUNT": _Bounds(1, 9_999, several=False),
    "INTERVAL": _Bounds(1, 999_999_999, several=False),
    "BYSECOND": _Bounds(0, 59),
    "BYMINUTE": _Bounds(0, 59),
    "BYHOUR": _Bounds(0, 23),
    "BYMONTH": _Bounds(1, 12),
    "BYMONTHDAY": _Bounds(1, 31, signed=True),
    "BYYEARDAY": _Bounds(1, 366, signed=True),
    "BYWEEKNO": _Bounds(1, 53, signed=True),
    "BYSETPOS": _Bounds(1, 366, signed=True),
}


def parts_of(rule: str) -> dict[str, str]:
    """Name and value of each part of a rule."""
    return {name: value for name, _, value in (part.partition("=") for part in rule.split(";") if part)}


def local_of(until: str) -> datetime:
    """The naive time of a part UNTIL, with or without the Z of an instant in UTC.

    Raises:
        ValueError: there is no such time.
    """
    return datetime.strptime(until.removesuffix("Z"), "%Y%m%dT%H%M%S")  # noqa: DTZ007  local times are naive here


def check_rule(text: str) -> None:
    """Refuses a rule that RFC 5545 forbids, or that the library is known to get wrong.

    Args:
        text: in capital letters, without "RRULE:".

    Raises:
        ArgumentError: the message names the part, the hint what is allowed.
    """
    parts = parts_of(text)
    if len(text) > _MOST_CHARS or text.split() != [text] or parts.get("FREQ") not in _PARTS:
        raise ArgumentError(
            f"{text[:100]!r} is no rule.", hint=f"Begin with FREQ= and one of {', '.join(_PARTS)}; one rule, one line."
        )
    if len(parts) != len(text.rstrip(";").split(";")):
        raise ArgumentError(f"The rule {text[:100]!r} has a part twice, or an empty one.", hint="Write each part once.")
    allowed = _PARTS[parts["FREQ"]]
    if unknown := sorted(parts.keys() - allowed):
        raise ArgumentError(
            f"A rule with FREQ={parts['FREQ']} cannot have {shown(', '.join(unknown))}.",
            hint=f"It can have {', '.join(sorted(allowed))}.",
        )
    for name, value in parts.items():
        if (hint := _wrong(name, value)) is not None:
            raise ArgumentError(f"The part {name} of the rule is {shown(value)}.", hint=hint)
    if (wrong := next(_contradictions(parts), None)) is not None:
        raise ArgumentError(f"The rule {text[:100]!r} cannot be kept: {wrong[0]}.", hint=wrong[1])


def _wrong(name: str, value: str) -> str | None:
    """Returns what is allowed in a part whose value is wrong; None: the value is right."""
    if name in _NUMBERS:
        return _wrong_numbers(value, _NUMBERS[name])
    if name == "WKST":
        return None if _DAY.fullmatch(value) and len(value) == 2 else "It is one of MO, TU, WE, TH, FR, SA, SU."
    if name == "BYDAY":
        right = all(_DAY.fullmatch(day) for day in value.split(","))
        return None if right else "It holds days such as MO,TH; in months and years also 1MO or -1FR."
    return _wrong_until(value) if name == "UNTIL" else None


def _wrong_numbers(value: str, bounds: _Bounds) -> str | None:
    sign = "[+-]?" if bounds.signed else ""
    texts = value.split(",") if bounds.several else [value]
    if all(
        re.fullmatch(rf"{sign}[0-9]{{1,9}}", text) and bounds.least <= abs(int(text)) <= bounds.most for text in texts
    ):
        return None
    what = "It holds numbers" if bounds.several else "It is a number"
    ends = f", or from -{bounds.most} to -{bounds.least}" if bounds.signed else ""
    return f"{what} from {bounds.least} to {bounds.most}{ends}."


def _wrong_until(value: str) -> str | None:
    hint = "Write an instant in UTC such as 20261231T230000Z, or a local time such as 20261231T235959."
    try:
        return None if _UNTIL.fullmatch(value) and local_of(value) else hint
    except ValueError:
        return hint


def _contradictions(parts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields what parts of a rule forbid each other, and what to write instead."""
    frequency = parts["FREQ"]
    if "UNTIL" in parts and "COUNT" in parts:
        yield "UNTIL and COUNT are both given", "Give one of the two."
    if "BYSETPOS" in parts and not any(name.startswith("BY") and name != "BYSETPOS" for name in parts):
        yield "BYSETPOS has nothing to choose from", "Give another BY… part, such as BYDAY."
    if "BYWEEKNO" in parts and "BYDAY" not in parts:
        yield "BYWEEKNO names no day of the week", "Give BYDAY."
    if "BYWEEKNO" in parts and (parts.get("INTERVAL", "1") != "1" or "BYSETPOS" in parts):
        yield "weeks at the turn of the year belong to two years", "Leave out INTERVAL and BYSETPOS beside BYWEEKNO."
    if any(int(number) in (-52, -53) for number in parts.get("BYWEEKNO", "1").split(",")):
        yield "the first week is not counted from the end of a year", "Write 1 instead of -52 or -53 in BYWEEKNO."
    days = parts["BYDAY"].split(",") if "BYDAY" in parts else []
    ordinals = [abs(int(day[:-2])) for day in days if len(day) > 2]
    if not ordinals:
        return
    if frequency not in ("MONTHLY", "YEARLY") or "BYWEEKNO" in parts:
        yield "a day such as 1MO is counted in a month or a year", "Write FREQ=MONTHLY or YEARLY, without BYWEEKNO."
    if len(ordinals) < len(days):
        yield "BYDAY mixes days with and without a number", "Write 1FR,2FR,3FR,4FR,5FR instead of FR beside 1MO."
    most = 53 if frequency == "YEARLY" and "BYMONTH" not in parts else 5
    if not 1 <= min(ordinals) <= max(ordinals) <= most:
        yield f"BYDAY counts from 1 to {most} in a {'year' if most > 5 else 'month'}", "The last Friday is -1FR."
