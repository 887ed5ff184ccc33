"""Looks at watched tables in threads of its own: slow storage keeps neither the planner from planning nor other tables from being seen."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from scylla_spark.clock import boot_us, now_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.plan.planner import Planner
from scylla_spark.core.plan.state.schedule_entry import Handed
from scylla_spark.core.plan.tables.changes import Cursor, ranges
from scylla_spark.core.plan.tables.commit import Commit
from scylla_spark.core.plan.tables.growth import Growth
from scylla_spark.core.plan.tables.past_ranges import part_of
from scylla_spark.core.plan.tables.unhanded import Unhanded
from scylla_spark.core.plan.tables.watch import Place, Wanted
from scylla_spark.core.plan.triggers.tree import key_of
from scylla_spark.core.plan.triggers.trigger import OnTable
from scylla_spark.errors import SchedulerError
from scylla_spark.io.delta.watched.commit_follower import (
    MOST_COMMITS,
    UNREACHABLE,
    TableTrouble,
    WatchedTable,
    located,
    watchable_places,
)
from scylla_spark.log import get_logger
from scylla_spark.services.daemon_threads import DaemonThreads
from scylla_spark.services.plan.look_turns import LookTurns
from scylla_spark.visible import as_clause

log = get_logger("plan")

_LOOK_AROUND_S: Final = 0.1


class _Begins(NamedTuple):
    place: Place
    cursor: Cursor


class _Grew(NamedTuple):
    place: Place
    growth: Growth


class _Reached(NamedTuple):
    place: Place
    before: Cursor
    cursor: Cursor


class _Trouble(NamedTuple):
    place: Place
    kind: str
    why: str
    resume: tuple[str, int] | None


@dataclass(slots=True)
class _Look:
    """One leaf's view of its table.

    Attributes:
        table: as it is read.
        trigger: what of it counts.
        unhanded: what has come and is no run's yet.
        told: partition → how many commits of what is pending were told.
    """

    table: WatchedTable
    trigger: OnTable
    unhanded: Unhanded
    told: dict[str | None, int] = field(default_factory=dict)


class TableWatcher:
    """Polls tables and tells the planner what has come.

    Args:
        settings: `plan` and `tables`.
    """

    def __init__(self, settings: Settings) -> None:
        self._every_s = settings.plan.poll.total_seconds()
        self._places = watchable_places(settings)
        self._limit = settings.tables.store_timeout
        self._watched: Mapping[Place, Wanted] = {}  # as the planner said, with topics
        self._wanted: Mapping[Place, Wanted] = {}
        self._looks: dict[Place, _Look] = {}
        self._found: SimpleQueue[_Begins | _Grew | _Reached | _Trouble] = SimpleQueue()
        self._turns = LookTurns()
        self._silent: set[Place] = set()  # places whose look under way had no answer
        self._changed = threading.Condition()  # guards what threads share
        self._threads = DaemonThreads("table-look")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="table-watcher", daemon=True)

    def start(self) -> None:
        """Begins to look."""
        self._thread.start()

    def stop(self) -> None:
        """Ends looking; a look that hangs is left to itself."""
        self._stop.set()
        self._threads.stop()
        if self._thread.ident is not None:
            self._thread.join(timeout=2)

    def exchange(self, planner: Planner, now: int) -> None:
        """Tells the planner what was found, and takes what it wants to be watched; called by the planner's thread."""
        try:
            while True:
                self._tell(planner, self._found.get_nowait(), now)
        except Empty:
            pass
        if (watched := planner.watched()) is not self._watched:
            self._watched = watched
            self._wanted = {place: one for place, one in watched.items() if isinstance(one.trigger, OnTable)}

    def _tell(self, planner: Planner, found: _Begins | _Grew | _Reached | _Trouble, now: int) -> None:
        match found:
            case _Begins(place, cursor):
                planner.looked(place.name, lambda tables: tables.begins(place, *cursor), now)
            case _Grew(place, growth):
                planner.looked(place.name, lambda tables: tables.grew(place, growth, now), now)
            case _Reached(place, before, cursor):
                planner.looked(place.name, lambda tables: tables.reached(place, before, cursor, now), now)
            case _Trouble(place, kind, why, resume):
                planner.looked(place.name, lambda tables: tables.trouble(place, kind, why, resume, now), now)

    # -- in threads -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            wanted = self._wanted
            with self._changed:
                self._turns.keep(wanted)
                for place in self._looks.keys() - wanted.keys():
                    del self._looks[place]
            for place, one in wanted.items():
                if self._takes_turn(place):
                    self._threads.do(partial(self._look_guarded, place, one))

    def _takes_turn(self, place: Place) -> bool:
        """Returns True if a place is looked at now; waits for a moment at which few are, unless its store did not answer last time."""
        with self._changed:
            if not self._turns.is_due(place, boot_us()):
                return False
            while not self._turns.has_room(place, boot_us()):
                if self._turns.is_slow(place) or self._stop.is_set():
                    return False
                self._changed.wait(_LOOK_AROUND_S)
            self._turns.begin(place, boot_us())
            return True

    def _look_guarded(self, place: Place, one: Wanted) -> None:
        try:
            self._look(place, one)
        except SchedulerError as error:
            self._found.put(_Trouble(place, "unsuitable", str(error), None))
        except BaseException as error:  # panics of polars are no Exceptions; other tables are watched on
            self._silent.add(place)
            self._found.put(_Trouble(place, UNREACHABLE, repr(error), None))
            log.exception("a look at a table failed", table=key_of(one.trigger))
        with self._changed:
            self._turns.end(place, boot_us(), answered=place not in self._silent)
            self._silent.discard(place)
            self._changed.notify_all()

    def _look(self, place: Place, wanted: Wanted) -> None:
        trigger, handed = wanted
        assert isinstance(trigger, OnTable)  # as `exchange` took them
        if handed is None:
            self._begin(place, trigger)
            return
        look = self._view(place, trigger, handed)
        if self._read(place, look):
            self._tell_ranges(place, look)
            self._tell_reached(place, look)

    def _view(self, place: Place, trigger: OnTable, handed: Handed) -> _Look:
        """Returns what is known of the table: as it was left, less what was handed over since; if that does not fit, it is read again."""
        look = self._looks.get(place)
        if look is not None and look.unhanded.handed == handed:
            return look
        if look is not None and look.unhanded.hand_over(handed, now_us()):
            look.told = {}
            return look
        table = look.table if look is not None else self._table(trigger)
        look = _Look(table, trigger, Unhanded(trigger, handed))
        with self._changed:
            self._looks[place] = look
        return look

    def _table(self, trigger: OnTable) -> WatchedTable:
        return WatchedTable(located(trigger.table, self._places), self._limit)

    def _begin(self, place: Place, trigger: OnTable) -> None:
        found = self._table(trigger).start(trigger)
        if isinstance(found, TableTrouble):
            self._put_trouble(place, found)
            if found.resume is not None:
                self._found.put(_Begins(place, found.resume))
        else:
            self._found.put(_Begins(place, found))

    def _read(self, place: Place, look: _Look) -> bool:
        """Reads on; whether the table is as it was."""
        by = [look.trigger.per] if look.trigger.per else []
        while True:
            found = look.table.poll(look.unhanded.cursor, by)
            if not isinstance(found, TableTrouble):
                commits = look.table.narrow(found, look.trigger)
                if not isinstance(commits, TableTrouble):
                    self._take(place, look, commits)
                    if len(found) < MOST_COMMITS:
                        return True
                    continue
                found = commits
            return self._trouble(place, look, found)

    def _take(self, place: Place, look: _Look, commits: Sequence[Commit]) -> None:
        """Counts what was read; what was handed over may have an earlier id of the table, or none."""
        if wrong := [commit for commit in commits if commit.uncounted]:
            self._put_trouble(place, _uncounted(look.table, wrong))
        look.unhanded.count(commits, now_us())
        if look.table.header is not None:
            look.unhanded.is_at(look.table.header.table_id)

    def _trouble(self, place: Place, look: _Look, trouble: TableTrouble) -> bool:
        """Tells of it; where only old commits are gone, what is left is counted on."""
        if trouble.kind == "missing":
            return False
        if trouble.kind == "truncated" and trouble.resume is not None:
            self._put_trouble(place, trouble._replace(resume=None))
            look.unhanded.go_on_after(trouble.resume)
            return False
        if trouble.resume is not None:  # what has come so far is none of it any more
            look.unhanded = Unhanded(look.trigger, look.unhanded.handed)
        self._put_trouble(place, trouble)
        return False

    def _put_trouble(self, place: Place, trouble: TableTrouble) -> None:
        if trouble.kind == UNREACHABLE:
            self._silent.add(place)
        moves = trouble.resume is not None and trouble.kind in ("replaced", "rewound")
        resume = (trouble.resume.table_id, trouble.resume.version) if moves and trouble.resume is not None else None
        self._found.put(_Trouble(place, trouble.kind, trouble.why, resume))

    def _tell_reached(self, place: Place, look: _Look) -> None:
        """Tells up to where all partitions were handed over, so that nobody reads or remembers that any more."""
        handed, reached = look.unhanded.handed, look.unhanded.all_handed
        if handed.parts and reached.version > handed.version:
            self._found.put(_Reached(place, Cursor(handed.table_id, handed.version), reached))

    def _tell_ranges(self, place: Place, look: _Look) -> None:
        now, pending = now_us(), look.unhanded.pending
        table_id, was = look.unhanded.cursor.table_id, look.unhanded.handed.table_id
        slowest, is_throttled = look.unhanded.slowest, look.trigger.throttle_us > 0
        is_alone = len(pending.grown) <= 1 and not is_throttled  # else it must be known when others have fired
        for one in ranges(look.trigger, pending):
            grown = one.grown
            if one.due_us > now or look.told.get(one.key) == grown.commits:
                continue
            look.told[one.key] = grown.commits
            growth = Growth(
                table_id, one.from_version, one.to_version, grown.commits, grown.rows, grown.bytes, part_of(one.key), is_alone,
                was if was != table_id else "", one.key in slowest,
            )  # fmt: skip
            self._found.put(_Grew(place, growth))


def _uncounted(table: WatchedTable, commits: Sequence[Commit]) -> TableTrouble:
    """Returns what is told where nobody knows how many rows of some commits meet the conditions."""
    first, last, many = commits[0], commits[-1], len(commits)
    which = f"{many} versions between {first.version} and {last.version}" if many > 1 else f"version {first.version}"
    why = f"Of {which} of the table {table.path} it cannot be told how many rows meet the conditions, so they count as enough"
    return TableTrouble("uncounted", f"{why}: {as_clause(first.uncounted)}.")
