"""Ingest's batches on real Delta tables, called directly with static frames; a replay is the same call again."""

from datetime import UTC, datetime

import pytest

from scylla_spark import failpoint
from scylla_spark.config.settings import Settings
from scylla_spark.core.records.command import Command, Rules, encode
from scylla_spark.core.records.fact import Fact, Fence, encode_fence, encode_resign
from scylla_spark.core.tasks.key import TaskKey, partition_of
from scylla_spark.core.tasks.task import Failure
from scylla_spark.errors import ConfigError, ConflictError
from scylla_spark.io.kafka.sole_table_writer import sole
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, REJECTED, TASKS
from scylla_spark.services.ingest.ingest import Ingest
from scylla_spark.services.ingest.micro_batch import judged_rows
from scylla_spark.services.ingest.progress import End
from scylla_spark.transforms.portions import Portion
from scylla_spark.transforms.records import COMMAND_ROWS, judge_commands
from tests.spark.batches import NOW, TOPIC_IDS, facts, lane_of, raw, rows, task


@pytest.mark.promise
def test_a_batch_lands_once_however_often_it_is_replayed(ingest):
    batch = raw(ingest.spark, [task("a", "1", 0), task("a", "2", 1), (0, 9, None, b"nonsense")])
    for _ in range(3):
        ingest.write_tasks(batch, 0)
    assert rows(ingest, TASKS, "uniqueness_key", "data_offset") == [("1", 0), ("2", 1)]
    assert rows(ingest, REJECTED, "partition_id", "offset", "reason", "topic") == [(0, 9, "not_json", "tasks")]


def test_a_crash_before_progress_is_written_repeats_the_batch_without_effect(ingest, monkeypatch):
    batch = raw(ingest.spark, [task("a", "1", 0), task("a", "1", 1, kind="cancel"), task("b", "1", 2)])

    def crash(*_):
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(ingest.tables, "write_marks", crash)
        with pytest.raises(RuntimeError, match="killed"):
            ingest.write_tasks(batch, 0)
    again = Ingest(ingest.spark, ingest.settings)
    again.open_tables(TOPIC_IDS)
    again.write_tasks(batch, 0)
    assert rows(again, TASKS, "ordering_id", "cancel_offset") == [("a", 1), ("b", None)]
    partition = partition_of("b", 4)
    assert again.tables.partition_marks()[partition].tasks_offset == 3


def test_progress_is_written_without_a_job_of_spark(ingest):
    scheduler = ingest.spark.sparkContext._jsc.sc().dagScheduler()
    before, marks = scheduler.numTotalJobs(), ingest.progress.tasks()
    ingest.progress.tasks_written({0: End(7, NOW)}, [(0, 5)])
    assert scheduler.numTotalJobs() == before
    stored = ingest.tables.marks()
    assert stored["tasks", 0] == marks[0]._replace(tasks_offset=7, appended_us=NOW)
    assert stored["tasks", 1] == marks[1]


def test_a_small_batch_is_one_task_and_a_large_one_a_task_per_partition(ingest):
    records_of = [task(lane_of(number), "u", 0) for number in range(3)]
    found = raw(ingest.spark, records_of)
    frame = ingest.spark.createDataFrame(ingest.spark.sparkContext.parallelize(found.collect(), 2), found.schema)
    judge = judge_commands(Rules(4), {})
    tasks = []
    for count in (3, 100_000):
        with judged_rows(frame, judge, COMMAND_ROWS, Portion({}, 1 << 20), count) as judged:
            tasks.append(judged.rdd.getNumPartitions())
            assert judged.where("kind = 'row'").count() == 3
    assert tasks == [1, 2]


def test_the_newest_data_wins_within_a_batch_and_between_batches(ingest):
    spark = ingest.spark
    ingest.write_tasks(raw(spark, [task("a", "1", 0, payload='{"v":0}'), task("a", "1", 1, payload='{"v":1}')]), 0)
    assert rows(ingest, TASKS, "payload", "data_offset") == [('{"v":1}', 1)]
    ingest.write_tasks(raw(spark, [task("a", "1", 2, payload='{"v":2}')]), 1)
    assert rows(ingest, TASKS, "payload", "data_offset") == [('{"v":2}', 2)]


def test_a_cancel_stays_whatever_comes_after_it(ingest):
    spark = ingest.spark
    ingest.write_tasks(raw(spark, [task("a", "1", 0, kind="cancel")]), 0)
    ingest.write_tasks(raw(spark, [task("a", "1", 1)]), 1)
    assert rows(ingest, TASKS, "data_offset", "cancel_offset") == [(1, 0)]


def test_rows_lie_in_the_hour_of_their_time_to_the_millisecond(ingest):
    moments = [datetime(2030, 5, 1, 10, 59, 59, 999000, tzinfo=UTC), datetime(2030, 5, 1, 11, tzinfo=UTC)]
    keys = [TaskKey.of(moment, "a", "u") for moment in moments]
    records = [
        (partition_of("a", 4), n, b"a", encode(Command("enqueue", key, n, enqueued_us=NOW)))
        for n, key in enumerate(keys)
    ]
    ingest.write_tasks(raw(ingest.spark, records), 0)
    ingest.promotion.turn(int(moments[0].timestamp()) * 1_000_000)
    (_, first), (_, second) = rows(ingest, TASKS, "scheduled_time", "hour")
    assert second == first + 1


