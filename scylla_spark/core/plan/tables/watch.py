"""Triggers on tables and topics: what is to be watched, and what was seen there, as ranges that are handed over one after the other.

Whoever reads tables is told by `wanted` where each trigger stands, and tells what has come. It may be late, and tell things twice: what
does not begin where the trigger stands is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from scylla_spark import failpoint
from scylla_spark.core.plan.state.plan_log import TABLE_PART, Change, change_bytes
from scylla_spark.core.plan.state.schedule_entry import MOST_PARTS, PENDING_TRIGGER, Entry, Handed
from scylla_spark.core.plan.state.unwritten_changes import Journal
from scylla_spark.core.plan.tables.changes import Cursor
from scylla_spark.core.plan.tables.growth import Growth
from scylla_spark.core.plan.tables.handing_over import claim_of, has_room, moved
from scylla_spark.core.plan.topics.growth import TopicGrowth
from scylla_spark.core.plan.triggers.observations import Watching
from scylla_spark.core.plan.triggers.tree import holds
from scylla_spark.core.plan.triggers.trigger import OnAbsence, OnTable, OnTopic, leaves, source_of, table_of
from scylla_spark.core.plan.verdicts import OBSOLETE

TROUBLE: Final = "trouble"
_TOO_MANY: Final = (
    f"{MOST_PARTS:,} partitions of the table have fired on versions that others have not come to yet, and it cannot be known of more; "
    "new ones wait until the slowest have fired"
)
_FEW_PARTS: Final = 50
_PARTS_PER_VERSION: Final = 100
_MOST_BYTES: Final = 256 * 1024  # of one change that tells of many partitions


class Place(NamedTuple):
    """A leaf of a schedule that looks at a table or topic.

    Attributes:
        name: of the schedule.
        leaf: number of the leaf.
        token: tells this state of the schedule from earlier ones.
    """

    name: str
    leaf: int
    token: tuple[int, int]


class Wanted(NamedTuple):
    """What is to be watched there.

    Attributes:
        trigger: which table or topic, and what of it counts.
        handed: what was handed over; None: it is to be found out where to begin.
    """

    trigger: OnTable | OnTopic
    handed: Handed | None


class TableWatch:
    """The part of the planner that knows tables.

    Args:
        journal: takes what is decided.
        watching: latches leaves.
    """

    def __init__(self, journal: Journal, watching: Watching) -> None:
        self._journal = journal
        self._watching = watching
        self._failed: list[tuple[str, Exception]] = []
        self._told: dict[Place, str] = {}
        self._wanted: dict[Place, Wanted] | None = None
        journal.watchers.append(self._watch)

    def _watch(self, change: Change) -> None:
        if change[0] in ("put", "drop", "set", "table", TABLE_PART):
            self._wanted = None

    def wanted(self, names: Callable[[], Iterable[str]]) -> Mapping[Place, Wanted]:
        """Returns what is to be watched for some schedules; the same mapping as long as that is the same."""
        if self._wanted is None:
            self._wanted = self._found(names())
        return self._wanted

    def take_failed(self) -> list[tuple[str, Exception]]:
        """Schedules of which it could not be said what is to be watched, since the last time, and why: a defect of ours."""
        failed, self._failed = self._failed, []
        return failed

    def _found(self, names: Iterable[str]) -> dict[Place, Wanted]:
        found: dict[Place, Wanted] = {}
        for name in sorted(names):
            entry = self._journal.state.entries.get(name)
            if entry is None or entry.paused:
                continue
            try:
                found |= _wanted_of(entry)
            except MemoryError:
                raise
            except Exception as error:
                self._failed.append((name, error))
        return found

    def begins(
        self, place: Place, table_id: str, version: int, parts: Mapping[str, tuple[int, int]] | None = None
    ) -> None:
        """It was found out where a trigger begins: after a version.

        Args:
            place: the leaf.
            table_id: which table, or topic.
            version: the last one that does not count; of a topic, the sum of its offsets.
            parts: of a topic: partition → offset of the first record that counts, as `Handed` has it.
        """
        entry = self._entry(place)
        if entry is not None and place.leaf not in entry.tables:
            self._journal.note("table", place.name, place.leaf, Handed(table_id, version, 0, parts or {}))

    def grew(self, place: Place, growth: Growth | TopicGrowth, now: int) -> None:
        """A table or topic has grown, enough and for long enough.

        Args:
            place: the leaf.
            growth: what has come.
            now: microseconds since the epoch.
        """
        entry = self._entry(place)
        if entry is None or not self._goes_on(entry, place.leaf, growth):
            return
        leaf = leaves(entry.schedule.trigger)[place.leaf]
        is_known = isinstance(growth, TopicGrowth) or has_room(entry, place.leaf, growth)
        if not is_known:
            self.trouble(place, "too_many_partitions", _TOO_MANY, None, now)
        if isinstance(leaf, OnAbsence):
            self._watching.came(entry, place.leaf, leaf.within_us, now)
            if is_known:
                self._journal.note(*moved(entry, place.leaf, growth.values(leaf.of), now))
        elif is_known:
            self._watching.grew(entry, place.leaf, growth.latch(leaf), now)

    def reached(self, place: Place, before: Cursor, cursor: Cursor, now: int) -> None:
        """All partitions of a table were handed over up to a version: nobody need know any more how far each of them was.

        What is ahead of that, or must not fire again yet, is known on. All of that is written once more, so this is done only where
        it makes much less of it, or where many versions are behind.

        Args:
            place: the leaf.
            before: up to where all of them were handed over so far; what was found out about another place is passed over.
            cursor: up to where they are now.
            now: microseconds since the epoch.
        """
        entry = self._entry(place)
        handed = entry.tables.get(place.leaf) if entry is not None else None
        if entry is None or handed is None or handed[:2] != before or cursor.version <= handed.version:
            return
        table = table_of(leaves(entry.schedule.trigger)[place.leaf])
        throttle_us = table.throttle_us if table is not None else 0
        after = handed.all_up_to(*cursor, since_us=now - throttle_us)
        worth = max(len(handed.parts) // 2, _FEW_PARTS, _PARTS_PER_VERSION * (cursor.version - handed.version))
        change = "table", place.name, place.leaf, after
        if len(after.parts) <= worth and change_bytes(change) <= _MOST_BYTES:
            self._journal.note(*change)

    def _goes_on(self, entry: Entry, leaf: int, growth: Growth | TopicGrowth) -> bool:
        """Whether what has come begins where a leaf stands; one that began before its table was there knows from here on which it is."""
        handed = entry.tables.get(leaf)
        was, part = (
            (growth.topic_id, "")
            if isinstance(growth, TopicGrowth)
            else (growth.from_id or growth.table_id, growth.part)
        )
        if handed is None or not handed.is_of(was) or handed.of_part(part)[0] != growth.from_version:
            return False
        if not handed.table_id:
            self._journal.note("table", entry.name, leaf, handed._replace(table_id=was))
        return True

    def trouble(self, place: Place, kind: str, why: str, resume: tuple[str, int] | Handed | None, now: int) -> None:
        """A table or topic cannot be watched as it was; it is told of once, until something else is wrong.

        Args:
            place: which leaf.
            kind: such as "missing" or "replaced".
            why: for people.
            resume: table and version to go on after, or all that counts as handed over; None: it is to be asked again.
            now: microseconds since the epoch.
        """
        entry = self._entry(place)
        if entry is None or (self._told.get(place) == why and resume is None):
            return
        self._told[place] = why
        self._journal.fire(entry, planned_us=now, at_us=now, verdict=TROUBLE, why=f"{kind}: {why}", ends_job=False)
        if resume is not None:
            before = entry.tables.get(place.leaf)
            at_us = before.at_us if before else 0
            self._journal.note("table", place.name, place.leaf, Handed(*resume)._replace(at_us=at_us))
            self._drop_claims(entry, place.leaf, f"{kind}: {why}", now)

    def _drop_claims(self, entry: Entry, leaf: int, why: str, now: int) -> None:
        """Takes versions that are none any more out of jobs, and drops what is nothing without them: what is there now comes anew."""
        for job in [job for job in entry.jobs.values() if claim_of(job.latches.get(leaf)) is not None]:
            rest = {number: latch for number, latch in job.latches.items() if number != leaf}
            if rest and (job.state == PENDING_TRIGGER or holds(entry.schedule.trigger, rest)):
                self._journal.note("job", entry.name, job.generation, job._replace(latches=rest).to_json())
            else:
                self._journal.fire(
                    entry,
                    generation=job.generation,
                    planned_us=job.planned_us or now,
                    at_us=now,
                    verdict=OBSOLETE,
                    why=why,
                )

    def _entry(self, place: Place) -> Entry | None:
        entry = self._journal.state.entries.get(place.name)
        return entry if entry is not None and not entry.paused and _token(entry) == place.token else None


def _wanted_of(entry: Entry) -> dict[Place, Wanted]:
    failpoint.reach("plan.watch", entry.name)
    found = {}
    for number, leaf in enumerate(leaves(entry.schedule.trigger)):
        if (trigger := source_of(leaf)) is not None:
            found[Place(entry.name, number, _token(entry))] = Wanted(trigger, entry.tables.get(number))
    return found


def _token(entry: Entry) -> tuple[int, int]:
    return entry.revision, entry.changed_us
