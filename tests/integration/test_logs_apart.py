"""The process that reads lines of attempts: it comes when there is a line, may be killed, and leaves nothing unread behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kafka import TopicPartition

from scylla_spark.core.records.log_record import decode
from scylla_spark.handlers.log_ring import LogMemory
from scylla_spark.handlers.log_writer import LogWriter
from scylla_spark.io.kafka.topic_setup import ensure_topics
from scylla_spark.io.kafka.topics import consumer
from scylla_spark.services.dispatch.logs_apart import LogsApart
from tests.support.invocations import invocation
from tests.support.shared_broker import settings_on
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]


class Child:
    """The side of a child of the pool: it writes, and dies."""

    def __init__(self, logs, number):
        self.logs, self.number = logs, number
        fd = logs.open(number)
        self.writer = LogWriter(LogMemory(fd))
        os.close(fd)

    def writes(self, *texts):
        self.writer.begin(invocation(1, f"lane-{self.number}"))
        self.writer.text("stdout", "".join(f"{text}\n" for text in texts))
        self.writer.end()

    def dies(self):
        self.logs.close(self.number)


@pytest.fixture
def settings(broker, tmp_path):
    made = settings_on(broker, tmp_path, partitions=2)
    ensure_topics(made)
    return made


@pytest.fixture
def logs(settings):
    made = LogsApart(settings, {"hunter2hunter2"})
    made.start()
    yield made
    made.stop()


def arrived(settings):
    """Lane → texts of the lines on the topic."""
    found = {}
    reader = consumer(settings)
    try:
        places = [TopicPartition(settings.topics.logs, number) for number in range(settings.partitions)]
        reader.assign(places)
        reader.seek_to_beginning()
        ends = reader.end_offsets(places)
        while any(reader.position(place) < end for place, end in ends.items()):
            for records in reader.poll(timeout_ms=200).values():
                for record in records:
                    read = decode(record.value)
                    found.setdefault(read.key.ordering_id, []).extend(line.text for line in read.lines)
    finally:
        reader.close(autocommit=False)
    return found


def come(settings, wanted):
    eventually(lambda: arrived(settings) == wanted, 20, "the lines are on the topic", lambda: arrived(settings))


def counted(logs):
    return {family.name.removeprefix("scyllaspark_"): family.samples[0].value for family in logs.collect()}


def test_lines_come_to_the_topic_without_secrets_and_what_is_read_is_let_go_of(settings, logs):
    child = Child(logs, 1)
    child.writes("one", "hunter2hunter2")
    come(settings, {"lane-1": ["one", "***"]})
    child.writes("three")
    child.dies()
    come(settings, {"lane-1": ["one", "***", "three"]})
    eventually(lambda: not logs._all, 10, "its memory is let go of")
    eventually(
        lambda: counted(logs) == {"log_lines": 3, "log_lines_dropped": 0}, 10, "they are counted", lambda: counted(logs)
    )


def test_a_child_that_has_written_nothing_leaves_nothing_behind(logs):
    Child(logs, 1).dies()
    eventually(lambda: not logs._all, 10, "its memory is let go of")
    eventually(lambda: logs._process is not None, 10, "whoever writes first need not wait for the process")
    Child(logs, 2).dies()
    eventually(lambda: not logs._all, 10, "its memory is let go of")


def test_what_was_written_just_before_the_end_is_sent(settings, logs):
    for number in range(5):
        Child(logs, number).writes(*map(str, range(200)))
    logs.stop()
    assert arrived(settings) == {f"lane-{number}": list(map(str, range(200))) for number in range(5)}


def test_when_it_is_killed_another_goes_on_with_what_is_written_from_then_on(settings, logs):
    child, other = Child(logs, 1), Child(logs, 2)
    child.writes("before")
    come(settings, {"lane-1": ["before"]})
    eventually(lambda: counted(logs)["log_lines"] == 1, 10, "it is counted")
    os.kill(logs._process.pid, signal.SIGKILL)
    child.writes("after")
    other.writes("last words")
    other.dies()
    come(settings, {"lane-1": ["before", "after"], "lane-2": ["last words"]})
    eventually(lambda: counted(logs)["log_lines"] == 3, 10, "all are counted", lambda: counted(logs))


def test_when_its_parent_is_killed_it_sends_what_was_written_and_ends(settings):
    code = """
import sys
from scylla_spark.config.settings import Settings
from tests.support.invocations import invocation
from tests.integration.test_logs_apart import Child, LogsApart
settings = Settings.model_validate_json(sys.stdin.readline())
logs = LogsApart(settings)
logs.start()
child = Child(logs, 1)
child.writes("before")
while logs._process is None:
    pass
child.writes(*("x" * 1000 for _ in range(2000)), "last words")
print(logs._process.pid, flush=True)
sys.stdin.readline()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as parent:
        parent.stdin.write(settings.model_dump_json() + "\n")
        parent.stdin.flush()
        reader = int(parent.stdout.readline())
        parent.kill()
    eventually(lambda: not Path(f"/proc/{reader}").exists(), 20, "it ends with its parent")
    found = arrived(settings)["lane-1"]
    assert (found[0], found[-1]) == ("before", "last words"), "also of a flood, whose end had waited in the memory"
