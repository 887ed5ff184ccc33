"""Instants as numbers and as datetimes are the same."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scylla_spark.clock import from_us, to_us

ZONES = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=ZONES))  # noqa: DTZ001
def test_an_instant_is_its_microseconds_whatever_its_zone(moment):
    us = to_us(moment)
    assert from_us(us) == moment
    assert us == (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def test_a_time_without_a_zone_is_no_instant():
    with pytest.raises(ValueError, match="no time zone"):
        to_us(datetime(2026, 1, 1))  # noqa: DTZ001
