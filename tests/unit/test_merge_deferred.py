"""How many hours of deferred tasks are folded at once."""

from scylla_spark.core.tasks.key import HOUR_US
from scylla_spark.io.delta.spark_tables import HourBucket
from scylla_spark.services.ingest.merge_deferred import slice_end

TARGET = 500 * HOUR_US


def test_nothing_that_waits_is_folded_in_one_step():
    assert slice_end({}, TARGET, 10) == TARGET


def test_a_slice_has_full_hours_of_few_enough_rows():
    places = {HourBucket(0, 100): 4, HourBucket(1, 100): 4, HourBucket(0, 120): 2, HourBucket(0, 130): 1}
    assert slice_end(places, TARGET, 11) == TARGET
    assert slice_end(places, TARGET, 10) == 130 * HOUR_US
    assert slice_end(places, TARGET, 9) == 120 * HOUR_US


def test_an_hour_of_too_many_rows_is_a_slice_of_its_own():
    assert slice_end({HourBucket(0, 100): 50, HourBucket(0, 101): 1}, TARGET, 10) == 101 * HOUR_US
    assert slice_end({HourBucket(0, 100): 50}, TARGET, 10) == TARGET


def test_a_slice_touches_few_enough_files():
    places = {HourBucket(partition, hour): 1 for partition in range(16) for hour in range(100, 110)}
    assert slice_end(places, TARGET, 1000) == 104 * HOUR_US
