"""Bytes that records of a topic take there, by the heads of their batches: nothing is unpacked, and no record is read.

Offsets do not show the bytes, so batches are fetched. One call fetches about `MOST_BYTES` and lasts about `LONGEST_MS`. Records that it
does not reach count with the mean size of those that it fetched from the same partition. So the cost is bounded at any rate of records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.record.memory_records import MemoryRecords

from scylla_spark.clock import boot_us
from scylla_spark.config.settings import Settings
from scylla_spark.io.kafka.topics import client_consumer

MOST_BYTES: Final = 4 << 20
LONGEST_MS: Final = 500
_FETCH: Final = {
    "fetch_max_bytes": MOST_BYTES,
    "max_partition_fetch_bytes": 1 << 20,
    "check_crcs": False,  # the handler that reads the records does so
    "fetch_max_wait_ms": 100,
}
_LENGTH, _MAGIC, _LAST_DELTA, _HEAD = 8, 16, 23, 27  # places in the head of a batch, in bytes
_BEFORE_LENGTH: Final = 12  # bytes of a batch that its length does not count


class Sized(NamedTuple):
    """Records of a partition whose bytes are known.

    Attributes:
        begin: offset of the first.
        end: offset after the last.
        size: their bytes.
    """

    begin: int
    end: int
    size: int


class TopicSizes:
    """Counts bytes, with a consumer of its own that is kept between looks. Not thread safe.

    Args:
        settings: with the broker's address.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._consumer: KafkaConsumer | None = None
        self._wanted: Mapping[int, tuple[int, int]] = {}
        self._read: dict[int, Sized] = {}
        self._left = 0

    def of(self, topic: str, wanted: Mapping[int, tuple[int, int]]) -> dict[int, Sized]:
        """Bytes of some ranges.

        Args:
            topic: name.
            wanted: partition → first offset, and the offset after the last.

        Returns:
            Partition → what is known of its whole range; none of a partition of which nothing was fetched in time.

        Raises:
            KafkaError: the records cannot be fetched.
        """
        self._wanted, self._read, self._left = wanted, {}, MOST_BYTES
        places = {number: TopicPartition(topic, number) for number in wanted}
        reader = self._opened()
        reader.assign(list(places.values()))
        reader.resume(*places.values())  # an assignment keeps what was paused
        for number, place in places.items():
            reader.seek(place, wanted[number][0])
        until = boot_us() + LONGEST_MS * 1_000
        while self._left > 0 and not all(map(self._is_done, wanted)) and boot_us() < until:
            for place in reader.poll(timeout_ms=100):
                reader.pause(place)
        reader.assign([])
        return {number: _whole(sized, wanted[number][1]) for number, sized in self._read.items()}

    def close(self) -> None:
        """Ends the connection."""
        if self._consumer is not None:
            with suppress(Exception):
                self._consumer.close(autocommit=False)
            self._consumer = None

    def take(self, partition: int, batch: memoryview) -> int:
        """Counts one batch; returns the offset after it.

        Args:
            partition: of the topic.
            batch: its bytes; those of a batch of before Kafka 0.11 hold one record, or several that are compressed.
        """
        base, end, size = head_of(batch)
        self._left -= size
        begin, until = self._wanted.get(partition, (end, end))
        before = self._read.get(partition, Sized(begin, begin, 0))
        ours = min(end, until) - max(base, before.end)
        if ours > 0:
            share = size if ours >= end - base else size * ours // (end - base)
            self._read[partition] = Sized(begin, min(end, until), before.size + share)
        elif base >= until:  # what was between is compacted
            self._read[partition] = Sized(begin, until, before.size)
        return end

    def is_over(self, partition: int) -> bool:
        """Returns True if no more batches of a partition are needed."""
        return self._left <= 0 or self._is_done(partition)

    def _is_done(self, partition: int) -> bool:
        sized = self._read.get(partition)
        return partition not in self._wanted or (sized is not None and sized.end >= self._wanted[partition][1])

    def _opened(self) -> KafkaConsumer:
        if self._consumer is None:
            self._consumer = client_consumer(self._settings, **_FETCH)
            self._consumer._fetcher.PartitionRecords = partial(_Heads, self)  # noqa: SLF001 - made deep inside its constructor
        return self._consumer


def head_of(batch: memoryview) -> tuple[int, int, int]:
    """First offset of a batch, the offset after its last, and its bytes."""
    base = int.from_bytes(batch[:_LENGTH], "big")
    size = _BEFORE_LENGTH + int.from_bytes(batch[_LENGTH:_BEFORE_LENGTH], "big")
    deltas = int.from_bytes(batch[_LAST_DELTA:_HEAD], "big") if batch[_MAGIC] > 1 else 0
    return base, base + deltas + 1, size


def _whole(sized: Sized, end: int) -> Sized:
    """The bytes of a whole range, of which the first records were counted."""
    counted = sized.end - sized.begin
    return Sized(sized.begin, end, sized.size + sized.size * (end - sized.end) // max(counted, 1))


class _Heads(Fetcher.PartitionRecords):  # type: ignore[misc]
    """Goes over batches, and gives one thing only: that no more of them are needed."""

    next_fetch_offset: int

    def __init__(self, sizes: TopicSizes, *arguments: Any, **options: Any) -> None:
        self._sizes = sizes
        super().__init__(*arguments, **options)

    def _maybe_skip_record(self, _record: Any) -> bool:
        return False

    def _unpack_records(self, tp: Any, records: MemoryRecords, *_: Any) -> Iterator[Any]:
        while not self._sizes.is_over(tp.partition) and (batch := records._next_slice) is not None:  # noqa: SLF001 - its bytes
            self.next_fetch_offset = self._sizes.take(tp.partition, batch)
            records._cache_next()  # noqa: SLF001
        if self._sizes.is_over(tp.partition):
            yield tp
        self.drain()
