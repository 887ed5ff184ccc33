"""How a dispatcher learns of definitions of queues: from the table, and from the planner's log behind it."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from deltalake.exceptions import DeltaError
from kafka import TopicPartition
from kafka.errors import KafkaConnectionError

from scylla_spark.config.settings import Settings
from scylla_spark.core.plan.state import plan_log
from scylla_spark.core.plan.state.plan_log import Group
from scylla_spark.core.plan.state.stored_definition import QUEUE, DefinitionChange, StoredDefinition
from scylla_spark.core.queues.in_force import QueuesInForce
from scylla_spark.core.records.fact import Fence, encode_fence
from scylla_spark.core.tables.progress import Mark
from scylla_spark.definitions.queue import Queue
from scylla_spark.services.dispatch import queue_definitions
from scylla_spark.services.dispatch.queue_definitions import QueueFollower
from tests.support.waiting import eventually

OURS, OTHER = Fence(3, "ours"), Fence(2, "other")
PLACE = TopicPartition("outcomes", 4)


def changed(name, revision, text='{"name":"%s","rate":%d}', fence=OURS):
    stored = StoredDefinition(text % (name, revision) if "%" in text else text, revision, "", 0) if text else None
    change = DefinitionChange(name, revision, stored, "", 0, "").logged(QUEUE)
    return plan_log.encode(Group(fence, revision, 0, changes=[["event"], change]))


class Log:
    """The planner's partition, as a consumer reads it; when all is read, `then` is called once for each poll."""

    def __init__(self, *records, then=()):
        self.records = list(records)
        self.then = list(then)
        self.at = 0

    def beginning_offsets(self, places):
        return dict.fromkeys(places, 0)

    def end_offsets(self, places):
        return dict.fromkeys(places, len(self.records))

    def assign(self, places):
        assert places == [PLACE]

    def seek(self, place, offset):
        self.at = offset

    def position(self, place):
        return self.at

    def poll(self, timeout_ms):
        if self.at >= len(self.records) and self.then:
            self.then.pop(0)(self)
        found = [
            SimpleNamespace(offset=offset, value=value, timestamp=0)
            for offset, value in enumerate(self.records[self.at :], self.at)
        ]
        self.at = len(self.records)
        return {PLACE: found} if found else {}


class Tables:
    def __init__(self, mark=None, rows=()):
        self.mark, self.rows = mark, rows

    def marks(self):
        return {("outcomes", 4): self.mark} if self.mark is not None else {}

    def queue_definitions(self):
        return {name: newest for name, *newest in self.rows}


def told(log, tables=None):
    found = []
    follower = QueueFollower(Settings(partitions=4), tables or Tables(), found.append)
    log.then.append(lambda _log: follower._stopping.set())
    follower.follow(log)
    return [{name: one.rate if isinstance(one, Queue) else one for name, one in part.items()} for part in found]


def test_nothing_that_is_stored_is_told_once():
    assert told(Log()) == [{}]


def test_all_that_stands_in_the_log_is_told_at_once_and_later_changes_as_they_come():
    log = Log(
        encode_fence(OURS, "", 0),
        changed("mail", 1),
        changed("gpu", 2),
        changed("gpu", 3, None),
        then=[
            lambda log: log.records.append(changed("mail", 4)),
            lambda log: log.records.append(changed("mail", 5, None)),
        ],
    )
    assert told(log) == [{"mail": 1.0, "gpu": None}, {"mail": 4.0}, {"mail": None}]


def test_what_the_tables_hold_comes_first_and_what_is_older_is_passed_over():
    log = Log(encode_fence(OURS, "", 0), changed("mail", 1), changed("mail", 2), changed("gpu", 6))
    rows = [("mail", 1, '{"name":"mail","rate":1}'), ("mail", 5, '{"name":"mail","rate":5}'), ("gone", 3, None)]
    assert told(log, Tables(Mark(0, 2, OURS), rows)) == [{"mail": 5.0, "gone": None, "gpu": 6.0}]


class Failing(Log):
    """Is unreachable when it is asked for the so-manieth poll or the end."""

    def __init__(self, *records, end=False, poll=0):
        super().__init__(*records)
        self.end, self.polls_until = end, poll

    def end_offsets(self, places):
        if self.end:
            raise KafkaConnectionError
        return super().end_offsets(places)

    def poll(self, timeout_ms):
        self.polls_until -= 1
        if self.polls_until == 0:
            raise KafkaConnectionError
        return super().poll(timeout_ms)


@pytest.mark.parametrize("trouble", [{"end": True}, {"poll": 1}, {"poll": 2}])
def test_what_was_read_when_kafka_was_lost_is_told_the_next_time(trouble):
    records, found = (encode_fence(OURS, "", 0), changed("mail", 2)), []
    tables = Tables(Mark(0, 0, OURS), [("gpu", 1, '{"name":"gpu","rate":1}')])
    follower = QueueFollower(Settings(partitions=4), tables, found.append)
    with pytest.raises(KafkaConnectionError):
        follower.follow(Failing(*records, **trouble))
    follower.follow(Log(*records, then=[lambda _log: follower._stopping.set()]))
    assert {name: one.rate for name, one in found[-1].items()} == {"gpu": 1.0, "mail": 2.0}


@pytest.mark.parametrize(("error", "passes"), [(DeltaError("503 SlowDown"), True), (KeyError("a defect"), False)])
def test_storage_that_does_not_answer_for_a_moment_ends_nothing(monkeypatch, error, passes):
    monkeypatch.setattr(queue_definitions, "consumer", lambda _settings: nullcontext(Log()))
    monkeypatch.setattr(queue_definitions, "_AGAIN_S", 0.01)
    tables, found, troubles = Tables(), [], [error]
    monkeypatch.setattr(tables, "marks", lambda: throw(troubles.pop()) if troubles else {}, raising=False)
    follower = QueueFollower(Settings(partitions=4), tables, found.append)
    follower.start()
    eventually(lambda: found or follower.failure is not None, 5)
    follower.stop()
    assert (found, follower.failure) == (([{}], None) if passes else ([], error))


def throw(error):
    raise error


def test_a_planner_that_was_fenced_out_changes_nothing():
    log = Log(encode_fence(OTHER, "", 0), changed("mail", 1, fence=OTHER), encode_fence(OURS, "", 0))
    log.then.append(lambda log: log.records.append(changed("mail", 2, fence=OTHER)))
    assert told(log) == [{"mail": 1.0}]


@pytest.mark.parametrize("text", ['{"name":"mail","fancy":1}', "{", "[]", '{"name":"mail","rate":"x"}'])
def test_a_definition_that_cannot_be_read_leaves_what_was(text):
    log = Log(encode_fence(OURS, "", 0), changed("mail", 1), changed("gpu", 2))
    log.then.append(lambda log: log.records.append(changed("mail", 3, text)))
    log.then.append(lambda log: log.records.append(changed("gpu", 4)))
    assert told(log) == [{"mail": 1.0, "gpu": 2.0}, {"gpu": 4.0}]


def test_what_was_put_is_in_force_and_what_is_deleted_gives_way_to_the_settings():
    queues = QueuesInForce({"mail": Queue(name="mail", concurrency=7)})
    put = Queue(name="mail", paused=True)
    queues.put({"mail": put, "gpu": Queue(name="gpu")})
    assert (queues.of("mail"), queues.paused(), sorted(queues.listed())) == (put, ["mail"], ["gpu", "mail"])
    queues.put({"mail": None, "gpu": None, "never": None})
    assert (queues.of("mail").concurrency, queues.of("gpu"), queues.listed()) == (7, None, ["mail"])
