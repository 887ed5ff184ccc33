"""Time triggers: intervals, dates, recurrences; bounds, holidays, blackouts and jitter."""

import random
from datetime import date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from scylla_spark.core.plan.times import zone
from scylla_spark.core.plan.times.cron import cron
from scylla_spark.core.plan.times.fire_times import FireTimes, dates, every, recurrence
from scylla_spark.errors import ArgumentError

BERLIN = "Europe/Berlin"
HOUR = 3_600_000_000
DAY = 24 * HOUR
WEEKENDS = frozenset(
    date(2026, 1, 1) + timedelta(days=n) for n in range(400) if (date(2026, 1, 1) + timedelta(days=n)).weekday() > 4
)
HOLIDAYS = {"de": frozenset({date(2026, 4, 3), date(2026, 4, 6), date(2026, 5, 1)}), "weekends": WEEKENDS}


def us(text, tz="UTC"):
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz)).timestamp()) * 1_000_000


def listed(times, begin, count, calendars=HOLIDAYS):
    found, at = [], begin
    while len(found) < count and (at := times.next_after(at, calendars)) is not None:
        found.append(at)
    return found


def local(times_us, tz=BERLIN):
    return [datetime.fromtimestamp(at / 1e6, ZoneInfo(tz)).strftime("%m-%d %H:%M") for at in times_us]


def test_an_interval_lies_on_a_grid_that_nobody_moves():
    rule = FireTimes(every(HOUR, 19 * 60_000_000))
    begin = us("2026-03-01T10:30")
    assert listed(rule, begin, 2) == [us("2026-03-01T11:19"), us("2026-03-01T12:19")]
    assert rule.next_after(us("2026-03-01T11:19"), {}) == us("2026-03-01T12:19")
    assert rule.next_after(us("2026-03-01T11:18:59"), {}) == us("2026-03-01T11:19")


def test_dates_come_in_order_and_once():
    rule = FireTimes(dates((us("2026-05-01"), us("2026-03-01"), us("2026-05-01"))))
    assert listed(rule, 0, 5) == [us("2026-03-01"), us("2026-05-01")]


def test_a_recurrence_is_expanded_in_local_time():
    rule = FireTimes(recurrence("FREQ=MONTHLY;BYDAY=-1FR", "2026-01-01T17:00", BERLIN))
    assert local(listed(rule, us("2026-02-01"), 3)) == ["02-27 17:00", "03-27 17:00", "04-24 17:00"]
    skipped = FireTimes(recurrence("FREQ=DAILY", "2026-03-27T02:30", BERLIN))
    assert local(listed(skipped, us("2026-03-27T12:00"), 3)) == ["03-28 02:30", "03-29 03:00", "03-30 02:30"]
    repeated = FireTimes(recurrence("FREQ=DAILY", "2026-10-23T02:30", BERLIN))
    assert listed(repeated, us("2026-10-24T12:00"), 2) == [us("2026-10-25T00:30"), us("2026-10-26T01:30")]


def test_bounds_hold():
    rule = FireTimes(cron("0 * * * *"), start_us=us("2026-03-01T10:00"), end_us=us("2026-03-01T12:00"))
    assert listed(rule, 0, 9) == [us("2026-03-01T10:00"), us("2026-03-01T11:00"), us("2026-03-01T12:00")]


def test_nothing_lies_within_a_blackout():
    rule = FireTimes(cron("0 * * * *"), blackouts=((us("2026-03-01T10:00"), us("2026-03-01T12:00")),))
    assert listed(rule, us("2026-03-01T08:30"), 2) == [us("2026-03-01T09:00"), us("2026-03-01T12:00")]


