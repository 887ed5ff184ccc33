"""What the brokers let us do: the rights that the services and clients need, and which of them we lack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from kafka.admin import KafkaAdminClient
from kafka.errors import AuthorizationError, KafkaError, for_code

from scylla_spark.config.settings import Settings
from scylla_spark.io.kafka.topic_setup import plan_topics
from scylla_spark.io.kafka.topics import admin

# Reading the settings of a topic is for `init` and ingest, which refuse topics under which tasks would be lost.
NEEDED: Final = {"topic": ("DESCRIBE", "READ", "WRITE", "DESCRIBE_CONFIGS"), "group": ("READ",)}


class Finding(NamedTuple):
    """One thing at the brokers: topic or group, and what is wrong with it ("" if nothing)."""

    kind: str
    name: str
    fault: str


def group_ids(settings: Settings) -> list[str]:
    """The consumer groups that services join: dispatchers share one, an ingest may hold another, and a planner does."""
    group = settings.dispatch.group_id
    return [group, f"{group}-ingest", f"{group}-plan"]


def findings(settings: Settings) -> Iterator[Finding]:
    """Looks at topics and groups; changes nothing.

    Raises:
        UnreachableError: no broker lets us in.
    """
    client = admin(settings)
    try:
        for topic in client.describe_topics(list(plan_topics(settings))):
            yield Finding("topic", str(topic["name"]), _topic_fault(topic))
        for group in group_ids(settings):
            yield Finding("group", group, _group_fault(client, group))
    finally:
        client.close()


def _topic_fault(topic: dict[str, Any]) -> str:
    if topic["error_code"]:
        error = for_code(topic["error_code"])
        if issubclass(error, AuthorizationError):
            return "we may not even see it"
        return "it does not exist" if error.__name__ == "UnknownTopicOrPartitionError" else error.__name__
    return _lacking("topic", topic.get("authorized_operations"))


def _group_fault(client: KafkaAdminClient, group: str) -> str:
    try:
        (described,) = client.describe_groups([group]).values()
    except AuthorizationError:
        return "we may not even see it"
    except KafkaError as error:
        return type(error).__name__
    if described.get("error_code"):
        return "we may not even see it"
    return _lacking("group", described.get("authorized_operations"))


def _lacking(kind: str, granted: list[str] | None) -> str:
    """Rights that are not granted; a broker that does not tell them is believed to grant all."""
    lacking = [name for name in NEEDED[kind] if granted and name not in granted]
    return f"we lack {', '.join(lacking)}" if lacking else ""
