"""Kafka: client settings, the topics, and where the brokers are."""

from __future__ import annotations

import json
import selectors
from pathlib import Path
from typing import Any, Final

import structlog
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka.errors import KafkaError, TopicAlreadyExistsError, UnsupportedVersionError
from kafka.protocol.consumer.offsets import IsolationLevel, OffsetSpec

from scylla_spark.config.settings import Settings
from scylla_spark.duration import duration_ms
from scylla_spark.errors import ConfigError, UnreachableError
from scylla_spark.io.host import broker_files, private_files
from scylla_spark.io.kafka import access as kafka_access
from scylla_spark.io.kafka import probe
from scylla_spark.io.kafka.bounded_fetch import bounded
from scylla_spark.io.kafka.client_patches import recovering

MAX_MESSAGE_BYTES: Final = 2 * 1024 * 1024
_RUNNING_FILE = "up.json"
_END, _FIRST = -1, -2  # what Kafka calls these offsets

log = structlog.get_logger("kafka")


class _Selector(selectors.DefaultSelector):
    """The default selector, with a cheap answer for sockets that are not registered.

    kafka-python asks for an unregistered socket at every wait, and the standard library formats the socket (two system
    calls) into the KeyError that is then thrown away: a tenth of the client's CPU.
    """

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key: selectors.SelectorKey | None = vars(self)["_fd_to_key"].get(number)
        if key is None:
            raise KeyError
        return key


def announce(data_dir: Path, facts: dict[str, Any]) -> None:
    """Writes where the processes of a data directory are to be found; `located` reads it."""
    private_files.write(data_dir / _RUNNING_FILE, json.dumps(facts))


