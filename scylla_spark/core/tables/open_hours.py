"""Which hours may hold open tasks: one rule, for single hours, for files of the tables and for frames."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple, Protocol

Condition = tuple[str, str, int | list[int]]
"""A column, a comparison (">=" or "in") and what it is compared with."""


class _Mark(Protocol):
    @property
    def closed_hour(self) -> int: ...

    @property
    def open_hours(self) -> tuple[int, ...]: ...


class OpenHours(NamedTuple):
    """Hours (since the epoch) that may hold open tasks: all from one on, and some before it.

    Attributes:
        closed_hour: in all hours below, nothing is open …
        kept_open: … except in these, in order.
    """

    closed_hour: int
    kept_open: tuple[int, ...] = ()

    @classmethod
    def of(cls, *marks: _Mark) -> OpenHours:
        """Those of one partition by its mark, or of several partitions together; at least one."""
        if len(marks) == 1:  # of which nothing needs to be put in order: it is asked for each file of the tables
            return cls(marks[0].closed_hour, marks[0].open_hours)
        kept_open = {hour for mark in marks for hour in mark.open_hours}
        return cls(min(mark.closed_hour for mark in marks), tuple(sorted(kept_open)))

    def holds(self, hour: int) -> bool:
        """Whether an hour may hold open tasks."""
        if hour >= self.closed_hour:
            return True
        place = bisect_left(self.kept_open, hour)
        return self.kept_open[place : place + 1] == (hour,)

    def touched(self, hours: Iterable[int]) -> OpenHours:
        """The same after tasks have come in some hours: what was closed of them is open again."""
        again = {hour for hour in hours if hour < self.closed_hour}
        return self._replace(kept_open=tuple(sorted(again | set(self.kept_open))))

    def conditions(self) -> Iterable[Condition]:
        """The same as alternative conditions on the column `hour`, for files and frames."""
        yield "hour", ">=", self.closed_hour
        if self.kept_open:
            yield "hour", "in", list(self.kept_open)