def test_holidays_are_skipped_or_moved_to_another_day():
    def on(what):
        return local(
            listed(
                FireTimes(cron("0 9 * * *", BERLIN), calendar="de", on_holiday=what, tz=BERLIN),
                us("2026-04-01T12:00"),
                5,
            )
        )

    assert on("skip") == ["04-02 09:00", "04-04 09:00", "04-05 09:00", "04-07 09:00", "04-08 09:00"]
    assert on("next") == ["04-02 09:00", "04-04 09:00", "04-05 09:00", "04-07 09:00", "04-08 09:00"]
    monthly = FireTimes(cron("0 9 3,6 * *", BERLIN), calendar="de", on_holiday="next", tz=BERLIN)
    assert local(listed(monthly, us("2026-04-01"), 3)) == ["04-04 09:00", "04-07 09:00", "05-03 09:00"]
    monthly = FireTimes(cron("0 9 3,6 * *", BERLIN), calendar="de", on_holiday="previous", tz=BERLIN)
    assert local(listed(monthly, us("2026-04-01"), 3)) == ["04-02 09:00", "04-05 09:00", "05-03 09:00"]


@pytest.mark.parametrize("what", ["next", "previous"])
@pytest.mark.slow
def test_moved_times_agree_with_moving_every_time_by_hand(what):
    rng = random.Random(what)
    for _ in range(6):
        base = cron(
            f"{rng.choice(['0', '30', '15,45'])} {rng.choice(['2', '8,20', '23'])} {rng.choice(['*', '1,15', '*/3'])} * *",
            BERLIN,
        )
        begin, end = us("2026-03-01"), us("2026-06-01")
        wanted, at = set(), begin - 40 * DAY
        while (at := base.next_after(at)) < end + 40 * DAY:
            here = zone.local(at, zone.offset_us(BERLIN, at))
            day = here.date()
            while day in WEEKENDS:
                day += timedelta(days=1 if what == "next" else -1)
            wanted.add(zone.instant_of(BERLIN, here + (day - here.date())))
        found, at = [], begin - 1
        rule = FireTimes(base, calendar="weekends", on_holiday=what, tz=BERLIN)
        while (at := rule.next_after(at, HOLIDAYS)) < end:
            found.append(at)
        assert found == sorted(at for at in wanted if begin <= at < end), base
        assert all(a < b for a, b in pairwise(found))


def test_jitter_is_the_same_whenever_it_is_asked_for_and_differs_between_schedules():
    rule = FireTimes(cron("0 0 * * *"), jitter_us=300_000_000)
    planned = us("2026-03-01")
    starts = {rule.starts_us(f"schedule {number}", planned) for number in range(100)}
    assert len(starts) > 90
    assert all(planned <= at < planned + 300_000_000 for at in starts)
    assert rule.starts_us("a", planned) == rule.starts_us("a", planned)


@pytest.mark.parametrize(
    ("rule", "start"),
    [
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "2026-01-01"), ("FREQ=SECONDLY", "2026-01-01"), ("DAILY", "2026-01-01"),
        ("FREQ=MINUTELY;BYMONTH=2;BYMONTHDAY=30", "2026-01-01"), ("FREQ=DAILY\nRDATE:20260101", "2026-01-01"),
        ("FREQ=DAILY;INTERVAL=x", "2026-01-01"), ("FREQ=DAILY", "yesterday"), ("FREQ=DAILY", "2026-01-01T00:00+01:00"),
        ("FREQ=DAILY;BYDAY=XX", "2026-01-01"), ("FREQ=DAILY;COUNT=0;" + "X" * 1_000, "2026-01-01"), ("", "2026-01-01"),
    ],
)  # fmt: skip
def test_a_bad_rule_is_refused(rule, start):
    with pytest.raises(ArgumentError):
        recurrence(rule, start)


def test_other_bad_times_are_refused():
    for call in (
        lambda: every(999_999),
        lambda: every(0),
        lambda: every(-5),
        lambda: dates(()),
        lambda: dates((1 << 70,)),
        lambda: dates((0,) * 10_001),
    ):
        with pytest.raises(ArgumentError):
            call()
