"""How far the tables are with one partition: a row of `progress`, as everybody reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from scylla_spark.core.records.fact import NO_FENCE, Fence
from scylla_spark.core.tables.deferred_edge import ALL_FOLDED_US
from scylla_spark.core.tables.tenure import Basis


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
        """How far tables are at least that are read after this mark."""
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
