"""Holidays in a row, and where a time goes that falls on one of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from functools import lru_cache
from typing import Final, Literal, NamedTuple

OnHoliday = Literal["skip", "next", "previous"]

MOST_DAYS_MOVED: Final = 32  # a time of a day that is further from an open one is left out
_DAY: Final = timedelta(days=1)


class Days(frozenset[date]):
    """The days of a calendar, and what is told of them.

    Args:
        days: on which nothing fires.
        notes: day → what it is, such as the name of a holiday; days that are missing have none.
    """

    __slots__ = ("notes",)
    notes: Mapping[date, str]

    def __new__(cls, days: Iterable[date] = (), notes: Mapping[date, str] | None = None) -> Days:
        """The notes of other days are left out."""
        made = super().__new__(cls, days)
        made.notes = {day: note for day, note in (notes or {}).items() if note and day in made}
        return made

    def __reduce__(self) -> tuple[type[Days], tuple[list[date], Mapping[date, str]]]:
        """Copies keep the notes."""
        return Days, (sorted(self), self.notes)

    def __eq__(self, other: object) -> bool:
        """Days without notes are those of another kind of set, too."""
        return frozenset.__eq__(self, other) and (not isinstance(other, Days) or self.notes == other.notes)

    __hash__ = frozenset.__hash__

    @classmethod
    def read(cls, days: Iterable[str], notes: Mapping[str, str]) -> Days:
        """Days as they stand in records.

        Args:
            days: such as 2027-12-24.
            notes: by such days.

        Raises:
            ValueError: one of them does not exist.
        """
        return cls(map(date.fromisoformat, days), {date.fromisoformat(day): note for day, note in notes.items()})


class Break(NamedTuple):
    """Holidays in a row.

    Attributes:
        first: day.
        last: day.
    """

    first: date
    last: date

    def way(self, on_holiday: OnHoliday) -> tuple[date, Sequence[date]]:
        """The open day that times go to, "next" or "previous", and the days whose times do, the first first."""
        length = min((self.last - self.first).days + 1, MOST_DAYS_MOVED)
        if on_holiday == "next":
            return self.last + _DAY, [self.last - n * _DAY for n in reversed(range(length))]
        return self.first - _DAY, [self.first + n * _DAY for n in range(length)]


class Breaks(NamedTuple):
    """All breaks of a calendar, in order, by their first days."""

    firsts: tuple[date, ...]
    breaks: tuple[Break, ...]

    def around(self, day: date) -> Break | None:
        """The break that a day lies in; None: it is an open day."""
        at = bisect_right(self.firsts, day) - 1
        return self.breaks[at] if at >= 0 and day <= self.breaks[at].last else None


@lru_cache(maxsize=256)
def breaks_of(holidays: Days) -> Breaks:
    """The breaks that holidays make."""
    found: list[Break] = []
    for day in sorted(holidays):
        if found and found[-1].last + _DAY == day:
            found[-1] = found[-1]._replace(last=day)
        else:
            found.append(Break(day, day))
    return Breaks(tuple(one.first for one in found), tuple(found))
