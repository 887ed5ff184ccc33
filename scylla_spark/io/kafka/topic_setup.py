"""Makes the topics of a deployment, and checks those that exist."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, Final

from kafka import TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError, for_code

from scylla_spark.config.settings import Settings
from scylla_spark.duration import duration_ms
from scylla_spark.errors import ConfigError
from scylla_spark.io.kafka.topics import END, MAX_MESSAGE_BYTES, admin, once_known
from scylla_spark.log import get_logger

_UNKNOWN: Final = UnknownTopicOrPartitionError.errno

log = get_logger("kafka")


def plan_topics(settings: Settings) -> dict[str, dict[str, Any]]:
    """The topics as `init` makes them: name → partitions, replication and topic settings."""
    configs = {
        "cleanup.policy": "delete",
        "message.timestamp.type": "LogAppendTime",
        "unclean.leader.election.enable": "false",
        "retention.ms": str(duration_ms(settings.topics.retention)),
        "max.message.bytes": str(MAX_MESSAGE_BYTES),
        "min.insync.replicas": "2" if settings.topics.replication >= 3 else "1",
    }
    topics = settings.topics
    partitions = {
        topics.tasks: settings.partitions,
        topics.outcomes: settings.partitions + 1,
        topics.schedules: 1,
    }
    if settings.logs.enabled:
        partitions[topics.logs] = settings.partitions
    return {
        name: {"num_partitions": count, "replication_factor": settings.topics.replication, "configs": configs}
        for name, count in partitions.items()
    }


def ensure_topics(settings: Settings) -> dict[str, str]:
    """Makes missing topics and checks those that are there.

    Returns:
        Name → id of the topics that the tables are filled from.

    Raises:
        ConfigError: a topic has another partition count, or settings under which tasks would be lost or misordered.
        UnreachableError: no broker answers, or none reports a topic or its settings in time.
    """
    wanted = plan_topics(settings)
    client = admin(settings)
    try:
        present = set(client.list_topics())
        for name in wanted.keys() - present:
            with contextlib.suppress(TopicAlreadyExistsError):
                client.create_topics({name: wanted[name]})
        return _check_topics(client, wanted, settings)
    finally:
        client.close()


def partition_count(settings: Settings, topic: str) -> int:
    """Returns how many partitions a topic has.

    Raises:
        UnreachableError: no broker answers, or none knows the topic.
    """
    client = admin(settings)
    try:
        return len(_described(client, [topic])[topic]["partitions"])
    finally:
        client.close()


def _check_topics(client: KafkaAdminClient, wanted: dict[str, dict[str, Any]], settings: Settings) -> dict[str, str]:
    sources = {settings.topics.tasks, settings.topics.outcomes}
    described = _described(client, wanted)
    counts = {name: len(topic["partitions"]) for name, topic in described.items()}
    for name, options in wanted.items():
        count = counts[name]
        if name == settings.topics.tasks and count > options["num_partitions"] and _has_begun(client, counts, settings):
            log.error(
                "the topic has more partitions than the deployment, and nothing that stands there is run",
                topic=name, partitions=count, of_deployment=settings.partitions,
            )  # fmt: skip
        elif count != options["num_partitions"]:
            raise ConfigError(
                f"Topic {name!r} has {count} partitions; these settings need {options['num_partitions']}.",
                hint="The partition count is fixed for the life of a deployment: set `partitions` to the old count, "
                "or start a new deployment with new topics and tables.",
            )
    for name, values in _topic_settings(client, wanted).items():
        wishes = wanted[name]["configs"]
        for key in ("cleanup.policy", "message.timestamp.type", "unclean.leader.election.enable"):
            if values[key].lower() != wishes[key].lower():
                raise ConfigError(
                    f"Topic {name!r} has {key}={values[key]}.",
                    hint=f"It must be {wishes[key]}: kafka-configs --alter it.",
                )
        if 0 <= int(values["retention.ms"]) < int(wishes["retention.ms"]):
            raise ConfigError(
                f"Topic {name!r} has retention.ms={values['retention.ms']}; topics.retention asks for {wishes['retention.ms']}.",
                hint="Kafka would delete records that ingest, if it stood still that long, has not written yet: "
                "kafka-configs --alter it, or set topics.retention to what you accept.",
            )
    return {name: str(topic.get("topic_id", "")) for name, topic in described.items() if name in sources}


def _described(client: KafkaAdminClient, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    def read() -> dict[str, dict[str, Any]]:
        topics = {topic["name"]: topic for topic in client.describe_topics(list(names))}
        for name in names:
            if name not in topics or topics[name]["error_code"]:
                raise for_code(topics[name]["error_code"] if name in topics else _UNKNOWN)(name)
        return topics

    return once_known(read, f"the topics {', '.join(names)}")


def _topic_settings(client: KafkaAdminClient, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Topic → its settings. The client drops the error code of a topic; a topic without settings is one with an error."""
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]

    def read() -> dict[str, dict[str, str]]:
        topics = client.describe_configs(resources, config_filter="all")["topic"]
        if unknown := [name for name, entries in topics.items() if not entries]:
            raise UnknownTopicOrPartitionError(", ".join(unknown))
        return {name: {key: str(entry["value"]) for key, entry in entries.items()} for name, entries in topics.items()}

    return once_known(read, "the settings of the topics (this needs the right DescribeConfigs)")


def _has_begun(client: KafkaAdminClient, counts: dict[str, int], settings: Settings) -> bool:
    """Whether a deployment with as many partitions has worked here: then `tasks` was enlarged later, which no topic can take back."""
    topic, count = settings.topics.outcomes, settings.partitions + 1
    if counts[topic] != count:
        return False
    places = {TopicPartition(topic, number): END for number in range(count)}
    ends = once_known(lambda: client.list_partition_offsets(places), f"the offsets of topic {topic!r}")
    return any(found.offset > 0 for found in ends.values())
