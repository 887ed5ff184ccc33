"""The due scan without Spark, for dispatchers that need no JVM: as quick to start as Python is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from scylla_spark.config.settings import Settings
from scylla_spark.core.queues.in_force import MOST_BYTES, Budget, QueuesInForce
from scylla_spark.core.tables.progress import Mark
from scylla_spark.io.delta.due_rows import Window, due_keys, filled, first_of_queues, open_rows
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.services.dispatch.scan_rows import COLUMNS, Slice, slices

if TYPE_CHECKING:
    import polars as pl

MOST_FETCHED: Final = (
    1024 * 1024 * 1024
)  # bytes of rows that are read without choosing among them, as Spark's maxResultSize
_END_S = 5.0


class ReaderScan:
    """Reads what is due and uncompleted, per lane in order, with polars; gives the same rows as `SparkScan`.

    Args:
        settings: where the tables are, depth of lanes, budget of queues.
        queues: which are listed, and which are paused; default: as the settings say.
        most_bytes: of one queue's rows in one scan.
    """

    def __init__(
        self, settings: Settings, queues: QueuesInForce | None = None, *, most_bytes: int = MOST_BYTES
    ) -> None:
        self._queues = queues or QueuesInForce(settings.queues)
        self._readers = TableReader.of(settings)
        self._settings = settings
        self._most_bytes = most_bytes

    def read(
        self, marks: Mapping[int, Mark], after: int | None, until: int, now: int, ended: int
    ) -> dict[int, Slice] | None:
        """Returns what was found of each partition; see `SparkScan.read`."""
        rows = open_rows(self._readers, marks, Window(after, until))
        paused = self._queues.paused()
        keys = due_keys(rows, depth=self._settings.dispatch.lane_depth, now=now, paused=paused)
        budget = Budget(self._settings.dispatch.scan_budget + ended, self._most_bytes, self._queues.listed(), paused)
        if keys.height <= budget.rows and keys["size"].sum() <= MOST_FETCHED:
            return _slices(rows, keys, None)
        if after is not None:
            return None
        chosen = first_of_queues(keys, budget)
        return _slices(rows, chosen.filter("kept"), chosen.filter(~chosen["kept"]))


def _slices(rows: pl.LazyFrame, kept: pl.DataFrame, left: pl.DataFrame | None) -> dict[int, Slice]:
    lanes = left.select("partition_id", "ordering_id").iter_rows() if left is not None else ()
    return slices(filled(rows, kept).select(COLUMNS).iter_rows(), lanes)


class ScanTimer:
    """Calls the scan again and again, from a thread of its own.

    Args:
        trigger: pause between two calls.
    """

    def __init__(self, trigger: timedelta) -> None:
        self._trigger_s = trigger.total_seconds()
        self._stopping = threading.Event()
        self._failure: Exception | None = None
        self._thread: threading.Thread | None = None

    def start(self, tick: Callable[[], None]) -> None:
        """Begins to call `tick`."""
        self._thread = threading.Thread(target=self._run, args=(tick,), name="scan-timer", daemon=True)
        self._thread.start()

    def alive(self) -> bool:
        """Returns True if it still does.

        Raises:
            Exception: what ended it.
        """
        if self._failure is not None:
            raise self._failure
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """Ends it; a scan that is under way may outlast this."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_END_S)

    def _run(self, tick: Callable[[], None]) -> None:
        try:
            while not self._stopping.wait(self._trigger_s):
                tick()
        except Exception as error:
            self._failure = error
