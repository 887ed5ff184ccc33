"""While a broker is silent every wait for it ends by our own clock, and afterwards producers and clients go on."""

import json
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from functools import partial

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaError

from scylla_spark import Scheduler, Settings
from scylla_spark.api.schedules.plan_mirror import PlanMirror
from scylla_spark.clock import boot_us
from scylla_spark.core.plan.state import plan_log
from scylla_spark.core.plan.state.plan_log import Group
from scylla_spark.core.records.fact import Fence, encode_fence
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import UnreachableError
from scylla_spark.io.host.broker import EmbeddedBroker
from scylla_spark.io.host.http_get import AnswerError, fetch
from scylla_spark.io.kafka import command_sender, plan_requests, topics
from scylla_spark.io.kafka.client_patches import _Transactions
from scylla_spark.io.kafka.plan_answers import PlanAnswers
from scylla_spark.io.kafka.plan_requests import PlanRequests
from scylla_spark.io.kafka.topic_setup import ensure_topics
from scylla_spark.io.kafka.topics import producer, with_broker
from scylla_spark.processes.deployment import Deployment
from tests.support.delta_tables import PARTITIONS, make
from tests.support.freezing import frozen
from tests.support.shared_broker import settings_on
from tests.support.waiting import eventually

REQUEST_MS, DELIVERY_MS = 1_000, 2_500
LONGEST_S, PATIENCE = 30, 90
FENCE = Fence(1, "n")
NOWHERE = TaskKey(1_900_000_000_000_000, "nobody", "u")


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture
def sender(broker, tmp_path):
    settings = with_broker(Settings(data_dir=tmp_path, partitions=2), broker.bootstrap)
    ensure_topics(settings)
    sender = producer(settings, linger_ms=0, request_timeout_ms=REQUEST_MS, delivery_timeout_ms=DELIVERY_MS)
    yield sender
    sender.close(timeout=5)


def put(sender, text):
    return sender.send("tasks", value=text, partition=0)


@contextmanager
def failing_send(broker, sender):
    """A send fails because the broker is frozen; it stays so until the block ends."""
    with frozen(broker.pid):
        with pytest.raises(KafkaError):
            put(sender, b"during").get(timeout=10 * DELIVERY_MS / 1000)
        yield


def test_after_a_failed_send_the_next_one_arrives(broker, sender):
    put(sender, b"before").get(timeout=10)
    with failing_send(broker, sender):
        pass
    assert put(sender, b"after").get(timeout=20).offset >= 1


def test_also_if_it_asked_for_a_new_producer_id_in_vain(broker, sender, monkeypatch, caplog):
    in_vain = []  # requests that were not answered in time; others find no connection, which is logged
    fail = _Transactions.transition_to_fatal_error

    def failed(self, error):
        in_vain.append(error)
        fail(self, error)

    monkeypatch.setattr(_Transactions, "transition_to_fatal_error", failed)
    put(sender, b"before").get(timeout=10)
    with failing_send(broker, sender):
        eventually(
            lambda: in_vain or "to send a transactional request to" in caplog.text,
            30,
            "it asks for a new id as soon as that send has failed, and gets no answer",
        )
    assert put(sender, b"after").get(timeout=20).offset >= 1


@pytest.fixture
def settings(broker, tmp_path, monkeypatch):
    """A deployment without services, whose clients wait less."""
    monkeypatch.setattr(command_sender, "ACKNOWLEDGED_S", 2.0)
    for module in (topics, plan_requests):
        monkeypatch.setattr(module, "CONNECT_MS", 500)
        monkeypatch.setattr(module, "WAIT_MS", 1_000)
    make(f"{tmp_path}/tables")
    settings = settings_on(broker.bootstrap, tmp_path, partitions=PARTITIONS)
    ensure_topics(settings)
    return settings


