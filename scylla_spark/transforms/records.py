"""Kafka records to typed rows, with the same pure judgement that the dispatcher's tail applies.

Both functions run inside `mapInArrow`, one task per Kafka partition, records in offset order.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scylla_spark.clock import from_us
from scylla_spark.core.plan.state import plan_log
from scylla_spark.core.plan.state.plan_log import is_plan
from scylla_spark.core.records.command import CANCEL, TOO_OLD, Command, Rejection, Rules, encode, validate
from scylla_spark.core.records.fact import NEWER as NEWER  # the kind of its row, too
from scylla_spark.core.records.fact import TOO_LATE, Fact, Fence, FenceLog, Unreadable, decode
from scylla_spark.core.records.rejection_reason import of_defect, said
from scylla_spark.core.tables.progress import Mark, OpenHours
from scylla_spark.core.tasks.attempt_note import COLUMNS, WorkNote
from scylla_spark.core.tasks.fold_commands import Folded
from scylla_spark.core.tasks.key import EARLIEST_US, HOUR_US, LATEST_US, TaskKey, partition_of
from scylla_spark.core.tasks.stored_records import NEWEST, newest_cells
from scylla_spark.errors import shown
from scylla_spark.schemas import ATTEMPTS, KEY, REJECTED, TASKS, Column
from scylla_spark.transforms.bounded_arrow import FIXED_BYTES, built, chunks, column_batch, most_bytes, row_batch
from scylla_spark.transforms.plan_rows import plan_rows
from scylla_spark.transforms.portions import CUT

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
    *_REJECTED_ONLY,
    Column("next_offset", "bigint", "end rows: offset after the last record"),
    Column("nonce", "string", "end rows: nonce of the fence that holds (its epoch stands in `epoch`)"),
    Column("resigned", "boolean", "end rows: the owner stopped cleanly"),
)
_NOTHING_OPEN: Final = "A cancel of a time that is older than the retention, and no task of that hour is open."
_SLICE_ROWS = 512  # that are Python values at a time
_KEPT_KEY_BYTES = 1024
_KEPT_VALUE_BYTES = 1024 * 1024

_Entry = tuple[TaskKey, Folded]


def ddl(columns: tuple[Column, ...]) -> str:
    """Spark schema string of some columns."""
    return ", ".join(f"`{column.name}` {column.type}" for column in columns)


class PastHours(NamedTuple):
    """What becomes of records that name hours which were over when they came: those of cancels, mostly.

    Attributes:
        most: so many such hours of a partition are judged at once, since a MERGE pays for each; what comes behind is left for the next
            portion.
        open: partition → the hours that may hold open tasks. A cancel of a time that is older than the retention, in an hour that holds
            none, is refused: no task is there, and none can come. A partition that is not named refuses none.
    """

    most: int = 1 << 30
    open: Mapping[int, OpenHours] = {}


def judge_commands(rules: Rules, marks: Mapping[int, int], past: PastHours | None = None) -> _Judge:
    """For `mapInArrow` on raw `tasks` records: one folded row per key, one per rejected record, one end row per partition.

    Rejected records pass through at once; the newest data of every key is held until all records are read.

    Args:
        rules: the deployment's rules.
        marks: partition → next offset already in the tables; records below are skipped without judging.
        past: bounds of what names hours of the past; a partition that is cut for it gives one row of kind CUT. None: no bounds.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        judged = _Commands(rules, marks, past or PastHours())
        yield from _row_batches(judged.refused(batches), COMMAND_ROWS)
        for partition, folded in judged.folded.items():
            yield from _task_batches(partition, folded, judged.ends[partition][1])

    return _without_collector(run)


