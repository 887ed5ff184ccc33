"""The scan loads taken partitions and the next look-ahead slice from the tables into the lanes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from scylla_spark import failpoint
from scylla_spark.config.settings import Settings
from scylla_spark.core.engine.engine import Engine
from scylla_spark.core.engine.memory_use import cost_of
from scylla_spark.core.tables.progress import Basis, Mark, Tenure
from scylla_spark.core.tasks.key import HOUR_US, Name, TaskKey
from scylla_spark.core.tasks.stored_records import Bearer, Known, ScanRow
from scylla_spark.duration import duration_us
from scylla_spark.io.delta.open_tasks import Bound
from scylla_spark.log import get_logger
from scylla_spark.services.dispatch.mailbox import Mailbox
from scylla_spark.services.dispatch.scan_rows import Slice
from scylla_spark.services.dispatch.stepwise_work import Ask, Read, Steps

log = get_logger("dispatch")

ROWS_PER_MESSAGE = 500  # the engine stays responsive between messages …
BYTES_PER_MESSAGE = 8 * 1024 * 1024  # … and can let go of what is too much
FEW = Bound(20_000, 128 * 1024 * 1024)  # up to which taken partitions are read without Spark
AGAIN_US = 30_000_000  # lanes that were left in the tables are looked at again after this, at the latest


class OpenTasks(Protocol):
    """What is read of the tables without Spark; progress is read first, so that tables are at least as far."""

    def marks(self) -> Mapping[int, Mark]:
        """Returns how far the tables are: partition → mark."""

    def known(self, keys: Collection[TaskKey]) -> Mapping[TaskKey, Known]:
        """Returns what the tables hold of each key."""

    def partition(self, number: int, mark: Mark, until_us: int, bound: Bound) -> list[ScanRow] | None:
        """All open tasks of a partition up to an instant, in key order; None if that is more than the bound.

        Args:
            number: of the partition.
            mark: its progress, read before.
            until_us: latest scheduled time, microseconds since the epoch.
            bound: most that is read.
        """

    def cancelled(self, number: int, mark: Mark, after_us: int, until_us: int) -> list[TaskKey]:
        """Keys of a partition that were cancelled or ended as duplicates, perhaps before their time, with after < scheduled time ≤ until.

        Args:
            number: of the partition.
            mark: its progress, read before.
            after_us: microseconds since the epoch.
            until_us: likewise.
        """

    def bearers(self, number: int, names: Collection[Name] | None, mark: Mark) -> list[Bearer]:
        """The open tasks of a partition, whenever they are due, that bear one of some names.

        Args:
            number: of the partition.
            names: of its lanes; None: those that any open task wants to be unique and that another bears, too.
            mark: its progress, read before.
        """

    def lanes(
        self, partition: int, wanted: Mapping[str, tuple[TaskKey, int]], until_us: int, mark: Mark
    ) -> Mapping[str, tuple[list[ScanRow], bool]]:
        """Ordering id → its next open tasks behind a key, at most so many, and whether there are more.

        Args:
            partition: its number.
            wanted: ordering id → (key behind which it begins, most tasks).
            until_us: latest scheduled time, microseconds since the epoch.
            mark: its progress, read before.
        """


class LargeScan(Protocol):
    """The due scan for more than a few tasks; see `services.dispatch.spark_scan` and `services.dispatch.reader_scan`."""

    def read(
        self, marks: Mapping[int, Mark], after: int | None, until: int, now: int, ended: int
    ) -> dict[int, Slice] | None:
        """Returns what was found of each partition; None if there is more than the budget after an instant.

        Args:
            marks: partition → its progress, read before.
            after: scheduled times after this, microseconds since the epoch; None: from the beginning.
            until: up to and with this.
            now: what is due by now goes first.
            ended: how many tasks that have ended may still look open.
        """


class Ticker(Protocol):
    """Gives the scans their rhythm."""

    def start(self, tick: Callable[[], None]) -> None:
        """Begins to call `tick` again and again, in one thread at a time."""

    def alive(self) -> bool:
        """Returns True if it still does.

        Raises:
            Exception: what ended it.
        """

    def stop(self) -> None:
        """Ends it."""


@dataclass(slots=True)
class _Reach:
    """How far a partition was scanned in one tenure.

    Attributes:
        tenure: this time of holding it.
        scanned_us: up to which scheduled time; None: not at all.
        horizon_us: up to when its tail keeps tasks.
        left_lanes: lanes that were loaded while others were left in the tables; 0 if none was.
        looked_us: when it was scanned last.
    """

    tenure: Tenure
    scanned_us: int | None
    horizon_us: int
    left_lanes: int = 0
    looked_us: int = 0


class _Held(NamedTuple):
    """What the engine holds of a partition: how many lanes, how many keys that ended, whether it left lanes to the tables."""

    lanes: int
    ended: int
    left: bool


class Scanner:
    """Decides what to scan, reads it and offers the rows to the engine.

    Its work is done in steps (see `services.dispatch.stepwise_work`), one scan at a time; whoever carries it out sees to that.

    Args:
        tables: what is read without Spark.
        settings: look-ahead.
        mailbox: the engine's.
        engine: receives rows.
    """

    def __init__(self, tables: OpenTasks, settings: Settings, mailbox: Mailbox, engine: Engine) -> None:
        self.rows = 0
        self._tables = tables
        self._large_scan: LargeScan | None = None
        self._mailbox = mailbox
        self._engine = engine
        self._look_ahead_us = duration_us(settings.dispatch.look_ahead)
        self._reach: dict[int, _Reach] = {}
        self._large: set[Tenure] = set()  # known to have more than `FEW` open tasks when they were taken
        self._lock = threading.Lock()

    def attach(self, large: LargeScan) -> None:
        """Large scans are possible from now on."""
        self._large_scan = large

    def horizon(self, now: int) -> int:
        """Returns how far ahead tasks are held, microseconds since the epoch."""
        return now + self._look_ahead_us

    def look_again(self) -> None:
        """Lanes that were left in the tables are looked at by the next scan."""
        with self._lock:
            for reach in self._reach.values():
                reach.looked_us = 0

    def add(self, tenure: Tenure, horizon_us: int) -> None:
        """A partition was taken; its tail keeps tasks up to the horizon."""
        with self._lock:
            self._reach[tenure.partition] = _Reach(tenure, None, horizon_us)

    def remove(self, tenure: Tenure) -> None:
        """A partition was left."""
        with self._lock:
            reach = self._reach.get(tenure.partition)
            if reach is not None and reach.tenure == tenure:
                del self._reach[tenure.partition]
            self._large.discard(tenure)

    def turn(self, now: int) -> Steps[int]:
        """Scans what is wanted at `now`; returns how many rows were offered."""
        offered = 0
        held = yield Ask(lambda _now: self._held())
        for (after, until), tenures in self._plan(held, now).items():
            ended = sum(held[tenure].ended for tenure in tenures)
            offered += yield from self._scan(tenures, after, until, now, ended)
        self.rows += offered
        return offered

    def _held(self) -> dict[Tenure, _Held]:
        """In the engine's thread."""
        return {
            partition.tenure: _Held(len(partition.lanes), len(partition.ended), bool(partition.unloaded))
            for partition in self._engine.partitions.values()
        }

    def _plan(self, held: Mapping[Tenure, _Held], now: int) -> dict[tuple[int | None, int], list[Tenure]]:
        with self._lock:
            reaches = [reach for reach in self._reach.values() if reach.tenure in held]
        plan: dict[tuple[int | None, int], list[Tenure]] = {}
        for reach in reaches:
            if reach.horizon_us - now < self._look_ahead_us // 2 or self._runs_low(reach, held[reach.tenure], now):
                reach.horizon_us = self.horizon(now)
            if reach.scanned_us is None or reach.scanned_us < reach.horizon_us:
                after = None if held[reach.tenure].left else reach.scanned_us
                plan.setdefault((after, reach.horizon_us), []).append(reach.tenure)
        return plan

    def _runs_low(self, reach: _Reach, held: _Held, now: int) -> bool:
        """Returns True if lanes that were left in the tables should be looked at again."""
        if not held.left or reach.scanned_us is None:
            return False
        return held.lanes <= reach.left_lanes // 2 or now - reach.looked_us > AGAIN_US

    def _scan(self, tenures: list[Tenure], after: int | None, until: int, now: int, ended: int) -> Steps[int]:
        # the horizon is raised before progress is read: a tail record dropped earlier is covered by the scan or postpones it
        far = yield Ask(lambda _now: {t: self._engine.raise_horizon(t, until) for t in tenures if self._engine.held(t)})
        progress = yield Read(self._tables.marks)
        marks = {tenure: progress.get(tenure.partition, Mark()) for tenure in far}
        ready = {tenure: mark for tenure, mark in marks.items() if mark.tasks_offset > far[tenure]}
        if not ready:
            return 0
        found = (yield from self._few(ready, until)) if after is None else None
        if found is None:
            large = self._large_scan
            if large is None:
                return 0  # it comes with Spark
            known = {tenure.partition: mark for tenure, mark in ready.items()}
            found = yield Read(lambda: large.read(known, after, until, now, ended))
            if found is None:
                return (yield from self._scan(list(ready), None, until, now, ended))
        failpoint.reach("dispatch.scan.read")
        yield from self._offer(ready, found, after, until, now)
        offered = sum(len(part.rows) for part in found.values())
        log.info("scan", partitions=len(ready), rows=offered, left=sum(len(p.unloaded) for p in found.values()))
        return offered

    def _few(self, marks: Mapping[Tenure, Mark], until: int) -> Steps[dict[int, Slice] | None]:
        """All that is open, read without Spark; None if that is much. So a taken partition need not wait for a cold JVM."""
        if not self._large.isdisjoint(marks):
            return None
        found: dict[int, Slice] = {}
        left = FEW
        for tenure, mark in marks.items():
            rows = yield Read(partial(self._tables.partition, tenure.partition, mark, until, left))
            if rows is None:
                self._large.update(marks)
                return None
            found[tenure.partition] = Slice(rows, {}, set())
            left = left.less(len(rows), sum(cost_of(row.command) for row in rows))
        return found

    def _offer(
        self, marks: Mapping[Tenure, Mark], found: Mapping[int, Slice], after: int | None, until: int, now: int
    ) -> Steps[None]:
        since = after if after is not None else now - HOUR_US
        for tenure, mark in marks.items():
            # of keys that were cancelled, or were duplicates, a later record may come: those of the slice, and of the past hour,
            # where all is read
            cancelled = yield Read(partial(self._tables.cancelled, tenure.partition, mark, since, until))
            if cancelled:
                self._mailbox.post(partial(self._remember, tenure, cancelled))
        for tenure, mark in marks.items():
            part = found.get(tenure.partition)
            for rows in pieces(part.rows if part is not None else ()):
                self._mailbox.post(partial(self._rows, tenure, rows, mark.basis, whole=after is None))
        failpoint.reach("dispatch.scan.offered")
        for tenure, mark in marks.items():
            part = found.get(tenure.partition, Slice([], {}, set()))
            unloaded = frozenset(part.unloaded) if after is None else None
            ask = partial(self._scanned, tenure, until, part.cuts, mark, unloaded=unloaded)
            lanes = yield Ask(ask)
            if lanes is not None:
                self._note(tenure, until, now, lanes)

    def _rows(self, tenure: Tenure, rows: Sequence[ScanRow], basis: Basis, now: int, *, whole: bool) -> None:
        self._engine.rows(tenure, rows, basis, now, whole=whole)

    def _remember(self, tenure: Tenure, keys: list[TaskKey], _now: int) -> None:
        self._engine.remember_cancelled(tenure, keys)

    def _scanned(
        self,
        tenure: Tenure,
        until: int,
        cuts: Mapping[str, TaskKey],
        mark: Mark,
        now: int,
        *,
        unloaded: frozenset[int] | None,
    ) -> int | None:
        """In the engine's thread: how many lanes are loaded; None if the scan does not count."""
        if not self._engine.scanned(tenure, until, cuts, mark, now, unloaded):
            return None
        return len(self._engine.partitions[tenure.partition].lanes)

    def _note(self, tenure: Tenure, until: int, now: int, lanes: int) -> None:
        with self._lock:
            reach = self._reach.get(tenure.partition)
            if reach is not None and reach.tenure == tenure:
                reach.scanned_us, reach.looked_us, reach.left_lanes = until, now, lanes


def pieces(rows: Sequence[ScanRow]) -> Iterator[Sequence[ScanRow]]:
    """The rows in pieces of some hundred, or of some megabytes."""
    first, size = 0, 0
    for index, row in enumerate(rows):
        size += cost_of(row.command)
        if index + 1 - first >= ROWS_PER_MESSAGE or size >= BYTES_PER_MESSAGE:
            yield rows[first : index + 1]
            first, size = index + 1, 0
    if first < len(rows):
        yield rows[first:]
