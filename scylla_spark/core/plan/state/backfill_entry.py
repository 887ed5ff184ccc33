"""What the planner holds of one backfill: what is left to be launched, what runs, and how the rest has ended.

A backfill is launched a few runs at a time, as many as may run at once; so it is paused by launching no more, and what it has left is
all that is to be known to go on with it. All instants are integer microseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from scylla_spark.core.plan.state.plan_log import BACKFILL, Change
from scylla_spark.core.tasks.tags import MAX_TAG_CHARS
from scylla_spark.core.tasks.task import FAILURES

RUNNING: Final = "running"
PAUSED: Final = "paused"
CANCELLED: Final = "cancelled"
ENDED: Final = "ended"
MOST_OVER: Final = 10
"""So many backfills of a schedule that are over stay in its list."""


class Versions(NamedTuple):
    """What of a table a run of a backfill is about.

    Attributes:
        from_version: the last version before it.
        to_version: its last one.
        rows: that were written.
        commits: that count.
        bytes: of their files.
        part: partition; empty: the whole table.
    """

    from_version: int
    to_version: int
    rows: int
    commits: int
    bytes: int
    part: str


class Item(NamedTuple):
    """One run of a backfill.

    Attributes:
        place: its number in the order of the runs.
        planned_us: the time that it is named by.
        versions: of a table, that it is about; None: it is about a planned time.
    """

    place: int
    planned_us: int
    versions: Versions | None = None

    @classmethod
    def of(cls, found: Sequence[Any]) -> Item:
        """From a list of its fields."""
        versions = found[2]
        return cls(found[0], found[1], Versions(*versions) if versions is not None else None)


class Source(NamedTuple):
    """Which table the versions of a backfill are of, as its schedule watched it when the backfill began.

    Attributes:
        table: path or name, as the trigger says it.
        per: column of the partitions that versions are of; empty: the table as a whole.
        table_id: of the table whose log was read.
        known_id: of the table that the planner had met there; empty: none yet.
    """

    table: str
    per: str
    table_id: str
    known_id: str = ""


class BackfillEntry(NamedTuple):
    """One backfill of a schedule.

    Attributes:
        number: by which it is told from others of the schedule; no run has it.
        total: how many runs it is.
        most: how many run at once.
        priority: of their tasks.
        author: who asked for it.
        begun_us: when.
        source: which table its versions are of; None: it is about planned times.
        state: "running", "paused", "cancelled", or "ended".
        since_us: since when it goes on; 0: it is paused, or over.
        worked_us: how long it went on before that, without the time in which it was paused.
        over_us: when it was over; 0: it is not.
        succeeded: runs that have.
        failed: runs that have, or could not be launched.
        cancelled: runs that were, or ended unrun, and are not run again.
        left: what is to be launched, the next first.
        running: number of a run that has not ended → what it is about.
    """

    number: int
    total: int
    most: int
    priority: int
    author: str
    begun_us: int
    source: Source | None = None
    state: str = RUNNING
    since_us: int = 0
    worked_us: int = 0
    over_us: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    left: tuple[Item, ...] = ()
    running: Mapping[int, Item] = {}

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> BackfillEntry:
        """From what `to_json` gave."""
        left, source = tuple(map(Item.of, found["left"])), found["source"]
        running = {number: Item.of(item) for number, item in found["running"]}
        return cls(**{**found, "source": None if source is None else Source(*source), "left": left, "running": running})

    def to_json(self) -> dict[str, Any]:
        """As it travels."""
        return self._asdict() | {"running": list(self.running.items())}

    def __deepcopy__(self, memo: dict[int, Any]) -> BackfillEntry:
        """Itself: it is never changed, and may have a thousand items."""
        return self

    @property
    def is_over(self) -> bool:
        """Returns True if nothing of it will be launched any more."""
        return self.state in (CANCELLED, ENDED)

    @property
    def is_forgettable(self) -> bool:
        """Returns True if nothing of it will be launched, and nothing runs."""
        return self.is_over and not self.running

    @property
    def done(self) -> int:
        """Returns how many runs have ended, and are not run again."""
        return self.succeeded + self.failed + self.cancelled

    @property
    def may_launch(self) -> bool:
        """Returns True if its next run may be launched now."""
        return self.state == RUNNING and bool(self.left) and len(self.running) < self.most

    def stands(self, state: str, at_us: int) -> BackfillEntry:
        """The same when it is paused, goes on, or is cancelled; one that is over stays as it is.

        Args:
            state: from now on.
            at_us: when.
        """
        if self.is_over:
            return self
        found = _rested(self, at_us)._replace(state=state)
        if state == RUNNING:
            return found._replace(since_us=at_us)
        return found._replace(left=(), over_us=at_us) if state == CANCELLED else found

    def launched(self, generation: int) -> BackfillEntry:
        """The same when its next run is launched, as the run of that number."""
        if not self.left:
            return self
        return self._replace(left=self.left[1:], running={**self.running, generation: self.left[0]})

    def not_launched(self, at_us: int) -> BackfillEntry:
        """The same when its next run could not be launched."""
        if not self.left:
            return self
        return _if_over(self._replace(left=self.left[1:], failed=self.failed + 1), at_us)

    def ended(self, generation: int, outcome: str, at_us: int, *, taken_back: bool) -> BackfillEntry:
        """The same when a run of it has ended.

        Args:
            generation: number of the run.
            outcome: of its task.
            at_us: when.
            taken_back: the planner has asked for that, and nothing has come of it: it is to be run later, in its place.
        """
        item = self.running.get(generation)
        if item is None:
            return self
        found = self._replace(running={number: one for number, one in self.running.items() if number != generation})
        if taken_back and not self.is_over:
            return found._replace(left=tuple(sorted((item, *self.left), key=lambda one: one.place)))
        if outcome == "succeeded":
            found = found._replace(succeeded=self.succeeded + 1)
        elif outcome in FAILURES:
            found = found._replace(failed=self.failed + 1)
        else:
            found = found._replace(cancelled=self.cancelled + 1)
        return _if_over(found, at_us)

    def ends_us(self, now: int) -> int | None:
        """Returns when it will be over if it goes on at the pace that it had so far; None: it does not go on, or no run has ended yet."""
        if self.state != RUNNING or not self.done:
            return None
        return now + self.went_on_us(now) * (self.total - self.done) // self.done

    def went_on_us(self, now: int) -> int:
        """Returns how long it has gone on, without the time in which it was paused."""
        return self.worked_us + (max(now - self.since_us, 0) if self.since_us else 0)


def begins(name: str, backfill: BackfillEntry) -> Change:
    """The change by which a backfill of a schedule begins, or is told again."""
    return BACKFILL, name, backfill.number, backfill.to_json()


def tag_of(name: str, number: int) -> str:
    """The tag of all tasks of one backfill, with the name of its schedule; of one that does not fit, a digest of all of it and its end.

    Args:
        name: of the schedule.
        number: of the backfill.
    """
    left = MAX_TAG_CHARS - len(f"backfill:/{number}")
    if len(name) > left:
        digest = blake2b(name.encode(errors="replace"), digest_size=4).hexdigest()
        name = f"{digest}~{name[len(digest) + 1 - left :]}"
    return f"backfill:{name}/{number}"


def without_oldest(backfills: Mapping[int, BackfillEntry]) -> dict[int, BackfillEntry]:
    """The backfills of a schedule without those that were over first, if there are too many of these."""
    over = sorted((one.over_us, number) for number, one in backfills.items() if one.is_forgettable)
    gone = {number for _, number in over[: max(len(over) - MOST_OVER, 0)]}
    return {number: one for number, one in backfills.items() if number not in gone}


def _if_over(backfill: BackfillEntry, at_us: int) -> BackfillEntry:
    if backfill.is_over or backfill.left or backfill.running:
        return backfill
    return _rested(backfill, at_us)._replace(state=ENDED, over_us=at_us)


def _rested(backfill: BackfillEntry, at_us: int) -> BackfillEntry:
    return backfill._replace(worked_us=backfill.went_on_us(at_us), since_us=0)
