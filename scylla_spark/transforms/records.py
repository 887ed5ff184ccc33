"""Kafka records to typed rows, with the same pure judgement that the dispatcher's tail applies.

Both functions run inside `mapInArrow`, one task per Kafka partition, records in offset order.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from scylla_spark.clock import from_us
from scylla_spark.core.fact import Fact, Fence, FenceLog, decode, readable
from scylla_spark.core.fold import Folded
from scylla_spark.core.key import TaskKey
from scylla_spark.core.partition import Mark
from scylla_spark.core.task import STARTED
from scylla_spark.core.wire import Command, Rejection, Rules, validate
from scylla_spark.schemas import ATTEMPTS, KEY, REJECTED, TASKS, Column

if TYPE_CHECKING:
    import pyarrow as pa

    _Judge = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

ROW: Final = "row"
REJECT: Final = "rejected"
END: Final = "end"
COMPLETION: Final = "completion"
ATTEMPT: Final = "attempt"

_KIND = Column("kind", "string", "which of the row types this is")
_REJECTED_ONLY = tuple(column for column in REJECTED.columns if column.name not in {"topic", "partition_id"})
COMMAND_ROWS: Final = (
    _KIND,
    *TASKS.columns,
    *_REJECTED_ONLY,
    Column("next_offset", "bigint", "end rows: offset after the last record"),
)
FACT_ROWS: Final = (
    _KIND,
    *ATTEMPTS.columns,
    Column("next_offset", "bigint", "end rows: offset after the last record"),
    Column("nonce", "string", "end rows: nonce of the fence that holds (its epoch stands in `epoch`)"),
    Column("resigned", "boolean", "end rows: the owner stopped cleanly"),
)
_CHUNK = 20_000
_KEPT_KEY_BYTES = 1024
_KEPT_VALUE_BYTES = 1024 * 1024


def ddl(columns: tuple[Column, ...]) -> str:
    """Spark schema string of some columns."""
    return ", ".join(f"`{column.name}` {column.type}" for column in columns)


def judge_commands(rules: Rules, marks: Mapping[int, int]) -> _Judge:
    """For `mapInArrow` on raw `tasks` records: one folded row per key, one per rejected record, one end row per partition.

    Args:
        rules: the deployment's rules.
        marks: partition → next offset already in the tables; records below are skipped without judging.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        folded: dict[TaskKey, Folded] = {}
        rows: list[dict[str, Any]] = []
        ends: dict[int, tuple[int, int]] = {}
        for partition, offset, appended, key, value in _records(batches):
            if offset < marks.get(partition, 0):
                continue
            ends[partition] = offset + 1, appended
            verdict = validate(partition, offset, appended, key, value, rules)
            if isinstance(verdict, Rejection):
                rows.append(_rejected(verdict, appended, key, value) | {"partition_id": partition})
                if len(rows) >= 100:  # they may be large
                    yield _batch(rows, COMMAND_ROWS)
                    rows = []
                continue
            entry = folded.get(verdict.key)
            if entry is None:
                entry = folded[verdict.key] = Folded()
            entry.add(verdict)
        rows += [
            {"kind": END, "partition_id": partition, "next_offset": end, "appended_at": from_us(appended)}
            for partition, (end, appended) in ends.items()
        ]
        yield _batch(rows, COMMAND_ROWS)
        partition = next(iter(ends), 0)
        yield from _task_batches(partition, folded)

    return _without_collector(run)


