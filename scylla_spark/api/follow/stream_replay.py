"""Reads what happened between two places of `outcomes` from the log, for who comes back to the stream after a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from kafka import KafkaConsumer, TopicPartition

from scylla_spark.api.follow.recent_records import OutcomeEvent
from scylla_spark.api.follow.stream_positions import Position
from scylla_spark.client.connection import Connection
from scylla_spark.clock import boot_us
from scylla_spark.core.records.fact import FENCE, NO_FENCE, Fence, FenceLog, OutcomeRecord, Unreadable, decode
from scylla_spark.errors import UnreachableError
from scylla_spark.io.kafka import topics

_POLL_MS: Final = 200
_PATIENCE_US: Final = 20_000_000
_OPTIONS: Final = {"max_poll_records": 500}


class Missing(NamedTuple):
    """Records of a partition of `outcomes` that Kafka deleted before they were streamed: from an offset up to another, exclusive."""

    partition: int
    first: int
    next: int


def replayed(
    connection: Connection, begin: Mapping[int, Position], end: Mapping[int, int]
) -> Iterator[OutcomeEvent | Missing]:
    """Yields the valid outcomes between two positions, partition by partition, and the gaps that Kafka has deleted.

    The fence in force where reading begins is known by its epoch only: its nonce is that of the first record of this epoch.

    Args:
        connection: to the deployment.
        begin: where to begin.
        end: partition → the first offset that is not wanted.

    Raises:
        UnreachableError: the broker does not answer.
    """
    consumer = topics.client_consumer(connection.located, **_OPTIONS)
    try:
        for number, position in sorted(begin.items()):
            yield from _partition(
                consumer, TopicPartition(connection.located.topics.outcomes, number), position, end[number]
            )
    finally:
        consumer.close(autocommit=False)


def _partition(
    consumer: KafkaConsumer, place: TopicPartition, begin: Position, end: int
) -> Iterator[OutcomeEvent | Missing]:
    first, epoch = min(consumer.beginning_offsets([place])[place], end), begin.epoch
    if first > begin.offset:
        yield Missing(place.partition, begin.offset, first)
        epoch = 0
    fences = _Fences(epoch)
    for record in _records(consumer, place, max(first, begin.offset), end):
        found = decode(record.value)
        if isinstance(found, Unreadable) or not fences.admit(found) or not found.facts:
            continue
        yield OutcomeEvent(place.partition, record.offset, found.fence.epoch, found.facts)


class _Fences:
    """The fence rule from a place on where only the epoch in force is known, or (0) not even that.

    Where it is not known, facts of a higher epoch show that their fence stood before: owners write none until they have read it.
    """

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._log = FenceLog(Fence(epoch, "")) if epoch else FenceLog()

    def admit(self, record: OutcomeRecord) -> bool:
        if self._shows_its_fence(record):
            self._log = FenceLog(record.fence)
        return self._log.admit(record)

    def _shows_its_fence(self, record: OutcomeRecord) -> bool:
        known, epoch = self._log.fence, record.fence.epoch
        if not self._epoch:
            return known == NO_FENCE or (record.kind != FENCE and epoch > known.epoch)
        return known == Fence(self._epoch, "") and record.kind != FENCE and epoch == self._epoch


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
