"""What a uniqueness key says of a run of a schedule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scylla_spark.clock import iso
from scylla_spark.core.tasks.key import RunName, run_name


@given(st.text(min_size=1), st.integers(0, 9_000_000_000_000_000), st.integers(1, 10**17))
def test_what_the_planner_names_a_run_is_read_back(name, planned_us, number):
    assert run_name(f"{name}/{iso(planned_us)}/{number}") == RunName(name, planned_us)


@pytest.mark.parametrize(
    "key",
    ["", "u", "a/b/c", "/2026-01-01T00:00:00Z/1", "n/2026-01-01T00:00:00Z/0", "n/2026-01-01T00:00:00Z/", "n/2026-13-01T00:00:00Z/1",
     "n/2026-01-01T00:00:00+00:00/1", "n/2026-01-01T00:00:00Z/1 ", "n/2026-01-01T00:00:00Z/٣"],
)  # fmt: skip
def test_other_keys_are_no_runs(key):
    assert run_name(key) is None
