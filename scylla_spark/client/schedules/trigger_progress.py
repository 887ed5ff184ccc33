"""How far a trigger is: each branch of its tree in words, with what it has seen and whether it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from scylla_spark.client.schedules.trigger_words import in_words
from scylla_spark.core.plan.state.schedule_entry import PENDING_TRIGGER, Entry, Latch
from scylla_spark.core.plan.triggers.tree import holds
from scylla_spark.core.plan.triggers.trigger import (
    AnyOf,
    OnBatch,
    OnPartitions,
    OnRuns,
    OnTable,
    OnTopic,
    Trigger,
    leaves,
)


class Branch(NamedTuple):
    """One node of a trigger.

    Attributes:
        depth: 0 for the whole trigger.
        text: what it waits for, in words.
        holds: whether it has come.
        progress: how much of it has come, in words; empty where that is all or nothing.
    """

    depth: int
    text: str
    holds: bool
    progress: str


def progress_of(entry: Entry) -> list[Branch]:
    """The tree of a schedule's trigger, parents before children, with what the round that waits for it has seen."""
    waiting = [job for job in entry.jobs.values() if job.state == PENDING_TRIGGER]
    latches = waiting[-1].latches if waiting else {}
    return list(_branches(entry.schedule.trigger, latches, 0))


def _branches(node: Trigger, latches: Mapping[int, Latch], depth: int) -> Iterator[Branch]:
    """A node and all below it; `latches` by the numbers of its own leaves."""
    if not isinstance(node, AnyOf):
        latch = latches.get(0, Latch())
        yield Branch(depth, in_words(node), latch.fired, _seen(node, latch))
        return
    parts = list(_parts(node, latches))
    held = sum(holds(branch, seen) for branch, seen in parts)
    yield Branch(depth, _all_of(node), held >= node.at_least, f"{held} of {node.at_least}")
    for branch, seen in parts:
        yield from _branches(branch, seen, depth + 1)


def _parts(node: AnyOf, latches: Mapping[int, Latch]) -> Iterator[tuple[Trigger, Mapping[int, Latch]]]:
    """Its branches, each with what its own leaves have seen, numbered from 0."""
    first = 0
    for branch in node.branches:
        count = len(leaves(branch))
        yield branch, {leaf - first: latch for leaf, latch in latches.items() if first <= leaf < first + count}
        first += count


def _all_of(node: AnyOf) -> str:
    count = len(node.branches)
    if node.at_least == count:
        return "all of these" if count > 1 else "this"
    return "any of these" if node.at_least == 1 else f"at least {node.at_least} of these {count}"


def _seen(leaf: Trigger, latch: Latch) -> str:
    """Returns what has been counted, beside what is needed."""
    wanted: tuple[tuple[int, int, str], ...]
    match leaf:
        case OnPartitions(_, at_least, rows, size):
            wanted = ((latch.seen, at_least, "partitions"), (latch.rows, rows, "rows"), (latch.size, size, "bytes"))
        case OnTable():
            counts = (latch.seen, leaf.min_commits), (latch.rows, leaf.min_rows), (latch.size, leaf.min_bytes)
            wanted = tuple((*count, what) for count, what in zip(counts, ("commits", "rows", "bytes"), strict=True))
        case OnTopic():
            wanted = ((latch.seen, leaf.records, "records"), (latch.size, leaf.bytes, "bytes"))
        case OnRuns(at_least=at_least) if at_least > 1:
            wanted = ((latch.seen, at_least, "runs"),)
        case OnBatch(_, size):
            wanted = ((latch.seen, size, "tasks"),)
        case _:
            return ""
    return ", ".join(f"{seen:,} of {needed:,} {what}" for seen, needed, what in wanted if needed)
