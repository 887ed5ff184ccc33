"""Task keys, the hour they lie in and the partition they belong to."""

from __future__ import annotations

import json
import re
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from scylla_spark.clock import from_us, iso, read_instant, to_us
from scylla_spark.core.storable_instants import is_storable
from scylla_spark.errors import ArgumentError

HOUR_US = 3_600_000_000
_PART = r'("(?:[^"\\]|\\.)*"|[^,"]*)'
_TEXT = re.compile(rf"TaskKey\(([^,]+),{_PART},{_PART}\)", re.DOTALL)


class TaskKey(NamedTuple):
    """Identity of a task, ordered as tasks of one lane run: by time, then ordering id, then uniqueness key.

    Attributes:
        time_us: scheduled time, microseconds since the Unix epoch, UTC.
        ordering_id: the lane.
        uniqueness_key: tells tasks of the same lane and time apart.
    """

    time_us: int
    ordering_id: str
    uniqueness_key: str

    @classmethod
    def of(cls, scheduled_time: datetime, ordering_id: str, uniqueness_key: str) -> TaskKey:
        """Key from an aware datetime.

        Args:
            scheduled_time: when the task is due; an aware datetime.
            ordering_id: its lane.
            uniqueness_key: what tells it from others of its lane at that time.

        Raises:
            ArgumentError: the datetime has no time zone, or lies before 1970 or after 2261.
        """
        return cls(instant_us(scheduled_time), ordering_id, uniqueness_key)

    @classmethod
    def parse(cls, text: str) -> TaskKey:
        """Reads the text form `TaskKey(time,orderingId,uniquenessKey)`, in which a part that holds a comma or a quote is a JSON text.

        Raises:
            ArgumentError: the text has another form, or its time is no RFC 3339 instant with a zone.
        """
        match = _TEXT.fullmatch(text.strip())
        hint = "Write TaskKey(2026-01-31T09:00:00Z,orderingId,uniquenessKey), and a part with a comma in double quotes."
        if match is None:
            raise ArgumentError(f"{text!r} is not a task key.", hint=hint)
        try:
            return cls.of(read_instant(match[1].strip()), _part_of(match[2]), _part_of(match[3]))
        except ValueError as error:
            raise ArgumentError(f"{text!r} is not a task key: {error}.", hint=hint) from None

    @property
    def scheduled_time(self) -> datetime:
        """The scheduled time as an aware UTC datetime."""
        return from_us(self.time_us)

    @property
    def hour(self) -> int:
        """Whole hours since the Unix epoch; independent of any session time zone."""
        return self.time_us // HOUR_US

    def __str__(self) -> str:
        return f"TaskKey({iso(self.time_us)},{_part_text(self.ordering_id)},{_part_text(self.uniqueness_key)})"


def _part_text(part: str) -> str:
    """A part in the text form of its key: as it is, or as a JSON text where it could be taken for two parts or for such a text."""
    return json.dumps(part, ensure_ascii=False) if "," in part or '"' in part else part


def _part_of(text: str) -> str:
    """The inverse of `_part_text`.

    Raises:
        ValueError: it begins with a quote and is no JSON text, or has half of a character.
    """
    part = str(json.loads(text)) if text.startswith('"') else text
    part.encode()
    return part


def instant_us(moment: datetime) -> int:
    """Microseconds since the epoch of a moment at which a task can be scheduled.

    Raises:
        ArgumentError: it is no aware datetime, or lies before 1970 or after 2261.
    """
    try:
        us = to_us(moment)
    except (ValueError, AttributeError, TypeError) as error:
        raise ArgumentError(f"{moment!r} is no instant: {error}.", reason="no_time_zone") from None
    if not is_storable(us):
        raise ArgumentError(
            f"{moment.isoformat()} is before 1970 or after 2261.",
            hint="Choose a time that every reader of the tables can hold.",
            reason="time_out_of_range",
        )
    return us


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2 hash, signed.

    Source: `org.apache.kafka.common.utils.Utils.murmur2`.
    """
    length = len(data)
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = (0x9747B28C ^ length) & mask
    whole = length - length % 4
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    rest = data[whole:]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    h ^= h >> 15
    return h - (1 << 32) if h & 0x80000000 else h


def partition_of(ordering_id: str, partitions: int) -> int:
    """Partition of a lane: positive(murmur2(utf8)) mod N, equal to Kafka's default partitioner.

    Args:
        ordering_id: any text that can be written as UTF-8.
        partitions: partition count of the deployment, fixed for its life.
    """
    return (murmur2(ordering_id.encode()) & 0x7FFFFFFF) % partitions


place_of = lru_cache(maxsize=100_000)(partition_of)
"""`partition_of`, remembered for the lanes seen last: a tail and its engine ask for every record of theirs."""