def announced(data_dir: Path) -> dict[str, Any]:
    """What `announce` wrote last; empty if nothing."""
    try:
        facts = json.loads((data_dir / _RUNNING_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def located(settings: Settings) -> Settings:
    """The settings with the broker's address filled in.

    Raises:
        UnreachableError: none is configured and `up` has never run on the data directory.
    """
    if settings.kafka.bootstrap_servers:
        return settings
    facts = announced(settings.data_dir)
    address = facts.get("kafka")
    if not address:
        raise UnreachableError(
            f"No Kafka broker is configured and nothing runs on {settings.data_dir}.",
            hint="Start `scylla-spark up --data DIR`, or set kafka.bootstrap_servers.",
        )
    secret = broker_files.secret_file(broker_folder(settings)) if facts.get("auth") else None
    return with_broker(settings, str(address), secret)


def broker_folder(settings: Settings) -> Path:
    """Where the embedded broker of a data directory keeps what it has."""
    return settings.data_dir / "kafka"


def with_broker(settings: Settings, address: str, secret_file: Path | None = None) -> Settings:
    """The settings with another broker address.

    Args:
        settings: to change.
        address: host:port of the brokers.
        secret_file: of an embedded broker that wants one; None: access as the settings say.
    """
    access: dict[str, Any] = {}
    if secret_file is not None:
        access = {
            "auth": "scram",
            "scram_mechanism": "SCRAM-SHA-512",
            "username": broker_files.CLIENT_USER,
            "password_file": secret_file,
        }
    kafka = settings.kafka.model_copy(update={"bootstrap_servers": address} | access)
    return settings.model_copy(update={"kafka": kafka})


def client_options(settings: Settings) -> dict[str, Any]:
    """Connection options that our kafka-python producers and consumers share.

    Raises:
        ConfigError: a file of certificates or secrets cannot be read.
    """
    kafka = settings.kafka
    return {
        "bootstrap_servers": kafka.bootstrap_servers.split(","),
        "request_timeout_ms": duration_ms(kafka.request_timeout),
        "bootstrap_timeout_ms": duration_ms(kafka.request_timeout),
        "allow_auto_create_topics": False,
        "selector": _Selector,
        "metrics_enabled": False,  # its sensors cost more than the requests they count, and nobody reads them
    } | kafka_access.python_options(kafka)


def spark_options(settings: Settings) -> dict[str, str]:
    """Connection options for Spark's Kafka source and sink.

    Raises:
        ConfigError: a file of certificates or secrets cannot be read.
    """
    options = {"bootstrap.servers": settings.kafka.bootstrap_servers} | kafka_access.java_options(settings.kafka)
    return {f"kafka.{name}": value for name, value in options.items()}


def source_options(settings: Settings) -> dict[str, str]:
    """Options of Spark's Kafka source: connection, and which records of transactions it reads.

    Raises:
        ConfigError: a file of certificates or secrets cannot be read.
    """
    return spark_options(settings) | {"kafka.isolation.level": settings.kafka.isolation_level}


def producer(settings: Settings, **options: Any) -> KafkaProducer:
    """A producer with acks=all, idempotence and a delivery timeout in seconds.

    Raises:
        UnreachableError: no broker answers.
    """
    # kafka-python may land a batch that it reported as expired; whoever sends facts must fence after a failure
    defaults = {"delivery_timeout_ms": 15_000, "max_block_ms": 15_000, "max_request_size": MAX_MESSAGE_BYTES}
    return _connected(lambda: recovering(KafkaProducer(**client_options(settings) | defaults | options)), settings)


def consumer(settings: Settings, **options: Any) -> KafkaConsumer:
    """A consumer that commits nothing by itself and never resets its position silently.

    Raises:
        UnreachableError: no broker answers.
    """
    defaults = {
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
        "max_poll_records": 5_000,
        "fetch_max_bytes": 16 * 1024 * 1024,
        "max_partition_fetch_bytes": MAX_MESSAGE_BYTES,
        "isolation_level": settings.kafka.isolation_level,
    }
    return _connected(lambda: bounded(KafkaConsumer(**client_options(settings) | defaults | options)), settings)


def admin(settings: Settings) -> KafkaAdminClient:
    """An admin client.

    Raises:
        UnreachableError: no broker answers.
    """
    options = client_options(settings)
    del options["allow_auto_create_topics"], options["metrics_enabled"]
    return _connected(lambda: KafkaAdminClient(**options), settings)


def end_offsets(settings: Settings, topic: str, partitions: list[int]) -> dict[int, int]:
    """End offset of each partition of a topic, by a round trip.

    Args:
        settings: with the broker.
        topic: its name.
        partitions: numbers of those asked for.
    """
    (ends,) = _offsets(settings, topic, partitions, _END)
    return ends


def newest_append_us(settings: Settings) -> int:
    """The newest append time of all records of `tasks` and `outcomes`, by a round trip; brokers before 3.0 do not say it.

    Args:
        settings: with the broker.

    Returns:
        Microseconds since the epoch; 0: there is no record, or it is not known.
    """
    topics, client = settings.topics, admin(settings)
    places = [TopicPartition(topics.tasks, number) for number in range(settings.partitions)]
    places += [TopicPartition(topics.outcomes, number) for number in range(settings.partitions + 1)]
    try:
        found = client.list_partition_offsets(dict.fromkeys(places, OffsetSpec.MAX_TIMESTAMP))
    except UnsupportedVersionError:
        return 0
    finally:
        client.close()
    return 1000 * max(0, *(int(place.timestamp) for place in found.values()))


def offset_ranges(settings: Settings, topic: str, partitions: list[int]) -> dict[int, tuple[int, int]]:
    """First offset that is still kept, and end offset, of each partition of a topic.

    Args:
        settings: with the broker.
        topic: its name.
        partitions: numbers of those asked for.
    """
    firsts, ends = _offsets(settings, topic, partitions, _FIRST, _END)
    return {number: (firsts[number], ends[number]) for number in partitions}


def _offsets(settings: Settings, topic: str, partitions: list[int], *which: int) -> list[dict[int, int]]:
    isolation = IsolationLevel[settings.kafka.isolation_level.upper()]  # so that ends are those which consumers come to
    client = admin(settings)  # a consumer would first wait a tenth of a second for the topic's metadata
    try:
        answers = [
            client.list_partition_offsets({TopicPartition(topic, n): wanted for n in partitions}, isolation)
            for wanted in which
        ]
    finally:
        client.close()
    return [{place.partition: found.offset for place, found in answer.items()} for answer in answers]


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
        UnreachableError: no broker answers.
    """
    wanted = plan_topics(settings)
    client = admin(settings)
    try:
        present = set(client.list_topics())
        for name, options in wanted.items():
            if name not in present:
                try:
                    client.create_topics({name: options}, wait_for_metadata=True)
                except TopicAlreadyExistsError:
                    continue
        return _check_topics(client, wanted, settings)
    finally:
        client.close()


def partition_count(settings: Settings, topic: str) -> int:
    """How many partitions a topic has.

    Raises:
        UnreachableError: no broker answers.
    """
    client = admin(settings)
    try:
        (described,) = client.describe_topics([topic])
        return len(described["partitions"])
    finally:
        client.close()


def _check_topics(client: KafkaAdminClient, wanted: dict[str, dict[str, Any]], settings: Settings) -> dict[str, str]:
    sources = {settings.topics.tasks, settings.topics.outcomes}
    described = {topic["name"]: topic for topic in client.describe_topics(list(wanted))}
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
    found = client.describe_configs(
        [ConfigResource(ConfigResourceType.TOPIC, name) for name in wanted], config_filter="all"
    )
    for name, entries in found.get("topic", found).items():
        values = {key: str(entry["value"] if isinstance(entry, dict) else entry) for key, entry in entries.items()}
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


def _has_begun(client: KafkaAdminClient, counts: dict[str, int], settings: Settings) -> bool:
    """Whether a deployment with as many partitions has worked here: then `tasks` was enlarged later, which no topic can take back."""
    topic, count = settings.topics.outcomes, settings.partitions + 1
    if counts[topic] != count:
        return False
    ends = client.list_partition_offsets({TopicPartition(topic, number): _END for number in range(count)})
    return any(found.offset > 0 for found in ends.values())


def _connected(make: Any, settings: Settings) -> Any:
    try:
        return make()
    except KafkaError as error:
        cause, servers = error, settings.kafka.bootstrap_servers
    fault = probe.first_fault(settings)
    if fault is not None:
        raise UnreachableError(
            f"Kafka at {servers} does not let us in: {fault}.",
            hint=f"{fault.mend}; `scylla-spark doctor kafka` looks closer.",
        ) from cause
    raise UnreachableError(
        f"No Kafka broker answers at {servers} ({type(cause).__name__}).",
        hint="Check kafka.bootstrap_servers and that the broker runs; `scylla-spark doctor kafka` looks closer.",
    ) from cause
