"""The scanning query: streaming job 2. It loads taken partitions and the next look-ahead slice from the tables into the lanes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import structlog

from scylla_spark import failpoint
from scylla_spark.clock import now_us
from scylla_spark.config import Settings
from scylla_spark.core.engine import Engine
from scylla_spark.core.key import HOUR_US, TaskKey
from scylla_spark.core.partition import Mark, joined
from scylla_spark.io.openings import Openings
from scylla_spark.io.readers import Readers
from scylla_spark.io.tables import Tables, between
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS
from scylla_spark.services.loading import Slice, slices
from scylla_spark.services.mailbox import Mailbox
from scylla_spark.transforms.due import due, first_of_queues, maybe_open, uncompleted

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = structlog.get_logger("dispatch")

ROWS_PER_MESSAGE = 500  # the engine stays responsive between messages
FEW = 20_000  # rows up to which taken partitions are read without Spark
AGAIN_US = 30_000_000  # lanes that were left in the tables are looked at again after this, at the latest


@dataclass(slots=True)
class _Reach:
    """How far a partition was scanned.

    Attributes:
        scanned_us: up to which scheduled time; None: not at all.
        horizon_us: up to when its tail keeps tasks.
        left_lanes: lanes that were loaded while others were left in the tables; 0 if none was.
        looked_us: when it was scanned last.
    """

    scanned_us: int | None
    horizon_us: int
    left_lanes: int = 0
    looked_us: int = 0


class Scanner:
    """Decides what to scan, runs it on Spark and offers the rows to the engine.

    Args:
        readers: of the tables.
        settings: look-ahead and depth.
        mailbox: the engine's.
        engine: receives rows.
    """

    def __init__(self, readers: Readers, settings: Settings, mailbox: Mailbox, engine: Engine) -> None:
        self.failure: BaseException | None = None
        self.rows = 0
        self._tables: Tables | None = None
        self._readers = readers
        self._openings = Openings(readers)
        self._settings = settings
        self._mailbox = mailbox
        self._engine = engine
        self._look_ahead_us = int(settings.dispatch.look_ahead.total_seconds() * 1e6)
        self._reach: dict[int, _Reach] = {}
        self._large: set[int] = set()  # partitions known to have more than `FEW` open tasks when they were taken
        self._lock = threading.Lock()
        self._one_at_a_time = threading.Lock()
        self._soon = ThreadPoolExecutor(1, thread_name_prefix="scan")
        self._query: StreamingQuery | None = None

    def start(self, tables: Tables) -> None:
        """Starts the streaming query: a ticker whose every batch calls `run_once`. Before, only small scans are done.

        Args:
            tables: the same tables, as Spark sees them.
        """
        self._tables = tables
        self.soon()
        spark = tables.spark
        trigger = f"{int(self._settings.dispatch.trigger.total_seconds() * 1000)} milliseconds"
        ticker = spark.readStream.format("rate").option("rowsPerSecond", 1).option("numPartitions", 1).load()
        writer = ticker.writeStream.queryName("dispatch-scan").foreachBatch(lambda _batch, _id: self._tick())
        self._query = writer.trigger(processingTime=trigger).start()

    def stop(self) -> None:
        """Ends the query."""
        self._soon.shutdown(wait=False, cancel_futures=True)
        if self._query is not None:
            self._query.stop()

    def alive(self) -> bool:
        """Whether the query runs.

        Raises:
            StreamingQueryException: it ended with an error.
            Exception: a scan did.
        """
        if self.failure is not None:
            raise self.failure
        if self._query is None:
            return True
        error = self._query.exception()
        if error is not None:
            raise error
        return self._query.isActive

    def horizon(self, now: int) -> int:
        """How far ahead tasks are held, microseconds since the epoch."""
        return now + self._look_ahead_us

    def add(self, partition: int, horizon_us: int) -> None:
        """A partition was taken; its tail keeps tasks up to the horizon."""
        with self._lock:
            self._reach[partition] = _Reach(None, horizon_us)

    def remove(self, partition: int) -> None:
        """A partition was left."""
        with self._lock:
            self._reach.pop(partition, None)
            self._large.discard(partition)

    def soon(self) -> None:
        """Scans now what was added, not only with the next batch of the query."""
        with contextlib.suppress(RuntimeError):  # it was stopped
            self._soon.submit(self._tick)

    def run_once(self, now: int) -> int:
        """Scans what is wanted at `now`; returns how many rows were offered."""
        offered = 0
        with self._one_at_a_time:
            for (after, until), partitions in self._plan(now).items():
                offered += self._scan(partitions, after, until, now)
        return offered

    def _tick(self) -> None:
        try:
            self.rows += self.run_once(now_us())
        except Exception as error:
            # tables that changed meanwhile, storage or engine that did not answer in time
            passing = isinstance(error, OSError) or "DELTA_" in str(error) or "FileNotFound" in str(error)
            if not passing:
                self.failure = error
                raise
            log.warning("scan failed, tried again", error=repr(error)[:500])

    def _plan(self, now: int) -> dict[tuple[int | None, int], list[int]]:
        with self._lock:
            reaches = dict(self._reach)
        plan: dict[tuple[int | None, int], list[int]] = {}
        for partition, reach in reaches.items():
            if reach.horizon_us - now < self._look_ahead_us // 2 or self._runs_low(partition, reach, now):
                reach.horizon_us = self.horizon(now)
            if reach.scanned_us is None or reach.scanned_us < reach.horizon_us:
                after = None if reach.left_lanes else reach.scanned_us
                plan.setdefault((after, reach.horizon_us), []).append(partition)
        return plan

    def _runs_low(self, number: int, reach: _Reach, now: int) -> bool:
        """Whether lanes that were left in the tables should be looked at again."""
        if not reach.left_lanes or reach.scanned_us is None:
            return False
        partition = self._engine.partitions.get(number)
        return partition is not None and (
            len(partition.lanes) <= reach.left_lanes // 2 or now - reach.looked_us > AGAIN_US
        )

    def _scan(self, partitions: list[int], after: int | None, until: int, now: int) -> int:
        # the horizon is raised before progress is read: a tail record dropped earlier is covered by the scan or postpones it
        far = self._mailbox.ask(
            lambda now: {n: self._engine.raise_horizon(n, until) for n in partitions if n in self._engine.partitions}
        )
        marks = joined(self._readers.marks())
        ready = [number for number in far if marks.get(number, Mark()).tasks_offset > far[number]]
        if not ready:
            return 0
        known = {number: marks.get(number, Mark()) for number in ready}
        found = self._few(known, until) if after is None else None
        if found is None:
            if self._tables is None:
                return 0  # it comes with Spark
            rows = self.read(self._tables, known, after, until, now)
            if rows is None:
                return self._scan(ready, None, until, now)
            found = slices(rows)
        failpoint.reach("dispatch.scan.read")
        self._offer_cancelled(known, after, until)
        for number in ready:
            iterator = iter(found[number].rows if number in found else ())
            while chunk := list(islice(iterator, ROWS_PER_MESSAGE)):
                self._mailbox.post(partial(self._engine.rows, number, chunk, whole=after is None))
        failpoint.reach("dispatch.scan.offered")
        for number in ready:
            part = found.get(number, Slice([], {}, set()))
            left = frozenset(part.unloaded) if after is None else None
            self._mailbox.post(
                partial(self._engine.scanned, number, until, part.cuts, marks.get(number, Mark()), unloaded=left)
            )
            self._note(number, until, now, left)
        offered = sum(len(part.rows) for part in found.values())
        log.info("scan", partitions=len(ready), rows=offered, left=sum(len(p.unloaded) for p in found.values()))
        return offered

    def _few(self, marks: Mapping[int, Mark], until: int) -> dict[int, Slice] | None:
        """All that is open, read without Spark; None if that is much. So a taken partition need not wait for a cold JVM."""
        if not self._large.isdisjoint(marks):
            return None
        found: dict[int, Slice] = {}
        most = FEW
        for number, mark in marks.items():
            rows = self._openings.partition(number, mark, until, most)
            if rows is None:
                self._large.update(marks)
                return None
            found[number] = Slice(rows, {}, set())
            most -= len(rows)
        return found

    def _note(self, number: int, until: int, now: int, left: frozenset[int] | None) -> None:
        partition = self._engine.partitions.get(number)
        with self._lock:
            reach = self._reach.get(number)
            if reach is not None:
                reach.scanned_us, reach.looked_us = until, now
                if left is not None:
                    reach.left_lanes = max(1, len(partition.lanes)) if left and partition is not None else 0

    def read(self, tables: Tables, marks: Mapping[int, Mark], after: int | None, until: int, now: int) -> Any:
        """The due scan as an Arrow table.

        Args:
            tables: as Spark sees them.
            marks: of the partitions to scan, from a progress read before.
            after: only scheduled times after this, microseconds since the epoch; None: all that may be open.
            until: only scheduled times up to this.
            now: microseconds since the epoch.

        Returns:
            Columns of `transforms.due.due`; of `first_of_queues` where there is more than the budget allows. None if that is
            so after an instant: what to leave out can only be chosen among all.
        """
        inside = between(list(marks), after, until)
        if after is None:
            kept_open = sorted({hour for mark in marks.values() for hour in mark.open_hours})
            inside &= maybe_open(min(mark.closed_hour for mark in marks.values()), kept_open)
        folded_us = min(mark.folded_until_us for mark in marks.values())
        # completions before tasks: what is purged goes from tasks first, so an older view of completions is the safe one
        completions = tables.read(COMPLETIONS).where(inside)
        attempts = tables.read(ATTEMPTS).where(inside)
        tasks = tables.tasks_between(list(marks), after, until, folded_us).where(inside)
        dispatch = self._settings.dispatch
        frame = due(uncompleted(tasks, completions, attempts), depth=dispatch.lane_depth)
        ended = [p.ended for n in marks if (p := self._engine.partitions.get(n)) is not None]
        budget = dispatch.scan_budget + sum(map(len, ended))  # some of those may look open still
        rows = frame.limit(budget + 1).toArrow()
        if rows.num_rows <= budget:
            return rows
        if after is not None:
            return None
        paused = [name for name, queue in self._settings.queues.items() if queue.paused]
        return first_of_queues(frame, budget=budget, now=now, paused=paused).toArrow()

    def _offer_cancelled(self, marks: Mapping[int, Mark], after: int | None, until: int) -> None:
        """Keys of the slice that were cancelled, of which a later record may come; the past hour, where all is read."""
        since = after if after is not None else now_us() - HOUR_US
        for number, mark in marks.items():
            if found := self._openings.cancelled(number, mark, since, until):
                self._mailbox.post(partial(self._remember, number, found))

    def _remember(self, partition: int, keys: list[TaskKey], _now: int) -> None:
        self._engine.remember_cancelled(partition, keys)