def judge_facts(marks: Mapping[int, Mark], partitions: int | None = None) -> _Judge:
    """For `mapInArrow` on raw `outcomes` records: completion, attempt and end rows of the facts that count, and rejected rows.

    A record of a newer version that counts gives one row of kind NEWER; nothing behind it is read, and the end row of its
    partition stays before it.

    Args:
        marks: partition → mark up to which the tables are; a partition without one starts at its beginning.
        partitions: how many the deployment has; with it, facts of lanes that belong elsewhere are rejected.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        logs: dict[int, _FactLog] = {}

        def rows() -> Iterator[_Row]:
            for record in map(_Record._make, _records(batches)):
                number = record.partition
                log = logs.get(number)
                if log is None:
                    log = logs[number] = _FactLog(marks.get(number, Mark()), partitions)
                yield from log.rows(record)
            for number, log in logs.items():
                yield from log.end(number)

        yield from _row_batches(rows(), FACT_ROWS)

    return _without_collector(run)


class _Record(NamedTuple):
    """A record as Spark read it; append time in microseconds since the epoch."""

    partition: int
    offset: int
    appended_us: int
    key: bytes | None
    value: bytes | None


class _Row(NamedTuple):
    """Cells of a row by column, about how many bytes they take, and the record that made it, if one did."""

    cells: dict[str, Any]
    size: int = FIXED_BYTES
    record: _Record | None = None


class _Commands:
    """Records of `tasks`, judged and folded by key.

    Attributes:
        folded: partition → what is known of its keys.
        ends: partition → offset after the last record, and its append time.
    """

    def __init__(self, rules: Rules, marks: Mapping[int, int], past: PastHours) -> None:
        self.folded: dict[int, dict[TaskKey, Folded]] = {}
        self.ends: dict[int, tuple[int, int]] = {}
        self._rules = rules
        self._marks = marks
        self._past = past
        self._hours: dict[int, set[int]] = {}  # partition → hours of the past that its records have named
        self._cuts: dict[int, int] = {}

    def refused(self, batches: Iterator[pa.RecordBatch]) -> Iterator[_Row]:
        """Reads all; gives the rows of rejected records, and an end row per partition."""
        for record in _records(batches):
            partition, offset, appended_us, key, value = record
            if offset < self._marks.get(partition, 0) or partition in self._cuts:
                continue
            verdict = validate(partition, offset, appended_us, key, value, self._rules)
            if not isinstance(verdict, Rejection) and verdict.key.time_us < appended_us - HOUR_US:
                if self._concerns_nothing(partition, verdict, appended_us):
                    verdict = Rejection(offset, *said(TOO_OLD, _NOTHING_OPEN))
                elif self._is_too_much(partition, verdict.key.hour):
                    self._cuts[partition] = offset
                    continue
            self.ends[partition] = offset + 1, appended_us
            if isinstance(verdict, Rejection):
                yield _rejected(_Record(*record), verdict.reason, verdict.detail)
            else:
                self._add(partition, verdict)
        for partition, offset in self._cuts.items():
            yield _Row({"kind": CUT, "partition_id": partition, "next_offset": offset})
        for partition, (end, appended_us) in self.ends.items():
            yield _Row(
                {"kind": END, "partition_id": partition, "next_offset": end, "appended_at": from_us(appended_us)}
            )

    def _concerns_nothing(self, partition: int, command: Command, appended_us: int) -> bool:
        """Returns True if a command is a cancel for which there is no open task, neither in the tables nor before it in this portion."""
        open_hours = self._past.open.get(partition)
        return (
            command.kind == CANCEL
            and command.key.time_us < self._rules.old_before_us(appended_us)
            and open_hours is not None
            and not open_hours.holds(command.key.hour)
            and command.key not in self.folded.get(partition, ())
        )

    def _is_too_much(self, partition: int, hour: int) -> bool:
        """Returns True if an hour of the past is left for the next portion; else it is one of this."""
        hours = self._hours.setdefault(partition, set())
        if hour not in hours and len(hours) >= self._past.most:
            return True
        hours.add(hour)
        return False

    def _add(self, partition: int, command: Command) -> None:
        folded = self.folded.get(partition)
        if folded is None:
            folded = self.folded[partition] = {}
        entry = folded.get(command.key)
        if entry is None:
            entry = folded[command.key] = Folded()
        entry.add(command)


class _FactLog:
    """Records of one partition of `outcomes` from a mark on."""

    def __init__(self, mark: Mark, partitions: int | None) -> None:
        self._log = FenceLog(mark.fence)
        self._log.resigned = mark.resigned
        self._begin = self._next = mark.outcomes_offset
        self._partitions = partitions
        self._stopped = False

    def rows(self, record: _Record) -> Iterator[_Row]:
        """Rows of the next record; one that says so if our code fails at it."""
        if self._stopped or record.offset < self._begin:
            return
        try:
            rows = list(self._rows(record))
        except MemoryError:
            raise
        except Exception as error:
            rows = [_rejected(record, *of_defect(error))]
        self._next = record.offset if self._stopped else record.offset + 1
        yield from rows

    def end(self, partition: int) -> Iterator[_Row]:
        """The end row, if there is anything new."""
        if self._next > self._begin or self._stopped:
            fence, resigned = self._log.fence, self._log.resigned
            cells = {"epoch": fence.epoch, "nonce": fence.nonce, "resigned": resigned}
            yield _Row({"kind": END, "partition_id": partition, "next_offset": self._next} | cells)

    def _rows(self, record: _Record) -> Iterator[_Row]:
        if record.partition == self._partitions and record.value is not None and is_plan(record.value):
            yield from self._plan_rows(record, record.value)
            return
        read = decode(record.value)
        if isinstance(read, Unreadable):
            yield _rejected(record, *read)
        elif self._log.admit(read):
            if read.kind == NEWER:
                self._stopped = True
                yield _newer(record, read.version)
            for fact in read.facts:
                yield from self._fact_rows(record, read.fence, fact)

    def _plan_rows(self, record: _Record, value: bytes) -> Iterator[_Row]:
        group = plan_log.decode(value)
        if isinstance(group, Unreadable):
            yield _rejected(record, *group)
        elif group.fence == self._log.fence:
            for row in plan_rows(group, record.offset):
                cells = {"kind": row.kind, "partition_id": record.partition, "result": row.text}
                yield _Row(cells, FIXED_BYTES + most_bytes(row.text), record)

    def _fact_rows(self, record: _Record, fence: Fence, fact: Fact) -> Iterator[_Row]:
        lane, partition = fact.key.ordering_id, record.partition
        if self._partitions is not None and _partition_of(lane, self._partitions) != partition:
            yield _rejected(record, *said("wrong_partition", f"The lane {lane!r} is not of partition {partition}."))
        elif fact.outcome != TOO_LATE:  # an answer to a client, no history
            yield _fact_row(record, fence, fact)


_partition_of = lru_cache(maxsize=100_000)(partition_of)


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
    """Fields of `_Record`, in order, as tuples, since names cost time; only some of a batch are Python values at a time."""
    import pyarrow as pa

    for whole in batches:
        for start in range(0, whole.num_rows, _SLICE_ROWS):
            batch = whole.slice(start, _SLICE_ROWS)
            appended = batch.column("timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
            columns = [batch.column(name).to_pylist() for name in ("partition", "offset", "key", "value")]
            if min(appended) < EARLIEST_US or max(appended) >= LATEST_US:
                appended = [min(max(at, EARLIEST_US), LATEST_US - 1) for at in appended]
            partitions, offsets, keys, values = columns
            yield from zip(partitions, offsets, appended, keys, values, strict=True)


def _rejected(record: _Record, reason: str, detail: str) -> _Row:
    at, key, value = from_us(record.appended_us), record.key, record.value
    key = key[:_KEPT_KEY_BYTES] if key is not None else None
    kept = value[:_KEPT_VALUE_BYTES] if value is not None else None
    cells = {
        "kind": REJECT,
        "partition_id": record.partition,
        "day": at.date(),
        "offset": record.offset,
        "appended_at": at,
        "reason": reason,
        "detail": detail,
        "key": key,
        "value": kept,
        "value_bytes": len(value or b""),
    }
    return _Row(cells, FIXED_BYTES + most_bytes(detail) + len(key or b"") + len(kept or b""))


def _newer(record: _Record, version: int) -> _Row:
    detail = f"The record is of version {shown(version)} of the format, or of a kind that this program does not know."
    return _Row({"kind": NEWER, "partition_id": record.partition, "offset": record.offset, "detail": detail})


def _key_columns(partition: int, key: TaskKey) -> dict[str, Any]:
    values = (partition, key.hour, key.scheduled_time, key.ordering_id, key.uniqueness_key)
    return dict(zip((column.name for column in KEY), values, strict=True))


def _task_batches(partition: int, folded: dict[TaskKey, Folded], appended_us: int) -> Iterator[pa.RecordBatch]:
    """Task rows; what was given is no longer held."""

    def aside(entry: _Entry, error: Exception) -> list[dict[str, Any]]:
        commands = [command for command in (entry[1].data, entry[1].cancel) if command is not None]
        return [_rejected(_again(partition, command, appended_us), *of_defect(error)).cells for command in commands]

    entries = ((key, folded.pop(key)) for key in list(folded))
    for chunk in chunks(entries, _entry_bytes):
        yield from built(chunk, lambda some: _task_batch(partition, some), aside, COMMAND_ROWS)


def _task_batch(partition: int, entries: list[_Entry]) -> pa.RecordBatch:
    """Task rows, column by column: there are many, and most of their columns are empty."""
    keys = [key for key, _ in entries]
    columns: dict[str, list[Any]] = {
        "kind": [ROW] * len(entries),
        "partition_id": [partition] * len(entries),
        "hour": [key.hour for key in keys],
        "scheduled_time": [key.time_us for key in keys],
        "ordering_id": [key.ordering_id for key in keys],
        "uniqueness_key": [key.uniqueness_key for key in keys],
        "cancel_offset": [entry.cancel.offset if entry.cancel is not None else None for _, entry in entries],
    }
    newest = [_NO_DATA if entry.data is None else newest_cells(entry.data) for _, entry in entries]
    columns |= zip(NEWEST, map(list, zip(*newest, strict=True)), strict=True)
    columns["retry"] = [None if terms is None else terms._asdict() for terms in columns["retry"]]
    columns["about"] = [None if about is None else about._asdict() for about in columns["about"]]
    columns["tags"] = [list(tags) if tags else None for tags in columns["tags"]]
    first = [entry.first for _, entry in entries]
    columns["first_offset"] = [None if command is None else command.offset for command in first]
    columns["unique_open"] = [None if command is None else command.unique for command in first]
    return column_batch(columns, COMMAND_ROWS)


def _again(partition: int, command: Command, appended_us: int) -> _Record:
    """A record that says what a command says; its own bytes are no longer held."""
    return _Record(partition, command.offset, appended_us, command.key.ordering_id.encode(), encode(command))


_NO_DATA: Final = (None,) * len(NEWEST)


def _fact_row(record: _Record, fence: Fence, fact: Fact) -> _Row:
    failure = fact.failure
    cells = {
        "kind": COMPLETION if fact.terminal else ATTEMPT,
        **_key_columns(record.partition, fact.key),
        "attempt": fact.attempt,
        "outcome": fact.outcome,
        "epoch": fence.epoch,
        "planned_at": _instant(fact.planned_us),
        "started_at": _instant(fact.started_us),
        "finished_at": _instant(fact.finished_us),
        "used": fact.used,
        "result": fact.result,
        "error_class": failure.kind if failure else None,
        "error_message": failure.message if failure else None,
        "error_stack": failure.stack if failure else None,
        "fact_offset": record.offset,
        "next_at": _instant(fact.next_us or 0),
        "work": _work(fact.work),
        **{name: getattr(fact.work, name, None) for name in COLUMNS},
    }
    texts = (
        *fact.key[1:],
        fact.result,
        *(failure or ()),
        *(fact.work.texts if fact.work is not None else ()),
    )
    return _Row(cells, FIXED_BYTES + most_bytes(*texts), record)


def _work(note: WorkNote | None) -> dict[str, Any] | None:
    return None if note is None else {name: value for name, value in note._asdict().items() if name not in COLUMNS}


def _instant(us: int) -> datetime | None:
    return from_us(us) if us else None


def _row_batches(rows: Iterator[_Row], columns: tuple[Column, ...]) -> Iterator[pa.RecordBatch]:
    """Batches of rows; an empty one where there are none, for its columns."""

    def aside(row: _Row, error: Exception) -> list[dict[str, Any]]:
        if row.record is None:
            raise error  # no record made this row
        return [_rejected(row.record, *of_defect(error)).cells]

    none = True
    for chunk in chunks(rows, lambda row: row.size):
        none = False
        yield from built(chunk, lambda some: row_batch([row.cells for row in some], columns), aside, columns)
    if none:
        yield row_batch([], columns)


def _entry_bytes(entry: _Entry) -> int:
    """Returns how large a task's row is, at most."""
    (_, lane, unique), folded = entry
    data = folded.data
    if data is None:
        return FIXED_BYTES + most_bytes(lane, unique)
    size = FIXED_BYTES + most_bytes(lane, unique, data.payload)
    if data.extra or data.tags or data.about:
        size += most_bytes(data.extra, *data.tags, *(data.about or ()))
    return size
