"""Records that nobody should send, put straight on the topic, and the reason for which each must be refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from kafka import KafkaProducer

from scylla_spark.clock import iso, now_us
from scylla_spark.core.tasks.key import partition_of

_LANE: Final = "bad"
_MINUTE_US: Final = 60_000_000
_BIG: Final = 10 * 1024 * 1024


class BadRecord(NamedTuple):
    """One bad record: what is wrong with it, the code it must be refused with, and its bytes."""

    what: str
    reason: str
    value: bytes | None
    key: bytes = _LANE.encode()
    wrong_partition: bool = False


def records(due_us: int, now: int) -> Iterator[BadRecord]:
    """All kinds of bad records, once each.

    Args:
        due_us: a scheduled time that would do.
        now: when they are sent, microseconds since the epoch.
    """

    def text(**changes: Any) -> bytes:
        record = {"orderingId": _LANE, "scheduledTime": iso(due_us), "uniquenessKey": "u", "taskData": {}, "version": 1}
        return json.dumps({name: value for name, value in (record | changes).items() if value is not ...}).encode()

    yield BadRecord("not JSON", "not_json", b"run this, please")
    yield BadRecord("JSON cut short", "not_json", text()[:-7])
    yield BadRecord("bad UTF-8", "not_json", text().replace(b'"u"', b'"\xff\xfe"'))
    yield BadRecord("1,000-deep JSON", "not_json", text().replace(b"{}", b'{"a":' + b"[" * 1000 + b"]" * 1000 + b"}"))
    yield BadRecord("no value", "empty", None)
    yield BadRecord("a list", "wrong_value", b"[1,2,3]")
    yield BadRecord("a number as orderingId", "wrong_value", text(orderingId=17))
    yield BadRecord("text as priority", "wrong_value", text(priority="high"))
    yield BadRecord("a list as taskData", "wrong_value", text(taskData=[1]))
    yield BadRecord("a number as time", "wrong_value", text(scheduledTime=due_us))
    yield BadRecord("year 10000", "wrong_value", text(scheduledTime="10000-01-01T00:00:00Z"))
    yield BadRecord("an unknown version", "unknown_version", text(version=99))
    yield BadRecord("year 9999", "time_out_of_range", text(scheduledTime="9999-12-31T23:59:59Z"))
    yield BadRecord("past year 9999 in UTC", "time_out_of_range", text(scheduledTime="9999-12-31T23:59:59-05:00"))
    yield BadRecord("too many retries", "wrong_value", text(retry={"maxRetries": 2**31}))
    yield BadRecord("no time zone", "no_time_zone", text(scheduledTime=iso(due_us).removesuffix("Z")))
    yield BadRecord("no uniquenessKey", "missing_field", text(uniquenessKey=...))
    yield BadRecord("no taskData", "missing_field", text(taskData=...))
    yield BadRecord("NaN", "not_finite", text(taskData={"x": float("nan")}))
    yield BadRecord("due a minute ago", "too_late", text(scheduledTime=iso(now - _MINUTE_US)))
    yield BadRecord("another Kafka key", "wrong_key", text(), key=b"somebody else")
    yield BadRecord("wrong partition", "wrong_partition", text(), wrong_partition=True)
    yield BadRecord("300 KB payload", "payload_too_large", text(taskData={"x": "x" * 300_000}))
    yield BadRecord("10 MB, compressed", "too_large", text(taskData={"x": "x" * _BIG}))


def send(brokers: str, topic: str, partitions: int, due_us: int) -> dict[tuple[int, int], BadRecord]:
    """Puts all on the topic; compressed, so that the broker takes even the largest.

    Args:
        brokers: address of Kafka.
        topic: that of tasks.
        partitions: how many it has.
        due_us: scheduled time of those that have one, microseconds since the epoch.

    Returns:
        (partition, offset) → what stands there.
    """
    producer = KafkaProducer(bootstrap_servers=brokers, compression_type="gzip", max_request_size=2 * _BIG)
    try:
        right = partition_of(_LANE, partitions)
        placed = {}
        for record in records(due_us, now_us()):
            partition = (right + 1) % partitions if record.wrong_partition else right
            place = producer.send(topic, key=record.key, value=record.value, partition=partition).get(timeout=30)
            placed[(place.partition, place.offset)] = record
        return placed
    finally:
        producer.close(timeout=10)
