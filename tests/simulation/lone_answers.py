"""What a lone engine is told of the tables, late: scans, reloads, look-ups, and who bears a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scylla_spark.core.engine import action
from scylla_spark.core.tasks.stored_records import ScanRow
from scylla_spark.services.dispatch.scan_rows import Slice
from tests.simulation.lone_tables import Span
from tests.simulation.records import SECOND

if TYPE_CHECKING:
    from tests.simulation.lone_engine import Life

LOOK_AHEAD_US = 300 * SECOND


class LateAnswers:
    """Reads tables for one tenure of an engine: progress first, rows some time after that, and delivers them some time later.

    Args:
        life: of the engine, which has just taken its partition.
    """

    def __init__(self, life: Life) -> None:
        self._life, self._engine, self._tables, self._tenure = life, life.engine, life.tables, life.tenure
        self._scanning = False
        self._scanned_us: int | None = None  # until when a scan that counts has read; None: there was none

    # -- scans ----------------------------------------------------------------------------------------------------------

    def scan(self) -> None:
        """A scan begins, unless one is under way: of all that is open where something was left, else of what comes near."""
        partition = self._engine.held(self._tenure)
        if self._scanning or partition is None:
            return
        until = self._life.now + LOOK_AHEAD_US
        after = None if partition.unloaded else self._scanned_us
        far = self._engine.raise_horizon(self._tenure, until)
        span = Span(self._tables.progress, after, until)
        if span.mark.tasks_offset > far:
            self._scanning = True
            self._life.later(0.5, lambda: self._read(span))

    def _read(self, span: Span) -> None:
        rng = self._life.rng
        most = rng.choice([2, 4, 100]) if span.after_us is None else 100
        found, ended_early = self._tables.scan(span, most, rng), self._tables.ended_early()

        def deliver() -> None:
            self._engine.remember_cancelled(self._tenure, ended_early)
            self._offer(found.rows, span)
            self._life.later(0.5, lambda: self._complete(span, found))

        self._life.later(15 if self._life.mode.slow else 2, deliver)

    def _offer(self, rows: list[ScanRow], span: Span) -> None:
        """Rows come in key order, in two parts."""
        rows, middle = sorted(rows, key=lambda row: row.command.key), len(rows) // 2
        for part in (rows[:middle], rows[middle:]):
            self._engine.rows(self._tenure, part, span.mark.basis, self._life.now, whole=span.after_us is None)

    def _complete(self, span: Span, found: Slice) -> None:
        unloaded = frozenset(found.unloaded) if span.after_us is None else None
        self._scanning = False
        if self._engine.scanned(self._tenure, span.until_us, found.cuts, span.mark, self._life.now, unloaded):
            self._scanned_us = span.until_us

    # -- answers --------------------------------------------------------------------------------------------------------

    def ask(self, item: action.Action) -> None:
        """The engine asks the tables something."""
        match item:
            case action.Lookup():
                self._look_up(item)
            case action.Reload():
                self._covered(item, self._reload)
            case action.AskNames():
                self._covered(item, self._ask_names)
            case action.LookAgain():
                pass  # scans are made often enough
            case _:
                raise AssertionError(item)

    def _read_then(self, read: Callable[[], Any], deliver: Callable[[Any], None]) -> None:
        def answer() -> None:
            found = read()
            self._life.later(2, lambda: deliver(found))

        self._life.later(0.5, answer)

    def _covered(self, item: action.Reload | action.AskNames, read: Callable[[Any], None]) -> None:
        """Waits for tables that hold what they must."""
        if item.covering < self._tables.progress.tasks_offset:
            read(item)
        else:
            self._life.later(1, lambda: self._covered(item, read))

    def _look_up(self, item: action.Lookup) -> None:
        basis = self._tables.progress.basis
        self._read_then(
            lambda: self._tables.known(item.keys),
            lambda known: self._engine.looked_up(item.tenure, known, basis, self._life.now),
        )

    def _reload(self, item: action.Reload) -> None:
        basis, most = self._tables.progress.basis, item.most

        def deliver(rows: list[ScanRow]) -> None:
            more = len(rows) > most
            self._engine.reloaded(item.tenure, item.ordering_id, rows[:most], basis, self._life.now, more=more)

        self._read_then(lambda: self._tables.lane(item.ordering_id, item.after, item.until_us), deliver)

    def _ask_names(self, item: action.AskNames) -> None:
        basis = self._tables.progress.basis
        self._read_then(
            lambda: self._tables.bearers(item.names),
            lambda found: self._engine.named(item.tenure, item.names, found, basis, self._life.now),
        )
