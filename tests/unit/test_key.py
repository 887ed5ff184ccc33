"""Keys, hours and partitions."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_murmur2

from scylla_spark.core.tasks.key import TaskKey, murmur2, names_a_task, partition_of
from scylla_spark.core.tasks.output import outputs_place
from scylla_spark.errors import ArgumentError


def test_murmur2_gives_the_published_vectors():
    assert murmur2(b"21") == -973932308
    assert partition_of("oid1", 16) == 1


@given(st.text(max_size=50), st.integers(1, 100))
@pytest.mark.slow
def test_partition_is_the_one_that_kafka_chooses(ordering_id, partitions):
    hashed = kafka_murmur2(ordering_id.encode())
    assert murmur2(ordering_id.encode()) & 0xFFFFFFFF == hashed & 0xFFFFFFFF
    assert partition_of(ordering_id, partitions) == (hashed & 0x7FFFFFFF) % partitions


def test_hours_change_at_the_full_hour_to_the_millisecond():
    before = TaskKey.of(datetime(2026, 5, 1, 10, 59, 59, 999000, tzinfo=UTC), "a", "b")
    after = TaskKey.of(datetime(2026, 5, 1, 11, tzinfo=UTC), "a", "b")
    assert after.hour == before.hour + 1


def test_hour_does_not_depend_on_the_zone_of_the_datetime():
    moment = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)  # within the hour that Berlin repeats
    for offset in (-11, 0, 2, 14):
        assert TaskKey.of(moment.astimezone(timezone(timedelta(hours=offset))), "a", "b") == TaskKey.of(
            moment, "a", "b"
        )


def test_keys_order_by_time_then_lane_then_uniqueness():
    keys = [TaskKey(1, "a", "b"), TaskKey(1, "a", "c"), TaskKey(1, "b", "a"), TaskKey(2, "a", "a")]
    backwards = [keys[3], keys[2], keys[1], keys[0]]
    assert sorted(backwards) == keys


def test_a_key_is_shown_as_an_id_that_shells_take_as_one_word():
    key = TaskKey.of(datetime(2026, 1, 31, 9, tzinfo=UTC), "a,b c", "ü/'1")
    assert str(key) == "2026-01-31T09:00:00Z,a%2Cb%20c,%C3%BC%2F%271"
    assert repr(key) == repr(str(key))
    assert TaskKey.parse(str(key)) == key


def test_a_sentence_with_an_id_names_a_task():
    key = TaskKey(1_800_000_000_000_000, "a b", "u")
    assert names_a_task(f"It waits for {key}, which is before it.")
    assert not names_a_task("It is due at 2026-01-31T09:00:00Z, then it runs.")


@pytest.mark.parametrize(
    "text", ["TaskKey(2026-01-01T00:00:00Z,a,b)", "2026-01-01,a,b", "2026-01-01T00:00:00,a,b", "a,b"]
)
def test_other_text_is_refused_with_the_right_form(text):
    with pytest.raises(ArgumentError, match=r"not the id of a task.*Write SCHEDULED_TIME,ORDERING_ID,UNIQUENESS_KEY"):
        TaskKey.parse(text)


def test_files_lie_where_they_always_lay_unless_two_keys_had_one_place():
    at = 1_795_000_000_000_000
    assert outputs_place(TaskKey(at, "report", "nightly"), 2, 8) == "7/498611/79dd0c97d56e101136e1ecb08ce60738/2"
    assert (
        outputs_place(TaskKey(at, "report", 'with "quotes"'), 1, 8).split("/")[2] == "396ae9e609bdad0c18edef0a23575226"
    )
    ambiguous = TaskKey(at, "a,b", "c"), TaskKey(at, "a", "b,c")
    assert len({outputs_place(key, 1, 8).split("/")[2] for key in ambiguous}) == 2
