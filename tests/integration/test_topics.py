"""Topics that were altered so that tasks could be lost or misordered are refused."""

import threading

import pytest
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions

from scylla_spark.clock import now_us
from scylla_spark.config.settings import Settings
from scylla_spark.errors import ConfigError, UnreachableError
from scylla_spark.io.host.broker_files import free_port
from scylla_spark.io.kafka.topic_setup import ensure_topics, partition_count
from scylla_spark.io.kafka.topics import admin, consumer, newest_append_us, producer
from tests.support.shared_broker import settings_on
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def settings(broker, tmp_path_factory):
    return settings_on(broker, tmp_path_factory.mktemp("topics"))


def alter(settings: Settings, **values: str) -> None:
    client = admin(settings)
    configs = {name.replace("_", "."): value for name, value in values.items()}
    try:
        client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, settings.topics.outcomes, configs=configs)])
        eventually(lambda: _has(client, settings.topics.outcomes, configs), 10, "the broker goes by what was altered")
    finally:
        client.close()


def _has(client, topic: str, wanted: dict[str, str]) -> bool:
    found = client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
    entries = found.get("topic", found)[topic]
    return all(
        str(entries[name]["value"] if isinstance(entries[name], dict) else entries[name]) == value
        for name, value in wanted.items()
    )


@pytest.mark.parametrize(
    ("unsafe", "safe"),
    [
        ({"cleanup_policy": "compact"}, {"cleanup_policy": "delete"}),
        ({"message_timestamp_type": "CreateTime"}, {"message_timestamp_type": "LogAppendTime"}),
        ({"unclean_leader_election_enable": "true"}, {"unclean_leader_election_enable": "false"}),
        ({"retention_ms": "604799999"}, {"retention_ms": "604800000"}),
    ],
)
def test_settings_of_a_topic_that_endanger_tasks_are_refused(settings, unsafe, safe):
    identities = ensure_topics(settings)
    alter(settings, **unsafe)
    with pytest.raises(ConfigError, match=next(iter(unsafe)).replace("_", r"\.")):
        ensure_topics(settings)
    alter(settings, **safe)
    assert ensure_topics(settings) == identities


@pytest.mark.promise
def test_the_newest_append_time_is_that_of_any_partition_of_both_topics(settings):
    ensure_topics(settings)
    before = now_us()
    with producer(settings) as sender:
        for topic, partition in ((settings.topics.tasks, 0), (settings.topics.outcomes, settings.partitions)):
            appended_us = sender.send(topic, b"{}", partition=partition).get(timeout=10).timestamp * 1000
            assert newest_append_us(settings) == appended_us >= before - 1_000_000


def test_records_kept_for_ever_are_kept_long_enough(settings):
    ensure_topics(settings)
    alter(settings, retention_ms="-1")
    ensure_topics(settings)


def test_a_topic_that_was_enlarged_is_refused_only_where_no_deployment_has_worked(broker, tmp_path):
    settings = settings_on(broker, tmp_path, partitions=2)
    tasks, outcomes = settings.topics.tasks, settings.topics.outcomes
    ensure_topics(settings)
    client = admin(settings)
    try:
        client.create_partitions({tasks: NewPartitions(3)})
    finally:
        client.close()
    with pytest.raises(ConfigError, match=f"'{tasks}' has 3 partitions; these settings need 2"):
        ensure_topics(settings)
    with producer(settings) as sender:
        sender.send(outcomes, b"{}", partition=1).get(timeout=10)
    assert set(ensure_topics(settings)) == {tasks, outcomes}
    assert partition_count(settings, tasks) == 3
    with pytest.raises(ConfigError, match=f"'{tasks}' has 3 partitions; these settings need 1"):
        ensure_topics(settings.model_copy(update={"partitions": 1}))


@pytest.mark.parametrize("make", [admin, producer, consumer])
def test_a_client_that_cannot_connect_leaves_no_thread_behind(tmp_path, make):
    before = set(threading.enumerate())
    kafka = {"bootstrap_servers": f"127.0.0.1:{free_port()}", "request_timeout": "1s"}
    with pytest.raises(UnreachableError):
        make(Settings(_env_file=None, data_dir=tmp_path, kafka=kafka))
    eventually(lambda: set(threading.enumerate()) <= before, 10, "its thread has ended", threading.enumerate)
