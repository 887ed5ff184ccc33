"""Putting small files together: those of hours that are final, and where there are many. It changes no row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import date
from typing import Any, Final

from scylla_spark.core.tables.progress import Mark
from scylla_spark.io.delta.spark_tables import HourBucket
from scylla_spark.schemas import (
    ATTEMPT_LOGS,
    ATTEMPTS,
    AUDIT_TRAIL,
    COMPLETIONS,
    DEFERRED,
    FIRES,
    JOBS,
    NOTIFICATION_RULES,
    QUEUES,
    REJECTED,
    SCHEDULES,
    TASKS,
    TOKENS,
    Table,
)
from scylla_spark.services.ingest.locked_tables import SMALL_BYTES, LockedTables, maybe_open

COMPACTED: Final = (
    TASKS, COMPLETIONS, ATTEMPTS, ATTEMPT_LOGS, REJECTED, DEFERRED, SCHEDULES, JOBS, FIRES, QUEUES, TOKENS, NOTIFICATION_RULES, AUDIT_TRAIL,
)  # fmt: skip
_TINY_BYTES: Final = 4 << 20
_MANY_FILES: Final = 16  # of an hour that is still written
_FILES_AT_ONCE: Final = 400  # some three seconds


class Compactor:
    """Puts small files together, some hundred at a time.

    Args:
        kept: the tables.
    """

    def __init__(self, kept: LockedTables) -> None:
        self._kept = kept

    def compact_all(self, now: int) -> None:
        """Puts all small files together."""
        for table in COMPACTED:
            while self.compact(table, now):
                pass

    def compact(self, table: Table, _now: int) -> bool:
        """Puts small files of one table together, some hundred at a time; changes no row."""
        if not table.partitioned_by:  # it is only appended to, which does not conflict: batches need not wait
            if sum(file["bytes"] < _TINY_BYTES for file in self._kept.readers.files(table)) >= _MANY_FILES:
                self._optimize(table, None)
            return False
        places = self._scattered(table)
        if not places:
            return False
        with self._kept.lock_of(table):
            self._optimize(table, places)
        return True

    def _scattered(self, table: Table) -> list[tuple[Any, ...]]:
        """Values of the partition columns under which there are many small files, worst first, up to some hundred files."""
        small = Counter(
            tuple(file[name] for name in table.partitioned_by)
            for file in self._kept.readers.files(table)
            if file["bytes"] < SMALL_BYTES
        )
        marks, chosen, files = self._kept.progress.tasks(), [], 0
        for place, count in small.most_common():
            final = len(place) == 2 and not maybe_open(HourBucket(*place), marks.get(place[0], Mark()))
            if count >= (2 if final else _MANY_FILES):
                chosen.append(place)
                files += count
                if files >= _FILES_AT_ONCE:
                    break
        return chosen

    def _optimize(self, table: Table, places: Iterable[tuple[Any, ...]] | None) -> None:
        from delta.tables import DeltaTable

        self._kept.tables.before_commit()
        quiet = self._kept.quiet
        optimize = DeltaTable.forPath(quiet.spark, quiet.location(table)).optimize()
        if places is not None:
            optimize = optimize.where(" OR ".join(_literal(table, place) for place in places))
        optimize.executeCompaction()


def _literal(table: Table, place: tuple[Any, ...]) -> str:
    """A condition on partition columns as text, which OPTIMIZE asks for; built from numbers and dates alone."""
    parts = []
    for name, value in zip(table.partitioned_by, place, strict=True):
        parts.append(f"{name} = DATE'{value.isoformat()}'" if isinstance(value, date) else f"{name} = {int(value)}")
    return f"({' AND '.join(parts)})"