def test_a_dispatcher_and_a_planner_are_ready_until_kafka_is_silent_and_again_once_it_answers(broker, settings):
    quick = {"scan": "reader", "session_timeout": "6s"}
    changed = settings.model_copy(update={"dispatch": settings.dispatch.model_validate(quick)})
    with Deployment(changed, roles=["dispatch", "plan"]) as running:

        def unready():
            try:
                return fetch(f"{running.metrics}/readyz", timeout_s=30) and ""
            except AnswerError as refused:
                return str(refused)

        eventually(lambda: unready() == "", PATIENCE, "it is ready")
        with frozen(broker.pid):
            eventually(lambda: "503" in unready(), PATIENCE, "it is not")
            assert fetch(f"{running.metrics}/healthz", timeout_s=30), "a restart would not help"
        eventually(lambda: unready() == "", PATIENCE, "it is ready again")


def failures(*calls):
    """What calls raise that are made at the same time, once all have ended."""
    threads = ThreadPoolExecutor(len(calls))
    futures = [threads.submit(call) for call in calls]
    threads.shutdown(wait=False)
    late = wait(futures, timeout=LONGEST_S).not_done
    assert not late, f"{len(late)} of {len(calls)} have not ended within {LONGEST_S} s"
    return [future.exception() for future in futures]


def test_all_waits_of_clients_end_also_those_that_begin_together_and_nothing_acknowledged_is_lost(broker, settings):
    with Scheduler(settings) as scheduler, Scheduler(settings) as newcomer:
        connection, mirror = scheduler.connection, PlanMirror(scheduler.connection)
        before = scheduler.enqueue("h", delay="1h")
        assert before.status().open
        mirror.ask(lambda plan: plan.entries)
        with frozen(broker.pid):
            enqueue = partial(scheduler.enqueue, "h", delay="1h")
            found = failures(
                *[enqueue] * 4, connection.ends, partial(mirror.ask, len), partial(mirror.ask, len),
                *[lambda: connection.log_reader.catch_up(0, boot_us() + 500_000)] * 4,
                lambda: connection.plan.ask("pause", tag="none", timeout_s=2),
                lambda: newcomer.connection.plan.state(), before.status, scheduler.task(NOWHERE).status,
            )  # fmt: skip
            *refused, status, unknown = found
            assert [type(one) for one in refused] == [UnreachableError] * len(refused)
            assert status is None or "it may be there all the same" in str(status)
            assert "it may be there all the same" in str(unknown), "nobody knows that it is not there"
            (late,) = failures(partial(newcomer.enqueue, "h"))
            assert "has answered before, and did not answer within" in str(late)
            assert "TLS" not in str(late)
        again = eventually(partial(without_outage, enqueue), 60, "it goes on by itself")
        eventually(lambda: without_outage(lambda: again.status().open and before.status().open), 60, "both are there")
        eventually(lambda: without_outage(lambda: mirror.ask(lambda plan: [plan])), 60, "the plan is read again")


def test_a_command_to_the_planner_waits_until_a_silent_broker_answers_again(broker, settings, sender, monkeypatch):
    place = {"topic": settings.topics.outcomes, "partition": settings.partitions}
    sender.send(value=encode_fence(FENCE, "", 0), **place).get(timeout=10)
    failed, begin = [], PlanAnswers._begin

    def noted(self):
        try:
            return begin(self)
        except Exception as error:
            failed.append(error)
            raise

    monkeypatch.setattr(PlanAnswers, "_begin", noted)
    planner = PlanRequests(settings)
    with closing(planner), ThreadPoolExecutor(1) as beside, closing(topics.consumer(settings)) as schedules:
        with frozen(broker.pid):
            asked = beside.submit(planner.ask, "pause", timeout_s=120, names=["x"], author="")
            eventually(lambda: failed, LONGEST_S, "the broker does not answer it")
            assert not asked.done()
        command = TopicPartition(settings.topics.schedules, 0)
        schedules.assign([command])
        schedules.seek(command, 0)
        (record,) = eventually(lambda: schedules.poll(timeout_ms=100).get(command), 60, "it is sent")
        change = ["answer", json.loads(record.value)["id"], "", "", "", {"paused": ["x"]}]
        sender.send(value=plan_log.encode(Group(FENCE, 1, 0, changes=[change])), **place)
        assert asked.result(timeout=60).done == {"paused": ["x"]}


def without_outage(call):
    """What a call returns; None while Kafka does not answer it."""
    with suppress(UnreachableError):
        return call()