def judge_facts(marks: Mapping[int, Mark]) -> _Judge:
    """For `mapInArrow` on raw `outcomes` records: completion, attempt and end rows of the facts that count.

    Args:
        marks: partition → mark up to which the tables are; a partition without one starts at its beginning.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        logs: dict[int, FenceLog] = {}
        ends: dict[int, int] = {}

        def rows() -> Iterator[dict[str, Any]]:
            for partition, offset, _, _, value in _records(batches):
                mark = marks.get(partition, Mark())
                if offset < mark.outcomes_offset:
                    continue
                log = logs.get(partition)
                if log is None:
                    log = logs[partition] = FenceLog(mark.fence)
                    log.resigned = mark.resigned
                ends[partition] = offset + 1
                record = readable(decode(value))
                if record is not None and log.admit(record):
                    for fact in record.facts:
                        yield from _fact_rows(partition, offset, record.fence, fact)
            for partition, end in ends.items():
                fence = logs[partition].fence
                yield {"kind": END, "partition_id": partition, "next_offset": end, "epoch": fence.epoch, "nonce": fence.nonce,
                       "resigned": logs[partition].resigned}  # fmt: skip

        yield from _chunks(rows(), FACT_ROWS)

    return _without_collector(run)


def _without_collector(run: _Judge) -> _Judge:
    """The same without Python's search for cyclic garbage: there is none in rows, and it would go through all of them again and again."""

    def quiet(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        enabled = gc.isenabled()
        gc.disable()
        try:
            yield from run(batches)
        finally:
            if enabled:
                gc.enable()

    return quiet


def _records(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, int, int, bytes | None, bytes | None]]:
    import pyarrow as pa

    for batch in batches:
        appended = batch.column("timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
        columns = [batch.column(name).to_pylist() for name in ("partition", "offset", "key", "value")]
        for partition, offset, key, value, at in zip(*columns, appended, strict=True):
            yield partition, offset, at, key, value


def _rejected(verdict: Rejection, appended: int, key: bytes | None, value: bytes | None) -> dict[str, Any]:
    at = from_us(appended)
    return {
        "kind": REJECT, "day": at.date(), "offset": verdict.offset, "appended_at": at, "reason": verdict.reason,
        "detail": verdict.detail, "key": key[:_KEPT_KEY_BYTES] if key is not None else None,
        "value": value[:_KEPT_VALUE_BYTES] if value is not None else None, "value_bytes": len(value or b""),
    }  # fmt: skip


def _key_columns(partition: int, key: TaskKey) -> dict[str, Any]:
    values = (partition, key.hour, key.scheduled_time, key.ordering_id, key.uniqueness_key)
    return dict(zip((column.name for column in KEY), values, strict=True))


def _task_batches(partition: int, folded: Mapping[TaskKey, Folded]) -> Iterator[pa.RecordBatch]:
    """Task rows, column by column: there are many, and most of their columns are empty."""
    entries = iter(folded.items())
    while chunk := list(islice(entries, _CHUNK)):
        keys = [key for key, _ in chunk]
        columns: dict[str, list[Any]] = {
            "kind": [ROW] * len(chunk),
            "partition_id": [partition] * len(chunk),
            "hour": [key.hour for key in keys],
            "scheduled_time": [key.time_us for key in keys],
            "ordering_id": [key.ordering_id for key in keys],
            "uniqueness_key": [key.uniqueness_key for key in keys],
            "cancel_offset": [entry.cancel.offset if entry.cancel is not None else None for _, entry in chunk],
        }
        data = [_data(entry.data) for _, entry in chunk]
        yield _filled(columns | dict(zip(_DATA_NAMES, map(list, zip(*data, strict=True)), strict=True)), COMMAND_ROWS)


_DATA_NAMES: Final = (
    "handler", "queue", "priority", "payload", "timeout_ms", "retry", "enqueued_at", "extra", "data_offset"
)  # fmt: skip


def _data(data: Command | None) -> tuple[Any, ...]:
    if data is None:
        return (None,) * len(_DATA_NAMES)
    retry = data.retry._asdict() if data.retry is not None else None
    return (
        data.handler, data.queue, data.priority, data.payload, data.timeout_ms, retry, data.enqueued_us, data.extra, data.offset
    )  # fmt: skip


def _fact_rows(partition: int, offset: int, fence: Fence, fact: Fact) -> Iterator[dict[str, Any]]:
    kind = COMPLETION if fact.terminal else ATTEMPT
    if not fact.terminal and fact.outcome != STARTED and fact.next_us is None:
        return  # an answer to a client, no history
    failure = fact.failure
    yield {
        "kind": kind, **_key_columns(partition, fact.key), "attempt": fact.attempt, "outcome": fact.outcome, "epoch": fence.epoch,
        "planned_at": _instant(fact.planned_us), "started_at": _instant(fact.started_us), "finished_at": _instant(fact.finished_us),
        "used": fact.used, "result": fact.result, "error_class": failure.kind if failure else None,
        "error_message": failure.message if failure else None, "error_stack": failure.stack if failure else None,
        "fact_offset": offset, "next_at": _instant(fact.next_us or 0),
    }  # fmt: skip


def _instant(us: int) -> datetime | None:
    return from_us(us) if us else None


def _chunks(rows: Iterator[dict[str, Any]], columns: tuple[Column, ...]) -> Iterator[pa.RecordBatch]:
    chunk: list[dict[str, Any]] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) >= _CHUNK:
            yield _batch(chunk, columns)
            chunk = []
    yield _batch(chunk, columns)


def _batch(rows: list[dict[str, Any]], columns: tuple[Column, ...]) -> pa.RecordBatch:
    names = {name for row in rows for name in row} or {_KIND.name}
    return _filled({name: [row.get(name) for row in rows] for name in names}, columns)


def _filled(values: Mapping[str, list[Any]], columns: tuple[Column, ...]) -> pa.RecordBatch:
    """A batch of all columns, null where there are no values; instants as datetimes or microseconds since the epoch."""
    import pyarrow as pa

    schema, count = arrow_schema(columns), len(next(iter(values.values())))
    arrays = [
        pa.array(values[field.name], field.type) if field.name in values else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Arrow schema of some columns of `schemas`."""
    import pyarrow as pa

    plain = {
        "string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "boolean": pa.bool_(), "date": pa.date32(),
        "binary": pa.binary(), "timestamp": pa.timestamp("us", "UTC"),
    }  # fmt: skip
    retry = pa.struct([("max_retries", pa.int32()), ("base_ms", pa.int64()), ("cap_ms", pa.int64())])
    return pa.schema([(column.name, plain.get(column.type, retry)) for column in columns])