def test_a_batch_of_nothing_but_bad_records_advances_progress(ingest):
    ingest.write_tasks(raw(ingest.spark, [(1, 5, None, None), (1, 6, None, b"\xff")]), 0)
    assert ingest.tables.partition_marks()[1].tasks_offset == 7
    assert rows(ingest, REJECTED, "offset", "reason") == [(5, "empty"), (6, "not_json")]


def test_a_huge_record_is_kept_up_to_a_mebibyte(ingest):
    ingest.write_tasks(raw(ingest.spark, [(1, 0, b"k", b"x" * 10_000_000), task("a", "1", 0)]), 0)
    ((reason, size, kept),) = [
        (row["reason"], row["value_bytes"], len(row["value"])) for row in ingest.tables.read(REJECTED).collect()
    ]
    assert (reason, size, kept) == ("too_large", 10_000_000, 1_048_576)
    assert len(rows(ingest, TASKS, "ordering_id")) == 1


def test_facts_of_a_fenced_off_owner_are_not_recorded(ingest):
    old, new = Fence(1, "old"), Fence(2, "new")
    done = Fact(TaskKey(NOW, lane_of(2), "1"), 1, "succeeded", NOW, NOW, NOW, 1, None, '{"x":1}')
    zombie = Fact(TaskKey(NOW, lane_of(2), "2"), 1, "succeeded", NOW, NOW, NOW, 1)
    failed = Fact(TaskKey(NOW, lane_of(2), "2"), 1, "failed", NOW, NOW, NOW, 1, NOW + 5, None, Failure("E", "m", "s"))
    answer = Fact(TaskKey(NOW, lane_of(2), "1"), 0, "too_late", request_id="r")
    values = [
        encode_fence(old, "", NOW),
        facts(old, done),
        encode_fence(new, "", NOW),
        facts(old, zombie),
        facts(new, failed, answer),
        b"junk",
    ]
    batch = raw(ingest.spark, [(2, offset, None, value) for offset, value in enumerate(values)])
    for _ in range(2):
        ingest.write_outcomes(batch, 0)
    assert rows(ingest, COMPLETIONS, "uniqueness_key", "outcome", "result", "epoch") == [
        ("1", "succeeded", '{"x":1}', 1)
    ]
    assert rows(ingest, ATTEMPTS, "uniqueness_key", "outcome", "attempt", "error_class") == [("2", "failed", 1, "E")]
    assert ingest.tables.partition_marks()[2].fence == new


def test_whoever_sees_an_end_in_the_tables_sees_the_attempts_before_it(ingest, monkeypatch):
    fence = Fence(3, "n")
    key = TaskKey(NOW, lane_of(2), "1")
    failed = Fact(key, 1, "failed", NOW, NOW, NOW, 1, NOW + 5, None, Failure("E", "m", "s"))
    values = [encode_fence(fence, "", NOW), facts(fence, failed, Fact(key, 2, "succeeded", NOW, NOW, NOW, 2))]
    seen = []

    def look(name, *_):
        if name == "ingest.outcomes.appended":
            seen.append((len(rows(ingest, ATTEMPTS, "attempt")), len(rows(ingest, COMPLETIONS, "attempt"))))

    monkeypatch.setattr(failpoint, "reach", look)
    ingest.write_outcomes(raw(ingest.spark, [(2, offset, None, value) for offset, value in enumerate(values)]), 0)
    assert seen == [(1, 0), (1, 1)]


def test_the_fence_is_carried_from_batch_to_batch(ingest):
    fence = Fence(3, "n")
    done = Fact(TaskKey(NOW, lane_of(2), "1"), 1, "succeeded", NOW, NOW, NOW, 1)
    ingest.write_outcomes(raw(ingest.spark, [(2, 0, None, encode_fence(fence, "", NOW))]), 0)
    again = Ingest(ingest.spark, ingest.settings)
    again.open_tables(TOPIC_IDS)
    again.write_outcomes(raw(ingest.spark, [(2, 1, None, facts(fence, done)), (2, 2, None, encode_resign(fence))]), 1)
    assert rows(again, COMPLETIONS, "uniqueness_key") == [("1",)]
    assert again.tables.partition_marks()[2].resigned


def test_tables_refuse_another_partition_count_and_other_topics(ingest, tmp_path):
    other = Ingest(ingest.spark, Settings(data_dir=tmp_path, partitions=5))
    with pytest.raises(ConfigError, match="made with 4 partitions"):
        other.open_tables(TOPIC_IDS)
    with pytest.raises(ConfigError, match="not the one these tables were filled from"):
        Ingest(ingest.spark, ingest.settings).open_tables({"tasks": "remade", "outcomes": "o"})


def test_a_second_ingest_on_the_same_tables_is_refused(ingest):
    first = sole(ingest.spark, ingest.settings)
    with pytest.raises(ConflictError, match="Another ingest writes"):
        sole(ingest.spark, ingest.settings)
    first.release()
    sole(ingest.spark, ingest.settings).release()
