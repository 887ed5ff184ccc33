"""Strict reading of values in addresses and forms, with errors that name the value."""

from __future__ import annotations

import math
from datetime import UTC
from typing import Any, Final

from scylla_spark.clock import iso, read_instant, to_us
from scylla_spark.dashboard.own_api import ApiProblem

_MOST_DIGITS: Final = 16


def instant_given(name: str, text: str) -> int:
    """Microseconds since the epoch of an instant; one without a zone, as browsers write them, is UTC. A date is its midnight.

    Raises:
        ApiProblem: it is none.
    """
    try:
        us = to_us(read_instant(f"{text}T00:00" if len(text) == len("2026-01-31") else text, UTC))
        iso(us)
    except (ValueError, OverflowError):  # no text of an instant, or of one that no clock here can show
        raise unreadable(name, text, "Write it like 2026-01-31T09:00:00Z.") from None
    return us


def instant_text(name: str, text: str) -> str:
    """The same as RFC 3339 text in UTC, as the API takes it.

    Raises:
        ApiProblem: it is none.
    """
    return iso(instant_given(name, text))


def number_given(text: str) -> Any:
    """A number as the API takes it: None where the field was left empty; what is no number the API refuses in its own words."""
    plain = text.strip()
    for kind in (int, float):
        try:
            value = kind(plain)
        except ValueError:
            continue
        return value if isinstance(value, int) or math.isfinite(value) else plain
    return plain or None


def whole_given(name: str, text: str, hint: str) -> int:
    """A whole number, not negative.

    Args:
        name: of the part.
        text: as it was given.
        hint: how it is written.

    Raises:
        ApiProblem: it is none, or has more digits than any that is meant.
    """
    if not (text.isascii() and text.isdecimal() and len(text) < _MOST_DIGITS):
        raise unreadable(name, text, hint)
    return int(text)


def unreadable(name: str, text: str, hint: str) -> ApiProblem:
    """Returns the problem for a value of an address or form.

    Args:
        name: of the part.
        text: as it was given.
        hint: how it is written.
    """
    return ApiProblem(400, {"title": "This cannot be read", "detail": f"{name} is {text[:100]!r}.", "hint": hint})
