"""What triggers have seen: events, partitions, ended runs, tables that grew, and what has not come for too long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from scylla_spark.core.plan.launching import OBSOLETE, Launching
from scylla_spark.core.plan.state.entry import PENDING_TRIGGER, Entry, Handed, Job, Latch
from scylla_spark.core.plan.state.journal import Journal
from scylla_spark.core.plan.state.plan_log import TABLE_PART
from scylla_spark.core.plan.state.timers import Timer, Timers
from scylla_spark.core.plan.triggers.tree import holds, key_of
from scylla_spark.core.plan.triggers.trigger import OnAbsence, OnEvent, OnPartitions, OnRuns, OnTable, Trigger, leaves

_NO_LATCH = Latch()


class Occurrence(NamedTuple):
    """Something that happened, as triggers see it.

    Attributes:
        key: what listens to it, such as "event:NAME".
        values: what templates may know of it, by name.
        fields: what events are compared by.
        ended: for a run: how.
        seen: for partitions: how many.
        rows: … with so many rows.
        size: … and bytes.
    """

    key: str
    values: Mapping[str, Any]
    fields: Mapping[str, Any] = {}
    ended: str = ""
    seen: int = 1
    rows: int = 0
    size: int = 0


class Watching:
    """Latches leaves, and hands a job on when its whole trigger holds.

    Args:
        journal: takes what is decided.
        timers: when to look again.
        launching: launches what fires.
    """

    def __init__(self, journal: Journal, timers: Timers, launching: Launching) -> None:
        self._journal = journal
        self._timers = timers
        self._launching = launching
        self._armed: dict[
            tuple[str, int], int
        ] = {}  # schedule, leaf → when the timer goes off that looks whether something is missing

    def happened(self, entry: Entry, occurrence: Occurrence, now: int) -> None:
        """Tells one schedule of something that its trigger names; it launches once, however many leaves that concerns.

        Args:
            entry: of the schedule.
            occurrence: what happened.
            now: microseconds since the epoch.
        """
        if entry.paused:
            return
        counted: dict[int, Latch] = {}
        for number, leaf in enumerate(leaves(entry.schedule.trigger)):
            if key_of(leaf) != occurrence.key:
                continue
            if isinstance(leaf, OnAbsence):
                if _matches(leaf.of, occurrence):
                    self.came(entry, number, leaf.within_us, now)
            elif _matches(leaf, occurrence):
                counted[number] = self._counted(entry, number, leaf, occurrence)
        if counted:
            self._latch_all(entry, counted, now)

    def latch(self, entry: Entry, number: int, latch: Latch, now: int, planned_us: int = 0) -> None:
        """A leaf has seen something.

        Args:
            entry: of the schedule.
            number: of the leaf.
            latch: what it has seen by now.
            now: microseconds since the epoch.
            planned_us: the time that the run is named by, if a fire by time made the trigger hold.
        """
        self.too_old(entry, now)
        self._latch_all(entry, {number: latch}, now, planned_us)

    def _latch_all(self, entry: Entry, latches: Mapping[int, Latch], now: int, planned_us: int = 0) -> None:
        job = entry.collecting
        if job is None:
            job = Job(entry.generation + 1, PENDING_TRIGGER, now)
        *others, last = latches
        held = _older(job.latches, latches[last]) | {number: latches[number]._replace(values=None) for number in others}
        job = job._replace(latches={**held, last: latches[last]})
        if planned_us:
            job = job._replace(planned_us=planned_us)
        if not holds(entry.schedule.trigger, job.latches):
            self._journal.note("job", entry.name, job.generation, job.to_json())
            return
        for leaf, one in job.latches.items():
            if one.values and "table" in one.values and leaf in entry.tables:
                self.hand_over(entry, leaf, one.values["table"], now)
        self._launching.fired(entry, job._replace(planned_us=job.planned_us or now), now)

    def hand_over(self, entry: Entry, leaf: int, grown: Mapping[str, Any], now: int) -> None:
        """Versions of a table belong to a job from now on: what comes later begins after them.

        Args:
            entry: the schedule.
            leaf: number of the leaf on the table.
            grown: what templates know of the versions, as `table_watch` tells it.
            now: microseconds since the epoch.
        """
        to_version, part = grown["to_version"], grown["partition"]
        if part is None or grown["alone"]:
            self._journal.note("table", entry.name, leaf, Handed(grown["table_id"], to_version, now))
        else:
            self._journal.note(TABLE_PART, entry.name, leaf, part, to_version, now)

    def too_old(self, entry: Entry, now: int) -> None:
        """Drops what has been collected for longer than the schedule waits; counting begins anew."""
        job = entry.collecting
        if job is not None and job.first_us + entry.schedule.policies.timeout_us <= now:
            why = "its trigger has not held within the job timeout"
            self._journal.fire(
                entry, generation=job.generation, planned_us=now, at_us=now, verdict=OBSOLETE, why=why
            )  # fmt: skip

    # -- absence --------------------------------------------------------------------------------------------------------

    def arm(self, entry: Entry, now: int) -> None:
        """Begins to wait for what is to come; what came before is as if it came now."""
        for number, leaf in enumerate(leaves(entry.schedule.trigger)):
            if isinstance(leaf, OnAbsence):
                self.came(entry, number, leaf.within_us, now)

    def load(self, entry: Entry) -> None:
        """Takes over a schedule of the log."""
        if entry.seen_us:
            for number, leaf in enumerate(leaves(entry.schedule.trigger)):
                seen_us = entry.seen_us.get(number, -1)
                if isinstance(leaf, OnAbsence) and seen_us >= 0:
                    self._arm(entry.name, number, seen_us + leaf.within_us, 0)

    def came(self, entry: Entry, number: int, within_us: int, now: int) -> None:
        """What a leaf waits for has come.

        Args:
            entry: the schedule.
            number: of the leaf.
            within_us: how long it waits for the next, microseconds.
            now: microseconds since the epoch.
        """
        self._journal.note("seen", entry.name, number, now)
        self._arm(entry.name, number, now + within_us, now)

    def _arm(self, name: str, number: int, at_us: int, now: int) -> None:
        """Sees to it that a leaf is looked at by then; a timer that goes off earlier will do, since it is set again."""
        if not now < self._armed.get((name, number), 0) <= at_us:
            self._armed[name, number] = at_us
            self._timers.add(Timer(at_us, name, "absent", number))

    def went_off(self, name: str, number: int, now: int) -> None:
        """A timer of a leaf that waits for absence went off, whatever has become of its schedule.

        Args:
            name: of the schedule.
            number: of the leaf in its tree.
            now: microseconds since the epoch.
        """
        if self._armed.get((name, number), now + 1) <= now:
            del self._armed[name, number]

    def absent(self, entry: Entry, number: int, now: int) -> None:
        """Looks whether it is missing for too long; it is told of once.

        Args:
            entry: the schedule.
            number: of the leaf.
            now: microseconds since the epoch.
        """
        leaf = _leaf(entry, number)
        seen_us = entry.seen_us.get(number, -1)
        if entry.paused or not isinstance(leaf, OnAbsence) or seen_us < 0:
            return
        if seen_us + leaf.within_us > now:
            self._arm(entry.name, number, seen_us + leaf.within_us, now)
            return
        self._journal.note("seen", entry.name, number, -1)
        self.latch(entry, number, Latch(True, values={"absent": {"of": key_of(leaf), "since": seen_us}}), now)

    # -- counting -------------------------------------------------------------------------------------------------------

    def _counted(self, entry: Entry, number: int, leaf: Trigger, occurrence: Occurrence) -> Latch:
        job = entry.collecting
        before = job.latches.get(number, _NO_LATCH) if job is not None else _NO_LATCH
        latch = Latch(
            True, before.seen + occurrence.seen, before.rows + occurrence.rows, before.size + occurrence.size,
            occurrence.values,
        )  # fmt: skip
        if isinstance(leaf, OnPartitions):
            enough = latch.seen >= leaf.at_least and latch.rows >= leaf.rows and latch.size >= leaf.bytes
            last = occurrence.values.get("partitions", {})
            totals = {"count": latch.seen, "rows": latch.rows, "bytes": latch.size}
            return latch._replace(fired=enough, values={"partitions": {**last, **totals}})
        return latch


def _older(latches: Mapping[int, Latch], newest: Latch) -> dict[int, Latch]:
    """Latches without what templates see of the newest one instead: a job of a thousand leaves holds an event once, not for each.

    Versions of tables are of one leaf each, and are needed to hand them over.
    """
    names = (newest.values or {}).keys() - {"table"}
    return {
        number: latch if not latch.values or names.isdisjoint(latch.values) else latch._replace(values=None)
        for number, latch in latches.items()
    }


def _leaf(entry: Entry, number: int) -> Trigger | None:
    found = leaves(entry.schedule.trigger)
    return found[number] if number < len(found) else None


def _matches(leaf: Trigger, occurrence: Occurrence) -> bool:
    match leaf:
        case OnEvent(_, where):
            return all(_same(occurrence.fields.get(field), value) for field, value in where)
        case OnRuns(_, on):
            return occurrence.ended in on
        case OnPartitions() | OnTable():
            return True
    return False


def _same(found: Any, wanted: Any) -> bool:
    """Whether a field has a value: true is not 1, and 1 is 1.0."""
    return isinstance(found, bool) == isinstance(wanted, bool) and found == wanted
