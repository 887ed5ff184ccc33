"""The records of `logs`: written and read without loss, and whatever else comes is refused with a reason."""

from __future__ import annotations

import json
from itertools import cycle

import pytest

from scylla_spark.core.records.log_record import LogLine, LogRecord, bounded, decode, encode, in_order, marker
from scylla_spark.core.records.rejection_reason import Reason
from scylla_spark.core.tasks.key import TaskKey, partition_of
from scylla_spark.services.ingest.log_batches import _Batch
from scylla_spark.transforms.bounded_arrow import MAX_BYTES
from scylla_spark.transforms.log_rows import LogMessage, log_rows

LINE = LogLine(1, 5, "logging", "info", "told", '{"logger": "shop"}')
RECORD = LogRecord(TaskKey(1, "cust-9", "inv-17"), 2, 3, (LINE, marker(2, 6, 4)))


def changed(**fields):
    return json.dumps(json.loads(encode(RECORD)) | fields).encode()


def test_a_record_is_read_as_it_was_written_and_newer_fields_are_passed_over():
    assert decode(encode(RECORD)) == RECORD
    assert decode(changed(more=1)) == RECORD


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (None, "empty"),
        (b"", "empty"),
        (b"{", "not_json"),
        (b"[]", "wrong_value"),
        (b"{}", "missing_field"),
        (b" " * (1024 * 1024 + 1), "too_large"),
        (changed(version=2), "unknown_version"),
        (changed(lines=[]), "wrong_value"),
        (changed(lines=[[1, 5, "stdout", None, "x"]]), "missing_field"),
        (changed(lines=[[0, 5, "stdout", None, "x", None]]), "wrong_value"),
        (changed(lines=[[1, 5, "elsewhere", None, "x", None]]), "wrong_value"),
        (changed(lines=[[1, 5, "stdout", "loud", "x", None]]), "wrong_value"),
        (changed(lines=[[1, True, "stdout", None, "x", None]]), "wrong_value"),
        (changed(lines=[[1, 5, "stdout", None, "x" * 70_000, None]]), "wrong_value"),
        (changed(time_us=-1), "wrong_value"),
        (changed(time_us="1"), "wrong_value"),
        (changed(ordering_id=""), "wrong_value"),
        (changed(attempt=2**31), "wrong_value"),
        (changed(uniqueness_key="\ud800"), "not_json"),
    ],
)
def test_what_is_no_record_is_refused_with_a_reason(value, code):
    read = decode(value)
    assert isinstance(read, Reason)
    assert (read.code, bool(read.detail)) == (code, True)


@pytest.mark.parametrize("letter", ["x", "ü", "€", "😀", "\ud800", "\x00"])
def test_a_text_is_cut_to_its_bytes_and_fit_for_every_table(letter):
    assert bounded(letter, 100) == letter.encode(errors="replace").decode()
    cut = bounded(letter * 1000, 100)
    assert len(cut.encode()) <= 100
    assert cut.endswith(" […]")


def test_lines_are_in_order_once_each_with_markers_before_the_line_of_their_number():
    later = LogRecord(RECORD.key, 3, 9, (LINE,))
    rerun = LogRecord(RECORD.key, 2, 4, (LINE,))
    after = LogRecord(RECORD.key, 2, 3, (LINE._replace(seq=2), LINE._replace(seq=7)))
    found = in_order([later, after, RECORD, RECORD, rerun])
    assert [(attempt, epoch, line.seq, line.stream) for attempt, epoch, line in found] == [
        (2, 3, 1, "logging"),
        (2, 3, 2, "scheduler"),
        (2, 3, 2, "logging"),
        (2, 3, 7, "logging"),
        (2, 4, 1, "logging"),
        (3, 9, 1, "logging"),
    ]


def test_rows_hold_every_line_and_what_cannot_be_read_is_counted():
    number = partition_of("cust-9", 4)
    messages = [
        LogMessage(number, 7, encode(RECORD)),
        LogMessage(number, 8, b"{"),
        LogMessage((number + 1) % 4, 9, encode(RECORD)),
        LogMessage(number, 10, None),
    ]
    (rows,) = log_rows(messages, 4)
    assert rows.skipped == 3
    assert [(row["seq"], row["text"], row["log_offset"]) for row in rows.batch.to_pylist()] == [
        (1, "told", 7),
        (2, "[4 lines are left out here]", 7),
    ]
    assert list(log_rows([], 4)) == []


@pytest.mark.slow
def test_rows_of_short_lines_in_lanes_with_long_names_are_made_in_bounded_memory():
    key = TaskKey(5, "客" * 1024, "票" * 1024)
    value = encode(LogRecord(key, 1, 1, tuple(LogLine(n, 5, "stdout", None, ".") for n in range(1, 1_001))))
    number = partition_of(key.ordering_id, 4)
    messages = [LogMessage(number, offset, value) for offset in range(10)]
    made = list(log_rows(messages, 4))
    assert [message for some in made for message in some.messages] == messages
    assert sum(some.batch.num_rows for some in made) == 10_000
    assert max(some.batch.nbytes for some in made) <= MAX_BYTES
    batch, more = _Batch(), cycle(made)
    while not batch.is_full():
        batch.add(next(more))
    assert batch.table().nbytes < 300 * 1024 * 1024
    assert batch.size < 4 * 1024 * 1024, "of the messages"
