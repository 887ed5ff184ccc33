"""What has come to a watched table, as a trigger sees it and as templates know it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from scylla_spark.core.plan.payload_template import NULL
from scylla_spark.core.plan.state.schedule_entry import Latch
from scylla_spark.core.plan.tables.past_ranges import NULL_PART
from scylla_spark.core.plan.triggers.trigger import OnTable, Trigger

TABLE: Final = "table"
"""Name under which latches and templates know of versions."""


class Growth(NamedTuple):
    """What has come to a table, and is enough for the trigger.

    Attributes:
        table_id: which table, at its last version: one that is replaced in place has another id from there on.
        from_version: the last version before it …
        to_version: … and its own last one.
        commits: that count.
        rows: that they wrote.
        size: bytes of their files.
        part: partition; empty: the whole table.
        alone: nothing has come to any other partition.
        from_id: which table it was where the trigger stands; empty: the same.
        slowest: nothing has come earlier, to any partition, that no run has.
    """

    table_id: str
    from_version: int
    to_version: int
    commits: int = 1
    rows: int = 0
    size: int = 0
    part: str = ""
    alone: bool = True
    from_id: str = ""
    slowest: bool = False

    def latch(self, leaf: Trigger) -> Latch:
        """Returns what a leaf has seen when this has come."""
        return Latch(True, self.commits, self.rows, self.size, {TABLE: self.values(leaf)})

    def values(self, leaf: Trigger) -> dict[str, Any]:
        """Returns what is known of it: what is needed to hand it over, and, through `as_told`, what templates may know.

        Args:
            leaf: that has seen it.
        """
        return {
            "name": leaf.table if isinstance(leaf, OnTable) else "",
            "table_id": self.table_id,
            "from_version": self.from_version,
            "to_version": self.to_version,
            "rows": self.rows,
            "commits": self.commits,
            "bytes": self.size,
            "partition": self.part or None,
            "alone": self.alone,
        }


def as_told(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what templates may know of versions: the partition of nulls, which has a name among us alone, is null.

    Args:
        values: as `Growth.values` gave them; versions are known by such a name in the planner's log, in jobs and in `fires`.
    """
    return {**values, "partition": NULL} if values.get("partition") == NULL_PART else values
