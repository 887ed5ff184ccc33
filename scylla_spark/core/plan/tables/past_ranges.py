"""Which ranges of versions a trigger would have fired on, had it watched a table while some past versions were written. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final, NamedTuple

from scylla_spark.core.plan.tables.changes import Key, Pending, Range, begun, counted, fired, keys_of, range_of, turn_of
from scylla_spark.core.plan.tables.commit import Commit
from scylla_spark.core.plan.triggers.trigger import OnTable
from scylla_spark.errors import ArgumentError

NULL_PART: Final = "\0null"
"""How the partition of nulls is called in the planner's log: no value has this name."""


class PastRange(NamedTuple):
    """Versions that one run of a backfill is about: those in (from_version, to_version] that count for its trigger.

    Attributes:
        from_version: the last version before it.
        to_version: its last one.
        rows: that were written, as far as the log says.
        commits: that count.
        bytes: of their new files.
        part: the partition, as the planner's log calls it; empty: the whole table.
        at_us: when the last commit that counts was written, microseconds since the epoch.
    """

    from_version: int
    to_version: int
    rows: int
    commits: int
    bytes: int
    part: str
    at_us: int


def past_ranges(trigger: OnTable, begin: int, commits: Iterable[Commit], most: int) -> list[PastRange]:
    """The ranges of a stretch of versions, each as the trigger would have fired on it; what is too little at the end is one, too.

    The time at which it would have fired is that of the commits: settling and throttling go by when they were written. A commit is as much
    work as it has partitions, however many have come before; no more commits are read than it takes to know that there are too many.

    Args:
        trigger: says what counts, and when it is enough.
        begin: the last version before the stretch.
        commits: of the stretch, all of them in order.
        most: more ranges are refused.

    Raises:
        ArgumentError: there are more.
    """
    pending, found, now = begun(begin), list[PastRange](), 0
    due: list[tuple[tuple[int, bool, str], Key]] = []  # a heap, also of what has grown or fired since
    for commit in commits:
        now = max(now, commit.timestamp_us)
        while due and due[0][0][0] <= now:
            turn, key = heappop(due)
            one = range_of(trigger, pending, key)
            if one is not None and turn_of(one) == turn:
                found.append(_of(one))
                pending = fired(pending, key, one.due_us)
        pending = counted(trigger, pending, [commit], now)
        if len(found) + len(pending.grown) > most:  # each of the pending ones is a range at least
            raise ArgumentError(
                f"More than {most} runs would be made of these versions.", hint="Backfill them in parts."
            )
        for key in keys_of(trigger, commit):
            if (one := range_of(trigger, pending, key)) is not None:
                heappush(due, (turn_of(one), key))
    return [*found, *map(_of, _left(pending))]


def part_of(key: Key) -> str:
    """Returns how a partition is called in the planner's log."""
    return NULL_PART if key is None else key


def key_of(part: str) -> Key:
    """The partition that the planner's log calls so."""
    return None if part == NULL_PART else part


def _left(pending: Pending) -> list[Range]:
    """All that has come and that nothing has fired on."""
    left = [
        Range(key, pending.from_version(key), pending.version, grown, grown.last_us)
        for key, grown in pending.grown.items()
    ]
    return sorted(left, key=turn_of)


def _of(one: Range) -> PastRange:
    grown = one.grown
    return PastRange(
        one.from_version, one.to_version, grown.rows, grown.commits, grown.bytes, part_of(one.key), grown.last_us
    )
