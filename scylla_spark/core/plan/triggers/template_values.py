"""What a job has seen, as templates and `fires` name it: the last of each kind, and of each kind all by the name that is waited for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from scylla_spark.core.plan.state.schedule_entry import Latch
from scylla_spark.core.plan.triggers.tree import key_of
from scylla_spark.core.plan.triggers.trigger import (
    OnBatch,
    OnEvent,
    OnPartitions,
    OnRuns,
    OnTable,
    OnTopic,
    Trigger,
    leaves,
)

BY_NAME: Final = {
    "event": "events",
    "upstream": "upstreams",
    "table": "tables",
    "topic": "topics",
    "partitions": "datasets",
    "batch": "batches",
}
"""What the last of a kind is called → what all of the kind are called."""
CLAIMED: Final = frozenset({"table", "topic"})
"""Kinds of values that are claims: a run gets what they name, and no other run does."""
_MOST_PARTITIONS: Final = 100
_MOST_PARTITION_CHARS: Final = 8 * 1024  # they are written with each that comes
_MOST_HELD_CHARS: Final = 64 * 1024


def last_of_each(latches: Mapping[int, Latch]) -> dict[str, Any]:
    """Returns what came last of each kind.

    Args:
        latches: number of a leaf → what it has seen, the newest last.
    """
    values: dict[str, Any] = {}
    for latch in latches.values():
        values |= latch.values or {}
    return values


def all_by_name(trigger: Trigger, latches: Mapping[int, Latch]) -> dict[str, dict[str, Any]]:
    """Returns what came of each kind, by the name of what is waited for: events, work, tables, datasets.

    Args:
        trigger: the tree.
        latches: number of a leaf → what it has seen, the newest last.
    """
    found: dict[str, dict[str, Any]] = {}
    named = leaves(trigger)
    for number, latch in latches.items():
        for kind, value in (latch.values or {}).items():
            if kind in BY_NAME and number < len(named):
                found.setdefault(BY_NAME[kind], {})[_name(named[number])] = value
    return found


def held(trigger: Trigger, latches: Mapping[int, Latch], number: int, newest: Latch) -> dict[int, Latch]:
    """Latches with a new one, at the end; what was seen of the same before is let go of, and of all, what is too much.

    Versions of tables and offsets of topics always stay: they are a claim.

    Args:
        trigger: the tree.
        latches: before.
        number: of the leaf of the new one.
        newest: what it has seen.
    """
    named = leaves(trigger)
    left = _MOST_HELD_CHARS - _size(newest)
    kept: dict[int, Latch] = {}
    for leaf, latch in reversed([one for one in latches.items() if one[0] != number]):
        is_claim = not CLAIMED.isdisjoint(latch.values or {})
        left -= _size(latch)
        same = leaf < len(named) and number < len(named) and key_of(named[leaf]) == key_of(named[number])
        kept[leaf] = latch if is_claim or not (same or left < 0) else latch._replace(values=None)
    return {**dict(reversed(kept.items())), number: newest}


def partitions_with(before: Mapping[str, Any] | None, come: Sequence[Any]) -> dict[str, Any]:
    """Values of all partitions that were told of since the last launch, as many as are kept, and how many more there were.

    Args:
        before: what was known of partitions; None: nothing.
        come: values of those that were told of now; empty where one has none.
    """
    kept, more = list((before or {}).get("all", ())), (before or {}).get("more", 0)
    left = _MOST_PARTITION_CHARS - len(json.dumps(kept))
    for values in filter(None, come):
        left -= len(json.dumps(values)) + 2
        if more or len(kept) >= _MOST_PARTITIONS or left < 0:
            more += 1
        else:
            kept.append(values)
    return {"all": kept, "more": more}


def batch_values(tag: str, latch: Latch) -> dict[str, Any]:
    """Returns how the tasks of a batch have ended.

    Args:
        tag: that they carry.
        latch: of the leaf that counts them.
    """
    succeeded = latch.seen - latch.rows - latch.size
    return {
        "batch": {
            "tag": tag,
            "ended": latch.seen,
            "succeeded": succeeded,
            "failed": latch.rows,
            "cancelled": latch.size,
        }
    }


def _size(latch: Latch) -> int:
    return len(json.dumps(latch.values)) if latch.values else 0


def _name(leaf: Trigger) -> str:
    match leaf:
        case OnEvent(name) | OnPartitions(name) | OnRuns(name) | OnTable(name) | OnTopic(name) | OnBatch(name):
            return name
    return key_of(leaf)
