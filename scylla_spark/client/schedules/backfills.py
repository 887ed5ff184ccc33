"""Backfills as people ask for them: what would run, what was asked of the planner, and how it stands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from scylla_spark.client.connection import Connection
from scylla_spark.client.schedules.version_ranges import ranges_between, without_those_that_ran
from scylla_spark.clock import from_us
from scylla_spark.core.key import instant_us
from scylla_spark.core.plan.backfill import chosen, excluded, planned_between, watched_table
from scylla_spark.core.plan.commands.plan_command import MOST_COUNTED
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.state.schedule_entry import Entry
from scylla_spark.core.plan.tables.past_ranges import PastRange
from scylla_spark.errors import ArgumentError

Period = datetime | tuple[datetime, datetime]


class VersionRange(NamedTuple):
    """Versions of a table that one run of a backfill is about: those in (from_version, to_version].

    Attributes:
        from_version: the last version before it.
        to_version: its last one.
        rows: that were written, as far as the table's log says.
        commits: that count for the trigger.
        bytes: of their files.
        partition: value of the partition column; None: the whole table.
    """

    from_version: int
    to_version: int
    rows: int
    commits: int
    bytes: int
    partition: str | None


@dataclass(frozen=True, slots=True)
class Backfill:
    """Past planned times, or versions of a table, that run, or would.

    Attributes:
        planned: the times that the runs are named by, in their order; of versions those of their last commits.
        tag: of all their tasks, by which they are listed, and the backfill is paused, resumed and cancelled; empty: none runs.
        versions: of a backfill over versions of a table, what each run is about, in the same order.
    """

    planned: list[datetime]
    tag: str
    versions: list[VersionRange] = field(default_factory=list)


class Wanted(NamedTuple):
    """What a backfill is to run.

    Attributes:
        backfill: the same for people, without a tag.
        fields: of the command that asks for it.
    """

    backfill: Backfill
    fields: dict[str, Any]


def wanted_times(
    connection: Connection, state: PlanState, entry: Entry, begin: datetime, end: datetime, order: str, reprocess: str,
    exclude: Iterable[Period],
) -> Wanted:  # fmt: skip
    """The planned times of a stretch that are to run.

    Args:
        connection: to the deployment.
        state: for its calendars.
        entry: the schedule.
        begin: the first planned time (aware) …
        end: … and the first that is too late.
        order: "oldest" or "newest" first.
        reprocess: which of those that ran before run again: "none", "failed", or "all".
        exclude: planned times that are left out, or pairs of the first instant and the first that is too late.

    Raises:
        ArgumentError: it does not fire by time, too many times are planned, or one that is to be left out is not.
    """
    from scylla_spark.client.schedules.times_already_run import ran_before

    begin_us, end_us = instant_us(begin), instant_us(end)
    planned = planned_between(entry, begin_us, end_us, state.calendars)
    without = excluded(planned, map(_instant_or_pair, exclude))
    left_out = without | ran_before(connection, entry, begin_us, end_us, reprocess)
    todo = chosen(planned, left_out, order)
    fields = {"begin": begin_us, "end": end_us, "order": order, "leaveOut": sorted(left_out & set(planned))}
    return Wanted(Backfill([from_us(at) for at in todo], ""), fields)


def wanted_versions(
    connection: Connection, entry: Entry, begin: int, end: int, order: str, reprocess: str, exclude: Iterable[Period]
) -> Wanted:
    """The versions of a stretch that are to run, as the trigger would have fired on them. See `wanted_times` for the others.

    Args:
        connection: to the deployment.
        entry: the schedule.
        begin: the last version before the stretch …
        end: … and its last one.
        order: "oldest" or "newest" first.
        reprocess: which of those that ran before run again.
        exclude: none of versions.

    Raises:
        ArgumentError: it does not watch one table, that cannot be read from here or not so far back, or too many runs would be made.
    """
    if any(True for _ in exclude):
        raise ArgumentError(
            "Planned times are to be left out of versions.", hint="Backfill the versions before and after."
        )
    trigger = watched_table(entry)
    table_id, found = ranges_between(connection.settings, trigger, begin, end)
    todo = without_those_that_ran(connection, entry, table_id, found, reprocess)
    todo = todo[::-1] if order == "newest" else todo
    fields = {"tableId": table_id, "versions": [_as_sent(one) for one in todo], "order": order}
    return Wanted(Backfill([from_us(one.at_us) for one in todo], "", [_shown(one) for one in todo]), fields)


def _as_sent(one: PastRange) -> dict[str, Any]:
    most = MOST_COUNTED - 1
    sent = {
        "fromVersion": one.from_version, "toVersion": one.to_version, "rows": min(one.rows, most), "commits": one.commits,
        "bytes": min(one.bytes, most), "at": one.at_us,
    }  # fmt: skip
    return sent | ({"part": one.part} if one.part else {})


def _shown(one: PastRange) -> VersionRange:
    return VersionRange(one.from_version, one.to_version, one.rows, one.commits, one.bytes, one.part or None)


def _instant_or_pair(one: Period) -> int | tuple[int, int]:
    return instant_us(one) if isinstance(one, datetime) else (instant_us(one[0]), instant_us(one[1]))
