"""Backfills as people ask for them: what would run, what was asked of the planner, and how it stands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from scylla_spark.client.connection import Connection
from scylla_spark.client.schedules.version_ranges import ranges_between, without_those_that_ran
from scylla_spark.clock import from_us
from scylla_spark.core.plan.backfill import chosen, excluded, planned_between, watched_table
from scylla_spark.core.plan.commands.plan_command import MOST_COUNTED
from scylla_spark.core.plan.state.backfill_entry import BackfillEntry, tag_of
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.state.schedule_entry import Entry
from scylla_spark.core.plan.tables.past_ranges import PastRange
from scylla_spark.core.tasks.key import instant_us
from scylla_spark.errors import ArgumentError, ConflictError, NotFoundError

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


class BackfillStatus(NamedTuple):
    """How a backfill stands.

    Attributes:
        tag: of its tasks, by which it is named.
        number: of it among those of its schedule.
        state: "running", "paused", "cancelled", or "ended".
        total: how many runs it is.
        succeeded: runs that have.
        failed: runs that have, or could not be launched.
        cancelled: runs that were, or ended unrun.
        running: runs that were launched and have not ended.
        left: runs that are to be launched.
        max_running: how many run at once.
        priority: of their tasks.
        author: who asked for it.
        begun_at: when.
        ends_at: when it will be over at the pace that it had so far; None: it does not go on, or no run of it has ended yet.
        over_at: when it was over; None: it is not.
    """

    tag: str
    number: int
    state: str
    total: int
    succeeded: int
    failed: int
    cancelled: int
    running: int
    left: int
    max_running: int
    priority: int
    author: str
    begun_at: datetime
    ends_at: datetime | None
    over_at: datetime | None

    @property
    def done(self) -> int:
        """How many runs have ended."""
        return self.succeeded + self.failed + self.cancelled


class Wanted(NamedTuple):
    """What a backfill is to run.

    Attributes:
        backfill: the same for people, without a tag.
        fields: of the command that asks for it.
    """

    backfill: Backfill
    fields: dict[str, Any]


def backfills_of(entry: Entry, now: int) -> list[BackfillStatus]:
    """How the backfills of a schedule stand, the newest first; those that were over first are forgotten.

    Args:
        entry: the schedule.
        now: microseconds since the epoch.
    """
    return [_status(entry.name, one, now) for one in sorted(entry.backfills.values(), key=lambda one: -one.number)]


def number_of(name: str, tag: str) -> int:
    """The number of a backfill of a schedule that has a tag.

    Raises:
        ArgumentError: no backfill of this schedule can have it.
    """
    number = tag.rpartition("/")[2]
    if number.isascii() and number.isdecimal() and len(number) < 16 and tag_of(name, int(number)) == tag:
        return int(number)
    raise ArgumentError(
        f"{tag!r} is the tag of no backfill of {name!r}.",
        hint="`scylla-spark schedule backfills NAME` lists them with their tags.",
    )


def schedule_with(state: PlanState, tag: str) -> str:
    """The schedule of which a backfill has a tag.

    Raises:
        NotFoundError: there is none.
        ConflictError: several have such a backfill.
    """
    names = sorted(one.name for one in state.entries.values() if any(tag_of(one.name, n) == tag for n in one.backfills))
    if not names:
        raise NotFoundError(
            f"There is no backfill {tag!r}.", hint="`scylla-spark schedule backfills NAME` lists those of a schedule."
        )
    if len(names) > 1:
        raise ConflictError(
            f"{tag!r} is the tag of backfills of {' and '.join(map(repr, names))}.",
            hint="Python and HTTP take the name of the schedule, too.",
        )
    return names[0]


def _status(name: str, one: BackfillEntry, now: int) -> BackfillStatus:
    ends_us = one.ends_us(now)
    return BackfillStatus(
        tag_of(name, one.number), one.number, one.state, one.total, one.succeeded, one.failed, one.cancelled, len(one.running),
        len(one.left), one.most, one.priority, one.author, from_us(one.begun_us), from_us(ends_us) if ends_us is not None else None,
        from_us(one.over_us) if one.over_us else None,
    )  # fmt: skip


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
