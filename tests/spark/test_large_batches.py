"""What is large on a real topic: a bulk of honest records is written in portions, a batch that unpacks to far more is read around."""

import pytest

from scylla_spark.core.tasks.key import partition_of
from scylla_spark.io.kafka.decompression import GZIP, MOST_UNPACKED
from scylla_spark.schemas import REJECTED, TASKS
from scylla_spark.services.ingest.task_batches import TaskWriter
from tests.spark.batches import PARTITIONS, rows, task
from tests.spark.raw_batches import HEAD, PACK, batch, sealed, send_batch
from tests.spark.streams import ingested, sent

HOME = partition_of("a", PARTITIONS)
LARGE = 100  # records of 110 kB
PORTION = 4 << 20


@pytest.mark.promise
def test_a_bulk_of_large_records_in_one_partition_is_written_in_portions(spark, settings, monkeypatch):
    large = f'{{"x":"{"0123456789" * 11_000}"}}'
    sent(settings, *(task("a", f"{n:04}", n, payload=large) for n in range(LARGE)))
    portions, write = [], TaskWriter.write

    def noted(self, frame, ranges):
        written = write(self, frame, ranges)
        portions.append(written.rows)
        return written

    monkeypatch.setattr(TaskWriter, "write", noted)
    section = settings.ingest.model_copy(update={"max_bytes": PORTION})
    service = ingested(spark, settings.model_copy(update={"ingest": section}))
    assert rows(service, TASKS, "uniqueness_key", "data_offset") == [(f"{n:04}", n) for n in range(LARGE)]
    assert sum(portions) == LARGE
    assert max(portions) <= PORTION // 110_000 < LARGE // 2


def test_a_batch_that_unpacks_to_far_more_than_it_looks_is_set_aside_and_its_neighbours_are_written(spark, settings):
    sent(settings, *(task("a", f"{n}", n) for n in range(3)))
    _, _, key, value = task("a", "hidden", 3)
    bomb = batch(GZIP, (key, value, []), (b"a", b"x" * (MOST_UNPACKED + 10_000_000), []))
    assert send_batch(settings.kafka.bootstrap_servers, settings.topics.tasks, HOME, bomb) == 3
    sent(settings, task("a", "after", 5))
    service = ingested(spark, settings)
    assert rows(service, TASKS, "uniqueness_key") == [("0",), ("1",), ("2",), ("after",)]
    refused = rows(service, REJECTED, "partition_id", "offset", "reason", "value", "value_bytes")
    assert refused == [(HOME, 3, "too_large", None, None), (HOME, 4, "too_large", None, None)]
    ((detail,), _) = rows(service, REJECTED, "detail")
    assert "a gzip batch of " in detail
    assert service.results["tasks"].set_aside == 2


@pytest.mark.parametrize("codec", [0, GZIP])
def test_a_batch_that_no_client_can_read_is_set_aside_and_its_neighbours_are_written(spark, settings, codec):
    sent(settings, *(task("a", f"{n}", n) for n in range(3)))
    plain = batch(0, (b"a", b"hidden", []), (b"a", b"hidden", []))
    body, first = bytearray(plain[HEAD:]), 1 + plain[HEAD] // 2
    body[first + (0 if codec else 3)] = 0  # a record that says it is empty; or one with the offset of the first
    bad = sealed(plain[:HEAD] + (PACK[codec](bytes(body)) if codec else bytes(body)), codec)
    assert send_batch(settings.kafka.bootstrap_servers, settings.topics.tasks, HOME, bad) == 3
    sent(settings, task("a", "after", 5))
    service = ingested(spark, settings)
    assert rows(service, TASKS, "uniqueness_key") == [("0",), ("1",), ("2",), ("after",)]
    refused = rows(service, REJECTED, "partition_id", "offset", "reason", "value", "value_bytes")
    assert refused == [(HOME, 3, "unreadable", None, None), (HOME, 4, "unreadable", None, None)]


def test_records_of_many_megabytes_are_refused_with_their_first_bytes(spark, settings):
    send_batch(settings.kafka.bootstrap_servers, *_made(settings), batch(GZIP, (b"a", b"x" * 30_000_000, [])))
    sent(settings, task("a", "after", 1))
    service = ingested(spark, settings)
    assert rows(service, TASKS, "uniqueness_key") == [("after",)]
    assert rows(service, REJECTED, "offset", "reason", "value_bytes") == [(0, "too_large", 30_000_000)]


def _made(settings):
    sent(settings)
    return settings.topics.tasks, HOME
