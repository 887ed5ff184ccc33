"""Lines of one task beyond the tables, from the topic `logs`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from scylla_spark.clock import boot_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.records.log_record import LogRecord, decode
from scylla_spark.core.tasks.key import TaskKey, partition_of
from scylla_spark.errors import UnreachableError
from scylla_spark.io.kafka import topics

_POLL_MS: Final = 500
_PATIENCE_US: Final = 20_000_000
_OPTIONS: Final = {"max_poll_records": 500}


class LogLines:
    """Reads the records of one task, from where the tables end; not thread-safe.

    Args:
        settings: with the broker's address and the deployment's partition count.
        key: of the task.
        begin: offset below which everything stands in the tables.

    Raises:
        UnreachableError: the broker does not answer.
    """

    def __init__(self, settings: Settings, key: TaskKey, begin: int) -> None:
        self._settings = settings
        self._key = key
        self._lane = key.ordering_id.encode()
        self._place = TopicPartition(settings.topics.logs, partition_of(key.ordering_id, settings.partitions))
        self._consumer: KafkaConsumer = topics.client_consumer(settings, **_OPTIONS)
        with self._broker():
            self._consumer.assign([self._place])
            first = self._consumer.beginning_offsets([self._place])[self._place]
            end = self._end()
            self._consumer.seek(self._place, begin if first <= begin <= end else first)

    def close(self) -> None:
        """Closes the connection."""
        self._consumer.close(autocommit=False)

    def poll(self, timeout_ms: int) -> list[LogRecord]:
        """Records of the task among the next of the topic; waits for those at most so long.

        Raises:
            UnreachableError: the broker does not answer.
        """
        with self._broker():
            messages = self._consumer.poll(timeout_ms=timeout_ms).get(self._place, ())
        read = [decode(message.value) for message in messages if message.key == self._lane]
        return [record for record in read if isinstance(record, LogRecord) and record.key == self._key]

    def rest(self) -> Iterator[LogRecord]:
        """Records of the task up to the end of the topic as it is now.

        Raises:
            UnreachableError: the broker does not answer, or gives nothing for a while.
        """
        with self._broker():
            end = self._end()
        silent_us = 0  # as long as it gives nothing; whoever takes the records may take his time
        while (position := self._position()) < end:
            begun = boot_us()
            records = self.poll(_POLL_MS)
            silent_us = 0 if self._position() > position else silent_us + boot_us() - begun
            if silent_us > _PATIENCE_US:
                raise UnreachableError(
                    f"The lines of attempts could not be read to the end of topic {self._place.topic!r} in time.",
                    hint="Check that the broker runs; `scylla-spark doctor kafka` looks closer.",
                )
            yield from records

    def _end(self) -> int:
        end: int = self._consumer.end_offsets([self._place])[self._place]
        return end

    def _position(self) -> int:
        with self._broker():
            position: int = self._consumer.position(self._place)
            return position

    @contextmanager
    def _broker(self) -> Iterator[None]:
        try:
            yield
        except KafkaError as error:
            raise UnreachableError(
                f"The lines of attempts cannot be read from topic {self._place.topic!r} ({type(error).__name__}: {error}).",
                hint="Check that the broker runs and that this user may read the topic; `scylla-spark doctor kafka` looks closer.",
            ) from error
