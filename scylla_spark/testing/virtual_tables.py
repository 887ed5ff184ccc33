"""Watched tables on virtual time: nothing but the history of commits that a test says there were."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from scylla_spark.core.engine.outbox import NEVER
from scylla_spark.core.plan.planner import Planner
from scylla_spark.core.plan.state.schedule_entry import Handed
from scylla_spark.core.plan.tables.changes import WHOLE, Fired, Pending, Range, counted, ranges
from scylla_spark.core.plan.tables.commit import Commit, Count
from scylla_spark.core.plan.tables.growth import Growth
from scylla_spark.core.plan.tables.watch import Place
from scylla_spark.core.plan.triggers.trigger import OnTable, Operation
from scylla_spark.errors import ArgumentError


class VirtualTables:
    """Tells the planner what has come to the tables that it watches.

    Args:
        planner: wants to know.
        clock: says what time it is, microseconds since the epoch.
    """

    def __init__(self, planner: Planner, clock: Callable[[], int]) -> None:
        self._planner = planner
        self._clock = clock
        self._commits: dict[str, list[Commit]] = {}
        self._told: dict[tuple[Place, int], int] = {}  # what was handed over so far → how many commits since were told

    def commit(self, table: str, rows: int, operation: str, size: int) -> None:
        """A table has a new version.

        Args:
            table: its name, as triggers call it.
            rows: how many it has brought.
            operation: what kind of change.
            size: bytes of its files.

        Raises:
            ArgumentError: there is no such operation, or a trigger would look at the rows themselves.
        """
        if operation not in get_args(Operation) or rows < 0 or size < 0:
            raise ArgumentError(
                f"No commit is an {operation!r} of {rows} rows.", hint=f"Operations: {', '.join(get_args(Operation))}."
            )
        for place, (trigger, _) in self._watched().items():
            if trigger.table == table and (trigger.where or trigger.per):
                raise ArgumentError(
                    f"The schedule {place.name!r} looks at the rows of {table!r}, and here there are none.",
                    hint=f"Leave out `where` and `per` in tests, or launch it: schedule({place.name!r}).run_now(…).",
                )
        known = self._commits.setdefault(table, [])
        added, removed = (0, rows) if operation == "delete" else (rows, 0)
        known.append(Commit(len(known), self._clock(), operation, Count(added, removed, size)))

    def _watched(self) -> dict[Place, tuple[OnTable, Handed | None]]:
        """Watched tables; topics do not exist here."""
        watched = self._planner.watched().items()
        return {place: (one.trigger, one.handed) for place, one in watched if isinstance(one.trigger, OnTable)}

    def tell(self) -> None:
        """Tells what is new by now."""
        now = self._clock()
        for place, (trigger, handed) in self._watched().items():
            if handed is None:
                self._planner.tables.begins(place, trigger.table, self._first(trigger))
                continue
            for one in self._ranges(trigger, handed):
                grown = one.grown
                if one.due_us <= now and self._told.get((place, handed.version)) != grown.commits:
                    self._told[place, handed.version] = grown.commits
                    growth = Growth(
                        handed.table_id, one.from_version, one.to_version, grown.commits, grown.rows, grown.bytes
                    )
                    self._planner.tables.grew(place, growth, now)

    @property
    def next_us(self) -> int:
        """Returns when there is something to tell although nothing more comes, microseconds since the epoch; NEVER: never."""
        due = [
            one.due_us
            for trigger, handed in self._watched().values()
            if handed is not None
            for one in self._ranges(trigger, handed)
            if one.due_us > self._clock()
        ]
        return min(due, default=NEVER)

    def _first(self, trigger: OnTable) -> int:
        """The last version that does not count."""
        if trigger.start == "earliest":
            return -1
        return len(self._commits.get(trigger.table, ())) - 1 if trigger.start == "now" else trigger.start

    def _ranges(self, trigger: OnTable, handed: Handed) -> list[Range]:
        before = Pending(handed.version, handed.version, {}, {WHOLE: Fired(handed.version, handed.at_us or None)})
        later = self._commits.get(trigger.table, [])[handed.version + 1 :]
        return ranges(trigger, counted(trigger, before, later, self._clock()))
