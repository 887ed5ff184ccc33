"""Sending that waits for nothing: for a thread that many things wait for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from scylla_spark.log import get_logger

if TYPE_CHECKING:
    from kafka import KafkaProducer

log = get_logger("kafka")


def never_waiting(producer: KafkaProducer, topics: Iterable[str]) -> KafkaProducer:
    """The same producer (kafka-python 3.0.12), which knows these topics now, and whose `send` waits for no broker from now on.

    What is sent to a topic of which no broker has told fails at once; the producer goes on asking for it.

    Args:
        producer: as it is made; it may wait here.
        topics: their names.
    """
    from kafka.errors import KafkaError

    topics = list(topics)
    for topic in topics:
        producer._sender.add_topic(topic)  # noqa: SLF001 - so that one question is for all
    for topic in topics:
        try:
            producer.partitions_for(topic)
        except KafkaError as error:
            log.warning("nothing is known of a topic yet", topic=topic, error=repr(error))
    producer.config["max_block_ms"] = 0
    return producer


def send_at_once(producer: Any, topic: str, value: bytes, partition: int, key: bytes | None = None) -> Any:
    """Hands a record over; its future.

    Args:
        producer: one that never waits, or what is like one.
        topic: where the record goes.
        value: of the record.
        partition: of the topic.
        key: of the record.

    Raises:
        KafkaTimeoutError: nothing is known of the topic; the record was not taken.
    """
    from kafka.errors import KafkaTimeoutError  # worlds of tests send to no Kafka, and need none

    try:
        return producer.send(topic, value=value, key=key, partition=partition)
    except KafkaTimeoutError:
        raise KafkaTimeoutError(
            f"no broker has told where topic {topic!r} is; it may not exist, and nothing was sent"
        ) from None
