"""Records of the topic `logs` as rows of `attempt_logs`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from scylla_spark.core.records.log_record import LogRecord, decode
from scylla_spark.core.tasks.key import partition_of
from scylla_spark.schemas import ATTEMPT_LOGS
from scylla_spark.transforms.bounded_arrow import FIXED_BYTES, chunks, column_batch, most_bytes

if TYPE_CHECKING:
    import pyarrow as pa


class LogMessage(NamedTuple):
    """A message of the topic."""

    partition: int
    offset: int
    value: bytes | None


class LogRows(NamedTuple):
    """What some messages hold.

    Attributes:
        messages: they, in order.
        batch: columns of `attempt_logs`; one row per line.
        skipped: messages that cannot be read, or that name a lane of another partition.
    """

    messages: list[LogMessage]
    batch: pa.RecordBatch
    skipped: int


_Read = tuple[LogMessage, LogRecord | None]


def log_rows(messages: Iterable[LogMessage], partitions: int) -> Iterator[LogRows]:
    """One row per line of the messages that can be read; none of them makes it fail.

    Each row has the names of its task, so that rows can take a hundred times the memory of messages with short lines.

    Args:
        messages: in order.
        partitions: of the deployment.

    Returns:
        All messages, in order, so many at a time that their rows take bounded memory (`bounded_arrow.MAX_BYTES`), but one at least.
    """
    for some in chunks(((message, _record(message, partitions)) for message in messages), _row_bytes):
        yield _rows(some)


def _record(message: LogMessage, partitions: int) -> LogRecord | None:
    record = decode(message.value)
    if isinstance(record, LogRecord) and partition_of(record.key.ordering_id, partitions) == message.partition:
        return record
    return None


def _row_bytes(read: _Read) -> int:
    """Of the rows of a message, about."""
    message, record = read
    if record is None:
        return 0
    names = most_bytes(record.key.ordering_id, record.key.uniqueness_key)
    return len(record.lines) * (FIXED_BYTES + names) + len(message.value or b"")


def _rows(some: list[_Read]) -> LogRows:
    columns: dict[str, list[Any]] = {name: [] for name in ATTEMPT_LOGS.names}
    for message, record in some:
        if record is not None:
            _add(columns, message, record)
    skipped = sum(record is None for _, record in some)
    return LogRows([message for message, _ in some], column_batch(columns, ATTEMPT_LOGS.columns), skipped)


def _add(columns: dict[str, list[Any]], message: LogMessage, record: LogRecord) -> None:
    key, count = record.key, len(record.lines)
    same = {
        "partition_id": message.partition,
        "hour": key.hour,
        "scheduled_time": key.time_us,
        "ordering_id": key.ordering_id,
        "uniqueness_key": key.uniqueness_key,
        "attempt": record.attempt,
        "epoch": record.epoch,
        "log_offset": message.offset,
    }
    for name, value in same.items():
        columns[name] += [value] * count
    told = zip(*record.lines, strict=True)
    for name, values in zip(("seq", "at", "stream", "level", "text", "fields"), told, strict=True):
        columns[name] += values
