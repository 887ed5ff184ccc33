"""What the planner would refuse for its form is refused before it is sent: what is acknowledged is counted."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaTimeoutError, TopicAuthorizationFailedError

from scylla_spark.config.settings import Settings
from scylla_spark.core.plan.commands.plan_answer import checked_command
from scylla_spark.core.plan.commands.plan_command import MAX_RECORD_BYTES, PlanCommand, read_command
from scylla_spark.core.plan.state import plan_log
from scylla_spark.core.plan.state.plan_log import Group
from scylla_spark.core.records.fact import Fence, encode_fence
from scylla_spark.errors import ArgumentError, ConflictError, UnreachableError
from scylla_spark.io.kafka import plan_requests, topics
from scylla_spark.io.kafka.plan_requests import PlanRequests
from tests.support.waiting import holds

CYCLE: list[object] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        ("partitions", {"name": "d", "partitions": [{"rows": 2**53}]}, "rows"),
        ("partitions", {"name": "d", "partitions": [{"count": 0}]}, "count"),
        ("partitions", {"name": "d", "partitions": []}, "partitions"),
        ("partitions", {"name": "d", "partitions": [{"row": 1}]}, "row"),
        ("event", {"name": "e" * 1_025}, "name"),
        ("event", {"name": "e", "fields": {"n": float("nan")}}, "not JSON"),
        ("event", {"name": "e", "fields": {"n": object()}}, "not JSON"),
        ("event", {"name": "e", "fields": {"n": CYCLE}}, "not JSON"),
        ("event", {"name": "e", "fields": {"n": "\ud800"}}, "not JSON"),
        ("event", {"name": "e", "fields": {"n": "x" * 20_000}}, "16384 bytes"),
        ("event", {"name": "e", "fields": {"n": "x" * MAX_RECORD_BYTES}}, "bytes"),
        ("event", {"fields": {}}, "name"),
        ("put_queue", {"queues": [{"name": "größe", "paused": True}], "patch": True}, "name"),
        ("nonsense", {}, "type"),
    ],
)
def test_a_command_that_would_be_refused_is_not_sent(kind, fields, says):
    with pytest.raises(ArgumentError, match=says):
        checked_command(kind, **fields)


def test_a_command_that_would_be_obeyed_is_what_the_planner_reads():
    read = read_command(checked_command("event", id="1", name="stock", fields={"n": 1.5}, note=None))
    assert read == PlanCommand("event", "1", "", {"version": 1, "name": "stock", "fields": {"n": 1.5}})


PLACE = TopicPartition("outcomes", 4)
FENCE = Fence(1, "n")


class Kafka:
    """The planner's log, its clients, and a planner that answers what `answers` lets it."""

    def __init__(self):
        self.log = [encode_fence(FENCE, "", 0)]
        self.answers = lambda name: True
        self.asked, self.polls, self.consumers = [], 0, []
        self.lock = threading.Lock()

    def consumer(self, *_, **__):
        self.consumers.append(Reader(self))
        return self.consumers[-1]

    def producer(self, *_, **__):
        return self

    def close(self):
        """Nothing to do."""

    def send(self, topic, value, partition):
        with self.lock:
            name = json.loads(value)["id"]
            self.asked.append(name)
            if self.answers(name):
                self.answer(name)
        return SimpleNamespace(get=lambda timeout: None)

    def answer(self, name):
        change = ["answer", name, "", "", "", {"name": name}]
        self.log.append(plan_log.encode(Group(FENCE, len(self.log), 0, changes=[["event"], change])))


