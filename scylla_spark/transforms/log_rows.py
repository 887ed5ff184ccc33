"""Records of the topic `logs` as rows of `attempt_logs`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from scylla_spark.core.key import partition_of
from scylla_spark.core.records.log_record import LogRecord, decode
from scylla_spark.schemas import ATTEMPT_LOGS
from scylla_spark.transforms.bounded_arrow import column_batch

if TYPE_CHECKING:
    import pyarrow as pa


class LogMessage(NamedTuple):
    """A message of the topic."""

    partition: int
    offset: int
    value: bytes | None


class LogRows(NamedTuple):
    """What messages hold.

    Attributes:
        batch: columns of `attempt_logs`; one row per line.
        skipped: messages that cannot be read, or that name a lane of another partition.
    """

    batch: pa.RecordBatch
    skipped: int


def log_rows(messages: Iterable[LogMessage], partitions: int) -> LogRows:
    """One row per line of the messages that can be read; none of them makes it fail.

    Args:
        messages: in order.
        partitions: of the deployment.
    """
    columns: dict[str, list[Any]] = {name: [] for name in ATTEMPT_LOGS.names}
    skipped = 0
    for message in messages:
        record = decode(message.value)
        if isinstance(record, LogRecord) and partition_of(record.key.ordering_id, partitions) == message.partition:
            _add(columns, message, record)
        else:
            skipped += 1
    return LogRows(column_batch(columns, ATTEMPT_LOGS.columns), skipped)


def _add(columns: dict[str, list[Any]], message: LogMessage, record: LogRecord) -> None:
    key, count = record.key, len(record.lines)
    same = {
        "partition_id": message.partition, "hour": key.hour, "scheduled_time": key.time_us, "ordering_id": key.ordering_id,
        "uniqueness_key": key.uniqueness_key, "attempt": record.attempt, "epoch": record.epoch, "log_offset": message.offset,
    }  # fmt: skip
    for name, value in same.items():
        columns[name] += [value] * count
    told = zip(*record.lines, strict=True)
    for name, values in zip(("seq", "at", "stream", "level", "text", "fields"), told, strict=True):
        columns[name] += values
