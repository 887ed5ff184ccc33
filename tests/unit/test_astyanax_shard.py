"""Shards as the Astyanax queue counts them: its own example, and what must hold of all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scylla_spark.core.astyanax_shard import Shard, Sharding, shard_by_key, shard_by_time, time_shard
from scylla_spark.errors import ArgumentError

EXAMPLE = Sharding(buckets=50, bucket_us=30_000_000, shards=20)


def test_the_example_of_the_recipe_has_its_numbers():
    assert EXAMPLE.count == 1_000
    assert shard_by_time(EXAMPLE, 1_500_000_031_000_007) == Shard(time=1, mod=7)


def test_a_shard_of_time_lasts_its_bucket_and_comes_again_after_all_others():
    begin = 1_500_000_030_000_000
    assert {time_shard(EXAMPLE, begin + us) for us in (0, 1, 29_999_999)} == {1}
    assert time_shard(EXAMPLE, begin - 1) == 0
    assert time_shard(EXAMPLE, begin + 50 * 30_000_000) == 1


def test_one_shard_within_holds_all():
    assert shard_by_time(Sharding(50, 30_000_000, 1), 1_500_000_031_000_007).mod == 0


@pytest.mark.slow
@given(
    st.integers(0, 1 << 62), st.text(st.characters(codec="utf-8")), st.builds(Sharding, *[st.integers(1, 5_000)] * 3)
)
def test_no_shard_is_negative_or_beyond_the_last(time_us, key, sharding):
    for shard in (shard_by_time(sharding, time_us), shard_by_key(sharding, time_us, key)):
        assert 0 <= shard.time < sharding.buckets
        assert 0 <= shard.mod < sharding.shards


@pytest.mark.parametrize("sharding", [Sharding(0, 1, 1), Sharding(1, 0, 1), Sharding(1, 1, -1)])
def test_what_divides_nothing_is_told(sharding):
    with pytest.raises(ArgumentError, match="divides nothing"):
        shard_by_time(sharding, 1)
