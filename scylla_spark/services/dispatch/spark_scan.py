"""The due scan on Spark: of very many open tasks, those that are to be loaded first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException

from scylla_spark.config.settings import Settings
from scylla_spark.core.mark import Mark
from scylla_spark.core.near import common_edge
from scylla_spark.core.open_hours import OpenHours
from scylla_spark.io.delta.spark_tables import Tables, between
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS
from scylla_spark.services.dispatch.scan_rows import Slice, slices
from scylla_spark.transforms.due import Budget, due, first_of_queues, maybe_open, uncompleted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST_BYTES: Final = 256 * 1024 * 1024  # of one queue's rows in one scan
_TOO_LARGE: Final = "maxResultSize"  # what Spark's error names when rows are too large to be fetched


class SparkScan:
    """Reads what is due and uncompleted, per lane in order, with Spark's window functions.

    Args:
        tables: as Spark sees them.
        settings: depth of lanes, budget of queues, which queues are paused.
    """

    def __init__(self, tables: Tables, settings: Settings) -> None:
        self._tables = tables
        self._settings = settings

    def read(
        self, marks: Mapping[int, Mark], after: int | None, until: int, now: int, ended: int
    ) -> dict[int, Slice] | None:
        """What was found of each partition.

        Args:
            marks: of the partitions to scan, from a progress read before.
            after: only scheduled times after this, microseconds since the epoch; None: all that may be open.
            until: only scheduled times up to this.
            now: microseconds since the epoch.
            ended: how many tasks that have ended may still look open.

        Returns:
            None if there is more than the budget after an instant: what to leave out can only be chosen among all.
        """
        rows = self.table(marks, after, until, now, ended)
        return None if rows is None else slices(rows)

    def table(self, marks: Mapping[int, Mark], after: int | None, until: int, now: int, ended: int) -> Any:
        """The same as an Arrow table with the columns of `transforms.due.due`, or of `first_of_queues` beyond the budget."""
        frame = self._frame(marks, after, until)
        budget = self._settings.dispatch.scan_budget + ended
        rows = _fetched(frame.limit(budget + 1))
        if rows is not None and rows.num_rows <= budget:
            return rows
        if after is not None:
            return None
        queues = self._settings.queues
        paused = [name for name, queue in queues.items() if queue.paused]
        return first_of_queues(frame, Budget(budget, MOST_BYTES, list(queues), paused), now=now).toArrow()

    def _frame(self, marks: Mapping[int, Mark], after: int | None, until: int) -> DataFrame:
        inside = between(list(marks), after, until)
        if after is None:
            inside &= maybe_open(OpenHours.of(*marks.values()))
        folded_us = common_edge(mark.folded_until_us for mark in marks.values())
        # completions before tasks: what is purged goes from tasks first, so an older view of completions is the safe one
        completions = self._tables.read(COMPLETIONS).where(inside)
        attempts = self._tables.read(ATTEMPTS).where(inside)
        tasks = self._tables.tasks_between(list(marks), after, until, folded_us).where(inside)
        return due(uncompleted(tasks, completions, attempts), depth=self._settings.dispatch.lane_depth)


def _fetched(frame: DataFrame) -> Any:
    """The rows as an Arrow table; None if they are too large to be fetched."""
    try:
        return frame.toArrow()
    except PySparkException as error:
        if _TOO_LARGE not in str(error):
            raise
        return None
