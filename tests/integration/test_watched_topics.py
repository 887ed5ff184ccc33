"""Watched topics on a real broker: offsets, sizes, and the troubles that brokers report."""

from uuid import uuid4

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.admin import NewPartitions, NewTopic

from scylla_spark.core.plan.topics.growth import MOST_PARTITIONS, TopicOffsets
from scylla_spark.io.kafka import topic_sizes
from scylla_spark.io.kafka.topic_offsets import WatchedTopics
from scylla_spark.io.kafka.topic_sizes import Sized, TopicSizes
from scylla_spark.io.kafka.topics import admin, client_options
from scylla_spark.services.plan.topic_watcher import TopicWatcher
from tests.spark.raw_batches import batch, send_batch
from tests.support.planner_harness import PlannerHarness
from tests.support.shared_broker import settings_on
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def settings(broker, tmp_path_factory):
    return settings_on(broker, tmp_path_factory.mktemp("watched"))


@pytest.fixture(scope="module")
def client(settings):
    found = admin(settings)
    yield found
    found.close()


@pytest.fixture
def watched(settings):
    found = WatchedTopics(settings)
    yield found
    found.close()


@pytest.fixture
def topic(settings, client):
    """A new topic of two partitions."""
    name = f"orders-{uuid4().hex}"
    made(client, name)
    return name


def made(client, name, partitions=2):
    client.create_topics([NewTopic(name, partitions, 1)])
    client.wait_for_topics([name])


def produced(settings, topic, partition, *values):
    with KafkaProducer(**client_options(settings)) as producer:
        for value in values:
            producer.send(topic, value, partition=partition)
        producer.flush()


def test_offsets_of_all_topics_come_together_and_a_missing_one_spoils_none(settings, watched, topic):
    produced(settings, topic, 1, b"a", b"b")
    found = watched.look([topic, f"{topic}-none"])
    assert found[f"{topic}-none"].kind == "missing"
    assert isinstance(found[topic], TopicOffsets)
    assert (found[topic].firsts, found[topic].ends) == ({0: 0, 1: 0}, {0: 0, 1: 2})
    assert len(found[topic].topic_id) == 36


def test_a_topic_with_too_many_partitions_is_refused(watched, client, topic):
    many = f"{topic}-many"
    client.create_topics([NewTopic(many, MOST_PARTITIONS + 1, 1)])
    try:
        assert eventually(lambda: watched.look([many])[many], 30).kind == "unsuitable"
    finally:
        client.delete_topics([many])


def test_bytes_are_those_of_batches_in_the_topic_and_a_part_of_a_batch_has_its_share(settings, topic):
    first, second = batch(0, *[(b"k", b"v" * 100, [])] * 4), batch(3, (b"k", b"x" * 1_000_000, []))
    for data in (first, second):
        send_batch(settings.kafka.bootstrap_servers, topic, 0, data)
    sizes = TopicSizes(settings)
    try:
        assert sizes.of(topic, {0: (0, 5)}) == {0: Sized(0, 5, len(first) + len(second))}
        assert len(second) < 10_000, "compressed, as it is in the topic"
        assert sizes.of(topic, {0: (3, 4)}) == {0: Sized(3, 4, len(first) // 4)}
    finally:
        sizes.close()


def test_what_one_look_does_not_reach_counts_by_the_mean(settings, topic, monkeypatch):
    one = batch(0, (b"k", b"v" * 1_000, []))
    for _ in range(20):
        send_batch(settings.kafka.bootstrap_servers, topic, 0, one)
    monkeypatch.setattr(topic_sizes, "MOST_BYTES", 3 * len(one))
    sizes = TopicSizes(settings)
    try:
        assert sizes.of(topic, {0: (0, 20)}) == {0: Sized(0, 20, 20 * len(one))}
    finally:
        sizes.close()


def test_a_topic_that_loses_gains_and_is_made_again_hands_each_of_its_records_to_one_run(settings, client, topic):
    plan, watcher = PlannerHarness(), TopicWatcher(settings)
    fields = {"parts": "{{ topic.partitions }}", "lost": "{{ topic.lost }}"}
    plan.put("s", {"kind": "topic", "topic": topic, "bytes": 10}, overlap="allow_all", payload=fields)

    def look():
        watcher.exchange(plan.planner, plan.now)
        watcher.look(watcher._wanted)
        watcher.exchange(plan.planner, plan.now)
        plan.turn()
        return plan.sent

    def launched(count):
        return [run["taskData"] for run in eventually(lambda: len(look()) >= count and plan.sent[count - 1 :], 30)]

    look()
    try:
        produced(settings, topic, 0, b"a", b"b")
        assert launched(1) == [{"parts": {"0": [0, 1]}, "lost": 0}]
        produced(settings, topic, 1, b"c", b"d", b"e")
        client.delete_records({TopicPartition(topic, 1): 2})
        assert launched(2) == [{"parts": {"1": [2, 2]}, "lost": 2}]
        client.create_partitions({topic: NewPartitions(3)})
        client.wait_for_topics([topic])
        produced(settings, topic, 2, b"f")
        assert launched(3) == [{"parts": {"2": [0, 0]}, "lost": 0}]
        client.delete_topics([topic])
        eventually(lambda: look() and "missing" in plan.fires[-1]["why"], 30)
        made(client, topic)
        produced(settings, topic, 0, b"g")
        assert launched(4) == [{"parts": {"0": [0, 0]}, "lost": 0}]
    finally:
        watcher._topics.close()
        watcher._sizes.close()
    kinds = [fire["why"].split(":")[0] for fire in plan.fires if fire["verdict"] == "trouble"]
    assert kinds == ["truncated", "missing", "replaced"]
