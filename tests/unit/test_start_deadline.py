"""How a limit of the boot clock travels to a machine with another one."""

from __future__ import annotations

from scylla_spark.executors.start_deadline import NO_LIMIT, StartLimit, this_clock

SENT = StartLimit("driver", 1_000_000_000, 5_000_000)


def test_limit_stays_as_it_is_where_the_clock_is_the_same():
    assert SENT.limit_here(7_000_000, StartLimit("driver", 1_000_500_000, 5_500_000)) == 7_000_000


def test_limit_is_carried_over_by_wall_time_where_it_is_not():
    here = StartLimit("worker", 1_000_500_000, 90_000_000)  # half a second later, on a machine that booted before
    assert SENT.limit_here(7_000_000, here) == 90_000_000 + 1_500_000


def test_limit_that_passed_on_the_way_is_in_the_past():
    here = StartLimit("worker", 1_003_000_000, 90_000_000)
    assert SENT.limit_here(7_000_000, here) < here.boot_us


def test_no_limit_stays_none():
    assert SENT.limit_here(NO_LIMIT, StartLimit("worker", 0, 0)) == NO_LIMIT


def test_clock_has_one_name_on_one_machine():
    assert this_clock() == this_clock()
