"""A place of tables that does not answer for a while: whoever reads tries again, and nothing ends."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
from deltalake.exceptions import DeltaError
from kafka import TopicPartition
from polars.exceptions import ComputeError
from py4j.protocol import Py4JError

from scylla_spark.config.settings import Settings
from scylla_spark.core.records.command import Rules
from scylla_spark.core.tables.progress import Mark, Tenure
from scylla_spark.errors import UnreachableError
from scylla_spark.io.delta.passing_errors import is_passing
from scylla_spark.services.dispatch import tasks_tail
from scylla_spark.services.dispatch.tasks_tail import TasksTail
from tests.support.waiting import done_at_once, holds

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (OSError("503"), True),
        (UnreachableError("The tables cannot be reached."), True),
        (DeltaError("Generic S3 error"), True),
        (ComputeError("503"), True),
        (Py4JError("An error occurred: java.net.SocketTimeoutException: Read timed out"), True),
        (Py4JError("org.apache.hadoop.fs.s3a.AWSClientIOException: getFileStatus"), True),
        (Py4JError("java.lang.NullPointerException"), False),
        (KeyError("DELTA_"), False),
    ],
)
def test_what_passes_by_itself_is_told_from_defects(error, passes):
    assert is_passing(error) is passes


class Consumer:
    """Has one partition."""

    def __init__(self):
        self.sought = []

    def paused(self):
        return set()

    def assignment(self):
        return {TopicPartition("tasks", 0)}

    def poll(self, timeout_ms):
        return {}

    def position(self, place):
        return 0

    def commit(self, offsets, timeout_ms):
        pass

    def seek(self, place, offset):
        self.sought.append((place.partition, offset))

    def seek_to_end(self, *places):
        self.sought += [(place.partition, "end") for place in places]


async def at_once(call):
    call()


def test_a_take_waits_for_tables_that_cannot_be_read(tmp_path, monkeypatch):
    away, clock, gained = [True], [10 * SECOND], []

    def marks():
        if away[0]:
            raise UnreachableError("The tables at s3://lake cannot be reached: 503.")
        return {0: Mark(tasks_offset=7)}

    def take(chosen):
        gained.append(chosen)
        return {number: Tenure(number, 1) for number in chosen}

    mailbox = SimpleNamespace(ask=lambda question, timeout_s=None: set(), post=lambda message: None)
    taker = SimpleNamespace(choked=lambda: False, gained=take)
    settings = Settings(_env_file=None, data_dir=tmp_path)
    tail = TasksTail(
        settings, Rules(8), mailbox, SimpleNamespace(partitions={}), taker, marks, lambda: clock[0], done_at_once
    )
    consumer = Consumer()
    tail.use(consumer)
    monkeypatch.setattr(tasks_tail, "_in_thread", at_once)  # the client's own loop takes it to a thread
    asyncio.run(tail.assigned([0]))
    for _ in range(3):
        clock[0] += 2 * SECOND
        tail.turn()
    assert gained == []
    away[0] = False
    clock[0] += 2 * SECOND
    tail.turn()
    assert [list(chosen) for chosen in gained] == [[0]]
    assert set(consumer.sought[:-1]) == {(0, "end")}, "without a position a poll would end the tail"
    assert consumer.sought[-1] == (0, 7)


def test_records_are_read_and_membership_is_confirmed_while_a_slow_store_is_asked_for_marks(tmp_path):
    answers, confirmed, clock, gained = threading.Event(), [], [10 * SECOND], []

    def marks():
        assert answers.wait(30)
        return {0: Mark(tasks_offset=7)}

    class Polled(Consumer):
        def commit(self, offsets, timeout_ms):
            confirmed.append(clock[0])

    def take(chosen):
        gained.append(chosen)
        return {number: Tenure(number, 2) for number in chosen}

    mailbox = SimpleNamespace(ask=lambda question, timeout_s=None: set(), post=lambda message: None)
    taker = SimpleNamespace(choked=lambda: False, gained=take)
    settings = Settings(_env_file=None, data_dir=tmp_path)
    tail = TasksTail(settings, Rules(8), mailbox, SimpleNamespace(partitions={}), taker, marks, lambda: clock[0])
    tail.use(Polled())
    tail.take([0], {})
    tail.retake(Tenure(0, 2))
    for _ in range(5):
        clock[0] += 2 * SECOND
        tail.turn()
    assert (len(gained), confirmed[-1]) == (1, clock[0]), "it has not waited"
    answers.set()
    assert holds(lambda: tail.turn() or len(gained) == 2)
    assert gained[1][0].tasks_offset == 7


def test_partitions_that_were_added_to_the_topic_are_not_taken(tmp_path, monkeypatch):
    gained = []

    def take(chosen):
        gained.append(set(chosen))
        return {number: Tenure(number, 1) for number in chosen}

    mailbox = SimpleNamespace(ask=lambda question, timeout_s=None: set(), post=lambda message: None)
    settings = Settings(_env_file=None, data_dir=tmp_path, partitions=8)
    tail = TasksTail(
        settings,
        Rules(8),
        mailbox,
        SimpleNamespace(partitions={}),
        SimpleNamespace(choked=lambda: False, gained=take),
        dict,
    )
    consumer = Consumer()
    tail.use(consumer)
    monkeypatch.setattr(tasks_tail, "_in_thread", at_once)
    asyncio.run(tail.assigned([3, 7, 8, 11]))
    asyncio.run(tail.assigned([9]))
    assert gained == [{3, 7}], "partition 8 of outcomes is the planner's"
    assert consumer.sought == [(8, "end"), (11, "end"), (3, 0), (7, 0), (9, "end")]
