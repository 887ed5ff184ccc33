"""What is near and what is far: single tasks, windows and rows agree."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from scylla_spark.clock import from_us
from scylla_spark.core.tables.progress import ALL_FOLDED_US, common_edge, is_far, reaches_far
from scylla_spark.io.delta.rows import stands_far

instants = st.integers(0, 50)


@given(instants, instants)
def test_a_window_reaches_what_is_far_if_its_last_task_is(until_us, edge_us):
    assert reaches_far(until_us, edge_us) == any(is_far(us, edge_us) for us in range(until_us + 1))


@given(instants, instants)
def test_rows_are_divided_as_single_tasks_are(time_us, edge_us):
    row = pl.LazyFrame({"scheduled_time": [from_us(time_us)]}).select(far=stands_far(edge_us)).collect()
    assert row["far"].to_list() == [is_far(time_us, edge_us)]


def test_a_window_without_end_reaches_what_is_far_unless_nothing_is():
    assert reaches_far(None, 1)
    assert not reaches_far(None, ALL_FOLDED_US)
    assert not reaches_far(ALL_FOLDED_US - 1, ALL_FOLDED_US)


@given(st.lists(instants, min_size=1), instants)
def test_of_several_partitions_none_is_taken_for_near_that_is_far(edges, time_us):
    assert is_far(time_us, common_edge(edges)) == any(is_far(time_us, edge) for edge in edges)


def test_without_partitions_nothing_is_far():
    assert common_edge([]) == ALL_FOLDED_US
