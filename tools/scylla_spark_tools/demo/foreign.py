"""A producer that has never heard of us: plain kafka-python, its own JSON, Kafka's own partitioner.

This is all that another team, in any language, needs: the topic, the ordering id as key, and the record's JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from kafka import KafkaProducer


class ForeignProducer:
    """Sends records to the `tasks` topic.

    Args:
        brokers: host:port of Kafka.
        topic: name of the topic.
    """

    def __init__(self, brokers: str, topic: str) -> None:
        self._topic = topic
        self._producer = KafkaProducer(bootstrap_servers=brokers, linger_ms=5)

    def send(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Sends records in the order given; when this returns, Kafka has acknowledged all."""
        acknowledgements = [
            self._producer.send(self._topic, key=record["orderingId"].encode(), value=json.dumps(record).encode())
            for record in records
        ]
        for acknowledgement in acknowledgements:
            acknowledgement.get(timeout=30)

    def close(self) -> None:
        """Closes the connections."""
        self._producer.close(timeout=10)
