"""What the `outcomes` topic says: the ends of tasks as soon as they are recorded, without tables and without Spark."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from kafka import TopicPartition
from kafka.errors import KafkaError

from scylla_spark import Settings
from scylla_spark.core.records.fact import Fact, FenceLog, decode, readable
from scylla_spark.errors import UnreachableError
from scylla_spark.io.kafka.topics import consumer
from scylla_spark.testing.history import Recorded


class OutcomesLog:
    """Reads the `outcomes` topic from its beginning, by the public rule that says which facts count."""

    def __init__(self, settings: Settings) -> None:
        self.recorded: list[Recorded] = []
        self.completions: dict[Any, Fact] = {}
        self._settings = settings
        self._reader: Any = None
        self._fences = {number: FenceLog() for number in range(settings.partitions)}

    def close(self) -> None:
        """Closes the connection."""
        if self._reader is not None:
            self._reader.close(autocommit=False)

    def read(self) -> None:
        """Takes everything appended so far; what it can get while the broker is away."""
        places = [TopicPartition(self._settings.topics.outcomes, number) for number in self._fences]
        deadline = time.monotonic() + 5
        with contextlib.suppress(KafkaError, UnreachableError):
            if self._reader is None:
                self._reader = consumer(self._settings)
                self._reader.assign(places)
                for place in places:
                    self._reader.seek(place, 0)
            ends = self._reader.end_offsets(places)
            while any(self._reader.position(place) < ends[place] for place in places) and time.monotonic() < deadline:
                for place, records in self._reader.poll(timeout_ms=100).items():
                    for record in records:
                        self._take(place.partition, readable(decode(record.value)))

    def _take(self, partition: int, record: Any) -> None:
        if record is None or not self._fences[partition].admit(record):
            return
        for fact in record.facts:
            self.recorded.append(Recorded(fact, record.fence.epoch))
            if fact.terminal:
                self.completions.setdefault(fact.key, fact)
