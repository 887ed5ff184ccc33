"""Which versions of a watched table a backfill would run, read from the table's log as the planner reads it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from scylla_spark.client.connection import Connection
from scylla_spark.client.schedules.history import history
from scylla_spark.client.schedules.times_already_run import checked_choice, launches_that_count
from scylla_spark.config.settings import Settings
from scylla_spark.core.plan.state.schedule_entry import MOST_RUNS, Entry
from scylla_spark.core.plan.tables.changes import Cursor
from scylla_spark.core.plan.tables.commit import Commit
from scylla_spark.core.plan.tables.growth import TABLE
from scylla_spark.core.plan.tables.past_ranges import PastRange, past_ranges
from scylla_spark.core.plan.triggers.trigger import OnTable
from scylla_spark.errors import ArgumentError
from scylla_spark.io.delta.plan_queries import Row
from scylla_spark.io.delta.watched.commit_follower import TableTrouble, WatchedTable, located, watchable_places

MOST_VERSIONS: Final = 10_000
_AT_ONCE: Final = 1_000
_ELSEWHERE: Final = (
    "Ask from where it can be read, with `schedule backfill` or in Python, or give this process the right to read it."
)

Span = tuple[int, int]
"""Versions after the first number, up to the second."""


def ranges_between(settings: Settings, trigger: OnTable, begin: int, end: int) -> tuple[str, list[PastRange]]:
    """The ranges of versions in (begin, end] on which a trigger would have fired, the oldest first, and the id of their table.

    Args:
        settings: where named tables lie.
        trigger: which table, and what of it counts.
        begin: the last version before the stretch; -1: it begins with the first.
        end: its last version.

    Raises:
        ArgumentError: the stretch is none, the table cannot be read from here, its log does not hold all of the stretch, or too many
            runs would be made of it.
    """
    if not -1 <= begin < end:
        raise ArgumentError(
            f"There are no versions after {begin} and up to {end}.",
            hint="Give the last version before, and the last one.",
        )
    if end - begin > MOST_VERSIONS:
        raise ArgumentError(f"These are more than {MOST_VERSIONS} versions.", hint="Backfill them in parts.")
    table = WatchedTable(located(trigger.table, watchable_places(settings)), settings.tables.store_timeout)
    read = _Log(table, trigger, begin, end)
    found = past_ranges(trigger, begin, read.commits(), MOST_RUNS)
    return read.cursor.table_id, found


class _Log:
    """The log of a table, read once over some versions."""

    def __init__(self, table: WatchedTable, trigger: OnTable, begin: int, end: int) -> None:
        self._table = table
        self._trigger = trigger
        self._end = end
        self.cursor = Cursor("", begin)

    def commits(self) -> Iterator[Commit]:
        """The commits, with what of them counts.

        Raises:
            ArgumentError: one cannot be read.
        """
        by = [self._trigger.per] if self._trigger.per else []
        while self.cursor.version < self._end:
            found = _sound(self._table.poll(self.cursor, by, min(_AT_ONCE, self._end - self.cursor.version)))
            if not found:
                raise ArgumentError(
                    f"The table {self._table.path} ends with version {self.cursor.version}; versions up to {self._end} are asked for.",
                    hint="Give a version that it has as the last one.",
                )
            yield from _sound(self._table.narrow(found, self._trigger))
            header = self._table.header  # of the last commit: the id of the table may stand in none of these commits
            self.cursor = Cursor(header.table_id if header else "", found[-1].version)


def _sound(found: list[Commit] | TableTrouble) -> list[Commit]:
    """Returns what was read.

    Raises:
        ArgumentError: something is wrong with the table, or it cannot be read from here.
    """
    if not isinstance(found, TableTrouble):
        return found
    if found.kind == "truncated" and found.gap is not None:
        raise ArgumentError(
            f"Versions {found.gap[0]} to {found.gap[1]} cannot be read any more: they were deleted from the table's log.",
            hint=f"Begin after version {found.gap[1]}, or later.",
        )
    if found.kind == "rewound" and found.resume is not None:
        raise ArgumentError(f"The table ends with version {found.resume.version}.", hint="Give versions that it has.")
    hint = (
        _ELSEWHERE
        if found.kind in ("missing", "vanished", "unreachable")
        else "Give other versions, or look at the table."
    )
    raise ArgumentError(found.why, hint=hint)


# -- what ran before ----------------------------------------------------------------------------------------------------


def without_those_that_ran(
    connection: Connection, entry: Entry, table_id: str, ranges: list[PastRange], reprocess: str
) -> list[PastRange]:
    """Those ranges that are not in what ran before, or is going to in a backfill that has not ended.

    A range of which a part only ran before runs as a whole.

    Args:
        connection: to the deployment.
        entry: the schedule.
        table_id: of the table.
        ranges: in order.
        reprocess: "none": whatever has begun, or may, is left out; "failed": what has succeeded or runs; "all": nothing.

    Raises:
        ArgumentError: there is no such choice.
    """
    checked_choice(reprocess)
    if reprocess == "all":
        return ranges
    past = history(connection, entry.name)
    fires = past.fires()
    ran = spans_of(launches_that_count(fires, past.jobs_of(fires), failed=reprocess == "none"), table_id)
    for backfill in entry.backfills.values():
        for item in backfill.left if backfill.source is not None and backfill.source.table_id == table_id else ():
            if item.versions is not None:
                ran.append((item.versions.part, item.versions[:2]))
    return not_in(ranges, ran)


def spans_of(launches: Sequence[Row], table_id: str) -> list[tuple[str, Span]]:
    """Partition, or nothing, and versions of a table that some launches own.

    Args:
        launches: rows of `fires`.
        table_id: of the table.
    """
    found: list[tuple[str, Span]] = []
    for row in launches:
        seen: Any = json.loads(row["values"]).get(TABLE) if row["values"] else None
        if isinstance(seen, dict) and seen.get("table_id") == table_id:
            found.append((seen.get("partition") or "", (seen["from_version"], seen["to_version"])))
    return found


def not_in(ranges: Iterable[PastRange], ran: Iterable[tuple[str, Span]]) -> list[PastRange]:
    """Those of some ranges that have versions that are in none of others.

    Args:
        ranges: in order.
        ran: partition, or nothing for all, and versions.
    """
    by_part: dict[str, list[Span]] = {}
    for part, span in ran:
        by_part.setdefault(part, []).append(span)
    joined = {
        part: _joined([*by_part.get(part, ()), *by_part.get("", ())])
        for part in {*by_part, *(one.part for one in ranges)}
    }
    return [
        one
        for one in ranges
        if not any(first <= one.from_version and one.to_version <= last for first, last in joined[one.part])
    ]


def _joined(spans: list[Span]) -> list[Span]:
    """The same versions in as few spans as possible."""
    found: list[Span] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found