class Reader:
    """A consumer, which two threads must never use at once."""

    def __init__(self, kafka):
        self.kafka, self.at, self.used, self.closed = kafka, 0, threading.Lock(), False

    def beginning_offsets(self, places):
        return dict.fromkeys(places, 0)

    def end_offsets(self, places):
        return dict.fromkeys(places, len(self.kafka.log))

    def assign(self, _places):
        """Nothing to do."""

    def seek(self, _place, offset):
        self.at = offset

    def position(self, _place):
        return self.at

    def close(self):
        self.closed = True

    def poll(self, timeout_ms):
        assert self.used.acquire(blocking=False), "two threads poll at once"
        try:
            if self.at >= len(self.kafka.log):
                time.sleep(min(timeout_ms, 20) / 1000)
            values = self.kafka.log[self.at :]
            found = [SimpleNamespace(offset=at, value=value, timestamp=0) for at, value in enumerate(values, self.at)]
            self.at += len(found)
            return {PLACE: found} if found else {}
        finally:
            self.used.release()


@pytest.fixture
def kafka(monkeypatch):
    made = Kafka()
    monkeypatch.setattr(plan_requests, "client_consumer", made.consumer)
    monkeypatch.setattr(plan_requests, "producer", made.producer)
    return made


@pytest.fixture
def planner(kafka):
    return PlanRequests(Settings(_env_file=None, partitions=4))


def pause(planner, timeout_s=10.0):
    return planner.ask("pause", timeout_s=timeout_s, names=["x"], author="")


def at_once(*calls):
    """What each call returns or raises, and how long it took, in seconds; all begin together."""

    def timed(call):
        begun = time.monotonic()
        try:
            return call(), time.monotonic() - begun
        except UnreachableError as error:
            return error, time.monotonic() - begun

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(timed, calls))


def test_each_of_many_who_ask_at_once_gets_his_own_answer(kafka, planner):
    found = at_once(*[lambda: pause(planner)] * 20)
    assert sorted(answer.done["name"] for answer, _ in found) == sorted(kafka.asked)
    assert len({answer.offset for answer, _ in found}) == 20
    assert len(kafka.consumers) == 1, "one reads for all"
    assert planner._answers._wanted == {}
    planner.close()
    assert kafka.consumers[0].closed


@pytest.mark.slow
def test_no_limit_counts_the_wait_for_others(kafka, planner):
    kafka.answers = lambda name: False
    asked = at_once(*[lambda: pause(planner, 1.5)] * 6)
    assert all(
        isinstance(said, UnreachableError) and "No planner answered within 1.5 s" in str(said) for said, _ in asked
    )
    assert max(seconds for _, seconds in asked) < 6 * 1.5, "their limits do not add up"


def test_whoever_only_reads_or_tells_goes_on_while_others_wait_for_answers(kafka, planner):
    kafka.answers = lambda name: False
    with ThreadPoolExecutor(6) as threads:
        asked = [threads.submit(pause, planner, 60.0) for _ in range(6)]
        assert holds(lambda: len(kafka.asked) == 6)
        planner.groups(None)
        planner.tell("event", id="e", name="stock", fields={})
        assert not any(one.done() for one in asked)
        for name in list(kafka.asked):
            kafka.answer(name)


@pytest.mark.slow
def test_who_asks_later_is_answered_while_others_still_wait(kafka, planner):
    kafka.answers = lambda name: len(kafka.asked) > 1

    def later():
        assert holds(lambda: kafka.asked)
        answer = pause(planner, 60.0)
        kafka.answer(kafka.asked[0])  # only now
        return answer

    (first, _), (second, _) = at_once(lambda: pause(planner, 60.0), later)
    assert [first.done["name"], second.done["name"]] == kafka.asked


@pytest.mark.slow
def test_who_waits_when_the_connections_are_closed_hears_of_it(kafka, planner):
    kafka.answers = lambda name: False
    (said, took), _ = at_once(lambda: pause(planner, 60.0), lambda: [holds(lambda: kafka.asked), planner.close()])
    assert isinstance(said, UnreachableError)
    assert took < 50, "that is before its limit"


def test_what_still_runs_when_the_connections_are_closed_opens_no_others(kafka, planner):
    planner.close()
    told = lambda: planner.tell("event", id="e", name="stock", fields={})  # noqa: E731
    for call in (lambda: pause(planner), told, planner.state):
        with pytest.raises(ConflictError, match="closed"):
            call()
    assert (kafka.consumers, kafka.asked) == ([], [])


