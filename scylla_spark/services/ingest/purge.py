"""Deleting what nobody needs any more: old history, folded rows of `deferred`, and files of no version that is kept.

- Whole closed hours older than the retention: tasks first, then completions, attempts, their lines and the files that they left
  behind.
- Rows of refused records, of schedules and of the audit, each as old as its setting says. The planner reads none of them: all that its
  runs, chains and constraints need is in its log. So only rows that name a task of an open hour stay longer, for people.
- Before that, what single queues keep for a shorter time: see `queue_retention`.
- Folded rows of `deferred` some time after `folded_until` has passed them: a reader may have an older progress.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from scylla_spark import failpoint
from scylla_spark.clock import from_us
from scylla_spark.config.settings import History
from scylla_spark.core.tables.progress import Mark, OpenHours
from scylla_spark.core.tasks.key import HOUR_US
from scylla_spark.duration import duration_us
from scylla_spark.io.delta.replaced_table import REPLACED
from scylla_spark.io.delta.spark_tables import HourBucket, before, in_places
from scylla_spark.io.host.output_files import OutputFiles
from scylla_spark.log import get_logger
from scylla_spark.schemas import (
    ATTEMPT_LOGS,
    ATTEMPTS,
    AUDIT_TRAIL,
    COMPLETIONS,
    DEFERRED,
    FIRES,
    JOBS,
    REJECTED,
    TASKS,
    Table,
)
from scylla_spark.services.ingest.locked_tables import LockedTables, maybe_open
from scylla_spark.services.ingest.queue_retention import QueueRetention

if TYPE_CHECKING:
    from datetime import timedelta

    from pyspark.sql import Column

log = get_logger("ingest")

_READERS_LAG_US: Final = duration_us("15m")  # no reader's progress is older
_DROP_STEP_US: Final = duration_us("6h")
_DAY_US: Final = duration_us("1d")


class Purger:
    """Deletes rows and files.

    Args:
        kept: the tables.
        retention_us: how long history is kept, in microseconds.
        ends: asks Kafka for the end offset of each partition of `tasks`.
        outputs: files that attempts left behind.
        of_queues: deletes what single queues keep for a shorter time.
        history: how long rows are kept that no task depends on; None: as long as all history.
    """

    def __init__(
        self, kept: LockedTables, retention_us: int, ends: Callable[[], Mapping[int, int]], *, outputs: OutputFiles,
        of_queues: QueueRetention, history: History | None = None,
    ) -> None:  # fmt: skip
        self._kept = kept
        self._retention_us = retention_us
        self._ends = ends
        self._outputs = outputs
        self._of_queues = of_queues
        self._history = history or History()
        self._edges: list[tuple[int, int]] = []  # when folded_until was first seen at which value
        self._dropped_us = 0

    def drop_folded(self, now: int) -> bool:
        """Deletes rows of `deferred` that were folded a while ago, some hours of them at a time."""
        edge = self._kept.progress.folded_until_us
        if not self._edges or self._edges[-1][1] < edge:
            self._edges.append((now, edge))
        while len(self._edges) > 1 and self._edges[1][0] <= now - _READERS_LAG_US:
            self._edges.pop(0)
        since, safe = self._edges[0]
        firsts = [file["first_at"] for file in self._kept.readers.files(DEFERRED) if file.get("first_at") is not None]
        early = since > now - _READERS_LAG_US or safe < self._dropped_us + _DROP_STEP_US
        if early or not any(first < from_us(safe) for first in firsts):
            return False
        with self._kept.tasks_lock:
            self._delete(DEFERRED, before(safe))
        self._dropped_us = safe
        return False

    def purge(self, now: int) -> bool:
        """Deletes closed hours older than the retention, and rows of refused records, schedules and the audit that are too old.

        What counts is the append time up to which records were read: no later one can be of these hours, since it is refused.
        """
        ends = self._ends()
        self._of_queues.purge(self._retention_us, lambda place, us: self._is_past(place, us, ends, now))
        for table in (TASKS, COMPLETIONS, ATTEMPTS, ATTEMPT_LOGS):
            with self._kept.lock_of(table):
                marks = self._kept.progress.tasks()  # a batch may have opened an hour
                read = {n: _read_us(mark, ends.get(n), now) for n, mark in marks.items()}
                old = {
                    place
                    for place in self._kept.rows(table)
                    if place.partition in marks and self._past(place, marks, read)
                }
                if old:
                    self._delete(table, in_places(old))
                    log.info("purged", table=table.name, hours=len({place.hour for place in old}))
                    failpoint.reach("ingest.purge.deleted")
        self._purge_outputs(ends, now)
        last = from_us(max(0, max(read.values(), default=0) - self._kept_us(self._history.rejected))).date()
        days = {file["day"] for file in self._kept.readers.files(REJECTED) if file["day"] < last}
        if days:
            with self._kept.tasks_lock:
                self._delete(REJECTED, F.col("day").isin(sorted(days)))
        closed = _of_no_open_hour(OpenHours.of(*marks.values())) if marks else F.lit(True)
        self._purge_rows(FIRES, F.col("decided_at"), self._kept_us(self._history.fires), now, closed)
        self._purge_rows(JOBS, F.col("changed_at"), self._kept_us(self._history.jobs), now, closed)
        if self._history.audit is not None:
            self._purge_rows(AUDIT_TRAIL, F.col("at"), duration_us(self._history.audit), now)
        return False

    def _kept_us(self, kept: timedelta | None) -> int:
        return self._retention_us if kept is None else duration_us(kept)

    def _purge_rows(self, table: Table, at: Column, kept_us: int, now: int, also: Column | None = None) -> None:
        """Deletes rows of whole days, so that a file is written anew once a day at most; for the rest file statistics suffice."""
        day = (now - kept_us) // _DAY_US - 1  # clocks may differ
        old = at < F.lit(from_us(max(0, day * _DAY_US)))
        with self._kept.lock_of(table):
            self._delete(table, old if also is None else old & also)

    def _purge_outputs(self, ends: Mapping[int, int], now: int) -> None:
        """Deletes the files of the same hours; what of an hour cannot be deleted now is found again the next time."""
        marks = self._kept.progress.tasks()
        read = {n: _read_us(mark, ends.get(n), now) for n, mark in marks.items()}
        for place in [HourBucket(*one) for one in self._outputs.hours()]:
            if place.partition in marks and self._past(place, marks, read):
                self._outputs.remove_hour(*place)
                log.info("purged outputs", partition=place.partition, hour=place.hour)

    def _is_past(self, place: HourBucket, retention_us: int, ends: Mapping[int, int], now: int) -> bool:
        mark = self._kept.progress.tasks().get(place.partition)
        if mark is None or maybe_open(place, mark):
            return False
        return place.hour < (_read_us(mark, ends.get(place.partition), now) - retention_us) // HOUR_US

    def _past(self, place: HourBucket, marks: Mapping[int, Mark], read: Mapping[int, int]) -> bool:
        past = (read[place.partition] - self._retention_us) // HOUR_US
        return place.hour < past and not maybe_open(place, marks[place.partition])

    def _delete(self, table: Table, condition: Column) -> None:
        from delta.tables import DeltaTable

        self._kept.tables.before_commit()
        DeltaTable.forPath(self._kept.tables.spark, self._kept.tables.location(table)).delete(condition)

    def vacuum(self, table: Table, _now: int) -> bool:
        """Deletes files that no version within the table's retention needs; no scan lasts that long."""
        from delta.tables import DeltaTable

        self._kept.tables.before_commit()
        if table in REPLACED:
            self._kept.tables.replaced(table).vacuum()
            return False
        quiet = self._kept.quiet
        DeltaTable.forPath(quiet.spark, quiet.location(table)).vacuum()
        return False


def _of_no_open_hour(hours: OpenHours) -> Column:
    """True for rows that name no task, or one of an hour in which no task can be open."""
    hour = F.floor(F.unix_seconds("scheduled_time") / 3600)
    open_hour = (hour >= hours.closed_hour) | hour.isin(list(hours.kept_open))
    return F.col("scheduled_time").isNull() | ~open_hour


def _read_us(mark: Mark, end: int | None, now: int) -> int:
    """Before which append time nothing of a partition can come any more; clocks differ by less than an hour."""
    return max(mark.appended_us, now - HOUR_US) if end is not None and end == mark.tasks_offset else mark.appended_us
