"""What a child reports is read strictly, and cut to what is kept."""

from __future__ import annotations

import json
import random

import pytest

from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import MAX_ERROR_CHARS, MAX_RESULT_BYTES, Invocation
from scylla_spark.executors.local.forkserver_handle import News, parse_handler, parse_news
from scylla_spark.executors.local.report import is_note, read, read_extension, read_note
from scylla_spark.handlers.framing import FrameReader, ProtocolError, pack
from scylla_spark.handlers.messages import CallRecord, extended

GOOD = [3, "succeeded", 1_800_000_000_000_000, 20, '{"a":1}', None, 0]


def test_record_of_ours_is_read():
    report = read(GOOD)
    assert (report.number, report.started_us, report.duration_us) == (3, 1_800_000_000_000_000, 20)
    assert report.verdicts == (("succeeded", '{"a":1}', None, 0),)
    assert read([*CallRecord(3, "returned")]).verdicts == ()
    assert len(read([3, "batch", 1, 1, [["succeeded", None, None, 0]] * 4, None, 0]).verdicts) == 4


@pytest.mark.parametrize("record", [[3, "failed", 1, 1, None, None, 0], [3, "succeeded", 1, 1, None, ["a", "b", "c"], 0],
                                    [3, "yielded", 1, 1, '"x"', None, 0], [3, "yielded", 1, 1, None, None, 10**15],
                                    [3, "cancelled", 1, 1, None, ["a", "b", "c"], 0], [3, "not_started", 1, 1, None, None, 0],
                                    [*CallRecord(True, "returned")], [*CallRecord(3.0, "returned")], [3, "returned"],
                                    None, "x", 7, {}])  # fmt: skip
def test_record_that_contradicts_itself_is_refused(record):
    with pytest.raises(ProtocolError):
        read(record)


def test_long_texts_are_cut():
    failure = read([3, "failed", 1, 1, None, ["k" * 10**5, "m" * 10**6, "s" * 10**6], 0]).verdicts[0].failure
    assert (len(failure.kind), len(failure.message), len(failure.stack)) == (200, MAX_ERROR_CHARS, MAX_ERROR_CHARS)


def test_lone_surrogates_of_a_failure_are_replaced():
    failure = read([3, "failed", 1, 1, None, ["k\ud800", "m\udfff", "\ud800"], 0]).verdicts[0].failure
    assert "".join(failure).encode() == b"k?m??"


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        ("no JSON", "result_not_serialisable"),
        ("NaN", "result_not_serialisable"),
        ('"\ud800"', "result_not_serialisable"),
        ("[" * 50_000, "result_not_serialisable"),
        (json.dumps("ä" * MAX_RESULT_BYTES, ensure_ascii=False), "result_too_large"),
        (json.dumps("x" * MAX_RESULT_BYTES), "result_too_large"),
    ],
)
def test_result_that_cannot_be_kept_is_a_failure_of_its_task(result, kind):
    verdict = read([3, "succeeded", 1, 1, result, None, 0]).verdicts[0]
    assert (verdict.outcome, verdict.result, verdict.failure.kind) == ("failed", None, kind)


def test_largest_result_is_kept():
    text = json.dumps("x" * (MAX_RESULT_BYTES - 2))
    assert read([3, "succeeded", 1, 1, text, None, 0]).verdicts[0].result == text


def test_records_of_any_form_are_read_or_refused():
    dice = random.Random(5)
    wild = [
        None,
        True,
        -1,
        0,
        1,
        1 << 80,
        1.5,
        float("inf"),
        "",
        "batch",
        "returned",
        "failed",
        [],
        {},
        [[]],
        ["a", "b", "c"],
        "\ud800",
    ]
    for _ in range(20_000):
        record = list(GOOD)
        for _ in range(dice.randrange(4)):
            record[dice.randrange(7)] = dice.choice(wild)
        record = record[: dice.choice([7, 7, 7, 2, 6])]
        try:
            report = read(record)
        except ProtocolError:
            continue
        assert report.number >= 1
        json.dumps(report, ensure_ascii=False).encode()