def test_a_broker_that_fails_is_told_of_and_the_next_question_begins_anew(kafka, planner, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(Reader, "end_offsets", lambda *_: (_ for _ in ()).throw(KafkaTimeoutError("gone")))
        with pytest.raises(UnreachableError, match="gone"):
            pause(planner)
    assert pause(planner).done == {"name": kafka.asked[-1]}


@pytest.mark.parametrize("method", ["end_offsets", "poll"])
def test_a_broker_that_has_answered_before_is_waited_for(kafka, planner, monkeypatch, method):
    monkeypatch.setattr(topics, "_answered", [planner._settings.kafka])
    monkeypatch.setattr(topics, "_AGAIN_S", 0.001)
    answers, missing = getattr(Reader, method), [1, 2, 3]

    def sometimes(*arguments, **options):
        if missing:
            raise KafkaTimeoutError(f"gone {missing.pop()}")
        return answers(*arguments, **options)

    monkeypatch.setattr(Reader, method, sometimes)
    assert pause(planner).done == {"name": kafka.asked[-1]}
    assert (missing, len(kafka.asked)) == ([], 1)
    missing.extend(range(1_000_000))
    with pytest.raises(UnreachableError, match=r"did not answer within 0\.05 s"):
        pause(planner, 0.05)


@pytest.mark.parametrize("method", ["end_offsets", "poll"])
def test_a_final_refusal_of_the_broker_is_told_at_once(kafka, planner, monkeypatch, method):
    monkeypatch.setattr(topics, "_answered", [planner._settings.kafka])
    calls = []

    def refused(*_, **__):
        calls.append(method)
        raise TopicAuthorizationFailedError("outcomes")

    monkeypatch.setattr(Reader, method, refused)
    with pytest.raises(UnreachableError, match=r"did not answer \(TopicAuthorizationFailedError"):
        pause(planner, 1.0)
    assert calls == [method]


def test_closing_does_not_wait_for_a_broker_that_is_away(kafka, planner, monkeypatch):
    monkeypatch.setattr(topics, "_answered", [planner._settings.kafka])
    monkeypatch.setattr(topics, "_AGAIN_S", 0.001)
    poll, failed = Reader.poll, threading.Event()
    kafka.answers = lambda name: False

    def away(self, timeout_ms):
        if not kafka.asked:
            return poll(self, timeout_ms)
        failed.set()
        raise KafkaTimeoutError("gone")

    monkeypatch.setattr(Reader, "poll", away)
    with ThreadPoolExecutor(1) as beside:
        asked = beside.submit(pause, planner, 10.0)
        assert failed.wait(30)
        planner.close()
        with pytest.raises(UnreachableError, match="connection to Kafka was closed"):
            asked.result(timeout=30)


def test_the_wait_for_an_acknowledgement_ends_with_the_question_and_after_15_seconds(kafka, planner, monkeypatch):
    limits = []

    def get(timeout):
        limits.append(timeout)
        raise KafkaTimeoutError("no acknowledgement")

    monkeypatch.setattr(kafka, "send", lambda *_, **__: SimpleNamespace(get=get))
    for timeout_s in (5.0, 600.0):
        with pytest.raises(UnreachableError) as told:
            pause(planner, timeout_s)
        assert f"did not answer within {limits[-1]:g} s" in str(told.value)
    assert (limits[0] <= 5.0, limits[1]) == (True, 15.0)


def test_a_command_that_is_not_handed_over_names_the_time_of_the_question(kafka, planner, monkeypatch):
    def away(*_, **__):
        raise KafkaTimeoutError("no metadata")

    monkeypatch.setattr(kafka, "send", away)
    with pytest.raises(UnreachableError, match="did not answer within 30 s"):
        pause(planner, 30.0)
