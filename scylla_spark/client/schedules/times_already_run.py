"""Which planned times of a schedule have run before, so that a backfill leaves them out."""

from __future__ import annotations

from collections.abc import Sequence

from scylla_spark.client.connection import Connection
from scylla_spark.client.schedules.history import history
from scylla_spark.core.plan.state.plan_state import LAUNCHED
from scylla_spark.core.plan.state.schedule_entry import Entry
from scylla_spark.core.plan.verdicts import OBSOLETE, SKIPPED
from scylla_spark.core.tasks.task import CANCELLED, SUCCEEDED
from scylla_spark.errors import ArgumentError
from scylla_spark.io.delta.plan_queries import Row


def ran_before(connection: Connection, entry: Entry, begin_us: int, end_us: int, reprocess: str) -> frozenset[int]:
    """Planned times of [begin, end) that are not to run again, or are going to in a backfill that has not ended.

    Args:
        connection: to the deployment.
        entry: the schedule.
        begin_us: the first instant.
        end_us: the first that is too late.
        reprocess: "none": whatever has begun, or may, is left out; "failed": what has succeeded or runs; "all": nothing.

    Returns:
        Microseconds since the epoch.

    Raises:
        ArgumentError: there is no such choice.
    """
    checked_choice(reprocess)
    if reprocess == "all":
        return frozenset()
    past = history(connection, entry.name)
    fires = past.fires_about(begin_us, end_us)
    left = (item for backfill in entry.backfills.values() for item in backfill.left if item.versions is None)
    will = frozenset(item.planned_us for item in left)
    return will | times_that_ran(fires, past.jobs_of(fires), failed=reprocess == "none")


def checked_choice(reprocess: str) -> None:
    """Whether what is to run again can be chosen so.

    Raises:
        ArgumentError: there is no such choice.
    """
    if reprocess not in ("none", "failed", "all"):
        raise ArgumentError(f"There is no reprocess={reprocess!r}.", hint='It is "none", "failed" or "all".')


def times_that_ran(fires: Sequence[Row], jobs: Sequence[Row], *, failed: bool) -> frozenset[int]:
    """Planned times whose runs have begun or may begin: those that were launched ahead and taken back are not among them.

    Args:
        fires: decisions, the newest first.
        jobs: changes of their jobs, the newest first.
        failed: those whose run has failed are, too.
    """
    return frozenset(row["planned_at"] for row in launches_that_count(fires, jobs, failed=failed))


def launches_that_count(fires: Sequence[Row], jobs: Sequence[Row], *, failed: bool) -> list[Row]:
    """Launches whose runs have begun or may begin. See `times_that_ran`."""
    ended = {row["generation"]: row for row in reversed(jobs) if row["outcome"]}
    closed = {_round(row) for row in fires if row["verdict"] == SKIPPED or _is_taken_back(row)}
    again = {number for number, row in ended.items() if row["outcome"] == CANCELLED and not row["started_at"]}
    if not failed:
        again |= {number for number, row in ended.items() if row["outcome"] != SUCCEEDED}
    launched = [row for row in fires if row["verdict"] == LAUNCHED and _round(row) not in closed]
    return [row for row in launched if row["generation"] not in again]


def _is_taken_back(row: Row) -> bool:
    return row["verdict"] == OBSOLETE and row["uniqueness_key"] is not None


def _round(row: Row) -> tuple[int, int]:
    """Returns what a decision is about: a number alone may be that of several times, of which each took the place of the one before."""
    return row["generation"], row["planned_at"]
