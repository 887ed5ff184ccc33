"""New records of a watched topic, as a trigger sees them and as templates know them. Pure.

A fire owns, in each partition, the records from where the fire before ended up to an end offset. The positions of all partitions, added
up, take the place of a table's version: they only grow, so of two ranges that begin at one place the one with the greater sum holds the
other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from scylla_spark.core.plan.state.schedule_entry import Handed, Latch
from scylla_spark.core.plan.triggers.trigger import OnTopic, Trigger

TOPIC: Final = "topic"
"""Name under which latches and templates know of records."""
TOPIC_PARTS: Final = "partitions"
"""The field of such a claim that only claims on topics have."""
MOST_PARTITIONS: Final = 500
"""So many partitions a watched topic has at most: a launch writes the offsets of all of them into one record."""
_ORDER: Final = frozenset({"from_version", "to_version"})  # of claims, for our own comparisons


class TopicOffsets(NamedTuple):
    """Offsets of a topic, as brokers report them.

    Attributes:
        topic_id: another one after the topic was deleted and made again; empty: the brokers are too old to have ids.
        firsts: partition → first offset that is kept.
        ends: partition → offset after the last record.
    """

    topic_id: str
    firsts: Mapping[int, int]
    ends: Mapping[int, int]


class Span(NamedTuple):
    """New records of one partition.

    Attributes:
        begin: offset of the first that is kept.
        end: offset after the last.
        lost: offsets before `begin` that belong to the range, and whose records are deleted.
    """

    begin: int
    end: int
    lost: int = 0


class TopicGrowth(NamedTuple):
    """New records of a topic that are enough for the trigger.

    Attributes:
        topic_id: which topic.
        spans: partition → what has come to it; only of those with something.
        size: bytes of all, in the topic.
        from_version: positions of all partitions before it, added up …
        to_version: … and after it.
    """

    topic_id: str
    spans: Mapping[int, Span]
    size: int
    from_version: int
    to_version: int

    @property
    def records(self) -> int:
        """Number of offsets whose records are kept."""
        return sum(span.end - span.begin for span in self.spans.values())

    @property
    def lost(self) -> int:
        """Number of offsets whose records were deleted before they were run."""
        return sum(span.lost for span in self.spans.values())

    def latch(self, leaf: Trigger) -> Latch:
        """Returns what a leaf has seen when this has come."""
        return Latch(True, self.records, 0, self.size, {TOPIC: self.values(leaf)})

    def values(self, leaf: Trigger) -> dict[str, Any]:
        """Returns what is known of it: what is needed to hand it over, and, through `offsets_as_told`, what templates may know.

        Args:
            leaf: that has seen it.
        """
        return {
            "name": leaf.topic if isinstance(leaf, OnTopic) else "",
            "topic_id": self.topic_id,
            TOPIC_PARTS: {str(number): [span.begin, span.end - 1] for number, span in sorted(self.spans.items())},
            "records": self.records,
            "bytes": self.size,
            "lost": self.lost,
            "from_version": self.from_version,
            "to_version": self.to_version,
        }


def offsets_as_told(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what templates may know of records.

    Args:
        values: as `TopicGrowth.values` gave them.
    """
    return {name: value for name, value in values.items() if name not in _ORDER}


def handed_at(offsets: TopicOffsets, positions: Mapping[int, int]) -> Handed:
    """All before some positions counts as handed over.

    Args:
        offsets: of the topic.
        positions: partition → offset of the first record that counts; others count from their beginning.
    """
    parts = {str(number): (offset, 0) for number, offset in sorted(positions.items())}
    return Handed(offsets.topic_id, sum(positions.values()), 0, parts)


def handed_offsets(handed: Handed, claim: Mapping[str, Any], now: int) -> Handed:
    """Returns the state after a run has got the records that a job claims.

    Args:
        handed: before.
        claim: as `TopicGrowth.values` gave it.
        now: microseconds since the epoch.
    """
    parts = {number: (last + 1, 0) for number, (_, last) in claim[TOPIC_PARTS].items()}
    return Handed(claim["topic_id"], claim["to_version"], now, {**handed.parts, **parts})


def position_of(handed: Handed, partition: int) -> int:
    """Returns the offset of the first record that no run has; partitions that were added later count from their beginning."""
    return handed.parts.get(str(partition), (0, 0))[0]


def is_replaced(handed: Handed, offsets: TopicOffsets) -> bool:
    """Returns True if the topic was deleted and made again since."""
    return bool(offsets.topic_id) and not handed.is_of(offsets.topic_id)


def rewound(handed: Handed, offsets: TopicOffsets) -> dict[int, tuple[int, int]]:
    """The partitions that end before what runs have already: their offsets began anew, or brokers lost records.

    Returns:
        Partition → its end, and the position that runs had reached.
    """
    ends = ((number, end, position_of(handed, number)) for number, end in offsets.ends.items())
    return {number: (end, position) for number, end, position in ends if end < position}


def spans_after(handed: Handed, offsets: TopicOffsets) -> dict[int, Span]:
    """Records that no run has, by partition; partitions without new records are left out.

    Args:
        handed: what runs have.
        offsets: of the same topic, none of whose partitions is rewound.
    """
    found: dict[int, Span] = {}
    for number, end in offsets.ends.items():
        position = position_of(handed, number)
        begin = min(max(position, offsets.firsts.get(number, 0)), end)
        lost = begin - position if str(number) in handed.parts else 0  # a partition that is new here has lost nothing
        if end > position and (end > begin or lost):
            found[number] = Span(begin, end, lost)
    return found


def growth_of(
    trigger: OnTopic, handed: Handed, topic_id: str, spans: Mapping[int, Span], size: int, *, is_overdue: bool = False
) -> TopicGrowth | None:
    """Returns what a fire would own; None: it is not enough.

    Records that were deleted before they were run count as come: the run reports how many are lost.

    Args:
        trigger: what is waited for.
        handed: what runs have.
        topic_id: of the topic.
        spans: as `spans_after` gave them.
        size: their bytes; not looked at where the trigger asks for none.
        is_overdue: the last run is so long ago that one record is enough.
    """
    growth = TopicGrowth(
        topic_id,
        spans,
        size,
        handed.version,
        handed.version + sum(span.end - position_of(handed, number) for number, span in spans.items()),
    )
    is_enough = growth.records + growth.lost >= trigger.records and (growth.lost > 0 or size >= trigger.bytes)
    return growth if spans and (is_enough or is_overdue) else None
