"""Lines of attempts on Spark workers wait for the connection in bounded memory, and the dispatcher knows what is missing."""

from __future__ import annotations

import json
import os

import pytest

from scylla_spark.config.settings import Settings
from scylla_spark.core.records.log_record import decode
from scylla_spark.executors.interface import HearsLines, LogTerms
from scylla_spark.executors.remote import worker_lines
from scylla_spark.executors.remote.frames import LINES, read_lines
from scylla_spark.executors.remote.worker_lines import MOST_BYTES, WorkerLines
from scylla_spark.handlers.log_ring import LogMemory
from scylla_spark.handlers.log_writer import LogWriter
from scylla_spark.services.dispatch.attempt_logs import AttemptLogs
from tests.support.invocations import invocation

TERMS = LogTerms(head=4_096, tail=128 * 1024, line=80)


@pytest.fixture
def logs(tmp_path):
    chosen = {"head": TERMS.head, "tail": TERMS.tail, "line": TERMS.line, "buffer": 1 << 20}
    made = AttemptLogs(Settings(_env_file=None, data_dir=tmp_path, logs=chosen))
    made._send = lambda: None
    return made


def sent(lines):
    """As they arrive at the dispatcher."""
    return read_lines(json.loads(json.dumps([LINES, lines])))


def writer_of(lines, child):
    fd = lines.open(child)
    try:
        return LogWriter(LogMemory(fd))
    finally:
        os.close(fd)


def write(writer, key, *texts):
    writer.begin(invocation(1, "lane", key))
    for text in texts:
        writer.text("stdout", text + "\n")
    writer.end()


def told(logs):
    """Key → the texts of its lines, as they go to Kafka."""
    while logs._turn():
        pass
    logs._put_gathered()
    found = {}
    for _ in range(len(logs._queue)):
        record = decode(logs._queue.take().value)
        found.setdefault(record.key.uniqueness_key, []).extend(line.text for line in record.lines)
    return found


def test_lines_of_each_attempt_arrive_whichever_child_ran_it(logs):
    assert isinstance(logs, HearsLines)
    assert logs.terms() == TERMS
    lines = WorkerLines(TERMS)
    first, second = writer_of(lines, "a"), writer_of(lines, "b")
    write(first, "one", "ü 1", "password=abc")
    write(second, "two", "2")
    write(first, "three", "3")
    logs.hear(sent(lines.take(MOST_BYTES)))
    assert told(logs) == {"one": ["ü 1", "password=***"], "two": ["2"], "three": ["3"]}
    assert lines.take(MOST_BYTES) == []
    write(second, "four", "4")
    logs.hear(sent(lines.take(MOST_BYTES)))
    assert told(logs) == {"four": ["4"]}


def test_the_last_lines_of_a_child_that_died_arrive(logs):
    lines = WorkerLines(TERMS)
    writer = writer_of(lines, "a")
    writer.begin(invocation(1, "lane", "one"))
    for number in range(1_000):
        writer.text("stdout", f"{number}\n")
    lines.close("a")
    lines.close("a")
    logs.hear(sent(lines.take(MOST_BYTES)))
    found = told(logs)["one"]
    assert (found[0], found[-1]) == ("0", "999")


@pytest.mark.slow
def test_beyond_the_bound_lines_are_left_out_and_counted(logs, monkeypatch):
    monkeypatch.setattr(worker_lines, "MOST_BYTES", 1)
    lines = WorkerLines(TERMS)
    writer = writer_of(lines, "a")
    for number in range(100):
        write(writer, f"key-{number:02}", *["x" * 60] * 60)
        lines.gather()
    shipped = lines.take(MOST_BYTES)
    assert sum(len(frame) for frames in shipped for frame in frames) < 500_000
    logs.hear(sent(shipped))
    found = told(logs)
    kept = sum(text == "x" * 60 for texts in found.values() for text in texts)
    assert 0 < kept < 6_000
    assert kept + logs._missing == 6_000
    assert found["key-99"] == ["[60 lines are left out here]"]


def test_what_finds_no_room_at_the_dispatcher_is_dropped_and_counted(logs):
    frames = [b'["line",1,1,1,"stdout",null,"x",null]'] * 20_000
    logs.hear([frames])
    logs.hear([frames])
    assert logs._missing == 20_000
    logs._turn()
    while logs._turn():
        pass
    logs.hear([frames])
    assert logs._missing == 20_000, "there is room again"
