"""Topics that were altered so that tasks could be lost or misordered are refused."""

import pytest
from kafka.admin import ConfigResource, ConfigResourceType

from scylla_spark.config.settings import Settings
from scylla_spark.errors import ConfigError
from scylla_spark.io.host.broker import EmbeddedBroker
from scylla_spark.io.kafka.topics import admin, ensure_topics, with_broker

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("topics")
    with EmbeddedBroker(folder / "kafka") as broker:
        yield with_broker(Settings(data_dir=folder), broker.bootstrap)


def alter(settings: Settings, **values: str) -> None:
    client = admin(settings)
    configs = {name.replace("_", "."): value for name, value in values.items()}
    try:
        client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, settings.topics.outcomes, configs=configs)])
    finally:
        client.close()


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


def test_records_kept_for_ever_are_kept_long_enough(settings):
    ensure_topics(settings)
    alter(settings, retention_ms="-1")
    ensure_topics(settings)
