"""Closing hours: an hour of a partition is closed when every task of it has its completion.

That is found by a join of keys: counts lie when a completion is doubled. What stays open is kept as a set, so that a task
that retries for ever holds its own hour only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from scylla_spark.core.tasks.key import HOUR_US
from scylla_spark.io.delta.spark_tables import HourBucket, in_places
from scylla_spark.schemas import COMPLETIONS, KEY_NAMES, TASKS
from scylla_spark.services.ingest.locked_tables import LockedTables, maybe_open

_CHECKED_AT_ONCE: Final = 500_000  # rows of `tasks` that one turn compares with completions


class HourCloser:
    """Closes hours, some at a time.

    Args:
        kept: the tables.
        close_after_us: how old an hour must be, in microseconds.
    """

    def __init__(self, kept: LockedTables, close_after_us: int) -> None:
        self._kept = kept
        self._close_after_us = close_after_us
        self._checked: set[HourBucket] = set()  # places that this round has looked at

    def close(self, now: int) -> bool:
        """Closes hours in which no task is left to run, and keeps the rest as open; returns whether hours wait to be looked at."""
        with self._kept.tasks_lock:  # no batch may open one of them meanwhile
            limit = min(now - self._close_after_us, self._kept.progress.folded_until_us) // HOUR_US
            marks = self._kept.progress.tasks()
            wanted = {
                place: rows
                for place, rows in self._kept.rows(TASKS).items()
                if place.hour < limit and maybe_open(place, marks[place.partition])
            }
            ended = self._kept.rows(COMPLETIONS)
            candidates = sorted((place for place, rows in wanted.items() if ended[place] >= rows), key=lambda p: p.hour)
            fresh = [place for place in candidates if place not in self._checked]
            chosen = _first(fresh, wanted, _CHECKED_AT_ONCE)
            still = (wanted.keys() - chosen) | self._unfinished(chosen)
            hours: dict[int, list[int]] = {number: [] for number in marks}
            for place in still:
                hours[place.partition].append(place.hour)
            self._kept.progress.closed(limit, hours)
        more = len(chosen) < len(fresh)
        self._checked = self._checked | chosen if more else set()
        return more

    def _unfinished(self, places: set[HourBucket]) -> set[HourBucket]:
        """Those with a task that has no completion."""
        if not places:
            return set()
        tasks = self._kept.tables.read(TASKS).where(in_places(places)).select(*KEY_NAMES)
        ended = self._kept.tables.read(COMPLETIONS).where(in_places(places)).select(*KEY_NAMES)
        left = tasks.join(ended, list(KEY_NAMES), "left_anti").select("partition_id", "hour").distinct()
        return {HourBucket(row["partition_id"], row["hour"]) for row in left.collect()}


def _first(places: Iterable[HourBucket], rows: Mapping[HourBucket, int], most: int) -> set[HourBucket]:
    """The first places with so many rows in all, at least one place."""
    chosen: set[HourBucket] = set()
    total = 0
    for place in places:
        total += rows[place]
        if chosen and total > most:
            break
        chosen.add(place)
    return chosen
