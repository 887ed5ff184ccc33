"""Which hours may hold open tasks: single hours, conditions on files and several partitions together agree."""

from __future__ import annotations

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scylla_spark.core.tables.progress import Mark, OpenHours
from scylla_spark.io.delta.spark_tables import HourBucket
from scylla_spark.services.ingest.locked_tables import maybe_open

hours = st.integers(0, 12)
marks = st.builds(
    lambda closed, kept: Mark(closed_hour=closed, open_hours=tuple(sorted(hour for hour in kept if hour < closed))),
    hours,
    st.lists(hours, unique=True),
)
COMPARE = {">=": operator.ge, "in": lambda hour, among: hour in among}


@given(marks, hours)
@pytest.mark.slow
def test_conditions_on_files_hold_for_the_hours_that_may_hold_open_tasks(mark, hour):
    found = OpenHours.of(mark)
    assert any(COMPARE[sign](hour, value) for _, sign, value in found.conditions()) == found.holds(hour)
    assert found.holds(hour) == (hour >= mark.closed_hour or hour in mark.open_hours)


@pytest.mark.slow
@given(st.lists(marks, min_size=1, max_size=3), hours)
def test_of_several_partitions_no_hour_is_left_out(several, hour):
    if any(OpenHours.of(mark).holds(hour) for mark in several):
        assert OpenHours.of(*several).holds(hour)


@pytest.mark.slow
@given(marks, st.lists(hours), hours)
def test_an_hour_that_was_closed_is_open_again_when_a_task_comes(mark, touched, hour):
    before, after = OpenHours.of(mark), OpenHours.of(mark).touched(touched)
    assert after.holds(hour) == (before.holds(hour) or hour in touched)
    assert (after.closed_hour, sorted(set(after.kept_open))) == (before.closed_hour, list(after.kept_open))


def test_a_look_at_an_hour_costs_hardly_more_where_many_are_open():
    looked = []

    class Hour(int):
        def __eq__(self, other):
            looked.append(self)
            return int(self) == int(other)

        def __lt__(self, other):
            looked.append(self)
            return int(self) < int(other)

        __hash__ = int.__hash__

    mark = Mark(closed_hour=10_000, open_hours=tuple(map(Hour, range(0, 8_000, 2))))
    assert [maybe_open(HourBucket(0, hour), mark) for hour in (4_000, 4_001, 9_000, 10_000)] == [
        True,
        False,
        False,
        True,
    ]
    assert len(looked) < 100
