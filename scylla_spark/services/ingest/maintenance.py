"""Space: what ingest does between batches so that files, logs and history do not grow for ever. One small piece at a time.

- An hour of a partition is *closed* when every task of it has its completion, found by a join of keys: counts lie when a
  completion is doubled. What stays open is kept as a set, so that a task that retries for ever holds its own hour only.
- Small files of recent and of closed hours are put together.
- Whole closed hours older than the retention are dropped: tasks first, then completions and attempts; refused records by day.
- Folded rows of `deferred` are dropped some time after `folded_until` has passed them: a reader may have an older progress.
- Files that no version needs any more are deleted.

All is idempotent, and a crash anywhere only delays it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog
from pyspark.sql import functions as F

from scylla_spark import failpoint
from scylla_spark.clock import boot_us, from_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.engine.partition import Mark
from scylla_spark.core.key import HOUR_US
from scylla_spark.core.open_hours import OpenHours
from scylla_spark.duration import duration_us
from scylla_spark.io.delta.spark_tables import HourBucket, Tables, before, in_places
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, DEFERRED, KEY_NAMES, REJECTED, TABLES, TASKS, Table
from scylla_spark.services.ingest.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import Column

log = structlog.get_logger("ingest")

_SMALL_BYTES: Final = 32 << 20
_TINY_BYTES: Final = 4 << 20
_MANY_FILES: Final = 16  # of an hour that is still written
_FILES_AT_ONCE: Final = 400  # some three seconds
_CHECKED_AT_ONCE: Final = 500_000  # rows of `tasks` that one turn compares with completions
_READERS_LAG_US: Final = duration_us("15m")  # no reader's progress is older
_DROP_STEP_US: Final = duration_us("6h")
_MAINTENANCE: Final = {
    "spark.databricks.delta.optimize.minFileSize": str(_SMALL_BYTES),
    "spark.databricks.delta.optimize.maxFileSize": str(2 * _SMALL_BYTES),
    "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.threshold": str(8 * _SMALL_BYTES),
    "spark.databricks.io.skipping.mdc.sortWithinFiles": "true",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",  # a vacuum has so many tasks; by default 10,000
}
_COMPACTED: Final = (TASKS, COMPLETIONS, ATTEMPTS, REJECTED, DEFERRED)


@dataclass(slots=True)
class _Chore:
    """Something done every so often; `run` does one piece and returns whether there may be more."""

    name: str
    every_us: int
    run: Callable[[int], bool]
    next_us: int = 0


class Maintenance:
    """The chores of ingest.

    Args:
        tables: of the deployment.
        progress: keeps what is closed.
        settings: retention, and when an hour may be closed.
        tasks_lock: held by whoever writes `tasks`, `deferred` or `rejected`.
        outcomes_lock: held by whoever writes `completions` or `attempts`.
        ends: asks Kafka for the end offset of each partition of `tasks`.
    """

    def __init__(
        self,
        tables: Tables,
        progress: Progress,
        settings: Settings,
        tasks_lock: AbstractContextManager[Any],
        outcomes_lock: AbstractContextManager[Any],
        ends: Callable[[], Mapping[int, int]],
    ) -> None:
        self._tables = tables
        self._progress = progress
        self._readers = TableReader(settings.tables_path)
        self._tasks_lock = tasks_lock
        self._outcomes_lock = outcomes_lock
        self._close_after_us = duration_us(settings.ingest.close_after)
        self._retention_us = duration_us(settings.ingest.retention)
        self._ends = ends
        self._quiet: Tables | None = None
        self._edges: list[tuple[int, int]] = []  # when folded_until was first seen at which value
        self._dropped_us = 0
        self._checked: set[HourBucket] = set()  # places that this round of `close` has looked at
        self._chores = list(self._all_chores())

    def _all_chores(self) -> Iterator[_Chore]:
        minute = duration_us("1m")
        yield _Chore("close", 5 * minute, self.close)
        for table in _COMPACTED:
            yield _Chore(f"compact {table.name}", minute, partial(self.compact, table))
        yield _Chore("drop folded", 10 * minute, self.drop_folded)
        yield _Chore("purge", 60 * minute, self.purge, next_us=-1)
        for table in TABLES:
            yield _Chore(f"vacuum {table.name}", 60 * minute, partial(self.vacuum, table), next_us=-1)

    def turn(self, now: int) -> bool:
        """Does one piece of the first chore that is due; returns whether one was."""
        for chore in self._chores:
            if chore.next_us < 0:
                chore.next_us = now + chore.every_us  # not at the start
            if now < chore.next_us:
                continue
            chore.next_us = now + chore.every_us
            begun = boot_us()
            if chore.run(now):
                chore.next_us = now
            log.debug("maintenance", chore=chore.name, seconds=round((boot_us() - begun) / 1e6, 3))
            return True
        return False

    def compact_all(self, now: int) -> None:
        """Puts all small files together."""
        for table in _COMPACTED:
            while self.compact(table, now):
                pass

    def purge_all(self, now: int) -> None:
        """Closes what can be closed, then deletes what is older than the retention."""
        while self.close(now):
            pass
        self.purge(now)

    # -- closing --------------------------------------------------------------------------------------------------------

    def close(self, now: int) -> bool:
        """Closes hours in which no task is left to run, and keeps the rest as open; returns whether hours wait to be looked at."""
        with self._tasks_lock:  # no batch may open one of them meanwhile
            limit = min(now - self._close_after_us, self._progress.folded_until_us) // HOUR_US
            marks = self._progress.tasks()
            wanted = {
                place: rows
                for place, rows in self._rows(TASKS).items()
                if place.hour < limit and OpenHours.of(marks[place.partition]).holds(place.hour)
            }
            ended = self._rows(COMPLETIONS)
            candidates = sorted((place for place, rows in wanted.items() if ended[place] >= rows), key=lambda p: p.hour)
            fresh = [place for place in candidates if place not in self._checked]
            chosen = _first(fresh, wanted, _CHECKED_AT_ONCE)
            still = (wanted.keys() - chosen) | self._unfinished(chosen)
            self._progress.closed({
                number: (max(limit, mark.closed_hour), [place.hour for place in still if place.partition == number])
                for number, mark in marks.items()
            })  # fmt: skip
        more = len(chosen) < len(fresh)
        self._checked = self._checked | chosen if more else set()
        return more

    def _unfinished(self, places: set[HourBucket]) -> set[HourBucket]:
        """Those with a task that has no completion."""
        if not places:
            return set()
        tasks = self._tables.read(TASKS).where(in_places(places)).select(*KEY_NAMES)
        ended = self._tables.read(COMPLETIONS).where(in_places(places)).select(*KEY_NAMES)
        left = tasks.join(ended, list(KEY_NAMES), "left_anti").select("partition_id", "hour").distinct()
        return {HourBucket(row["partition_id"], row["hour"]) for row in left.collect()}

    def _rows(self, table: Table) -> Counter[HourBucket]:
        """Rows per (partition, hour), from the log alone; repeats included."""
        rows: Counter[HourBucket] = Counter()
        for file in self._readers.files(table):
            rows[HourBucket(file["partition_id"], file["hour"])] += file["rows"] or 0
        return rows

    # -- small files ----------------------------------------------------------------------------------------------------

    def compact(self, table: Table, _now: int) -> bool:
        """Puts small files of one table together, some hundred at a time; changes no row."""
        if table is DEFERRED:  # it is only appended to, which does not conflict: batches need not wait
            if sum(file["bytes"] < _TINY_BYTES for file in self._readers.files(table)) >= _MANY_FILES:
                self._optimize(table, None)
            return False
        places = self._scattered(table)
        if not places:
            return False
        with self._lock_of(table):
            self._optimize(table, places)
        return True

    def _scattered(self, table: Table) -> list[tuple[Any, ...]]:
        """Values of the partition columns under which there are many small files, worst first, up to some hundred files."""
        small = Counter(
            tuple(file[name] for name in table.partitioned_by)
            for file in self._readers.files(table)
            if file["bytes"] < _SMALL_BYTES
        )
        marks, chosen, files = self._progress.tasks(), [], 0
        for place, count in small.most_common():
            final = len(place) == 2 and not OpenHours.of(marks.get(place[0], Mark())).holds(place[1])
            if count >= (2 if final else _MANY_FILES):
                chosen.append(place)
                files += count
                if files >= _FILES_AT_ONCE:
                    break
        return chosen

    def _optimize(self, table: Table, places: Iterable[tuple[Any, ...]] | None) -> None:
        from delta.tables import DeltaTable

        self._tables.before_commit()
        quiet = self._session()
        optimize = DeltaTable.forPath(quiet.spark, quiet.location(table)).optimize()
        if places is not None:
            optimize = optimize.where(" OR ".join(_literal(table, place) for place in places))
        optimize.executeCompaction()

    # -- history --------------------------------------------------------------------------------------------------------

    def drop_folded(self, now: int) -> bool:
        """Deletes rows of `deferred` that were folded a while ago, some hours of them at a time."""
        edge = self._progress.folded_until_us
        if not self._edges or self._edges[-1][1] < edge:
            self._edges.append((now, edge))
        while len(self._edges) > 1 and self._edges[1][0] <= now - _READERS_LAG_US:
            self._edges.pop(0)
        since, safe = self._edges[0]
        firsts = [file["first_at"] for file in self._readers.files(DEFERRED) if file.get("first_at") is not None]
        early = since > now - _READERS_LAG_US or safe < self._dropped_us + _DROP_STEP_US
        if early or not any(first < from_us(safe) for first in firsts):
            return False
        with self._tasks_lock:
            self._delete(DEFERRED, before(safe))
        self._dropped_us = safe
        return False

    def purge(self, now: int) -> bool:
        """Deletes closed hours older than the retention, and refused records of days before it; touches no data file.

        What counts is the append time up to which records were read: no later one can be of these hours, since it is refused.
        """
        ends = self._ends()
        for table in (TASKS, COMPLETIONS, ATTEMPTS):
            with self._lock_of(table):
                marks = self._progress.tasks()  # a batch may have opened an hour
                read = {n: _read_us(mark, ends.get(n), now) for n, mark in marks.items()}
                old = {
                    place for place in self._rows(table) if place.partition in marks and self._past(place, marks, read)
                }
                if old:
                    self._delete(table, in_places(old))
                    log.info("purged", table=table.name, hours=len({place.hour for place in old}))
                    failpoint.reach("ingest.purge.deleted")
        last = from_us(max(0, max(read.values(), default=0) - self._retention_us)).date()
        days = {file["day"] for file in self._readers.files(REJECTED) if file["day"] < last}
        if days:
            with self._tasks_lock:
                self._delete(REJECTED, F.col("day").isin(sorted(days)))
        return False

    def _past(self, place: HourBucket, marks: Mapping[int, Mark], read: Mapping[int, int]) -> bool:
        past = (read[place.partition] - self._retention_us) // HOUR_US
        return place.hour < past and not OpenHours.of(marks[place.partition]).holds(place.hour)

    def _delete(self, table: Table, condition: Column) -> None:
        from delta.tables import DeltaTable

        self._tables.before_commit()
        DeltaTable.forPath(self._tables.spark, self._tables.location(table)).delete(condition)

    def vacuum(self, table: Table, _now: int) -> bool:
        """Deletes files that no version within the table's retention needs; no scan lasts that long."""
        from delta.tables import DeltaTable

        self._tables.before_commit()
        quiet = self._session()
        DeltaTable.forPath(quiet.spark, quiet.location(table)).vacuum()
        return False

    def _lock_of(self, table: Table) -> AbstractContextManager[Any]:
        return self._outcomes_lock if table in (COMPLETIONS, ATTEMPTS) else self._tasks_lock

    def _session(self) -> Tables:
        """The tables in a session with settings of its own, which nobody else sees."""
        if self._quiet is None:
            session = self._tables.spark.newSession()
            for name, value in _MAINTENANCE.items():
                session.conf.set(name, value)
            self._quiet = Tables(session, self._tables.path)
        return self._quiet


def _read_us(mark: Mark, end: int | None, now: int) -> int:
    """Before which append time nothing of a partition can come any more; clocks differ by less than an hour."""
    return max(mark.appended_us, now - HOUR_US) if end is not None and end == mark.tasks_offset else mark.appended_us


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


def _literal(table: Table, place: tuple[Any, ...]) -> str:
    """A condition on partition columns as text, which OPTIMIZE asks for; built from numbers and dates alone."""
    parts = []
    for name, value in zip(table.partitioned_by, place, strict=True):
        parts.append(f"{name} = DATE'{value.isoformat()}'" if isinstance(value, date) else f"{name} = {int(value)}")
    return f"({' AND '.join(parts)})"
