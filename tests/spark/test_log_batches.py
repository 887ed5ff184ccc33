"""Ingest of log lines: each stands once in the table, whatever is wrong with records, and wherever a batch was cut off."""

import pytest
from kafka import KafkaProducer

from scylla_spark.core.records.log_record import LogLine, LogRecord, encode
from scylla_spark.core.tasks.key import HOUR_US, TaskKey, partition_of
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.kafka.topic_setup import ensure_topics
from scylla_spark.schemas import ATTEMPT_LOGS
from scylla_spark.services.ingest import log_batches
from scylla_spark.services.ingest.log_batches import LogBatches
from scylla_spark.services.ingest.metrics import IngestMetrics
from tests.spark.batches import NOW, PARTITIONS, lane_of, raw, rows, task
from tests.support.delta_tables import append
from tests.support.shared_broker import settings_on


def line(number):
    return LogLine(number, NOW, "stdout", None, f"line {number}")


def record(lane, *numbers, due=NOW):
    return encode(LogRecord(TaskKey(due, lane, "u"), 1, 7, tuple(map(line, numbers))))


class Site:
    def __init__(self, ingest, broker):
        self.settings = settings_on(broker, ingest.settings.data_dir, partitions=PARTITIONS)
        self.tables = ingest.tables
        ensure_topics(self.settings)
        self.producer = KafkaProducer(bootstrap_servers=broker)
        self.metrics = IngestMetrics()

    def send(self, *records):
        for partition, value in records:
            self.producer.send(self.settings.topics.logs, value, key=b"k", partition=partition).get(timeout=30)

    def batches(self):
        return LogBatches(self.settings, self.tables, self.metrics)

    def texts(self):
        frame = TableReader(self.tables.path).frame(ATTEMPT_LOGS).select("ordering_id", "text").collect()
        return sorted(frame.iter_rows())


@pytest.fixture
def site(ingest, broker):
    site = Site(ingest, broker)
    yield site
    site.producer.close()


def test_lines_come_into_the_table_and_what_cannot_be_read_is_skipped_and_counted(site):
    lanes = [lane_of(number) for number in range(PARTITIONS)]
    site.send(*((number, record(lane, 1, 2)) for number, lane in enumerate(lanes)))
    site.send((0, b"junk"), (1, None), (2, record(lanes[3], 9)), (3, b"[" * 100_000), (0, record(lanes[0], 3)))
    batches = site.batches()
    assert batches.turn() == 2 * PARTITIONS + 1
    expected = sorted([*((lane, f"line {n}") for lane in lanes for n in (1, 2)), (lanes[0], "line 3")])
    assert site.texts() == expected
    assert (site.metrics.counts["ingested"]["logs"], site.metrics.counts["rejected"]["logs"]) == (9, 4)
    assert batches.turn() == 0
    batches.stop()
    assert TableReader(site.tables.path).log_positions() == {0: 3, 1: 2, 2: 2, 3: 2}
    found = TableReader(site.tables.path).log_lines(TaskKey(NOW, lanes[0], "u"), 1)
    assert sorted(one.lines[0] for one in found) == [line(1), line(2), line(3)]
    assert TableReader(site.tables.path).logged_attempts(TaskKey(NOW, lanes[0], "u")) == [1]


def test_a_crash_between_rows_and_progress_doubles_nothing(site, monkeypatch):
    site.send((0, record(lane_of(0), 1)), (1, record(lane_of(1), 1)))
    broken = site.batches()

    def crash(_positions):
        raise RuntimeError("crash")

    monkeypatch.setattr(broken, "_progress", crash)
    with pytest.raises(RuntimeError, match="crash"):
        broken.turn()
    broken.stop()
    again = site.batches()
    again.turn()
    again.stop()
    assert site.texts() == sorted([(lane_of(0), "line 1"), (lane_of(1), "line 1")])


def test_much_is_written_in_several_batches_and_goes_on_where_it_was_after_a_restart(site, monkeypatch):
    monkeypatch.setattr(log_batches, "_MOST_BYTES", 500)
    monkeypatch.setitem(log_batches._OPTIONS, "max_poll_records", 2)
    site.send(*((0, record(lane_of(0), number)) for number in range(1, 13)))
    first = site.batches()
    assert first.turn() == 12
    first.stop()
    site.send((0, record(lane_of(0), 13)))
    second = site.batches()
    assert second.turn() == 1
    second.stop()
    assert len(site.texts()) == 13


def test_lines_that_kafka_has_let_go_of_are_passed_over(site):
    append(site.tables.path, log_batches.LOG_PROGRESS, [{"partition_id": 0, "next_offset": 99, "updated_at": NOW}])
    site.send((0, record(lane_of(0), 1)))
    batches = site.batches()
    assert batches.turn() == 1
    batches.stop()


def test_lines_are_purged_with_the_closed_hours_of_their_tasks(ingest):
    old, day = NOW - 20 * 24 * HOUR_US, 24 * 3600
    append(ingest.tables.path, ATTEMPT_LOGS, [row(TaskKey(old, "a", "old")), row(TaskKey(NOW, "a", "new"))])
    ingest.write_tasks(raw(ingest.spark, [task("a", "open", 1, due=-19 * day, stamp=NOW - 19 * day * 1_000_000)]), 1)
    ingest.write_tasks(raw(ingest.spark, [task("a", "now", 2)]), 2)
    ingest.maintenance.purge_all(NOW)
    assert rows(ingest, ATTEMPT_LOGS, "uniqueness_key") == [("new",)]


def row(key):
    return {
        "partition_id": partition_of(key.ordering_id, PARTITIONS), "hour": key.hour, "scheduled_time": key.time_us,
        "ordering_id": key.ordering_id, "uniqueness_key": key.uniqueness_key, "attempt": 1, "epoch": 1, "seq": 1, "at": NOW,
        "stream": "stdout", "text": "x", "log_offset": 1,
    }  # fmt: skip