def test_reader_keeps_the_frames_before_a_fault_and_nothing_after_it():
    reader = FrameReader(longest=100)
    assert reader.feed(pack(b"[1]") + pack(b"[2]") + pack(b"x" * 101) + pack(b"[3]")) == [[1], [2]]
    assert "101 bytes" in reader.fault
    assert reader.feed(pack(b"[4]")) == []


def test_reader_refuses_a_length_before_its_bytes_are_there():
    reader = FrameReader(longest=100)
    reader.feed(b"\xff\xff\xff\xff")
    assert reader.fault


@pytest.mark.parametrize(
    "record",
    [
        ["note"], ["note", 1, 0.5, None], ["note", "1", 0.5, None, None], ["note", 0, 0.5, None, None], ["note", 1, 2, None, None],
        ["note", 1, "x", None, None], ["note", 1, float("nan"), None, None], ["note", 1, True, None, None], ["note", 1, None, 7, None],
        ["note", 1, None, "[]", None], ["note", 1, None, "{", None], ["note", 1, None, "{" + " " * 70_000 + "}", None],
        ["note", 1, None, '{"a":' * 3_000, None], ["note", 1, None, '{"a":NaN}', None], ["note", 1, 0.5, None, 7],
    ],
)  # fmt: skip
def test_note_that_no_child_of_ours_sends_is_refused(record):
    assert is_note(record)
    with pytest.raises(ProtocolError):
        read_note(record)


def test_note_is_read():
    assert read_note(["note", 3, 1, '{"a":1}', None]) == (3, WorkNote(progress=1.0, checkpoint='{"a":1}'))
    assert read_note(["note", 3, 1, None, "a\x1b b" + "c" * 300])[1].progress_note == "a\x1b b" + "c" * 300
    long = read_note(["note", 3, 1, None, "\ud800" + "c" * 3_000])[1].progress_note
    assert long == " " + "c" * 1_999, "whoever keeps it takes secrets out first"


@pytest.mark.parametrize("record", [["extend"], ["extend", 1], ["extend", 0, 5], ["extend", "1", 5], ["extend", 1, -1], ["extend", 1, 1.5],
                                    ["extend", 1, True], ["extend", 1, 2**63], ["extend", 1, 5, 5]])  # fmt: skip
def test_extension_that_no_child_of_ours_sends_is_refused(record):
    assert is_note(record)
    with pytest.raises(ProtocolError):
        read_extension(record)


@pytest.mark.parametrize(("asked", "timeout_ms"), [(500, 1000), (5000, 5000), (9000, 6000)])
def test_call_is_extended_as_far_as_it_may_and_never_shortened(asked, timeout_ms):
    item = Invocation(1, TaskKey(0, "a", "u"), 1, 1, "h", "default", "{}", 0, 0, 1000)
    assert extended([item], asked, 6000) == [item._replace(timeout_ms=timeout_ms)]
    assert extended([item, item], asked, 6000) == [item, item]


@pytest.mark.parametrize("data", [b"", b"x", b"[]", b'["forked",1]', b'["forked","1",2]', b'["forked",1,"2"]', b'["forked",1,1]',
                                  b'["exit",1,null]', b'["kill",1,2]', b"[" * 100_000])  # fmt: skip
def test_message_that_is_not_of_a_forkserver_is_refused(data):
    with pytest.raises(ProtocolError):
        parse_news(data)


def test_message_of_a_forkserver_is_read():
    assert parse_news(b'["exit",4,-9]') == News("exit", 4, -9)
    assert parse_news(b'["unforked",4,"no memory"]') == News("unforked", 4, 1)


@pytest.mark.parametrize(
    "message", [["handler"], ["handler", 1, 2, 3, 4, 5, 6, 7, 8], ["handler", "a", "a", "local", 1, 1, 7, None]]
)
def test_introduction_of_no_handler_is_a_clear_error(message):
    from scylla_spark.errors import ConfigError

    with pytest.raises(ConfigError, match="leave them alone"):
        parse_handler(message)
