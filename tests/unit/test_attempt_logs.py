"""The dispatcher's thread of log lines: nobody waits for it, and without Kafka lines are bounded, dropped and counted."""

from __future__ import annotations

import os

import pytest

from scylla_spark.clock import boot_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.access.redaction import Redaction
from scylla_spark.core.records.log_record import LogLine, bounded, decode
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.handlers.log_ring import LogMemory
from scylla_spark.handlers.log_writer import LogWriter
from scylla_spark.services.dispatch.attempt_lines import AttemptLines, AttemptName, LeasedRows
from scylla_spark.services.dispatch.attempt_logs import AttemptLogs, _Source, known_secrets
from scylla_spark.services.dispatch.log_queue import LogQueue
from tests.support.invocations import invocation
from tests.support.waiting import eventually

NAME = AttemptName(TaskKey(1, "lane", "key"), 1, 7)


def some(first, count, size=100):
    return [LogLine(first + number, 5, "stdout", None, "x" * size) for number in range(count)]


def taken(queue):
    return [decode(queue.take().value) for _ in range(len(queue))]


@pytest.mark.slow
def test_many_lines_become_records_that_every_reader_takes():
    queue = LogQueue(1 << 30)
    queue.add(NAME, some(1, 5_000, 1000))
    records = taken(queue)
    assert len(records) > 10
    assert [line.seq for record in records for line in record.lines] == list(range(1, 5_001))


def test_what_finds_no_room_is_counted_and_told_by_a_marker_once_there_is_room_again():
    queue = LogQueue(20_000)
    queue.add(NAME, some(1, 300))
    queue.add(NAME, some(301, 10))
    queue.add(NAME, some(311, 10))
    assert queue.dropped == 20
    assert len(taken(queue)) == 1
    queue.add(NAME, some(321, 1))
    (record,) = taken(queue)
    gap, line = record.lines
    assert (gap.seq, gap.stream, gap.text) == (301, "scheduler", "[20 lines are left out here]")
    assert line.seq == 321


def test_a_line_that_is_cut_in_the_midst_of_a_secret_keeps_nothing_of_it():
    lines = AttemptLines(Redaction(["hunter22-and-much-more-of-it"]), most_line=80, most_attempt=3_000)
    cut_here = bounded("x" * 60 + "hunter22-and-much-more-of-it", 80)  # as a child cuts it
    rows = [
        [n, 5, "stdout", None, text, None]
        for n, text in enumerate([cut_here, "y" * 60 + "hunter22-and-much-more-of-it"], 1)
    ]
    assert [one.text for one in lines.of_attempt(NAME, rows)] == ["x" * 60 + "*** […]", "y" * 60 + "*** […]"]


def test_lines_of_a_leased_attempt_are_read_strictly_once_and_without_secrets():
    lines = AttemptLines(Redaction(["hunter22"]), most_line=80, most_attempt=300 + 5 * 64)
    rows = [[1, 5, "stdout", None, "password=abc hunter22", None], [2, 6, "stderr", None, "x" * 200, '{"token": "t"}']]
    one, two = lines.of_attempt(NAME, rows)
    assert (one.seq, one.at_us, one.stream, one.text) == (1, 5, "stdout", "password=*** ***")
    assert len(two.text.encode()) <= 80
    assert 't"}' not in two.fields.replace("***", "")
    wrong = [
        [0, 5, "stdout", None, "x", None],
        [3, 5, "scheduler", None, "x", None],
        [3, 5, "stdout", "loud", "x", None],
        "x",
        [3],
    ]
    assert lines.of_attempt(NAME, rows + wrong) == [], "they were told before, or are none"
    gap, five = lines.of_attempt(NAME, [[5, 7, "logging", "error", "y", None]])
    assert (gap.seq, gap.stream, five.seq, five.level) == (3, "scheduler", 5, "error")
    assert lines.missing == 2
    assert len(lines.of_attempt(NAME, [[6 + n, 7, "stdout", None, "z" * 80, None] for n in range(9)])) == 2, "its bound"
    (other,) = lines.of_attempt(NAME._replace(attempt=2), [[4, 7, "stdout", None, "after a new owner", None]])
    assert other.seq == 4, "of another owner's lines nothing is missing"


def test_lines_of_a_leased_attempt_without_text_take_room_as_well():
    lines = AttemptLines(Redaction(), most_line=80, most_attempt=1_000)
    rows = [[n, 5, "stdout", None, "", None] for n in range(1, 10_000)]
    assert len(lines.of_attempt(NAME, rows)) == 1_000 // 64
    assert lines.of_attempt(NAME, [[10_000, 5, "stdout", None, "", None]]) == [], "there is no room for it"


def test_lines_of_leased_attempts_wait_in_bounded_memory(tmp_path):
    logs = AttemptLogs(Settings(_env_file=None, data_dir=tmp_path, logs={"buffer": 1 << 20}))
    for number in range(5):
        logs.take(NAME, LeasedRows([[number + 1, 5, "stdout", None, "x", None]], 400_000))
    logs._send = lambda: None
    logs._turn()
    assert [line.seq for record in taken(logs._queue) for line in record.lines] == [1, 2]
    assert logs._missing == 3


