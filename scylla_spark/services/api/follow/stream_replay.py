"""Reads what happened between two places of `outcomes` from the log, for who comes back to the stream after a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kafka import KafkaConsumer, TopicPartition

from scylla_spark.client.connection import Connection
from scylla_spark.clock import boot_us
from scylla_spark.core.records.fact import Fence, FenceLog, OutcomeRecord, Unreadable, decode
from scylla_spark.errors import UnreachableError
from scylla_spark.io.kafka import topics
from scylla_spark.services.api.follow.recent_log_records import Happened
from scylla_spark.services.api.follow.stream_positions import Position

_POLL_MS: Final = 200
_PATIENCE_US: Final = 20_000_000
_OPTIONS: Final = {"bootstrap_timeout_ms": 5_000, "request_timeout_ms": 8_000, "max_poll_records": 500}


def replayed(connection: Connection, begin: Mapping[int, Position], end: Mapping[int, int]) -> Iterator[Happened]:
    """What counts between two places, partition by partition.

    The fence in force where reading begins is known by its epoch only: its nonce is that of the first record of this epoch.

    Args:
        connection: to the deployment.
        begin: where to begin.
        end: partition → the first offset that is not wanted.

    Raises:
        UnreachableError: the broker does not answer.
    """
    consumer = topics.consumer(connection.located, **_OPTIONS)
    try:
        for number, position in sorted(begin.items()):
            yield from _partition(
                consumer, TopicPartition(connection.located.topics.outcomes, number), position, end[number]
            )
    finally:
        consumer.close(autocommit=False)


def _partition(consumer: KafkaConsumer, place: TopicPartition, begin: Position, end: int) -> Iterator[Happened]:
    fences = _Fences(begin.epoch)
    first = consumer.beginning_offsets([place])[place]
    for record in _records(consumer, place, max(first, begin.offset), end):
        found = decode(record.value)
        if isinstance(found, Unreadable) or not fences.admit(found) or not found.facts:
            continue
        yield Happened(place.partition, record.offset, found.fence.epoch, found.facts)


class _Fences:
    """The fence rule from a place on where only the epoch in force is known."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._log = FenceLog(Fence(epoch, "")) if epoch else FenceLog()

    def admit(self, record: OutcomeRecord) -> bool:
        unknown = self._epoch and self._log.fence == Fence(self._epoch, "")
        if unknown and record.kind != "fence" and record.fence.epoch == self._epoch:
            self._log = FenceLog(record.fence)
        return self._log.admit(record)


def _records(consumer: KafkaConsumer, place: TopicPartition, start: int, end: int) -> Iterator[Any]:
    if start >= end:
        return
    consumer.assign([place])
    consumer.seek(place, start)
    heard_us = boot_us()
    while consumer.position(place) < end:
        for record in consumer.poll(timeout_ms=_POLL_MS).get(place, ()):
            heard_us = boot_us()
            if record.offset < end:
                yield record
        if boot_us() - heard_us > _PATIENCE_US:
            raise UnreachableError("The log could not be read in time.")
