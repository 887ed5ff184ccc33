"""The due scan on Spark: of very many open tasks, those that are to be loaded first."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException

from scylla_spark.config.settings import Settings
from scylla_spark.core.queues.in_force import MOST_BYTES, Budget, QueuesInForce
from scylla_spark.core.tables.progress import Mark, OpenHours, common_edge
from scylla_spark.duration import duration_ms
from scylla_spark.io.delta.spark_tables import Tables, between
from scylla_spark.io.host.session import fit_to_cluster
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS
from scylla_spark.services.dispatch.scan_rows import COLUMNS, Slice, slices
from scylla_spark.transforms.due import due, first_of_queues, maybe_open, uncompleted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_START_S: Final = 60.0  # that a query may take to start before a stop gives it up
_TOO_LARGE: Final = "maxResultSize"  # what Spark's error names when rows are too large to be fetched


class SparkScan:
    """Reads what is due and uncompleted, per lane in order, with Spark's window functions.

    Args:
        spark: the session.
        settings: where the tables are, depth of lanes, budget of queues.
        queues: which are listed, and which are paused; default: as the settings say.
        most_bytes: of one queue's rows in one scan.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        queues: QueuesInForce | None = None,
        *,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._queues = queues or QueuesInForce(settings.queues)
        self._most_bytes = most_bytes
        self._spark = spark
        self._tables = Tables(spark, settings.tables_path)
        self._settings = settings

    def read(
        self, marks: Mapping[int, Mark], after: int | None, until: int, now: int, ended: int
    ) -> dict[int, Slice] | None:
        """Returns what was found of each partition.

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
        return None if rows is None else found_in(rows)

    def table(self, marks: Mapping[int, Mark], after: int | None, until: int, now: int, ended: int) -> Any:
        """The same as an Arrow table with the columns of `transforms.due.due`, or of `first_of_queues` beyond the budget.

        Args:
            marks: partition → its progress, read before.
            after: scheduled times after this, microseconds since the epoch; None: from the beginning.
            until: up to and with this.
            now: what is due by now goes first.
            ended: how many tasks that have ended may still look open.
        """
        fit_to_cluster(self._spark)
        frame = self._frame(marks, after, until)
        budget = self._settings.dispatch.scan_budget + ended
        rows = _fetched(frame.limit(budget + 1))
        if rows is not None and rows.num_rows <= budget:
            return rows
        if after is not None:
            return None
        chosen = Budget(budget, self._most_bytes, self._queues.listed(), self._queues.paused())
        return first_of_queues(frame, chosen, now=now).toArrow()

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


def found_in(table: Any) -> dict[int, Slice]:
    """From an Arrow table of `due`, or of `first_of_queues`."""
    if "kept" not in table.column_names:
        return slices(_lists(table.select(list(COLUMNS))))
    import pyarrow.compute as pc

    kept = table.column("kept")
    left = table.filter(pc.invert(kept)).select(["partition_id", "ordering_id"])
    return slices(_lists(table.filter(kept).select(list(COLUMNS))), _lists(left))


def _lists(table: Any) -> Iterator[tuple[Any, ...]]:
    """The rows of an Arrow table as tuples."""
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


class ScanQuery:
    """The streaming query whose every micro-batch scans; a source that only counts gives it its rhythm.

    It starts in a thread of its own, since the first query of a session takes a second to start, and a taken partition can be
    scanned before.

    Args:
        spark: session on which it runs.
        trigger: pause between micro-batches.
    """

    def __init__(self, spark: SparkSession, trigger: timedelta) -> None:
        self._spark = spark
        self._trigger_ms = duration_ms(trigger)
        self._starting: Future[StreamingQuery] = Future()

    def start(self, tick: Callable[[], None]) -> None:
        """Begins to start it."""
        threading.Thread(target=self._start, args=(tick,), name="scan-start", daemon=True).start()

    def alive(self) -> bool:
        """Returns True if it starts or runs.

        Raises:
            Exception: it could not be started, or ended with an error.
        """
        if not self._starting.done():
            return True
        query = self._starting.result()
        error = query.exception()
        if error is not None:
            raise error
        return query.isActive

    def stop(self) -> None:
        """Ends it, once it has started."""
        try:
            query = self._starting.result(_START_S)
        except Exception:  # it never started, as `alive` tells
            return
        with contextlib.suppress(Exception):  # it ends with its JVM
            query.stop()

    def _start(self, tick: Callable[[], None]) -> None:
        counter = self._spark.readStream.format("rate").option("rowsPerSecond", 1).option("numPartitions", 1)
        try:
            writer = counter.load().writeStream.queryName("dispatch-scan").foreachBatch(lambda _batch, _id: tick())
            self._starting.set_result(writer.trigger(processingTime=f"{self._trigger_ms} milliseconds").start())
        except Exception as error:
            self._starting.set_exception(error)
