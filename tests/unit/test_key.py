"""Keys, hours and partitions."""

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_murmur2

from scylla_spark.core.key import TaskKey, murmur2, partition_of
from scylla_spark.core.output import outputs_place
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


PARTS = st.text(min_size=1, max_size=20) | st.text(alphabet=',"\\()ab \n', min_size=1, max_size=8)


@pytest.mark.slow
@given(st.integers(0, 9 * 10**15), PARTS, PARTS)
def test_text_form_reads_back(time_us, ordering_id, uniqueness_key):
    key = TaskKey(time_us, ordering_id, uniqueness_key)
    assert TaskKey.parse(str(key)) == key


def test_a_part_with_a_comma_is_quoted_and_others_are_as_they_are():
    time = "2026-01-01T00:00:00Z"
    for lane, unique, text in (
        ("L", "a,b", '"a,b"'),
        ("L,a", "b", "b"),
        ("L", "f(x) \\", "f(x) \\"),
        ("L", 'a"', r'"a\""'),
    ):
        key = TaskKey.parse(f"TaskKey({time},{json.dumps(lane)},{text})")
        assert key[1:] == (lane, unique)
        assert str(key) == f"TaskKey({time},{json.dumps(lane) if ',' in lane else lane},{text})"


@pytest.mark.parametrize(
    "text",
    ["", "TaskKey()", "TaskKey(2026-01-01,a,b)", "TaskKey(2026-01-01T00:00:00,a,b)", "Key(1,2,3)",
     "TaskKey(2026-01-01T00:00:00Z,a,b,c)", 'TaskKey(2026-01-01T00:00:00Z,a,"b)', 'TaskKey(2026-01-01T00:00:00Z,a,b"c)',
     r'TaskKey(2026-01-01T00:00:00Z,a,"\x")', r'TaskKey(2026-01-01T00:00:00Z,a,"\ud800")'],
)  # fmt: skip
def test_bad_text_is_refused_with_the_right_form(text):
    with pytest.raises(ArgumentError, match="Write TaskKey"):
        TaskKey.parse(text)


def test_files_lie_where_they_always_lay_unless_two_keys_had_one_place():
    at = 1_795_000_000_000_000
    assert outputs_place(TaskKey(at, "report", "nightly"), 2, 8) == "7/498611/79dd0c97d56e101136e1ecb08ce60738/2"
    assert (
        outputs_place(TaskKey(at, "report", 'with "quotes"'), 1, 8).split("/")[2] == "396ae9e609bdad0c18edef0a23575226"
    )
    ambiguous = TaskKey(at, "a,b", "c"), TaskKey(at, "a", "b,c")
    assert len({outputs_place(key, 1, 8).split("/")[2] for key in ambiguous}) == 2
