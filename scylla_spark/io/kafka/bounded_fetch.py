"""Makes a consumer of kafka-python (3.0.12) survive whatever stands in a topic.

- It unpacks compressed batches whole, however large they become: one of 900 MB of one letter ends the process. Here such a
  batch is skipped and told in the log; ingest leaves its offsets in `rejected`.
- It lacks codecs whose packages are not installed, and then raises for ever at the same offset.
- It raises, for ever too, at a record whose header has a name that is not UTF-8. Nobody here reads headers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import structlog
from kafka import KafkaConsumer
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError
from kafka.record.default_records import DefaultRecord, DefaultRecordBatch
from kafka.record.legacy_records import LegacyRecordBatch
from kafka.record.memory_records import MemoryRecords
from kafka.record.util import decode_varint

from scylla_spark.io.kafka.decompression import MOST_UNPACKED, TooLarge, unpacked

_MAGIC = MemoryRecords.MAGIC_OFFSET

log = structlog.get_logger("kafka")


def bounded(consumer: KafkaConsumer) -> KafkaConsumer:
    """The same consumer, mended."""
    consumer._fetcher.PartitionRecords = _PartitionRecords  # noqa: SLF001 - made deep inside its constructor
    return consumer


class _Batch(DefaultRecordBatch):  # type: ignore[misc]
    """A batch that is unpacked within the bound, and whose headers may be anything."""

    _buffer: Any  # of the base class, which has no types
    _pos: int
    _decompressed: bool

    def __init__(self, buffer: Any) -> None:
        super().__init__(buffer)
        self._records: bytes | None = None
        if self.compression_type and not self.is_control_batch:
            self._records = unpacked(self.compression_type, bytes(self._buffer[self._pos :]))

    def _maybe_uncompress(self) -> None:
        if self._records is not None and not self._decompressed:
            self._buffer, self._records, self._pos = bytearray(self._records), None, 0
        self._decompressed = True

    def _read_msg(self) -> Any:
        try:
            return super()._read_msg()
        except UnicodeDecodeError:
            return self._without_headers()

    def _without_headers(self) -> DefaultRecord:
        buffer = self._buffer
        length, start = decode_varint(buffer, self._pos)
        _, pos = decode_varint(buffer, start)  # attributes
        delta, pos = decode_varint(buffer, pos)
        offset_delta, pos = decode_varint(buffer, pos)
        key, pos = _bytes(buffer, pos)
        value, _ = _bytes(buffer, pos)
        at = self.max_timestamp if self.timestamp_type == self.LOG_APPEND_TIME else self.first_timestamp + delta
        self._pos = start + length
        return DefaultRecord(length, self.base_offset + offset_delta, at, self.timestamp_type, key, value, [])


def _bytes(buffer: bytearray, pos: int) -> tuple[bytes | None, int]:
    length, pos = decode_varint(buffer, pos)
    return (bytes(buffer[pos : pos + length]), pos + length) if length >= 0 else (None, pos)


class _LegacyBatch(LegacyRecordBatch):  # type: ignore[misc]
    """A batch of the formats before Kafka 0.11, unpacked within the bound."""

    def _decompress(self, key_offset: int) -> bytes:
        _, value = self._read_key_value(key_offset)
        return unpacked(self.compression_type, value or b"")


class _Records:
    """The batches of a fetch, except those that cannot be unpacked; `skipped` is the offset after the last of these."""

    def __init__(self, records: MemoryRecords, place: Any) -> None:
        self._records = records
        self._place = place
        self.skipped = 0

    def next_batch(self) -> Any:
        while (batch := self._records._next_slice) is not None:  # noqa: SLF001 - before it is unpacked
            self._records._cache_next()  # noqa: SLF001
            try:
                return _Batch(batch) if batch[_MAGIC] > 1 else _legacy(batch)
            except (TooLarge, ValueError) as error:
                head = DefaultRecordBatch(batch) if batch[_MAGIC] > 1 else LegacyRecordBatch(batch, batch[_MAGIC])
                if not head.validate_crc():
                    raise CorruptRecordError(f"a batch of {self._place} was damaged on its way") from error
                self._skip(head, f"{type(error).__name__} {error}".strip())
        return None

    def _skip(self, head: Any, why: str) -> None:
        last = head.last_offset if head.magic > 1 else head.base_offset
        self.skipped = last + 1
        log.error(
            "a compressed batch cannot be read and is skipped", topic=self._place.topic, partition=self._place.partition,
            offset=head.base_offset, until=last + 1, packed_bytes=head.size_in_bytes, most_bytes=MOST_UNPACKED, why=why,
        )  # fmt: skip


def _legacy(batch: Any) -> _LegacyBatch:
    found = _LegacyBatch(batch, batch[_MAGIC])
    if found.compression_type:
        found._decompress(found.KEY_OFFSET_V1 if found.magic == 1 else found.KEY_OFFSET_V0)  # noqa: SLF001 - it may fail
    return found


class _PartitionRecords(Fetcher.PartitionRecords):  # type: ignore[misc]
    next_fetch_offset: int

    def _unpack_records(self, tp: Any, records: Any, key_deserializer: Any, value_deserializer: Any) -> Iterator[Any]:
        within = _Records(records, tp)
        yield from super()._unpack_records(tp, within, key_deserializer, value_deserializer)
        self.next_fetch_offset = max(self.next_fetch_offset, within.skipped)
