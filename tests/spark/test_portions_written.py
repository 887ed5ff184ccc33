"""Batches that are large in bytes, and records that our own code fails on, on real tables: everything else is written, once."""

import pytest

from scylla_spark import failpoint
from scylla_spark.core.records.fact import Fact, Fence, encode_facts, encode_fence
from scylla_spark.core.tasks.key import TaskKey, partition_of
from scylla_spark.errors import ConfigError
from scylla_spark.io.delta.spark_tables import Tables
from scylla_spark.schemas import COMPLETIONS, DEFERRED, REJECTED, TASKS
from scylla_spark.services.ingest import task_batches
from scylla_spark.services.ingest.ingest import Ingest
from tests.spark.batches import HOUR, NOW, PARTITIONS, TOPIC_IDS, done, facts, key_of, lane_of, raw, rows, task

OTHER = next(lane for lane in "bcdefgh" if partition_of(lane, PARTITIONS) != partition_of("a", PARTITIONS))
PLANTED = '{"x":"planted defect"}'


@pytest.fixture
def planted(monkeypatch):
    """Defects in the judges of both topics."""
    for name in failpoint.PLANTED:
        monkeypatch.setitem(failpoint.armed, name, (failpoint.DEFECT, 1))


@pytest.fixture
def bounded(ingest):
    """The service with room for three records of a kilobyte at once."""
    section = ingest.settings.ingest.model_copy(update={"max_bytes": 4_000})
    service = Ingest(ingest.spark, ingest.settings.model_copy(update={"ingest": section}))
    service.open_tables(TOPIC_IDS)
    return service


def test_a_batch_with_too_many_bytes_is_written_in_portions_and_each_record_once(bounded, monkeypatch):
    large = {"payload": f'{{"x":"{"x" * 1000}"}}'}
    records_of = [task("a", f"{n:02}", n, due=1 + (n % 2) * 10 * HOUR, **large) for n in range(10)]
    merges, merge = [], Tables.merge_tasks
    monkeypatch.setattr(Tables, "merge_tasks", lambda self, *args: (merges.append(1), merge(self, *args)))
    batch = raw(bounded.spark, [*records_of, task(OTHER, "1", 0)])
    for _ in range(2):
        bounded.write_tasks(batch, 0)
    assert rows(bounded, TASKS, "uniqueness_key") == [(f"{n:02}",) for n in range(0, 10, 2)] + [("1",)]
    assert rows(bounded, DEFERRED, "uniqueness_key") == [(f"{n:02}",) for n in range(1, 10, 2)]
    assert bounded.tables.partition_marks()[partition_of("a", PARTITIONS)].tasks_offset == 10
    assert len(merges) > 2


def test_cancels_of_many_past_hours_are_written_step_by_step_also_where_bytes_are_bounded_too(bounded, monkeypatch):
    monkeypatch.setattr(task_batches, "MOST_MERGED_FILES", 2)
    monkeypatch.setattr(task_batches, "_FEWEST_PAST_HOURS", 2)
    places, merge = [], Tables.merge_tasks
    monkeypatch.setattr(
        Tables, "merge_tasks", lambda self, rows, extent: (places.append(len(extent.places)), merge(self, rows, extent))
    )
    names = [f"{n}{'x' * 1000}" for n in range(4)]  # three of them are as many bytes as a portion takes
    values = [task("a", name, n, due=-(n + 2) * HOUR, kind="cancel") for n, name in enumerate(names)]
    bounded.write_tasks(raw(bounded.spark, values), 0)
    assert rows(bounded, TASKS, "uniqueness_key") == [(name,) for name in names]
    assert places == [2, 2]
    assert bounded.tables.partition_marks()[partition_of("a", PARTITIONS)].tasks_offset == 4


@pytest.mark.promise
def test_a_record_that_our_code_fails_on_is_set_aside_and_its_neighbours_are_written(ingest, planted):
    batch = [task("a", "1", 0), task("a", "2", 1, payload=PLANTED), task("a", "3", 2), task(OTHER, "4", 0)]
    ingest.write_tasks(raw(ingest.spark, batch), 0)
    assert rows(ingest, TASKS, "uniqueness_key") == [("1",), ("3",), ("4",)]
    ((partition, offset, reason, detail, key, value),) = rows(
        ingest, REJECTED, "partition_id", "offset", "reason", "detail", "key", "value"
    )
    assert (partition, offset, reason, key) == (partition_of("a", PARTITIONS), 1, "defect", b"a")
    assert "planted defect at offset 1" in detail
    assert PLANTED.encode() in value
    assert ingest.results["tasks"].set_aside == 1
    assert ingest.tables.partition_marks()[partition].tasks_offset == 3


def test_a_fact_that_our_code_fails_on_is_set_aside_and_the_fence_holds_on(ingest, planted):
    fence = Fence(1, "n")
    bad = facts(fence, done(key_of(lane_of(2), "planted defect")))
    values = [
        encode_fence(fence, "", NOW),
        facts(fence, done(key_of(lane_of(2), "1"))),
        bad,
        facts(fence, done(key_of(lane_of(2), "2"))),
    ]
    ingest.write_outcomes(raw(ingest.spark, [(2, offset, None, value) for offset, value in enumerate(values)]), 0)
    assert rows(ingest, COMPLETIONS, "uniqueness_key") == [("1",), ("2",)]
    assert rows(ingest, REJECTED, "topic", "offset", "reason") == [("outcomes", 2, "defect")]


def test_a_failing_disk_is_no_defect(ingest, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ingest.tables, "merge_tasks", full)
    with pytest.raises(OSError, match="No space left"):
        ingest.write_tasks(raw(ingest.spark, [task("a", "1", 0)]), 0)
    assert rows(ingest, REJECTED, "offset") == []
    assert ingest.progress.tasks()[partition_of("a", PARTITIONS)].tasks_offset == 0


def test_a_fact_of_a_newer_version_stops_before_it_and_loses_nothing(ingest, monkeypatch):
    fence, key = (
        Fence(1, "n"),
        TaskKey(NOW, lane_of(2), "u"),
    )
    (known,) = encode_facts(fence, [Fact(key, 1, "succeeded", NOW, NOW)])
    newer = known.replace(b'"v":2', b'"v":9')
    records_of = lambda *values: raw(ingest.spark, [(2, n, None, value) for n, value in enumerate(values)])  # noqa: E731
    with pytest.raises(ConfigError, match=r"offset 1 of partition 2 of topic 'outcomes' .*9.*Upgrade") as told:
        ingest.write_outcomes(records_of(encode_fence(fence, "", NOW), newer, known), 0)
    assert "Nothing is lost" in told.value.hint
    assert 2 not in ingest.progress.outcomes()
    ingest.write_outcomes(records_of(encode_fence(fence, "", NOW), known), 0)  # read by the version that wrote it
    assert ingest.tables.partition_marks()[2].fence == fence
    assert ingest.tables.read(COMPLETIONS).count() == 1
