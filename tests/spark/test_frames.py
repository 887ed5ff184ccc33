"""Frames sent through Spark's Kafka sink, and what comes of it on the topic."""

import time

import pytest
from kafka import KafkaConsumer, TopicPartition
from pyspark.sql import functions as F

from scylla_spark.client.scheduler import Scheduler
from scylla_spark.client.tasks import frames
from scylla_spark.clock import from_us, now_us
from scylla_spark.core.records.command import Command, validate
from scylla_spark.errors import ArgumentError, UnreachableError
from scylla_spark.io.kafka.topic_setup import ensure_topics
from scylla_spark.io.kafka.topics import end_offsets, with_broker
from tests.support.delta_tables import PARTITIONS, append, at, fact, make, task
from tests.support.shared_broker import settings_on


@pytest.fixture(scope="module")
def settings(broker, tmp_path_factory):
    folder = tmp_path_factory.mktemp("frames")
    make(f"{folder}/tables")
    settings = settings_on(broker, folder, partitions=PARTITIONS)
    ensure_topics(settings)
    return settings


@pytest.fixture
def scheduler(settings, spark):
    with Scheduler(settings, spark=spark) as scheduler:
        yield scheduler


@pytest.fixture
def sent(scheduler, settings):
    """Commands that came to the topic since the test began, as ingest would see them."""
    places = [TopicPartition(settings.topics.tasks, number) for number in range(PARTITIONS)]
    before = end_offsets(settings, settings.topics.tasks, list(range(PARTITIONS)))

    def sent():
        after = end_offsets(settings, settings.topics.tasks, list(range(PARTITIONS)))
        reader = KafkaConsumer(bootstrap_servers=settings.kafka.bootstrap_servers, enable_auto_commit=False)
        try:
            reader.assign(places)
            for place in places:
                reader.seek(place, before[place.partition])
            found = []
            while len(found) < sum(after.values()) - sum(before.values()):
                for records in reader.poll(timeout_ms=500).values():
                    found += [
                        validate(r.partition, r.offset, r.timestamp * 1000, r.key, r.value, scheduler.connection.rules)
                        for r in records
                    ]
            return found
        finally:
            reader.close()

    return sent


def invoices(spark, count):
    return spark.range(count).select(
        F.concat(F.lit("cust-"), F.col("id") % 7).alias("customer_id"), F.col("id").cast("string").alias("invoiceId"),
        F.lit("ü").alias("email")
    )  # fmt: skip


def test_every_row_becomes_one_accepted_task_on_the_partition_of_its_lane(scheduler, spark, sent):
    result = scheduler.enqueue_df(
        invoices(spark, 500), handler="remind", ordering_id="customer_id", uniqueness_key="invoice_id",
        payload=F.struct("email"), queue="mail"
    )  # fmt: skip
    commands = sent()
    assert result.sent == 500
    assert all(isinstance(command, Command) for command in commands)
    assert {command.key.uniqueness_key for command in commands} == {str(number) for number in range(500)}
    assert {(command.handler, command.queue, command.payload) for command in commands} == {
        ("remind", "mail", '{"email":"ü"}')
    }
    assert len({command.key.time_us for command in commands}) == 1


def test_one_bad_row_keeps_all_from_being_sent(scheduler, spark, sent):
    frame = invoices(spark, 100).withColumn(
        "customer_id", F.when(F.col("invoiceId") == "42", None).otherwise(F.col("customer_id"))
    )
    with pytest.raises(
        ArgumentError, match=r"1 rows would be refused: 1 x the ordering id is null, such as .*42"
    ) as caught:
        scheduler.enqueue_df(frame, handler="h", ordering_id="customer_id", uniqueness_key="invoiceId")
    assert caught.value.fields["refused"] == {"ordering_id_missing": 1}
    assert sent() == []


def test_rows_that_come_too_late_keep_all_from_being_sent(scheduler, spark, sent):
    late = {"0": 0, "1": 1_000_000_000, "2": -1, "3": -62_000_000_000, "4": None}
    times = F.coalesce(F.timestamp_seconds("late"), F.current_timestamp())
    frame = spark.createDataFrame(list(late.items()), "u string, late long").withColumn("t", times)
    with pytest.raises(ArgumentError) as caught:
        scheduler.enqueue_df(frame, handler="h", ordering_id=None, uniqueness_key="u", scheduled_time="t")
    assert caught.value.fields["refused"] == {"too_late": 2, "time_out_of_range": 2}
    assert sent() == []


def test_bad_payload_texts_are_counted_per_reason(scheduler, spark, sent):
    frame = spark.createDataFrame([("1", "{}"), ("2", "x"), ("3", "[]"), ("4", '{"a":NaN}')], "u string, p string")
    with pytest.raises(ArgumentError) as caught:
        scheduler.enqueue_df(frame, handler="h", ordering_id=None, uniqueness_key="u", payload="p")
    assert caught.value.fields["refused"] == {"payload_not_an_object": 2, "payload_not_finite": 1}
    assert sent() == []


def test_a_frame_that_changes_between_check_and_send_is_found_out(scheduler, spark):
    calls = spark.sparkContext.accumulator(0)

    @F.udf("string")
    def changing(number):
        calls.add(1)
        from pathlib import Path

        mark = Path(folder) / "checked"
        if mark.exists():
            return None
        if number == 2:
            mark.touch()
        return str(number)

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        frame = spark.range(3).coalesce(1).select(changing.asNondeterministic()("id").alias("u"))
        with pytest.raises(ArgumentError, match="other rows"):
            scheduler.enqueue_df(frame, handler="h", ordering_id=None, uniqueness_key="u")


