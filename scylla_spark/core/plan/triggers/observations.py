"""What triggers have seen: events, partitions, ended runs, tables that grew, and what has not come for too long."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from scylla_spark.clock import iso
from scylla_spark.core.plan.launching import Launching
from scylla_spark.core.plan.schedule_policies import may_wait_alone, since_us
from scylla_spark.core.plan.state.plan_log import Change
from scylla_spark.core.plan.state.schedule_entry import PENDING_TRIGGER, Entry, Job, Latch
from scylla_spark.core.plan.state.timers import Timer, Timers
from scylla_spark.core.plan.state.unwritten_changes import Journal
from scylla_spark.core.plan.tables.handing_over import claim_of, goes_on, gone_on, is_open
from scylla_spark.core.plan.triggers.template_values import batch_values, held, partitions_with
from scylla_spark.core.plan.triggers.tree import holds, key_of
from scylla_spark.core.plan.triggers.trigger import (
    OnAbsence,
    OnBatch,
    OnEvent,
    OnPartitions,
    OnRuns,
    OnTable,
    Trigger,
    leaves,
)
from scylla_spark.core.plan.verdicts import OBSOLETE, WAITED_TOO_LONG

_NO_LATCH = Latch()


class Occurrence(NamedTuple):
    """Something that happened, as triggers see it.

    Attributes:
        key: what listens to it, such as "event:NAME".
        values: what templates may know of it, by name.
        fields: what events are compared by.
        ended: for a run: how.
        seen: for partitions: how many.
        rows: … with so many rows; for a task of a batch: 1 if it has failed.
        size: … and bytes; for a task of a batch: 1 if it was cancelled, or ended unrun.
        also: another key of the same: who listens to both is told once.
        at_us: of the start of a run: when it was, microseconds since the epoch.
    """

    key: str
    values: Mapping[str, Any]
    fields: Mapping[str, Any] = {}
    ended: str = ""
    seen: int = 1
    rows: int = 0
    size: int = 0
    also: str = ""
    at_us: int = 0


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
        self._held: dict[str, int] = {}  # schedule → number of its whole round, which collects until fewer jobs wait
        journal.watchers.append(self._watch)

    def _watch(self, change: Change) -> None:
        """Looks again at a round that waits for a place among the jobs that wait, once one of those may have gone."""
        if not self._held or change[0] not in ("fire", "job") or change[1] not in self._held:
            return
        if change[0] == "fire" or change[3] is None:
            at_us = change[2]["at_us"] if change[0] == "fire" else 0
            self._timers.add(Timer(at_us, change[1], "again", self._held.pop(change[1])))

    def happened(self, entry: Entry, occurrence: Occurrence, now: int) -> None:
        """Tells one schedule of something that its trigger names; it launches once, however many leaves that concerns.

        Args:
            entry: of the schedule.
            occurrence: what happened.
            now: microseconds since the epoch.
        """
        if entry.is_deaf or 0 < occurrence.at_us < entry.since_us:
            return
        concerned: dict[int, Trigger] = {}
        for number, leaf in enumerate(leaves(entry.schedule.trigger)):
            if key_of(leaf) not in (occurrence.key, occurrence.also):
                continue
            if isinstance(leaf, OnAbsence):
                if _matches(leaf.of, occurrence):
                    self.came(entry, number, leaf.within_us, now)
            elif _matches(leaf, occurrence):
                concerned[number] = leaf
        if concerned:
            job = self._taking(entry, concerned, now)
            counted = {
                number: _counted(job.latches.get(number, _NO_LATCH), leaf, occurrence)
                for number, leaf in concerned.items()
            }
            self._latch_all(entry, job, counted, now)

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
        self._latch_all(entry, self._taking(entry, (number,), now), {number: latch}, now, planned_us)

    def grew(self, entry: Entry, number: int, latch: Latch, now: int) -> None:
        """A leaf has seen versions of its table; they stay where they are until a job that claims them is launched.

        Args:
            entry: of the schedule.
            number: of the leaf.
            latch: with all versions that no run has.
            now: microseconds since the epoch.
        """
        self.too_old(entry, now)
        for job in entry.jobs.values():
            before = job.latches.get(number)
            if before is not None and goes_on(entry, number, before, latch):
                if (after := gone_on(before, latch)) != before:
                    self._latch_all(entry, job, {number: after}, now)
                    self._complete_by(entry, job.generation, number, now)
                return
        job = self._taking(entry, (number,), now)
        claim = claim_of(job.latches.get(number))
        if claim is not None and job.state != PENDING_TRIGGER:  # of another partition
            job = _begun(entry, now)
        elif claim is not None and holds(entry.schedule.trigger, job.latches) and is_open(entry, number, claim):
            return  # likewise, and its round is whole
        if job.generation in entry.jobs or not entry.is_full:
            self._latch_all(entry, job, {number: latch}, now)

    def _complete_by(self, entry: Entry, generation: int, number: int, now: int) -> None:
        """Versions went to a job that waits, since they go on with its claim: a round that lacked only these joins that job."""
        waiting, collecting = entry.jobs.get(generation), entry.collecting
        if waiting is None or collecting is None or collecting is waiting or not may_wait_alone(entry.schedule):
            return
        if holds(entry.schedule.trigger, {**collecting.latches, number: Latch(fired=True)}):
            self._join(entry, waiting, collecting)

    def _taking(self, entry: Entry, leaves_seen: Collection[int], now: int) -> Job:
        """The job that takes what comes: one that collects, one that waits to be launched and collects meanwhile, or a new one.

        A job that waits has all that its trigger asks for. It takes what is enough by itself; what is a part of the next round begins
        that: else the rest of it, which may come after the launch, would wait for what the launch has taken.
        """
        job = entry.collecting
        if job is None and holds(entry.schedule.trigger, {number: Latch(fired=True) for number in leaves_seen}):
            job = self._open(entry)
        return job if job is not None else _begun(entry, now)

    def _open(self, entry: Entry, latches: Mapping[int, Latch] | None = None) -> Job | None:
        """The job that waits to be launched and takes whole rounds that come meanwhile; None: there is none, or each has its own.

        Args:
            entry: of the schedule.
            latches: of the round: it must not claim versions of other partitions than the job does.
        """
        joins = may_wait_alone(entry.schedule) or entry.is_full
        if entry.paused:
            joins = entry.schedule.policies.on_pause == "keep"
        if not joins:
            return None
        waiting = [job for job in entry.jobs.values() if job.state != PENDING_TRIGGER]
        fitting = (job for job in waiting if _fits(entry, job, latches or {}))
        return max(fitting, default=None, key=lambda one: one.generation)

    def _join(self, entry: Entry, waiting: Job, collected: Job) -> None:
        """Puts all that a round has seen into a job that waits."""
        trigger, seen = entry.schedule.trigger, dict(waiting.latches)
        for number, latch in collected.latches.items():
            before = seen.get(number)
            seen = held(trigger, seen, number, latch if before is None else _both(before, latch))
        joined = waiting._replace(latches=seen, planned_us=collected.planned_us or waiting.planned_us)
        self._launching.collected(entry, joined, collected.generation)

    def _latch_all(self, entry: Entry, job: Job, latches: Mapping[int, Latch], now: int, planned_us: int = 0) -> None:
        trigger, last = entry.schedule.trigger, max(latches)
        seen = held(trigger, {**job.latches, **_once(trigger, latches)}, last, latches[last])
        job = job._replace(latches=seen, planned_us=planned_us or job.planned_us)
        if job.state != PENDING_TRIGGER:
            self._launching.collected(entry, job)
        elif not holds(trigger, job.latches):
            if job.generation not in entry.jobs and entry.schedule.policies.on_timeout == "run":
                self._limit(entry, job)
            self._journal.note("job", entry.name, job.generation, job.to_json())
        elif (waiting := self._open(entry, job.latches)) is not None:
            self._join(entry, waiting, job)
        elif entry.is_full:
            self._journal.note("job", entry.name, job.generation, job.to_json())
            self._hold(entry, job)
        else:
            self._launching.fired(entry, job._replace(planned_us=job.planned_us or now), now)

    def again(self, entry: Entry, generation: int, now: int) -> None:
        """Hands on a round that has all its trigger asks for, and found as many jobs waiting as may, or has waited for too long.

        Args:
            entry: the schedule.
            generation: of the round.
            now: microseconds since the epoch.
        """
        job = entry.collecting
        if entry.paused or job is None or job.generation != generation:
            return
        if not holds(entry.schedule.trigger, job.latches):
            if entry.schedule.policies.on_timeout == "run" and not self.too_old(entry, now):
                self._limit(entry, job)
            return
        if self.too_old(entry, now):
            return
        if entry.is_full:
            self._hold(entry, job)
        else:
            self._launching.fired(entry, job._replace(planned_us=job.planned_us or now), now)

    def _hold(self, entry: Entry, job: Job) -> None:
        """Lets a whole round wait for a place among the jobs that wait, for as long as any of these may."""
        self._held[entry.name] = job.generation
        self._limit(entry, job)

    def _limit(self, entry: Entry, job: Job) -> None:
        """Looks again at a round when it has waited for too long."""
        until_us = since_us(entry, job) + entry.schedule.policies.timeout_us
        self._timers.add(Timer(until_us, entry.name, "timeout", job.generation))

    def too_old(self, entry: Entry, now: int) -> bool:
        """Drops or launches what has been collected for longer than the schedule waits; counting begins anew.

        During a pause nothing is too old: the job timeout of what is kept begins with the resume.

        Returns:
            True if there was such a round.
        """
        job = entry.collecting
        if job is None or entry.paused or since_us(entry, job) + entry.schedule.policies.timeout_us > now:
            return False
        if entry.schedule.policies.on_timeout == "run" and entry.is_full:
            self._held[entry.name] = job.generation  # it goes on collecting until fewer jobs wait
            return True
        if entry.schedule.policies.on_timeout == "run":
            self._launching.fired(entry, job._replace(planned_us=job.planned_us or now), now, anyway=True)
            return True
        whole = holds(entry.schedule.trigger, job.latches)  # it has found no place among the jobs that wait
        why = WAITED_TOO_LONG if whole else "its trigger has not held within the job timeout"
        planned_us = job.planned_us or now
        self._journal.fire(
            entry, generation=job.generation, planned_us=planned_us, at_us=now, verdict=OBSOLETE, why=why
        )
        return True

    # -- absence --------------------------------------------------------------------------------------------------------

    def arm(self, entry: Entry, now: int) -> None:
        """Begins to wait for what is to come; what came before is as if it came now."""
        for number, leaf in enumerate(leaves(entry.schedule.trigger)):
            if isinstance(leaf, OnAbsence):
                self.came(entry, number, leaf.within_us, now)

    def load(self, entry: Entry) -> None:
        """Takes over a schedule of the log."""
        if entry.jobs and (job := entry.collecting) is not None:  # it may have waited for a place
            self._timers.add(Timer(0, entry.name, "again", job.generation))
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
        if entry.is_deaf or not isinstance(leaf, OnAbsence) or seen_us < 0:
            return
        if seen_us + leaf.within_us > now:
            self._arm(entry.name, number, seen_us + leaf.within_us, now)
            return
        self._journal.note("seen", entry.name, number, -1)
        self.latch(entry, number, Latch(True, values={"absent": {"of": key_of(leaf), "since": iso(seen_us)}}), now)


def _once(trigger: Trigger, latches: Mapping[int, Latch]) -> dict[int, Latch]:
    """Latches by the same occurrence: what it says is kept once for each name that is waited for, a schedule and its handler, say."""
    if len(latches) == 1:
        return dict(latches)
    named = leaves(trigger)
    keeps = {key_of(named[number]): number for number in latches}
    return {
        number: latch if keeps[key_of(named[number])] == number else latch._replace(values=None)
        for number, latch in latches.items()
    }


def _begun(entry: Entry, now: int) -> Job:
    return Job(entry.generation + 1, PENDING_TRIGGER, now)


def _fits(entry: Entry, job: Job, latches: Mapping[int, Latch]) -> bool:
    """Returns True if a job that waits can take what a round has seen: of one leaf it holds one claim on versions."""
    claims = ((number, latch) for number, latch in latches.items() if claim_of(latch) is not None)
    return all(
        claim_of(job.latches.get(number)) is None or goes_on(entry, number, job.latches[number], latch)
        for number, latch in claims
    )


def _both(before: Latch, latch: Latch) -> Latch:
    """Returns what a leaf has seen in two rounds."""
    if claim_of(before) is not None:
        return gone_on(before, latch)
    both = latch._replace(
        fired=True, seen=before.seen + latch.seen, rows=before.rows + latch.rows, size=before.size + latch.size
    )
    batch = (latch.values or {}).get("batch")
    if batch is not None:
        return both._replace(values=batch_values(batch["tag"], both))
    last = (latch.values or {}).get("partitions")
    if last is None:
        return both
    known = partitions_with((before.values or {}).get("partitions"), last.get("all", ()))
    totals = {"count": both.seen, "rows": both.rows, "bytes": both.size, "more": known["more"] + last.get("more", 0)}
    return both._replace(values={"partitions": {**last, **known, **totals}})


def _counted(before: Latch, leaf: Trigger, occurrence: Occurrence) -> Latch:
    """Returns what a leaf has seen with something more."""
    latch = Latch(
        True,
        before.seen + occurrence.seen,
        before.rows + occurrence.rows,
        before.size + occurrence.size,
        occurrence.values,
    )
    if isinstance(leaf, OnRuns):
        return latch._replace(fired=latch.seen >= leaf.at_least)
    if isinstance(leaf, OnBatch):
        return latch._replace(fired=latch.seen >= leaf.size, values=batch_values(leaf.tag, latch))
    if isinstance(leaf, OnPartitions):
        enough = latch.seen >= leaf.at_least and latch.rows >= leaf.rows and latch.size >= leaf.bytes
        last = occurrence.values.get("partitions", {})
        known = partitions_with((before.values or {}).get("partitions"), last.get("all", ()))
        totals = {"count": latch.seen, "rows": latch.rows, "bytes": latch.size}
        return latch._replace(fired=enough, values={"partitions": {**last, **known, **totals}})
    return latch


def _leaf(entry: Entry, number: int) -> Trigger | None:
    found = leaves(entry.schedule.trigger)
    return found[number] if number < len(found) else None


def _matches(leaf: Trigger, occurrence: Occurrence) -> bool:
    match leaf:
        case OnEvent(_, where):
            return all(_same(occurrence.fields.get(field), value) for field, value in where)
        case OnRuns(on=on):
            return occurrence.ended in on
        case OnPartitions() | OnTable() | OnBatch():
            return True
    return False


def _same(found: Any, wanted: Any) -> bool:
    """Returns True if a field has a value: true is not 1, and 1 is 1.0."""
    return isinstance(found, bool) == isinstance(wanted, bool) and found == wanted
