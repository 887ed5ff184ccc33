"""When versions of a watched table, or records of a topic, belong to a run: with its launch, not before.

What is not launched leaves them where they are.

A job only claims versions while it waits; more that comes goes on with its claim. So whatever is skipped, paused, changed or too
old in between, ranges of consecutive launches touch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

from scylla_spark.core.plan.state.plan_log import TABLE_PART, Change
from scylla_spark.core.plan.state.schedule_entry import MOST_PARTS, Entry, Handed, Job, Latch
from scylla_spark.core.plan.tables.growth import TABLE, Growth
from scylla_spark.core.plan.topics.growth import TOPIC, TOPIC_PARTS, handed_offsets
from scylla_spark.core.plan.triggers.tree import key_of
from scylla_spark.core.plan.triggers.trigger import OnAbsence, Trigger, leaves, source_of, table_of


def handed_over(entry: Entry, job: Job, now: int) -> list[Change]:
    """Returns what says that the versions of a job are a run's own from now on; to be written together with its launch.

    Args:
        entry: of the schedule.
        job: that is launched.
        now: microseconds since the epoch.
    """
    claims = ((leaf, claim_of(latch)) for leaf, latch in job.latches.items())
    return [moved(entry, leaf, claim, now) for leaf, claim in claims if claim and is_open(entry, leaf, claim)]


def moved(entry: Entry, leaf: int, claim: Mapping[str, Any], now: int) -> Change:
    """The change by which what comes later begins after a claim.

    Args:
        entry: of the schedule.
        leaf: number of the leaf on the table.
        claim: the versions, as `claim_of` gives them.
        now: microseconds since the epoch.
    """
    if TOPIC_PARTS in claim:
        return "table", entry.name, leaf, handed_offsets(entry.tables[leaf], claim, now)
    to_version, part = claim["to_version"], claim["partition"]
    known = entry.tables[leaf].parts.values()
    if part is None or (claim["alone"] and all(version <= to_version for version, _ in known)):
        return "table", entry.name, leaf, Handed(claim["table_id"], to_version, now)
    return TABLE_PART, entry.name, leaf, part, to_version, now


def claim_of(latch: Latch | None) -> Mapping[str, Any] | None:
    """The versions that a leaf has seen, as templates know them; None: it is of no table, or has seen none."""
    values = (latch.values if latch is not None else None) or {}
    found: Mapping[str, Any] | None = values.get(TABLE) or values.get(TOPIC)
    return found


def is_open(entry: Entry, leaf: int, claim: Mapping[str, Any]) -> bool:
    """Returns True if no run has the versions of a claim yet: they go on from where its table stands.

    They are of that table, since claims go where another takes its place; one that is replaced in place may have any number of ids.

    Args:
        entry: of the schedule.
        leaf: its number.
        claim: what a job says of the versions.
    """
    handed = entry.tables.get(leaf)
    if handed is None:
        return False
    stands: int = handed.of_part(claim.get("partition") or "")[0]
    return bool(claim["from_version"] <= stands < claim["to_version"])


def has_room(entry: Entry, leaf: int, growth: Growth) -> bool:
    """Whether it can be kept in mind how far a partition was handed over, and those that jobs claim: of so many it may be, of no more.

    The slowest always have room: as long as they wait, nothing else is ever forgotten.

    Args:
        entry: of the schedule.
        leaf: number of the leaf on the table.
        growth: what has come to the partition.
    """
    known, part = entry.tables[leaf].parts, growth.part
    if not part or growth.alone or growth.slowest or part in known or len(known) + len(entry.jobs) < MOST_PARTS:
        return True
    claims = (claim_of(job.latches.get(leaf)) for job in entry.jobs.values())
    return (
        len(known.keys() | {part} | {claim["partition"] for claim in claims if claim and claim["partition"]})
        <= MOST_PARTS
    )


def goes_on(entry: Entry, leaf: int, before: Latch | None, latch: Latch) -> bool:
    """Returns True if what a leaf has seen now goes on with what a job claims there already.

    Args:
        entry: of the schedule.
        leaf: its number.
        before: what the job holds of the leaf.
        latch: what has come.
    """
    old, new = claim_of(before), claim_of(latch)
    return bool(old and new and old.get("partition") == new.get("partition") and is_open(entry, leaf, old))


def gone_on(before: Latch, latch: Latch) -> Latch:
    """A claim with what has come since; what was told before it changes nothing.

    Args:
        before: the claim.
        latch: counted from the same version, or a later one before which nothing has come.
    """
    old, new = claim_of(before), claim_of(latch)
    if old is None or new is None:
        return before
    if TOPIC_PARTS in new:
        return latch if (new["to_version"], new["lost"]) > (old["to_version"], old["lost"]) else before
    if new["to_version"] <= old["to_version"]:
        return before
    return latch._replace(values={TABLE: {**new, "from_version": min(old["from_version"], new["from_version"])}})


def leaves_kept(old: Trigger, new: Trigger, known: Iterable[int]) -> dict[int, int]:
    """Returns which leaves of a changed trigger go on where one of before stands.

    Those of the same table or topic do, the most similar ones first.

    Args:
        old: the trigger of before.
        new: the one that takes its place.
        known: numbers of leaves of the old one of which it is known where they stand.

    Returns:
        Number of a leaf of the new trigger → number of the one of before.
    """
    stands = set(known)
    before = {number: leaf for number, leaf in enumerate(leaves(old)) if number in stands}
    after = {number: leaf for number, leaf in enumerate(leaves(new)) if source_of(leaf) is not None}
    found: dict[int, int] = {}
    for alike in (_whole, _share, _place):
        free = _by(alike, {number: leaf for number, leaf in before.items() if number not in set(found.values())})
        for number, leaf in after.items():
            if number not in found and free[alike(leaf)]:
                found[number] = free[alike(leaf)].pop(0)
    return dict(sorted(found.items()))


def parts_let_go(old: Entry, new: Trigger, kept: Mapping[int, int]) -> list[Change]:
    """The changes by which leaves whose partitions are others from now on go on where all partitions of before had come to.

    How far single ones had come says nothing of the new ones: they may even be named alike. So nothing is lost, but what partitions had
    beyond that is handed over once more.

    Args:
        old: the schedule, as it was.
        new: its new trigger.
        kept: number of a leaf of that → number of the one of before that it goes on for.
    """
    before, after = leaves(old.schedule.trigger), leaves(new)
    others = [
        leaf for leaf, was in kept.items() if old.tables[was].parts and _share(after[leaf]) != _share(before[was])
    ]
    return [("table", old.name, leaf, old.tables[kept[leaf]]._replace(parts={})) for leaf in others]


def _by(alike: Callable[[Trigger], Hashable], numbered: Mapping[int, Trigger]) -> defaultdict[Hashable, list[int]]:
    found: defaultdict[Hashable, list[int]] = defaultdict(list)
    for number, leaf in numbered.items():
        found[alike(leaf)].append(number)
    return found


def _whole(leaf: Trigger) -> Hashable:
    return leaf


def _share(leaf: Trigger) -> Hashable:
    table = table_of(leaf)
    return _place(leaf), table.per if table else ""


def _place(leaf: Trigger) -> Hashable:
    return isinstance(leaf, OnAbsence), key_of(leaf) if source_of(leaf) else ""
