"""Local times with a zone as the time of a task: texts, datetimes of zones, and clocks that are set."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from scylla_spark.client.tasks.enqueue_arguments import command
from scylla_spark.clock import from_us, iso, to_us
from scylla_spark.core.plan.times.zone import instant_of
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.local_time import due_us
from scylla_spark.errors import ArgumentError
from scylla_spark.handlers.follow_ups import task

NOW = to_us(datetime(2026, 11, 27, 11, 30, tzinfo=UTC))  # a Friday, 12:30 in Berlin
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("monday noon Europe/Berlin", "2026-11-30T11:00:00Z"),
        ("Mon 12:00 Europe/Berlin", "2026-11-30T11:00:00Z"),
        ("friday noon Europe/Berlin", "2026-12-04T11:00:00Z"),
        ("fri 12:30:01 Europe/Berlin", "2026-11-27T11:30:01Z"),
        ("sat midnight Asia/Tokyo", "2026-11-27T15:00:00Z"),
        ("today 18:00 America/New_York", "2026-11-27T23:00:00Z"),
        ("tomorrow 09:15 Europe/Berlin", "2026-11-28T08:15:00Z"),
        ("2027-07-01 09:00 Europe/Berlin", "2027-07-01T07:00:00Z"),
        ("2027-07-01T09:00:30 Europe/Berlin", "2027-07-01T07:00:30Z"),
        ("2027-07-01T09:00:00.5+02:00", "2027-07-01T07:00:00.500Z"),
        ("2027-03-28 02:30 Europe/Berlin", "2027-03-28T01:00:00Z"),
        ("2027-10-31 02:30 Europe/Berlin", "2027-10-31T00:30:00Z"),
    ],
)
def test_a_text_names_a_local_time_and_its_zone(text, instant):
    assert iso(due_us(text, NOW)) == instant


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("monday noon", "is not a time"), ("monday noon Nowhere/None", "no time zone 'Nowhere/None'"),
        ("someday noon UTC", "'someday' is not a day"), ("2027-02-30 09:00 UTC", "is not a time"),
        ("monday 25:00 UTC", "is not a time"), ("2027-07-01T09:00:00", "has no time zone"), ("", "is not a time"),
        ("1969-12-31 09:00 UTC", "before 1970"), ("9999-12-31 23:59 America/New_York", "is not a time|after 2261"),
        ("monday noon ../../etc/passwd", "no time zone"),
    ],
)  # fmt: skip
def test_what_is_no_time_is_refused(text, told):
    with pytest.raises(ArgumentError, match=told):
        due_us(text, NOW)


@pytest.mark.parametrize(
    "name", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Africa/Casablanca", "UTC"]
)
def test_clocks_that_are_set_mean_the_same_as_in_schedules(name):
    zone, first = ZoneInfo(name), datetime(2027, 1, 1)  # noqa: DTZ001  local times are naive here
    for hours in range(365 * 24):
        at = first + timedelta(hours=hours, minutes=hours % 4 * 15)
        assert due_us(at.replace(tzinfo=zone), NOW) == instant_of(name, at), at


def test_the_second_of_two_times_can_be_meant():
    twice = datetime(2027, 10, 31, 2, 30, tzinfo=BERLIN)
    assert due_us(twice.replace(fold=1), NOW) - due_us(twice, NOW) == 3_600_000_000


def test_the_time_of_a_task_and_of_a_follow_up_is_read_so():
    gap = datetime(2027, 3, 28, 2, 30, tzinfo=BERLIN)
    assert command(NOW, "h", at="monday noon Europe/Berlin").key.scheduled_time == datetime(
        2026, 11, 30, 11, tzinfo=UTC
    )
    assert command(NOW, "h", at=gap).key.scheduled_time == datetime(2027, 3, 28, 1, tzinfo=UTC)
    parent = TaskKey(NOW, "lane", "u")
    assert task(parent, "a", "h", {}, {"at": gap}).at_us == to_us(datetime(2027, 3, 28, 1, tzinfo=UTC))
    later = from_us(task(parent, "a", "h", {}, {"at": "2027-07-01 09:00 Europe/Berlin"}).at_us)
    assert later == datetime(2027, 7, 1, 7, tzinfo=UTC)
