"""Makes a consumer of kafka-python (3.0.12) survive whatever stands in a topic.

- It unpacks compressed batches whole, however large they become: one of 900 MB of one letter ends the process. And one poll
  takes so many records, whatever their size: batches that are just small enough become gigabytes.
- It lacks codecs whose packages are not installed, and then raises for ever at the same offset.
- It raises, for ever too, at a record that is not as it should be, though brokers acknowledge some such; also where Java's
  client finds nothing wrong: at the name of a header that is not UTF-8, at bits of a record's attributes.

Here a batch that is too large or cannot be read is skipped and told in the log; ingest leaves its offsets in `rejected`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final

from kafka import KafkaConsumer
from kafka.consumer.fetcher import Fetcher
from kafka.record.memory_records import MemoryRecords

from scylla_spark.io.kafka.sound_batches import NotSound, opened
from scylla_spark.log import get_logger

MOST_TAKEN: Final = 32 << 20
"""Bytes of records, as they are unpacked, after which a poll takes no more; a batch may hold some more than that."""

log = get_logger("kafka")


def bounded(consumer: KafkaConsumer) -> KafkaConsumer:
    """The same consumer, mended."""
    fetcher, room = consumer._fetcher, Room()  # noqa: SLF001 - there is no public way
    fetched, append = fetcher.fetched_records, fetcher._append  # noqa: SLF001

    def emptied(*arguments: Any, **options: Any) -> Any:
        room.left = MOST_TAKEN
        return fetched(*arguments, **options)

    def bounded_append(drained: Any, part: Any, most: int, update_offsets: bool) -> int:
        taken: int = append(drained, part, most, update_offsets)
        return taken if room.left > 0 else most  # as if these were all that were asked for

    fetcher.fetched_records, fetcher._append = emptied, bounded_append  # noqa: SLF001
    fetcher.PartitionRecords = partial(_PartitionRecords, room=room)
    return consumer


@dataclass(slots=True)
class Room:
    """How many bytes of records a poll may still take."""

    left: int = MOST_TAKEN


class _Records:
    """The batches of a fetch, except those that cannot be unpacked; `skipped` is the offset after the last of these."""

    def __init__(self, records: MemoryRecords, place: Any) -> None:
        self._records = records
        self._place = place
        self.skipped = 0

    def next_batch(self) -> Any:
        while (batch := self._records._next_slice) is not None:  # noqa: SLF001 - its bytes
            self._records._cache_next()  # noqa: SLF001
            try:
                return opened(batch)
            except NotSound as fault:
                self.skipped = fault.end
                log.error(
                    "a batch cannot be read and is skipped", topic=self._place.topic, partition=self._place.partition,
                    offset=fault.base, until=fault.end, reason=fault.reason, why=str(fault),
                )  # fmt: skip
        return None


class _PartitionRecords(Fetcher.PartitionRecords):  # type: ignore[misc]
    next_fetch_offset: int

    def __init__(self, *arguments: Any, room: Room | None = None, **options: Any) -> None:
        self._room = room or Room()
        super().__init__(*arguments, **options)

    def take(self, n: int | None = None) -> list[Any]:
        """At most so many records, and no more once there is no room left."""
        taken: list[Any] = []
        until = self.bytes_read + self._room.left
        try:
            for record in islice(self.record_iterator, n):
                taken.append(record)
                if self.bytes_read >= until:
                    break
        except Exception:
            self.drain()  # what is left is fetched again; kafka-python would ask an iterator for it that has failed, for ever
            if not taken:
                raise
        self._room.left = until - self.bytes_read
        return taken

    def _unpack_records(self, tp: Any, records: Any, key_deserializer: Any, value_deserializer: Any) -> Iterator[Any]:
        within = _Records(records, tp)
        yield from super()._unpack_records(tp, within, key_deserializer, value_deserializer)
        self.next_fetch_offset = max(self.next_fetch_offset, within.skipped)
