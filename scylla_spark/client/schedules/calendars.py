"""Days of a calendar of holidays, as the planner is told of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any


def calendar_fields(name: str, days: Iterable[date] | Mapping[date, str]) -> dict[str, Any]:
    """Fields of the command that replaces the days of a calendar.

    Args:
        name: as triggers call it.
        days: on which nothing fires; of a mapping, the values say what each is, and empty ones say nothing.
    """
    notes = {day.isoformat(): note for day, note in days.items() if note} if isinstance(days, Mapping) else {}
    return {"name": name, "days": sorted({day.isoformat() for day in days}), **({"notes": notes} if notes else {})}
