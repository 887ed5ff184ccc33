"""Near and far: deferred tasks are folded into `tasks` before their time comes, a slice of hours at a time.

`folded_until` moves after its slice is merged; a crash in between repeats the slice, which changes nothing. It keeps ahead of the
clock by `ingest.near`, also when no batch comes. Nothing depends on its being in time: readers beyond it read `deferred` as well.
"""

from __future__ import annotations

from collections.abc import Mapping

from scylla_spark import failpoint
from scylla_spark.config.settings import Settings
from scylla_spark.core.tasks.key import HOUR_US
from scylla_spark.duration import duration_us
from scylla_spark.io.delta.new_tables import fold_target_us
from scylla_spark.io.delta.spark_tables import MOST_MERGED_FILES, Extent, HourBucket, Tables, bounds
from scylla_spark.log import get_logger
from scylla_spark.services.ingest.progress import Progress

log = get_logger("ingest")


class DeferredFolder:
    """Moves `folded_until`. The caller holds the lock of `tasks`, so that no batch is written meanwhile.

    Args:
        tables: of the deployment.
        progress: tells and keeps folded_until.
        settings: near, and most rows of a slice (as of a batch).
    """

    def __init__(self, tables: Tables, progress: Progress, settings: Settings) -> None:
        self._tables = tables
        self._progress = progress
        self._settings = settings
        self._near_us = duration_us(settings.ingest.near)
        self._max_rows = settings.ingest.max_records

    def due(self, now: int) -> bool:
        """Returns True if a slice is to be folded."""
        return self._progress.folded_until_us < now + self._near_us

    def turn(self, now: int) -> int:
        """Folds the next slice, if one is due; returns how many rows were merged. Idempotent."""
        if not self.due(now):
            return 0
        begin, target = self._progress.folded_until_us, fold_target_us(self._settings, now)
        places = self._tables.deferred_places(begin, target)
        until = slice_end(places, target, self._max_rows)
        merged = self._merge(begin, until) if places else 0
        self._progress.folded(until)
        log.info("deferred tasks are near", rows=merged, hours=round((until - begin) / HOUR_US, 1))
        return merged

    def _merge(self, begin: int, until: int) -> int:
        rows = self._tables.deferred_between(begin, until).persist()
        try:
            found = rows.groupBy("partition_id", "hour").agg(*bounds()).collect()
            if found:
                self._tables.merge_tasks(rows, Extent.of(found))
                failpoint.reach("ingest.fold.merged")
        finally:
            rows.unpersist()
        return sum(row["rows"] for row in found)


def slice_end(places: Mapping[HourBucket, int], target_us: int, max_rows: int) -> int:
    """Returns where the next slice ends: after as many full hours as a MERGE can take at once, at least one that has rows.

    Args:
        places: where rows wait, and how many.
        target_us: where folding is to end (microseconds since the epoch, a full hour).
        max_rows: most rows of a slice.
    """
    hours: dict[int, list[int]] = {}
    for place, rows in places.items():
        hours.setdefault(place.hour, []).append(rows)
    files = total = 0
    for number, hour in enumerate(sorted(hours)):
        files, total = files + len(hours[hour]), total + sum(hours[hour])
        if number and (files > MOST_MERGED_FILES or total > max_rows):
            return hour * HOUR_US
    return target_us
