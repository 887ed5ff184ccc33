"""What runs of a backfill over versions of a table are told, as long as their schedule watches that table."""

from __future__ import annotations

from scylla_spark.core.plan.state.backfill_entry import Source, Versions
from scylla_spark.core.plan.state.schedule_entry import Entry, Latch
from scylla_spark.core.plan.tables.growth import Growth
from scylla_spark.core.plan.triggers.trigger import OnTable, leaves


def leaf_of(entry: Entry, source: Source) -> int | None:
    """The number of the leaf by which a schedule watches the table that a backfill of it is about; None: it no longer does.

    A schedule may be replaced by one that watches another table, or the same by another column, and a table by another at its place. What
    the planner knew of the table when the backfill began does not count: whoever asked has read its log later.

    Args:
        entry: of the schedule.
        source: the table.
    """
    ids = {"", source.table_id, source.known_id}
    for number, leaf in enumerate(leaves(entry.schedule.trigger)):
        if isinstance(leaf, OnTable) and (leaf.table, leaf.per) == (source.table, source.per):
            handed = entry.tables.get(number)
            if handed is None or handed.table_id in ids:
                return number
    return None


def seen_by(entry: Entry, leaf: int, source: Source, versions: Versions) -> Latch:
    """Returns what a run of past versions has seen, as if its trigger had fired on them.

    Args:
        entry: of its schedule.
        leaf: number of the leaf that watches the table.
        source: the table.
        versions: of it.
    """
    first, last, rows, commits, size, part = versions
    growth = Growth(source.table_id, first, last, commits, rows, size, part, alone=False)
    return growth.latch(leaves(entry.schedule.trigger)[leaf])


def unwatched_words(source: Source, versions: Versions) -> str:
    """That a schedule watches something else than when its backfill began, for people.

    Args:
        source: the table of the backfill.
        versions: of it, that are not launched.
    """
    per = f" by {source.per!r}" if source.per else ""
    return (
        f"the backfill runs versions {versions.from_version} to {versions.to_version} of the table {source.table!r} (id "
        f"{source.table_id!r}){per}, and the schedule no longer watches that"
    )
