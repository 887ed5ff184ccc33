"""Shards as the Astyanax queue numbers them; pure, for those who bring data or programs that count so.

Nothing of ours is stored by them: a partition (`core.tasks.key.partition_of`) stands where its shard of writers stood, and an hour where
its shard of time stood.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from scylla_spark.core.tasks.key import partition_of
from scylla_spark.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a queue was divided.

    Attributes:
        buckets: how many shards of time there are, from 1.
        bucket_us: how long one lasts, in microseconds, from 1.
        shards: how many shards each of them has, from 1.
    """

    buckets: int
    bucket_us: int
    shards: int

    @property
    def count(self) -> int:
        """All shards."""
        return self.buckets * self.shards


class Shard(NamedTuple):
    """Where an item stands: the shard of its time, and one of those within."""

    time: int
    mod: int


def shard_by_time(sharding: Sharding, time_us: int) -> Shard:
    """The shard of an item whose time alone says where it stands.

    Args:
        sharding: how the queue is divided.
        time_us: of the item, microseconds since the epoch, from 0.

    Raises:
        ArgumentError: a number is out of range.
    """
    return Shard(time_shard(sharding, time_us), time_us % sharding.shards)


def shard_by_key(sharding: Sharding, time_us: int, key: str) -> Shard:
    """The shard of an item whose key says where it stands within its time; never negative, whatever the key.

    Args:
        sharding: how the queue is divided.
        time_us: of the item, microseconds since the epoch, from 0.
        key: of the item.

    Raises:
        ArgumentError: a number is out of range.
    """
    return Shard(time_shard(sharding, time_us), partition_of(key, sharding.shards))


def time_shard(sharding: Sharding, time_us: int) -> int:
    """The shard of a time: how many buckets have begun, counted round and round.

    Args:
        sharding: how the queue is divided.
        time_us: microseconds since the epoch, from 0.

    Raises:
        ArgumentError: a number is out of range.
    """
    if min(sharding.buckets, sharding.bucket_us, sharding.shards) < 1 or time_us < 0:
        raise ArgumentError(f"{sharding} divides nothing at {time_us}.", hint="Counts begin with 1, times with 0.")
    return time_us // sharding.bucket_us % sharding.buckets
