"""Offsets of topics that triggers watch: which topic it is, what it keeps, and where it ends. Every question ends in time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError, for_code
from kafka.protocol.consumer.offsets import IsolationLevel, OffsetSpec

from scylla_spark.config.settings import Settings
from scylla_spark.core.plan.topics.growth import MOST_PARTITIONS, TopicOffsets
from scylla_spark.io.kafka.topics import CONNECT_MS, WAIT_MS, admin

UNREACHABLE: Final = "unreachable"
MISSING: Final = "missing"
_NO_ID: Final = "00000000-0000-0000-0000-000000000000"


class TopicTrouble(NamedTuple):
    """A reason for which a topic cannot be watched.

    Attributes:
        kind: missing: there is none; denied: this user may not read it; unreachable: brokers do not answer for it; unsuitable: it has
            too many partitions.
        why: for people.
    """

    kind: str
    why: str


class WatchedTopics:
    """Asks brokers for offsets, with a client that is kept between looks. Not thread safe.

    Args:
        settings: with the broker's address.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._isolation = IsolationLevel[settings.kafka.isolation_level.upper()]
        self._client: KafkaAdminClient | None = None

    def look(self, topics: Collection[str]) -> Mapping[str, TopicOffsets | TopicTrouble]:
        """Returns the offsets of topics, or why there are none.

        Args:
            topics: their names.

        Raises:
            KafkaError: no broker answers in time.
            UnreachableError: no broker can be connected to.
        """
        found: dict[str, TopicOffsets | TopicTrouble] = {}
        places: dict[str, tuple[str, list[int]]] = {}
        for told in self._opened().describe_topics(sorted(topics)):
            name, trouble = told["name"], _trouble(told)
            if trouble is None:
                identity = str(told.get("topic_id") or _NO_ID)
                numbers = [one["partition_index"] for one in told["partitions"]]
                places[name] = ("" if identity == _NO_ID else identity, numbers)
            else:
                found[name] = trouble
        try:
            return found | self._offsets(places)
        except KafkaError:  # a single partition without a leader fails all that were asked for together
            return found | {name: self._alone(name, place) for name, place in places.items()}

    def close(self) -> None:
        """Ends the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _alone(self, name: str, place: tuple[str, list[int]]) -> TopicOffsets | TopicTrouble:
        try:
            return self._offsets({name: place})[name]
        except KafkaError as error:
            return trouble_of(name, error)

    def _offsets(self, places: Mapping[str, tuple[str, list[int]]]) -> dict[str, TopicOffsets]:
        if not places:
            return {}
        firsts, ends = (self._listed(places, which) for which in (OffsetSpec.EARLIEST, OffsetSpec.LATEST))
        return {name: TopicOffsets(identity, firsts[name], ends[name]) for name, (identity, _) in places.items()}

    def _listed(self, places: Mapping[str, tuple[str, list[int]]], which: OffsetSpec) -> dict[str, dict[int, int]]:
        wanted = {TopicPartition(name, number): which for name, (_, numbers) in places.items() for number in numbers}
        answer = self._opened().list_partition_offsets(wanted, self._isolation, timeout_ms=WAIT_MS)
        found: dict[str, dict[int, int]] = {name: {} for name in places}
        for place, offset in answer.items():
            found[place.topic][place.partition] = offset.offset
        return found

    def _opened(self) -> KafkaAdminClient:
        if self._client is None:
            self._client = admin(self._settings, bootstrap_timeout_ms=CONNECT_MS, request_timeout_ms=WAIT_MS)
        return self._client


def trouble_of(topic: str, error: BaseException) -> TopicTrouble:
    """Returns the trouble that an error means."""
    if isinstance(error, UnknownTopicOrPartitionError):
        return TopicTrouble(MISSING, f"There is no topic {topic!r}.")
    if isinstance(error, TopicAuthorizationFailedError):
        return TopicTrouble(
            "denied",
            f"The planner's Kafka user may not read the topic {topic!r}. Give it the rights Describe and Read.",
        )
    return TopicTrouble(UNREACHABLE, f"The topic {topic!r} cannot be read: {type(error).__name__}.")


def _trouble(told: Mapping[str, Any]) -> TopicTrouble | None:
    name, code = told["name"], told["error_code"]
    if code:
        return trouble_of(name, for_code(code)())
    many = len(told["partitions"])
    if many > MOST_PARTITIONS:
        return TopicTrouble(
            "unsuitable", f"The topic {name!r} has {many} partitions; at most {MOST_PARTITIONS} are watched."
        )
    return None
