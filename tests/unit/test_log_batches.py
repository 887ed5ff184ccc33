"""Which messages of `logs` are written together: up to the end as it was, bounded, each once and in order. Kafka is a list here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from kafka import TopicPartition

from scylla_spark.config.settings import Settings
from scylla_spark.core.records.log_record import LogLine, LogRecord, encode
from scylla_spark.core.tasks.key import TaskKey, partition_of
from scylla_spark.services.ingest import log_batches
from scylla_spark.services.ingest.log_batches import LogBatches
from scylla_spark.transforms import bounded_arrow

KEY = TaskKey(5, "lane", "u")
PLACE = TopicPartition("logs", partition_of("lane", 4))


class Reader:
    """A consumer of one partition, which gives three messages at a time; another comes with every look."""

    def __init__(self, count: int) -> None:
        self.values = [self.record(n) for n in range(count)]
        self.at = 0

    @staticmethod
    def record(number: int) -> bytes:
        return encode(LogRecord(KEY, 1, 1, (LogLine(number + 1, 5, "stdout", None, f"line {number}"),)))

    def assignment(self):
        return {PLACE}

    def end_offsets(self, places):
        return dict.fromkeys(places, len(self.values))

    def position(self, place):
        return self.at

    def poll(self, timeout_ms):
        begin, self.at = self.at, min(self.at + 3, len(self.values))
        found = [
            SimpleNamespace(partition=PLACE.partition, offset=n, value=self.values[n]) for n in range(begin, self.at)
        ]
        self.values.append(self.record(len(self.values)))
        return {PLACE: found}


@pytest.fixture
def batches(tmp_path):
    settings = Settings(_env_file=None, data_dir=tmp_path, partitions=4)
    return LogBatches(settings, SimpleNamespace(path=str(tmp_path)), SimpleNamespace())


def told(batch):
    return batch.table().column("text").to_pylist(), batch.ends


def lines(*numbers):
    return [f"line {number}" for number in numbers]


def test_what_has_come_by_then_is_written_at_once(batches):
    assert [told(one) for one in batches._batches(Reader(7))] == [(lines(*range(9)), {PLACE.partition: 9})]
    assert list(batches._batches(Reader(0))) == []


def test_a_batch_ends_where_its_rows_take_much_also_in_the_midst_of_what_was_read(batches, monkeypatch):
    monkeypatch.setattr(log_batches, "_MOST_ROW_BYTES", 1)
    monkeypatch.setattr(bounded_arrow, "MAX_ROWS", 2)
    found = [told(one) for one in batches._batches(Reader(4))]
    assert [texts for texts, _ in found] == [lines(0, 1), lines(2), lines(3, 4)]
    assert [ends[PLACE.partition] for _, ends in found] == [2, 3, 5]


def test_after_a_stop_nothing_more_is_written_than_what_is_at_hand(batches, monkeypatch):
    monkeypatch.setattr(log_batches, "_MOST_ROW_BYTES", 1)
    monkeypatch.setattr(bounded_arrow, "MAX_ROWS", 2)
    found = batches._batches(Reader(9))
    assert told(next(found)) == (lines(0, 1), {PLACE.partition: 2})
    batches._stopping.set()
    assert list(found) == []
