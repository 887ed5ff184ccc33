"""The progress of the tables: a row of `progress`, hours with open tasks, where far tasks begin, and the tenure of an answer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from scylla_spark.core.records.fact import NO_FENCE, Fence

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
        """Returns True if an hour may hold open tasks."""
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


class Tenure(NamedTuple):
    """One time that this process holds a partition. Every question, answer and feed names the one that it belongs to.

    Attributes:
        partition: its number.
        serial: grows with every take of any partition by this process.
    """

    partition: int
    serial: int


class Basis(NamedTuple):
    """How far the tables were, at least, when an answer was read from them: next offsets of both topics of a partition."""

    tasks_offset: int = 0
    outcomes_offset: int = 0

    def covers(self, other: Basis) -> bool:
        """Returns True if tables that were so far hold all that tables hold which are as far as `other`."""
        return self.tasks_offset >= other.tasks_offset and self.outcomes_offset >= other.outcomes_offset

    def or_later(self, other: Basis) -> Basis:
        """The later of both, topic by topic."""
        return Basis(max(self.tasks_offset, other.tasks_offset), max(self.outcomes_offset, other.outcomes_offset))


ALL_FOLDED_US: Final = 1 << 62  # later than any task: nothing is far


def is_far(time_us: int, edge_us: int) -> bool:
    """Returns True if a task that is due then (microseconds since the epoch) may stand in `deferred`."""
    return time_us >= edge_us


def reaches_far(until_us: int | None, edge_us: int) -> bool:
    """Returns True if a task due up to an instant, itself included, may be far; None: due at any time."""
    return edge_us < ALL_FOLDED_US and (until_us is None or is_far(until_us, edge_us))


def common_edge(edges_us: Iterable[int]) -> int:
    """The edge of several partitions together: that of the one that is least far."""
    return min(edges_us, default=ALL_FOLDED_US)


class Mark(NamedTuple):
    """How far the tables are, for one partition: next offsets of both topics, and the fence that holds at the second.

    Attributes:
        resigned: the holder of that fence stopped cleanly.
        folded_until_us: tasks due before this stand in `tasks` alone, later ones also in `deferred`; microseconds since the epoch.
        closed_hour: in all hours below, every task has its completion …
        open_hours: … except in these, in order.
        appended_us: append time of the last record of `tasks` below tasks_offset; 0: none yet.
    """

    tasks_offset: int = 0
    outcomes_offset: int = 0
    fence: Fence = NO_FENCE
    resigned: bool = True
    folded_until_us: int = ALL_FOLDED_US
    closed_hour: int = 0
    open_hours: tuple[int, ...] = ()
    appended_us: int = 0

    @property
    def basis(self) -> Basis:
        """Returns how far tables are at least that are read after this mark."""
        return Basis(self.tasks_offset, self.outcomes_offset)


def stored_mark(row: Mapping[str, Any]) -> Mark:
    """The mark in a row of `progress`, instants as microseconds; only what concerns the row's own topic is set in it."""
    fence = Fence(row["epoch"] or 0, row["nonce"] or "")
    if row["topic"] != "tasks":
        return Mark(0, row["next_offset"], fence, row["resigned"] is not False)
    folded = row["folded_until"]
    return Mark(
        row["next_offset"],
        folded_until_us=ALL_FOLDED_US if folded is None else folded,
        closed_hour=row["closed_hour"] or 0,
        open_hours=tuple(sorted(row["open_hours"] or ())),
        appended_us=row["appended_at"] or 0,
    )


def joined(marks: Mapping[tuple[str, int], Mark]) -> dict[int, Mark]:
    """The marks of both topics of each partition in one: partition → mark."""
    found: dict[int, Mark] = {}
    for (topic, number), mark in marks.items():
        known = found.get(number, Mark())
        about_outcomes, about_tasks = (known, mark) if topic == "tasks" else (mark, known)
        found[number] = about_tasks._replace(
            outcomes_offset=about_outcomes.outcomes_offset,
            fence=about_outcomes.fence,
            resigned=about_outcomes.resigned,
        )
    return found