def test_attempts_without_room_are_remembered_up_to_a_bound():
    queue = LogQueue(1)
    queue.add(NAME, some(1, 1))
    for number in range(3_000):
        queue.add(NAME._replace(attempt=number), some(1, 1))
    assert queue.dropped == 3_000
    assert len(queue._lost) == 1_000


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOP_API_KEY", "hunter2hunter2")
    monkeypatch.setenv("SHOP_NAME", "corner")
    return Settings.load(
        kafka={"bootstrap_servers": "127.0.0.1:1"}, logs={"buffer": 1024 * 1024}, desk={"secret": "desk-secret"}
    )


def counts(logs):
    return {family.name.removeprefix("scyllaspark_"): family.samples[0].value for family in logs.collect()}


@pytest.mark.slow
def test_without_kafka_nobody_waits_and_what_finds_no_room_is_dropped_and_counted(settings):
    logs = AttemptLogs(settings)
    logs.start()
    lines, took = 0, []
    for child in range(1, 9):
        begun = boot_us()
        fd = logs.open(child)
        writer = LogWriter(LogMemory(fd))
        writer.begin(invocation(1, "lane", f"key-{child}"))
        writer.text("stdout", ("w" * 200 + "\n") * 2_000)
        writer.end()
        os.close(fd)
        logs.close(child)
        took.append(boot_us() - begun)
        lines += 2_000
    assert min(took) < 1_000_000, "each wait for Kafka takes a second"
    dropped = next(name for name in counts(logs) if name.endswith("log_lines_dropped"))
    eventually(lambda: counts(logs)[dropped] > 0, 20, "something is dropped", lambda: counts(logs))
    logs.stop()
    assert counts(logs)[dropped] == lines, "none was sent"


def written(logs, child, lines):
    """The lines of one attempt, in the memory of its child."""
    fd = logs.open(child)
    writer = LogWriter(LogMemory(fd))
    writer.begin(invocation(1, "lane", f"key-{child}"))
    writer.text("stdout", "a line of a handler, such as many write\n" * lines)
    os.close(fd)


def test_lines_that_an_attempt_writes_within_a_moment_are_one_record_and_none_waits_longer(settings):
    logs = AttemptLogs(settings)
    logs._retry_us = 1 << 62
    written(logs, 1, 300)
    turns = 1
    while logs._turn():
        turns += 1
    assert turns > 5, "they were read in slices"
    assert sum(record.lines for record in logs._queue._records) == 300
    assert len(logs._queue) < turns / 2, "a slow machine makes several"


def test_memory_that_fills_up_is_emptied_in_larger_slices(settings):
    logs = AttemptLogs(settings)
    logs._retry_us = 1 << 62
    fd = logs.open(1)
    memory = LogMemory(fd)
    os.close(fd)
    while memory._push(b"[" + b"x" * 100 + b"]"):
        frames = memory._words[0] // 106
    turns = 1
    while logs._turn():
        turns += 1
    assert turns < frames / 100


@pytest.mark.slow
def test_lines_that_many_dead_children_leave_behind_wait_in_bounded_memory(settings):
    logs = AttemptLogs(settings)
    logs._retry_us = 1 << 62
    for child in range(1, 9):
        written(logs, child, 2_000)
        logs.close(child)
    for source in logs._dead:
        logs._bury(source)
        assert logs._gathered._bytes <= 300 * 1024
    logs._put_gathered()
    assert sum(record.lines for record in logs._queue._records) + logs._queue.dropped == 16_000


class Endless:
    """What a dead child has left, where something that it left behind writes on and on."""

    room, taken = 100_000, 0

    def take(self, most):
        self.taken += most
        return [b"x" * 100] * most

    def take_rest(self):
        return []

    def close(self):
        self.room = 0


def test_a_process_that_outlives_its_child_and_writes_on_does_not_keep_the_lines_of_others(settings):
    logs, memory = AttemptLogs(settings), Endless()
    logs._bury(_Source(1, memory, AttemptLines(logs._redaction, most_line=100, most_attempt=100)))
    assert memory.taken < 5_000
    assert memory.room == 0, "it is let go of"


def test_every_secret_of_the_settings_is_known_wherever_it_stands(settings):
    channel = {"kind": "webhook", "url": "https://u:pass-in-url@hooks.example.com/services/T0/path-of-hook"}
    more = Settings.model_validate(
        settings.model_dump(exclude={"connect", "notify", "kafka"})
        | {
            "connect": {"url": "sc://h:15002", "token": "connect-token"},
            "notify": {"channels": {"ops": channel | {"secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}}},
            "kafka": {"java_options": {"ssl.key.password": "of-the-key"}},
        }
    )
    secrets = {"connect-token", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "of-the-key", "pass-in-url"}
    assert secrets | {"services/T0/path-of-hook", channel["url"]} <= known_secrets(more)


def test_secrets_are_those_of_the_settings_and_variables_with_telling_names(settings):
    found = known_secrets(settings)
    assert {"desk-secret", "hunter2hunter2"} <= found
    assert "corner" not in found
