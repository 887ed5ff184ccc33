"""Batches of Kafka that are sound, for kafka-python (3.0.12): unpacked within the bound, with all of their records looked at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from kafka.errors import CorruptRecordError
from kafka.record.default_records import DefaultRecord, DefaultRecordBatch
from kafka.record.legacy_records import LegacyRecordBatch
from kafka.record.memory_records import MemoryRecords

from scylla_spark.io.kafka.batch_records import Records
from scylla_spark.io.kafka.decompression import MOST_UNPACKED, NAMES, TooLarge, unpacked

TOO_LARGE: Final = "too_large"
UNREADABLE: Final = "unreadable"
_MAGIC: Final = MemoryRecords.MAGIC_OFFSET
_ATTRIBUTES, _LAST_DELTA, _COUNT = 5, 6, 12  # fields of a batch's head
_NO_HEADERS: Final[list[Any]] = []  # nobody here reads them


class NotSound(Exception):
    """A batch that stands in a topic as it was sent, and is read by nobody.

    Attributes:
        base: offset with which it begins; None: in a format of before Kafka 0.11 that is not known.
        end: offset after its last.
        reason: for which its offsets are set aside.
    """

    def __init__(self, head: Any, error: Exception) -> None:
        self.base: int | None = head.base_offset if head.magic > 1 else None
        self.end: int = 1 + (head.last_offset if head.magic > 1 else head.base_offset)
        self.reason = TOO_LARGE if isinstance(error, TooLarge) else UNREADABLE
        codec = NAMES.get(head.compression_type, "plain")
        why = error if self.reason == TOO_LARGE else f"cannot be read: {type(error).__name__} {error}"
        super().__init__(f"a {codec} batch of {head.size_in_bytes} bytes {why}".strip())


def opened(batch: memoryview) -> Batch | LegacyBatch:
    """A batch whose records can all be read.

    Args:
        batch: its bytes.

    Raises:
        NotSound: it was made so that it cannot be read, or that nobody should.
        CorruptRecordError: it was damaged on its way, and may be whole when it comes again.
    """
    try:
        return Batch(batch) if batch[_MAGIC] > 1 else _legacy(batch)
    except MemoryError:
        raise
    except Exception as error:  # whatever a codec or a record makes of bytes that anybody may have sent
        head = DefaultRecordBatch(batch) if batch[_MAGIC] > 1 else LegacyRecordBatch(batch, batch[_MAGIC])
        if not head.validate_crc():
            raise CorruptRecordError(f"a batch at offset {head.base_offset} was damaged on its way") from error
        raise NotSound(head, error) from error


class Batch(DefaultRecordBatch):  # type: ignore[misc]
    """A batch of the format since Kafka 0.11."""

    records: Records | None

    def __init__(self, batch: memoryview) -> None:
        super().__init__(batch)
        head = self._header_data
        if head[_ATTRIBUTES] & self.CONTROL_MASK:  # marks of transactions: brokers make them, and nobody goes over them
            self.records = None
        else:
            self.records = Records(
                head[_ATTRIBUTES] & self.CODEC_MASK, bytes(batch[self._pos :]), head[_COUNT], head[_LAST_DELTA]
            )

    @property
    def end(self) -> int:
        """Offset after its last."""
        return int(self.next_offset)

    def has_larger(self, size: int) -> bool:
        """Returns True if one of its records is larger than so many bytes."""
        return self.records is not None and self.records.has_larger(size)

    def __iter__(self) -> Iterator[DefaultRecord]:
        if self.records is None:
            return
        data, base, at, kind = self.records.data, self.base_offset, self.first_timestamp, self.timestamp_type
        appended = self.max_timestamp if kind == self.LOG_APPEND_TIME else None
        for size, late_ms, delta, key_at, key, value_at, value in self.records:
            yield DefaultRecord(
                size, base + delta, at + late_ms if appended is None else appended, kind,
                data[key_at : key_at + key] if key >= 0 else None, data[value_at : value_at + value] if value >= 0 else None, _NO_HEADERS,
            )  # fmt: skip


class LegacyBatch(LegacyRecordBatch):  # type: ignore[misc]
    """A batch of the formats before."""

    @property
    def end(self) -> int:
        """Offset after its last."""
        return int(self.base_offset) + 1

    def has_larger(self, size: int) -> bool:
        """Returns True if one of its records may be larger than so many bytes: that is not known, and such batches are rare."""
        return size < MOST_UNPACKED

    def _decompress(self, key_offset: int) -> bytes:
        _, value = self._read_key_value(key_offset)
        return unpacked(self.compression_type, value or b"")


def _legacy(batch: memoryview) -> LegacyBatch:
    before = -1
    for record in LegacyBatch(batch, batch[_MAGIC]):
        if not record.validate_crc() or not before < record.offset:
            raise ValueError(f"the record behind offset {before} is damaged")
        before = record.offset
    found = LegacyBatch(batch, batch[_MAGIC])
    if before != found.base_offset:
        raise ValueError(f"its records end with offset {before}, not {found.base_offset}")
    return found
