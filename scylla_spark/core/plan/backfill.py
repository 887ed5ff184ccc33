"""Backfills: past planned times of a schedule, launched in lanes of their own, beside what the schedule does by itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from scylla_spark.clock import iso
from scylla_spark.core.plan.state.schedule_entry import MOST_RUNS, Entry
from scylla_spark.core.plan.times.fire_times import Calendars
from scylla_spark.core.plan.times.planned_times import planned_after, times_of
from scylla_spark.core.plan.triggers.trigger import OnTable, leaves
from scylla_spark.errors import ArgumentError


def planned_between(entry: Entry, begin_us: int, end_us: int, calendars: Calendars, most: int = MOST_RUNS) -> list[int]:
    """Planned times of a schedule in [begin, end), the oldest first; microseconds since the epoch.

    Args:
        entry: of the schedule.
        begin_us: the first instant.
        end_us: the first that is too late.
        calendars: days by name.
        most: more are refused.

    Raises:
        ArgumentError: it does not fire by time, or there are too many.
    """
    series = times_of(entry.schedule.trigger)
    if not series:
        raise ArgumentError(
            f"The schedule {entry.name!r} does not fire by time.",
            hint="Give versions, if it watches a table; else run it by hand with the payload of that day.",
        )
    found: list[int] = []
    for at_us in planned_after(series, begin_us - 1, calendars):
        if at_us >= end_us:
            break
        found.append(at_us)
        if len(found) > most:
            raise ArgumentError(
                f"More than {most} times are planned between these two.", hint="Backfill them in parts."
            )
    return found


def watched_table(entry: Entry) -> OnTable:
    """Returns what of a table a schedule watches, whose past versions can be run.

    Args:
        entry: of the schedule.

    Raises:
        ArgumentError: it watches no table, or several.
    """
    tables = [leaf for leaf in leaves(entry.schedule.trigger) if isinstance(leaf, OnTable)]
    if len(tables) == 1:
        return tables[0]
    if tables:
        raise ArgumentError(
            f"The schedule {entry.name!r} watches {len(tables)} tables, so versions do not say of which.",
            hint="Run it by hand with the payload that is to be run: `schedule run NAME --payload …`.",
        )
    raise ArgumentError(
        f"The schedule {entry.name!r} watches no table, so there are no versions to run.",
        hint="Give the first planned time, and the first that is too late, as instants.",
    )


def excluded(planned: Collection[int], without: Iterable[int | tuple[int, int]]) -> frozenset[int]:
    """Those of some planned times that somebody leaves out.

    Args:
        planned: the times; microseconds since the epoch.
        without: single times, or pairs of the first instant and the first that is too late.

    Raises:
        ArgumentError: a single time is not planned, so that something else is meant; or a pair ends before it begins.
    """
    found: set[int] = set()
    for one in without:
        if isinstance(one, int):
            if one not in planned:
                raise ArgumentError(
                    f"Nothing is planned at {iso(one)}, so it cannot be left out.", hint="Give a planned time."
                )
            found.add(one)
            continue
        begin_us, end_us = one
        if begin_us >= end_us:
            raise ArgumentError(
                f"What is left out ends at {iso(end_us)}, before it begins at {iso(begin_us)}.",
                hint="Write (begin, end).",
            )
        found.update(at for at in planned if begin_us <= at < end_us)
    return frozenset(found)


def chosen(planned: list[int], leave_out: Collection[int], order: str) -> list[int]:
    """Those of some planned times that are to run, in the order in which they are to.

    Args:
        planned: the oldest first; microseconds since the epoch.
        leave_out: those that are not.
        order: "oldest" or "newest" first.
    """
    kept = [at for at in planned if at not in leave_out]
    return kept[::-1] if order == "newest" else kept
