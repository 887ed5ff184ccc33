"""Backfills as people ask for them: what would run, what was asked of the planner, and how it stands."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, Field

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


class VersionRange(BaseModel, frozen=True):
    """Versions of a table for one run of a backfill: those in (from_version, to_version]."""

    from_version: Annotated[int, Field(description="Last version before the range")]
    to_version: Annotated[int, Field(description="Last version of the range")]
    rows: Annotated[int, Field(description="Rows that were written, as far as the log of the table says")]
    commits: Annotated[int, Field(description="Commits that count for the trigger")]
    bytes: Annotated[int, Field(description="Bytes of the new files")]
    partition: Annotated[str | None, Field(description="Value of the partition column; null: the whole table")]


class Backfill(BaseModel, frozen=True):
    """Past planned times, or versions of a table, that run or would run."""

    planned: Annotated[
        list[datetime],
        Field(
            description="Planned times that name the runs, in order; of versions, when their last commits were written"
        ),
    ]
    tag: Annotated[str, Field(description="Tag of all tasks of the backfill; empty: no run is left")]
    versions: Annotated[
        list[VersionRange], Field(description="Ranges of versions, in the same order; empty: planned times run")
    ] = []


class BackfillStatus(BaseModel, frozen=True):
    """The progress of a backfill."""

    tag: Annotated[str, Field(description="Tag of its tasks, by which it is named")]
    number: Annotated[int, Field(description="Its number among the backfills of its schedule")]
    state: Literal["running", "paused", "cancelled", "ended"]
    total: Annotated[int, Field(description="Number of runs")]
    done: Annotated[int, Field(description="Runs that have ended: succeeded, failed and cancelled")]
    succeeded: int
    failed: Annotated[int, Field(description="Runs that failed or could not be launched")]
    cancelled: Annotated[int, Field(description="Runs that were cancelled or ended without an attempt")]
    running: Annotated[int, Field(description="Runs that were launched and have not ended")]
    left: Annotated[int, Field(description="Runs that are still to be launched")]
    max_running: Annotated[int, Field(description="Runs at the same time, at most")]
    priority: Annotated[int, Field(description="Priority of the tasks")]
    author: str
    begun_at: datetime
    ends_at: Annotated[
        datetime | None, Field(description="Estimated end; null: it is not running, or no run of it has ended yet")
    ]
    over_at: Annotated[datetime | None, Field(description="End; null: it has not ended")]


class Wanted(NamedTuple):
    """What a backfill is to run.

    Attributes:
        backfill: the same for people, without a tag.
        fields: of the command that asks for it.
    """

    backfill: Backfill
    fields: dict[str, Any]


def backfills_of(entry: Entry, now: int) -> list[BackfillStatus]:
    """Returns how the backfills of a schedule stand, the newest first; those that were over first are forgotten.

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
        tag=tag_of(name, one.number),
        number=one.number,
        state=one.state,
        total=one.total,
        done=one.succeeded + one.failed + one.cancelled,
        succeeded=one.succeeded,
        failed=one.failed,
        cancelled=one.cancelled,
        running=len(one.running),
        left=len(one.left),
        max_running=one.most,
        priority=one.priority,
        author=one.author,
        begun_at=from_us(one.begun_us),
        ends_at=from_us(ends_us) if ends_us is not None else None,
        over_at=from_us(one.over_us) if one.over_us else None,
    )


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
    return Wanted(Backfill(planned=[from_us(at) for at in todo], tag=""), fields)


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
    return Wanted(
        Backfill(planned=[from_us(one.at_us) for one in todo], tag="", versions=[_shown(one) for one in todo]), fields
    )


def _as_sent(one: PastRange) -> dict[str, Any]:
    most = MOST_COUNTED - 1
    sent = {
        "fromVersion": one.from_version, "toVersion": one.to_version, "rows": min(one.rows, most), "commits": one.commits,
        "bytes": min(one.bytes, most), "at": one.at_us,
    }  # fmt: skip
    return sent | ({"part": one.part} if one.part else {})


def _shown(one: PastRange) -> VersionRange:
    return VersionRange(
        from_version=one.from_version,
        to_version=one.to_version,
        rows=one.rows,
        commits=one.commits,
        bytes=one.bytes,
        partition=one.part or None,
    )


def _instant_or_pair(one: Period) -> int | tuple[int, int]:
    return instant_us(one) if isinstance(one, datetime) else (instant_us(one[0]), instant_us(one[1]))
