"""Kafka: where the brokers are, clients with our settings, and offsets."""

from __future__ import annotations

import fcntl
import json
import selectors
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import (
    KafkaError,
    LeaderNotAvailableError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from kafka.net.compat import KafkaNetClient
from kafka.protocol.consumer.offsets import IsolationLevel, OffsetSpec

from scylla_spark.clock import boot_us
from scylla_spark.config.kafka import Kafka
from scylla_spark.config.settings import Settings
from scylla_spark.duration import duration_ms
from scylla_spark.errors import UnreachableError
from scylla_spark.io.host import broker_files, private_files
from scylla_spark.io.kafka import access as kafka_access
from scylla_spark.io.kafka import probe
from scylla_spark.io.kafka.bounded_fetch import bounded
from scylla_spark.io.kafka.client_patches import ending_waits, recovering

MAX_MESSAGE_BYTES: Final = 2 * 1024 * 1024
_RUNNING_FILE = "up.json"
LOCK_FILE: Final = "up.lock"
END, _FIRST = -1, -2  # what Kafka calls these offsets
_KNOWN_WITHIN_S, _KNOWN_POLL_S = 10.0, 0.1
CONNECT_MS: Final = 3_000  # how long somebody who waits waits for a connection …
WAIT_MS: Final = 5_000  # … and for an answer
_SILENT_US: Final = 2_000_000
_AGAIN_S: Final = 0.5  # between two questions to a broker that is started again
_LOOK: Final = (
    "Check that the broker runs and is neither stopped nor overloaded; `scylla-spark doctor kafka` looks closer."
)
_answered: Final[list[Kafka]] = []
"""Settings with which brokers have let this process in."""

T = TypeVar("T")


class Silence:
    """Takes turns at a client of Kafka, and remembers for a moment that no broker has answered.

    Those who have waited for their turn meanwhile fail with the same error, and do not wait for the broker again.

    Args:
        lock: held during a turn.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._error: UnreachableError | None = None
        self._until_us = 0

    @contextmanager
    def turn(self) -> Iterator[None]:
        """As long as this lasts, the client is the caller's.

        Raises:
            UnreachableError: no broker has answered a moment ago, or somebody else waits too long, for example for a resolver.
        """
        if not self._lock.acquire(timeout=(CONNECT_MS + WAIT_MS) / 1000):
            raise UnreachableError("Kafka has not answered another question yet.", hint=_LOOK)
        try:
            self._check()
            yield
        finally:
            self._lock.release()

    def _check(self) -> None:
        if self._error is not None and boot_us() < self._until_us:
            raise UnreachableError(self._error.message, hint=self._error.hint)

    def met(self, error: UnreachableError) -> UnreachableError:
        """Takes note of an error; the same error."""
        self._error, self._until_us = error, boot_us() + _SILENT_US
        return error


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
    """Returns what `announce` wrote last; empty if nothing."""
    try:
        facts = json.loads((data_dir / _RUNNING_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def announced_by_running(data_dir: Path) -> dict[str, Any]:
    """Returns what `announce` wrote last, if the process that wrote it, or the next one, still serves the data directory; else empty.

    The file outlives its process, for example at a reboot, and other processes may listen at its addresses then.
    """
    try:
        with (data_dir / LOCK_FILE).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return announced(data_dir)
    except OSError:
        return {}
    return {}


def located(settings: Settings) -> Settings:
    """The settings with the broker's address filled in.

    Raises:
        UnreachableError: none is configured and no `up` runs on the data directory.
    """
    if settings.kafka.bootstrap_servers:
        return settings
    facts = announced_by_running(settings.data_dir)
    address = facts.get("kafka")
    if not address:
        raise UnreachableError(
            f"No Kafka broker is configured and nothing runs on {settings.data_dir}.",
            hint="Start `scylla-spark up --data DIR` and name the same folder (in Python: data_dir=DIR), or set kafka.bootstrap_servers.",
        )
    secret = broker_files.secret_file(broker_folder(settings)) if facts.get("auth") else None
    return with_broker(settings, str(address), secret)


def broker_folder(settings: Settings) -> Path:
    """Returns where the embedded broker of a data directory keeps what it has."""
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
    return recovering(_connected(KafkaProducer, client_options(settings) | defaults | options, settings))


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
    return bounded(_connected(KafkaConsumer, client_options(settings) | defaults | options, settings))


def client_consumer(settings: Settings, **options: Any) -> KafkaConsumer:
    """A consumer for somebody who waits: each question to a broker ends after `WAIT_MS`, whatever the broker does.

    Raises:
        UnreachableError: no broker answers.
    """
    return ending_waits(consumer(settings, **{"bootstrap_timeout_ms": CONNECT_MS} | options), WAIT_MS)


def admin(settings: Settings, **options: Any) -> KafkaAdminClient:
    """An admin client.

    Raises:
        UnreachableError: no broker answers.
    """
    options = client_options(settings) | options
    del options["allow_auto_create_topics"], options["metrics_enabled"]
    return _connected(KafkaAdminClient, options, settings)


def end_offsets(settings: Settings, topic: str, partitions: list[int], wait_ms: int | None = None) -> dict[int, int]:
    """End offset of each partition of a topic, by a round trip.

    Args:
        settings: with the broker.
        topic: its name.
        partitions: numbers of those asked for.
        wait_ms: how long to connect, and to wait for the answer, milliseconds. Default: as the settings say.

    Raises:
        UnreachableError: no broker answers.
    """
    (ends,) = _offsets(settings, topic, partitions, END, wait_ms=wait_ms)
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
        wanted = dict.fromkeys(places, OffsetSpec.MAX_TIMESTAMP)
        found = once_known(lambda: client.list_partition_offsets(wanted), "the newest records of the topics")
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
    firsts, ends = _offsets(settings, topic, partitions, _FIRST, END)
    return {number: (firsts[number], ends[number]) for number in partitions}


def _offsets(
    settings: Settings, topic: str, partitions: list[int], *which: int, wait_ms: int | None = None
) -> list[dict[int, int]]:
    isolation = IsolationLevel[settings.kafka.isolation_level.upper()]  # so that ends are those which consumers come to
    waits = {"bootstrap_timeout_ms": wait_ms, "request_timeout_ms": wait_ms} if wait_ms is not None else {}
    client = admin(settings, **waits)  # a consumer would first wait a tenth of a second for the topic's metadata
    try:
        answers = [
            once_known(
                partial(
                    client.list_partition_offsets, {TopicPartition(topic, n): wanted for n in partitions}, isolation
                ),
                f"the offsets of topic {topic!r}",
            )
            for wanted in which
        ]
    except KafkaError as error:
        if wait_ms is None:
            raise
        raise unanswered(settings, error) from error
    finally:
        client.close()
    return [{place.partition: found.offset for place, found in answer.items()} for answer in answers]


def once_known(read: Callable[[], T], what: str) -> T:
    """Reads metadata of topics, and repeats that while the broker that answers does not know a topic yet.

    In a cluster each broker learns of a new topic by itself, and each request may go to another broker.

    Args:
        read: raises a retriable KafkaError while the metadata is not there.
        what: is read, for the error.

    Raises:
        UnreachableError: no broker knew it within ten seconds.
    """
    until = time.monotonic() + _KNOWN_WITHIN_S
    while True:
        try:
            return read()
        except (UnknownTopicOrPartitionError, LeaderNotAvailableError) as error:
            if time.monotonic() > until:
                raise UnreachableError(
                    f"Kafka does not report {what} ({type(error).__name__}: {error}).",
                    hint="Check that the topics exist and that this user may describe them: `scylla-spark doctor kafka`.",
                ) from error
        time.sleep(_KNOWN_POLL_S)


def unanswered(
    settings: Settings, error: BaseException, hint: str = "", *, within_s: float | None = None
) -> UnreachableError:
    """The error for a broker that did not answer.

    Args:
        settings: with the broker.
        error: what the client library raised.
        hint: what to do; default: to look at the broker.
        within_s: how long it was waited for, seconds, if that is known; a final refusal is not waited for.
    """
    said = str(error).removeprefix(f"{type(error).__name__}: ") or "no answer"
    limit = f" within {within_s:g} s" if within_s is not None and getattr(error, "retriable", True) else ""
    return UnreachableError(
        f"Kafka at {settings.kafka.bootstrap_servers} did not answer{limit} ({type(error).__name__}: {said}).",
        hint=hint or _LOOK,
    )


def waiting_out(settings: Settings, call: Callable[[], T], deadline_us: int) -> T:
    """Repeats a call that changes nothing while a broker that has answered before does not answer, as while it is started again.

    Args:
        settings: with the broker.
        call: raises KafkaError or UnreachableError where the broker does not answer.
        deadline_us: boot clock; what the call raises then is raised. At once, if no broker of these settings has ever answered, or if
            Kafka's refusal is final, as without a right to the topic.
    """
    while True:
        try:
            return call()
        except (KafkaError, UnreachableError) as error:
            left_us = deadline_us - boot_us()
            final = isinstance(error, KafkaError) and not error.retriable
            if final or settings.kafka not in _answered or left_us <= 0:
                raise
        threading.Event().wait(min(_AGAIN_S, left_us / 1e6))


def _connected(kind: Callable[..., Any], options: Mapping[str, Any], settings: Settings) -> Any:
    """Makes a client. One whose first connection fails is closed, because its thread would try again for ever."""
    servers, begun = settings.kafka.bootstrap_servers, ExitStack()
    limit = f"within {options['bootstrap_timeout_ms'] / 1000:g} s"

    def network(**given: Any) -> KafkaNetClient:
        client = KafkaNetClient(**given)
        begun.callback(client.close)
        return client

    try:
        made = kind(**options, kafka_client=network)
    except BaseException as error:
        begun.close()
        if not isinstance(error, KafkaError):
            raise
        cause = error
    else:
        if settings.kafka not in _answered:
            _answered.append(settings.kafka)
        return made
    if settings.kafka in _answered:  # so address, certificates and login are right
        raise UnreachableError(
            f"Kafka at {servers} has answered before, and did not answer {limit} now ({type(cause).__name__}).",
            hint=_LOOK,
        ) from cause
    fault = probe.first_fault(settings)
    if fault is not None:
        raise UnreachableError(
            f"Kafka at {servers} does not let us in: {fault}.",
            hint=f"{fault.mend}; `scylla-spark doctor kafka` looks closer.",
        ) from cause
    raise UnreachableError(
        f"No Kafka broker answered at {servers} {limit} ({type(cause).__name__}).",
        hint="Check kafka.bootstrap_servers and that the broker runs; `scylla-spark doctor kafka` looks closer.",
    ) from cause
