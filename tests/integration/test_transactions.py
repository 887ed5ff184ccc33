"""Producers with transactions: what was aborted never runs, what is open holds back what stands behind it, and marks stop nobody."""

import json
import time
from contextlib import contextmanager

import pytest
from kafka import KafkaProducer, TopicPartition

from scylla_spark.client.scheduler import Scheduler
from scylla_spark.clock import iso, now_us
from scylla_spark.io.delta.new_tables import ensure_tables
from scylla_spark.io.kafka.decompression import ZSTD
from scylla_spark.io.kafka.topic_setup import ensure_topics
from scylla_spark.io.kafka.topics import consumer, end_offsets
from scylla_spark.processes.deployment import Deployment
from scylla_spark.services.dispatch.service import DispatchService
from tests.spark.raw_batches import batch, send_batch
from tests.support import sample_handlers
from tests.support.shared_broker import settings_on
from tests.support.waiting import eventually, holds

LANE = "cust-9"


@pytest.fixture(scope="module")
def settings(broker, tmp_path_factory):
    dispatch = {"scan": "reader", "trigger": "200ms", "session_timeout": "6s"}
    settings = settings_on(
        broker,
        tmp_path_factory.mktemp("transactions"),
        partitions=1,
        dispatch=dispatch,
        handlers=[sample_handlers.__file__],
    )
    ensure_tables(settings, ensure_topics(settings), now=now_us())
    return settings


def record(name):
    now = iso(now_us())
    return {
        "orderingId": LANE, "scheduledTime": now, "uniquenessKey": name, "taskData": {"name": name}, "handler": "echo",
        "enqueuedAt": now,
    }  # fmt: skip


@contextmanager
def transaction(settings, name, *tasks):
    """A transaction of a foreign producer that holds some tasks, open; the caller ends it."""
    tasks_topic = settings.topics.tasks
    producer = KafkaProducer(
        bootstrap_servers=settings.kafka.bootstrap_servers,
        acks="all",
        transactional_id=f"{tasks_topic}-{name}",
        transaction_timeout_ms=30_000,
    )
    try:
        producer.init_transactions()
        producer.begin_transaction()
        for task in tasks:
            producer.send(tasks_topic, key=LANE.encode(), value=json.dumps(record(task)).encode())
        producer.flush()
        yield producer
    finally:
        producer.close(timeout=5)


@contextmanager
def dispatching(settings):
    with Deployment(settings, roles=("dispatch",)) as deployment:
        engine = deployment.service(DispatchService).dispatcher.engine
        eventually(
            lambda: [one.state for one in engine.partitions.values()] == ["active"], 30, "the partition is taken"
        )
        yield engine.partitions[0]


def seen(settings):
    """What consumers of ours are given of `tasks`, up to its end."""
    end, found = end_offsets(settings, settings.topics.tasks, [0])[0], []
    with consumer(settings) as reader:
        place = TopicPartition(settings.topics.tasks, 0)
        reader.assign([place])
        reader.seek(place, 0)
        until = time.monotonic() + 20
        while reader.position(place) < end:
            assert time.monotonic() < until, f"it stands at {reader.position(place)} of {end}"
            found += [one for records in reader.poll(timeout_ms=500).values() for one in records]
    return [json.loads(one.value)["uniquenessKey"] for one in found]


@pytest.mark.promise
def test_what_was_aborted_never_runs_and_nothing_waits_for_the_mark_at_the_end(settings):
    with transaction(settings, "first", "a", "b") as producer:
        producer.commit_transaction()
    with transaction(settings, "second", "never") as producer:
        producer.abort_transaction()
    assert seen(settings) == ["a", "b"]
    with dispatching(settings) as partition, Scheduler(settings) as scheduler:
        eventually(lambda: partition.tasks_position == 5, 10, "it has passed both marks")
        assert scheduler.enqueue("echo", {"n": 1}, ordering_id=LANE).result(30)["payload"] == {"n": 1}
        eventually(lambda: len(partition.ended) == 3, 10, "all that was committed has run")


@pytest.mark.promise
def test_a_batch_that_is_skipped_at_the_end_holds_up_no_take(settings):
    bomb = batch(ZSTD, (LANE.encode(), b"x" * 80_000_000, []))
    send_batch(settings.kafka.bootstrap_servers, settings.topics.tasks, 0, bomb)
    with dispatching(settings) as partition:
        eventually(
            lambda: partition.tasks_position == end_offsets(settings, settings.topics.tasks, [0])[0],
            10,
            "it has passed it",
        )


def test_an_open_transaction_holds_back_what_stands_behind_it_until_it_ends(settings):
    with dispatching(settings) as partition, Scheduler(settings) as scheduler:
        begin = end_offsets(settings, settings.topics.tasks, [0])[0]
        with transaction(settings, "third", "open") as producer:
            behind = scheduler.enqueue("echo", {"n": 2}, ordering_id=LANE)
            eventually(lambda: partition.tasks_position == begin, 10, "it has passed all that is before")
            assert not holds(lambda: partition.tasks_position > begin, 1)
            producer.commit_transaction()
        assert behind.result(30)["payload"] == {"n": 2}


def test_without_isolation_all_records_count_at_once(settings):
    with transaction(settings, "fourth", "nobody's") as producer:
        producer.abort_transaction()
    at_once = settings.model_copy(
        update={"kafka": settings.kafka.model_copy(update={"isolation_level": "read_uncommitted"})}
    )
    assert "nobody's" not in seen(settings)
    assert "nobody's" in seen(at_once)
