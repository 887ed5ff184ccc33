"""What addresses and forms say, read strictly: whoever writes something unreadable is told what and how."""

from __future__ import annotations

from typing import Any

from scylla_spark.services.dashboard.own_api import ApiProblem
from scylla_spark.services.dashboard.words import instant_of


def instant_given(name: str, text: str) -> int:
    """Microseconds since the epoch of an instant; one without a zone, as browsers write them, is UTC.

    Raises:
        ApiProblem: it is none.
    """
    us = instant_of(text if text.endswith("Z") or "+" in text else f"{text}Z")
    if us is None:
        raise unreadable(name, text, "Write it like 2026-01-31T09:00:00Z.")
    return us


def number_given(text: str) -> Any:
    """A number as the API takes it: None where the field was left empty; what is no number the API refuses in its own words."""
    plain = text.strip()
    for kind in (int, float):
        try:
            return kind(plain)
        except ValueError:
            continue
    return plain or None


def unreadable(name: str, text: str, hint: str) -> ApiProblem:
    """What to say of a part of an address or form.

    Args:
        name: of the part.
        text: as it was given.
        hint: how it is written.
    """
    return ApiProblem(400, {"title": "This cannot be read", "detail": f"{name} is {text[:100]!r}.", "hint": hint})
