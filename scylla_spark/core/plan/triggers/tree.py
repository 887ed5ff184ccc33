"""Whether a trigger holds, given what its leaves have seen."""

from __future__ import annotations

from collections.abc import Mapping

from scylla_spark.core.plan.state.schedule_entry import Latch
from scylla_spark.core.plan.triggers.trigger import (
    AnyOf,
    OnAbsence,
    OnBatch,
    OnEvent,
    OnPartitions,
    OnRequest,
    OnRuns,
    OnTable,
    OnTopic,
    Trigger,
    leaves,
)


def holds(trigger: Trigger, latches: Mapping[int, Latch]) -> bool:
    """Returns True if enough leaves of a tree have fired.

    Args:
        trigger: the tree.
        latches: number of a leaf, in the order of `leaves`, → what it has seen.
    """
    fired, _ = _holds(trigger, latches, 0)
    return fired


def _holds(node: Trigger, latches: Mapping[int, Latch], first: int) -> tuple[bool, int]:
    """Whether a node holds whose first leaf has a number, and the number after its last leaf."""
    if not isinstance(node, AnyOf):
        return latches.get(first, Latch()).fired, first + 1
    held = 0
    for branch in node.branches:
        one, first = _holds(branch, latches, first)
        held += one
    return held >= node.at_least, first


def missing_leaves(trigger: Trigger, latches: Mapping[int, Latch]) -> list[str]:
    """Returns what a tree still waits for, in words; empty if it holds. Branches that hold miss nothing.

    Args:
        trigger: the tree.
        latches: number of a leaf, in the order of `leaves`, → what it has seen.
    """
    missing, _ = _missing(trigger, latches, 0)
    return missing


def _missing(node: Trigger, latches: Mapping[int, Latch], first: int) -> tuple[list[str], int]:
    """Returns what a node lacks whose first leaf has a number, and the number after its last leaf."""
    if not isinstance(node, AnyOf):
        return ([] if latches.get(first, Latch()).fired else [leaf_words(node)]), first + 1
    found: list[list[str]] = []
    for branch in node.branches:
        one, first = _missing(branch, latches, first)
        found.append(one)
    held = sum(not one for one in found)
    return ([] if held >= node.at_least else [name for one in found for name in one]), first


def leaf_words(leaf: Trigger) -> str:
    """Returns what a leaf waits for, in words."""
    return f"absence of {key_of(leaf)}" if isinstance(leaf, OnAbsence) else key_of(leaf)


def keys_of(trigger: Trigger) -> list[str]:
    """Returns what a schedule with this trigger listens to, each once; with a trigger on starts also the work, by which it is found."""
    found = leaves(trigger)
    keys = dict.fromkeys(map(key_of, found))
    works = (leaf.of if isinstance(leaf, OnAbsence) else leaf for leaf in found)
    return list(keys | dict.fromkeys(f"work:{one.work}" for one in works if isinstance(one, OnRuns) and one.on_start))


def key_of(leaf: Trigger) -> str:
    """Returns what one leaf listens to."""
    match leaf:
        case OnEvent(name):
            return f"event:{name}"
        case OnPartitions(dataset):
            return f"dataset:{dataset}"
        case OnRuns(work):
            return f"{'start' if leaf.on_start else 'work'}:{work}"
        case OnBatch(tag):
            return f"batch:{tag}"
        case OnTable(table):
            return f"table:{table}"
        case OnTopic(topic):
            return f"topic:{topic}"
        case OnAbsence(of):
            return key_of(of)
        case OnRequest():
            return "manual"
        case _:
            return "time"


def described(trigger: Trigger, latches: Mapping[int, Latch]) -> list[str]:
    """Returns what each leaf has seen, in words; for `fires` and people."""
    words = []
    for number, leaf in enumerate(leaves(trigger)):
        latch = latches.get(number, Latch())
        state = "holds" if latch.fired else "waits"
        seen = f", {latch.seen} seen" if latch.seen else ""
        words.append(f"{leaf_words(leaf)} {state}{seen}")
    return words