def test_rows_whose_check_took_long_carry_the_moment_of_the_write(scheduler, spark, sent, monkeypatch):
    monkeypatch.setattr(frames, "_CHECKED_QUICKLY_US", -1)
    times = [now_us() + 60_000_000, now_us() - 1_000_000]
    frame = spark.createDataFrame([(str(us), us) for us in times], "u string, us long")
    moment = F.timestamp_micros(F.col("us"))
    monkeypatch.setattr(frames, "now_us", lambda: now_us() + 600_000_000)  # ten minutes pass
    scheduler.enqueue_df(frame, handler="h", ordering_id=None, uniqueness_key="u", scheduled_time=moment)
    scheduler.enqueue_df(frame.limit(1), handler="h", ordering_id=None, uniqueness_key=F.lit("now"))
    *with_times, without = sorted(sent(), key=lambda command: command.key.uniqueness_key)
    assert sorted(command.key.time_us for command in with_times) == sorted(times)
    grace_us = scheduler.connection.rules.grace_ms * 1000
    assert {command.enqueued_us for command in with_times} == {times[1] + grace_us}, "no row may come too late"
    assert without.key.time_us == without.enqueued_us > now_us() + 500_000_000


def test_a_write_that_takes_too_long_is_ended_and_says_so(scheduler, spark, sent, monkeypatch, tmp_path):
    mark = str(tmp_path / "checked")

    @F.udf("string")
    def slow_when_sent(number):
        import os
        import time

        if os.path.exists(mark):
            time.sleep(1)
        elif number == 299:
            open(mark, "w").close()
        return str(number)

    monkeypatch.setattr(frames, "SENT_WITHIN_US", 8_000_000)
    frame = spark.range(300).coalesce(1).select(slow_when_sent("id").alias("u"))
    begun = time.monotonic()
    with pytest.raises(UnreachableError, match=r"Part of it was sent\. Split the frame"):
        scheduler.enqueue_df(frame, handler="h", ordering_id=None, uniqueness_key="u", scheduled_time=from_us(now_us()))
    assert time.monotonic() - begun < 150, "all rows take five minutes"
    assert len(sent()) < 300
    assert not spark.sparkContext.getJobTags()


def test_an_empty_frame_sends_nothing(scheduler, spark, sent):
    assert scheduler.enqueue_df(invoices(spark, 0), handler="h", ordering_id=None, uniqueness_key="invoiceId").sent == 0
    assert sent() == []


def test_an_expression_that_spark_refuses_is_an_argument_error(scheduler, spark):
    with pytest.raises(ArgumentError, match="nope"):
        scheduler.enqueue_df(invoices(spark, 1), handler="h", ordering_id=F.col("nope"), uniqueness_key="invoiceId")


def test_a_lost_broker_is_an_error_that_says_what_is_safe(settings, spark):
    with (
        Scheduler(with_broker(settings, "127.0.0.1:1"), spark=spark) as cut_off,
        pytest.raises(UnreachableError, match="safe"),
    ):
        cut_off.enqueue_df(invoices(spark, 1), handler="h", ordering_id=None, uniqueness_key="invoiceId")


def test_a_filtered_status_can_be_cancelled(scheduler, spark, sent, settings):
    from scylla_spark.core.tasks.key import TaskKey
    from scylla_spark.schemas import COMPLETIONS, TASKS

    keys = [TaskKey(at(10, number), f"o{number}", "u") for number in range(3)]
    append(settings.tables_path, TASKS, [task(key) for key in keys])
    append(settings.tables_path, COMPLETIONS, [fact(keys[0], 1, "succeeded")])
    status = scheduler.status()
    assert {row.ordering_id: row.state for row in status.collect()} == {
        "o0": "succeeded",
        "o1": "scheduled",
        "o2": "scheduled",
    }
    assert scheduler.cancel_df(status.where("state = 'scheduled'")).sent == 2
    assert {(command.kind, command.key) for command in sent()} == {("cancel", key) for key in keys[1:]}
    assert scheduler.completions().count() == 1
    assert scheduler.attempts().count() == scheduler.rejected().count() == 0


def test_a_stream_is_enqueued_row_by_row(scheduler, spark, sent, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text(
        '{"o":"s1","u":"1","t":"2099-01-02T10:00:00Z","p":"{\\"a\\":1}"}\n{"o":"s1","u":"2","t":"2099-01-02T10:00:00Z","p":"no"}\n'
    )
    rows = spark.readStream.schema("o string, u string, t timestamp, p string").json(str(tmp_path / "in"))
    query = scheduler.enqueue_stream(
        rows, checkpoint=tmp_path / "state", handler="h", ordering_id="o", uniqueness_key="u", scheduled_time="t",
        payload="p", trigger="100ms"
    )  # fmt: skip
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    first, second = sorted(sent(), key=lambda verdict: verdict.offset)
    assert (first.key.uniqueness_key, first.payload) == ("1", '{"a":1}')
    assert (second.reason, second.detail.split(":")[0]) == ("wrong_value", "taskData")
