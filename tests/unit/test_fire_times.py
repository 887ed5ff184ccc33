"""Time triggers: intervals, dates, recurrences; bounds, holidays, blackouts and jitter."""

import random
import sys
from calendar import monthrange
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import rrulestr

from scylla_spark.clock import iso
from scylla_spark.core.plan.times import zone
from scylla_spark.core.plan.times.breaks import Days
from scylla_spark.core.plan.times.cron import cron
from scylla_spark.core.plan.times.fire_times import FireTimes, dates, every, merged_blackouts
from scylla_spark.core.plan.times.recurrence import recurrence
from scylla_spark.errors import ArgumentError

SECOND = 1_000_000

BERLIN = "Europe/Berlin"
HOUR = 3_600_000_000
DAY = 24 * HOUR
WEEKENDS = Days(
    date(2026, 1, 1) + timedelta(days=n) for n in range(400) if (date(2026, 1, 1) + timedelta(days=n)).weekday() > 4
)
HOLIDAYS = {"de": Days({date(2026, 4, 3), date(2026, 4, 6), date(2026, 5, 1)}), "weekends": WEEKENDS}


def us(text, tz="UTC"):
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz)).timestamp()) * 1_000_000


def listed(times, begin, count, calendars=HOLIDAYS):
    found, at = [], begin
    while len(found) < count and (at := times.next_after(at, calendars)) is not None:
        found.append(at)
    return found


def local(times_us, tz=BERLIN):
    return [datetime.fromtimestamp(at / 1e6, ZoneInfo(tz)).strftime("%m-%d %H:%M") for at in times_us]


@dataclass
class Asked:
    """A rule that counts how often it is asked."""

    rule: object
    times: int = 0

    def next_after(self, after_us):
        self.times += 1
        return self.rule.next_after(after_us)


def lines_of(call: Callable[[], object]) -> int:
    """Returns how many lines of Python a call runs through: what it costs, on any machine."""
    count, before = 0, sys.gettrace()

    def trace(_frame, event, _arg):
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


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


def test_blackouts_in_any_order_that_overlap_or_meet_are_one():
    given = [(40, 50), (10, 20), (15, 17), (20, 30), (41, 60)]
    merged = merged_blackouts(given)
    assert merged == ((10, 30), (40, 60))
    times = FireTimes(every(1_000_000), blackouts=tuple((begin * SECOND, end * SECOND) for begin, end in merged))
    assert [times.blackout_end(at * SECOND) for at in (9, 10, 29, 30, 39, 59, 60)] == [
        None, 30 * SECOND, 30 * SECOND, None, None, 60 * SECOND, None,
    ]  # fmt: skip
    assert times.next_after(14 * SECOND, {}) == 30 * SECOND


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


@pytest.mark.parametrize("what", ["next", "previous"])
@pytest.mark.parametrize("rule", [every(1_000_000), cron("* * * * *", BERLIN), cron("0 9 * * 6", BERLIN)])
def test_a_moved_time_is_asked_for_by_the_day_however_many_times_a_day_has(rule, what):
    asked = Asked(rule)
    times = FireTimes(asked, calendar="weekends", on_holiday=what, tz=BERLIN)
    for hour in range(0, 24 * 21, 5):
        assert times.next_after(us("2026-03-16") + hour * HOUR, HOLIDAYS) is not None
        assert asked.times <= 8
        asked.times = 0


def test_a_time_in_a_break_of_years_is_moved_with_no_more_questions_than_those_of_a_month():
    closed = {"closed": Days(date(2020, 1, 1) + timedelta(days=n) for n in range(3_000))}
    asked = Asked(cron("0 9 * * *"))
    times = FireTimes(asked, calendar="closed", on_holiday="next")
    assert times.next_after(us("2021-01-01"), closed) == us("2028-03-19T09:00")
    assert asked.times < 40


@pytest.mark.parametrize("what", ["next", "previous"])
def test_times_of_the_day_on_which_clocks_are_set_are_moved_as_any(what):
    days = {"clocks": Days({date(2026, 3, 29), date(2026, 10, 25)})}
    times = FireTimes(every(25 * 60_000_000), calendar="clocks", on_holiday=what, tz=BERLIN)
    for day in ("2026-03-29", "2026-10-25"):
        begin, wanted, at = us(day) - 3 * DAY, set(), us(day) - 5 * DAY
        while (at := times.rule.next_after(at)) < begin + 6 * DAY:
            here = zone.local(at, zone.offset_us(BERLIN, at))
            move = timedelta(days=1 if what == "next" else -1) if here.date() in days["clocks"] else timedelta(0)
            wanted.add(zone.instant_of(BERLIN, here + move) if move else at)
        assert listed(times, begin, 250, days) == sorted(at for at in wanted if at > begin)[:250]


SIXTY = ",".join(map(str, range(60)))
EACH_SECOND = [
    f"FREQ=MINUTELY;BYSECOND={SIXTY}", f"FREQ=HOURLY;BYMINUTE={SIXTY};BYSECOND={SIXTY}",
    f"FREQ=DAILY;BYHOUR={','.join(map(str, range(24)))};BYMINUTE={SIXTY};BYSECOND={SIXTY}",
    f"FREQ=YEARLY;BYDAY=MO,TU,WE,TH,FR,SA,SU;BYHOUR={','.join(map(str, range(24)))};BYMINUTE={SIXTY};BYSECOND={SIXTY}",
]  # fmt: skip


@pytest.mark.parametrize("rule", EACH_SECOND)
def test_what_a_recurrence_costs_does_not_grow_with_the_times_of_a_day(rule):
    times = recurrence(rule, "2020-03-01T00:00:00", BERLIN)
    begin = us("2026-11-23T23:59:57")
    for at in range(begin, begin + 5_000_000, 1_000_000):
        assert times.next_after(at) == at + 1_000_000
        assert lines_of(lambda at=at: times.next_after(at)) < 20_000  # of a year: its days


def test_minutes_that_a_rule_does_not_name_are_passed_over_by_the_hour_and_the_day():
    times = recurrence("FREQ=MINUTELY;INTERVAL=11;BYDAY=MO;BYHOUR=3;BYMINUTE=0", "2026-01-01T00:00:00")
    first = times.next_after(us("2026-01-01"))
    assert times.next_after(first) == first + 77 * DAY
    assert lines_of(lambda: times.next_after(first)) < 8_000


def test_a_rule_that_has_ended_is_a_rule_without_times():
    assert recurrence("FREQ=DAILY;UNTIL=20200101T000000", "2026-01-01").next_after(0) is None


def test_a_rule_that_counts_is_counted_once_and_ends_where_it_should():
    times = recurrence("FREQ=MINUTELY;BYSECOND=0,20;COUNT=9999", "2026-03-01T00:00:10")
    last = us("2026-03-01T00:00:20") + 9_998 // 2 * 60_000_000
    assert times.next_after(last - 1) == last
    assert times.next_after(last) is None
    assert lines_of(lambda: times.next_after(last - 1)) < 1_000


@pytest.mark.slow
def test_a_rule_whose_times_are_too_rare_ends_the_search_instead_of_the_planner():
    def judge():
        with pytest.raises(ArgumentError, match="names no time"):
            recurrence("FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30", "2026-01-01")

    assert lines_of(judge) < 1_000_000
    rare = recurrence("FREQ=DAILY;BYMONTH=2;BYMONTHDAY=29;BYDAY=MO", "2026-01-01")
    assert rare.next_after(us("2026-03-01")) == us("2044-02-29")
    assert rare.next_after(us("2072-03-01")) == us("2112-02-29")  # forty years: one that 2100 lacks lies between them


def test_a_rule_whose_next_step_lies_beyond_all_time_has_one_time():
    for rule in (
        "FREQ=WEEKLY;INTERVAL=999999999",
        "FREQ=YEARLY;INTERVAL=999999999",
        "FREQ=MINUTELY;INTERVAL=999999999",
    ):
        assert listed(FireTimes(recurrence(rule, "2026-01-01")), 0, 3)[0] == us("2026-01-01")
        found = recurrence(rule, "2026-01-01").next_after(us("2261-01-01"))
        assert found is None or found > us("3000-01-01")


@pytest.mark.parametrize(("rule", "minutes"), [("FREQ=HOURLY", 60), ("FREQ=MINUTELY;INTERVAL=30", 30), ("FREQ=HOURLY;INTERVAL=6", 360),
    ("FREQ=MINUTELY;INTERVAL=7;BYDAY=MO,TU,WE,TH,FR,SA,SU", 7)])  # fmt: skip
def test_hours_and_minutes_of_a_recurrence_go_on_when_clocks_are_set(rule, minutes):
    times = recurrence(rule, "2026-01-01T00:00:00", BERLIN)
    for begin in (us("2026-03-28T22:00"), us("2026-10-24T22:00")):
        found = listed(FireTimes(times), begin, 40)
        assert {later - before for before, later in pairwise(found)} == {minutes * 60_000_000}
        assert found[0] <= begin + minutes * 60_000_000
        assert times.next_after(found[17] - 1) == found[17]  # wherever the question begins


def test_a_second_part_of_each_hour_comes_in_both_hours_where_one_comes_twice():
    times = FireTimes(recurrence("FREQ=HOURLY;BYMINUTE=15,45", "2026-10-24T00:00", BERLIN))
    assert local(listed(times, us("2026-10-24T23:50"), 6)) == [
        "10-25 02:15", "10-25 02:45", "10-25 02:15", "10-25 02:45", "10-25 03:15", "10-25 03:45"
    ]  # fmt: skip
    assert times.next_after(us("2026-10-25T01:10"), {}) == us("2026-10-25T01:15")


def test_hours_that_a_recurrence_names_are_local_in_summer_and_winter():
    times = FireTimes(recurrence("FREQ=MINUTELY;INTERVAL=30;BYHOUR=9;BYDAY=MO", "2026-01-01T00:00", BERLIN))
    for monday in ("2026-03-23", "2026-03-30", "2026-10-19", "2026-10-26"):
        assert local(listed(times, us(f"{monday}T00:00"), 2)) == [f"{monday[5:]} 09:00", f"{monday[5:]} 09:30"]


def test_an_hour_that_a_recurrence_meets_in_winter_only_is_no_error_in_summer():
    times = recurrence("FREQ=HOURLY;INTERVAL=24;BYHOUR=5", "2026-01-01T05:00", BERLIN)
    assert times.next_after(us("2026-07-01")) == us("2026-10-25T04:00")
    assert times.next_after(us("2026-10-25T04:00")) == us("2026-10-26T04:00")
    ended = recurrence("FREQ=HOURLY;INTERVAL=24;BYHOUR=5;UNTIL=20260801T000000", "2026-01-01T05:00", BERLIN)
    assert ended.next_after(us("2026-07-01")) is None


def test_a_recurrence_by_the_hour_counts_real_hours_and_ends_at_a_local_time():
    counted = FireTimes(recurrence("FREQ=HOURLY;COUNT=5", "2026-10-25T00:00", BERLIN))
    assert listed(counted, 0, 9) == [us("2026-10-24T22:00") + hour * 3_600_000_000 for hour in range(5)]
    ended = FireTimes(recurrence("FREQ=HOURLY;UNTIL=20261025T030000", "2026-10-25T00:00", BERLIN))
    assert listed(ended, 0, 9) == [us("2026-10-24T22:00") + hour * 3_600_000_000 for hour in range(5)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=WEEKLY;BYDAY=MO,WE,FR;BYSETPOS=2;BYHOUR=9,17", "FREQ=WEEKLY;INTERVAL=2;WKST=SU;BYDAY=TU,SU;BYHOUR=3,22;BYMINUTE=7,30",
        "FREQ=MONTHLY;BYMONTHDAY=29,-1;BYHOUR=0,23", "FREQ=MONTHLY;INTERVAL=5;BYMONTHDAY=31", "FREQ=YEARLY;BYWEEKNO=1,53;BYDAY=MO,SU",
        "FREQ=YEARLY;INTERVAL=3;BYMONTH=2;BYDAY=-1FR;BYSECOND=5,10", "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1,1;BYHOUR=8,20",
        "FREQ=HOURLY;INTERVAL=7;BYHOUR=1,2,3,20;BYMINUTE=5,50", "FREQ=MINUTELY;INTERVAL=11;BYDAY=MO;BYHOUR=3;BYSECOND=1,2",
        "FREQ=DAILY;INTERVAL=4;BYHOUR=6,18;UNTIL=20270305T060000", "FREQ=WEEKLY;BYDAY=TU,TH;BYHOUR=4,5;COUNT=70",
    ],
)  # fmt: skip
def test_a_recurrence_agrees_with_the_library_that_walks_from_its_start(rule):
    start = datetime(2024, 2, 29, 13, 40)  # noqa: DTZ001
    end = datetime(2029, 1, 1)  # noqa: DTZ001
    begin = start - timedelta(
        weeks=1 if "BYSETPOS" in rule else 0
    )  # the library counts positions in a part of its first week
    wanted = [zone.instant(at, 0) for at in rrulestr(rule, dtstart=begin).between(start, end, inc=True)]
    times = FireTimes(recurrence(rule, start.isoformat()))
    assert listed(times, zone.instant(start, 0) - 1, len(wanted)) == wanted
    rng = random.Random(rule)
    for _ in range(100):
        at = rng.randrange(wanted[0], wanted[-1])
        assert times.next_after(at, {}) == next(one for one in wanted if one > at)


def days_of(rule, start, last):
    """The days that RFC 5545 gives a rule of days, by looking at each day of each period; the source is the table of section 3.3.10."""
    parts = dict(part.split("=") for part in rule.split(";"))
    numbers = {
        name: [int(one) for one in parts[name].split(",")] for name in parts if name in POSITIONS or name == "BYSETPOS"
    }
    weekdays = (
        [(int(one[:-2] or 0), DAYS.index(one[-2:])) for one in parts["BYDAY"].split(",")] if "BYDAY" in parts else []
    )
    frequency, months = parts["FREQ"], numbers.get("BYMONTH")
    if not weekdays and not numbers.keys() & {"BYMONTHDAY", "BYYEARDAY"}:
        weekdays = [(0, start.weekday())] if frequency == "WEEKLY" else []
        numbers |= {"BYMONTHDAY": [start.day]} if frequency in ("MONTHLY", "YEARLY") else {}
        numbers |= {"BYMONTH": months or [start.month]} if frequency == "YEARLY" else {}
    count = POSITIONS["BYYEARDAY" if frequency == "YEARLY" and not months else "BYMONTHDAY"]

    def named(day):
        ahead, behind = count(day)
        at = ((ahead + 6) // 7, behind // 7)
        on_day = not weekdays or any(day.weekday() == which and n in (0, *at) for n, which in weekdays)
        return on_day and all(
            set(POSITIONS[name](day)) & set(values) for name, values in numbers.items() if name in POSITIONS
        )

    first = start - timedelta(days=(start.weekday() - DAYS.index(parts.get("WKST", "MO"))) % 7)
    periods = {
        "DAILY": lambda day: (day - start).days, "WEEKLY": lambda day: (day - first).days // 7,
        "MONTHLY": lambda day: day.year * 12 + day.month - start.year * 12 - start.month, "YEARLY": lambda day: day.year - start.year,
    }  # fmt: skip
    found = {}
    for day in (date(start.year, 1, 1) - timedelta(days=7) + timedelta(days=n) for n in range(4_000)):
        if periods[frequency](day) % int(parts.get("INTERVAL", "1")) == 0 and named(day):
            found.setdefault(periods[frequency](day), []).append(day)
    for days in found.values():
        chosen = {(n - 1 if n > 0 else n) % len(days) for n in numbers.get("BYSETPOS", []) if abs(n) <= len(days)}
        yield from (
            day for n, day in enumerate(days) if ("BYSETPOS" not in numbers or n in chosen) and start <= day <= last
        )


DAYS = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"]
POSITIONS = {
    "BYMONTH": lambda day: [day.month],
    "BYMONTHDAY": lambda day: [day.day, day.day - 1 - monthrange(day.year, day.month)[1]],
    "BYYEARDAY": lambda day: [(day - date(day.year, 1, 1)).days + 1, (day - date(day.year + 1, 1, 1)).days],
    "BYWEEKNO": lambda day: [day.isocalendar()[1], day.isocalendar()[1] - 1 - date(day.isocalendar()[0], 12, 28).isocalendar()[1]],
}  # fmt: skip


@pytest.mark.parametrize("start", [date(2024, 2, 29), date(2026, 12, 31)])
@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=WEEKLY;BYDAY=MO,WE,FR;BYSETPOS=2", "FREQ=WEEKLY;INTERVAL=2;WKST=SU;BYDAY=SU,MO", "FREQ=WEEKLY;INTERVAL=3",
        "FREQ=MONTHLY;BYDAY=-1FR,2MO", "FREQ=MONTHLY;BYDAY=FR;BYMONTHDAY=13", "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1,1",
        "FREQ=MONTHLY;INTERVAL=5;BYMONTHDAY=-31,15", "FREQ=MONTHLY;BYMONTH=2,6;BYDAY=5TH", "FREQ=MONTHLY;INTERVAL=7",
        "FREQ=YEARLY;BYDAY=53MO,-53TU,20WE", "FREQ=YEARLY;BYMONTH=2,12;BYDAY=5SU,-1SA", "FREQ=YEARLY;INTERVAL=2;BYYEARDAY=366,-1,60",
        "FREQ=YEARLY;BYWEEKNO=1,53;BYDAY=MO,SU", "FREQ=YEARLY;BYWEEKNO=-1,20;BYDAY=TH", "FREQ=YEARLY;BYMONTH=3,4;BYDAY=MO;BYSETPOS=-1,2",
        "FREQ=YEARLY;BYWEEKNO=-51,-2,52;BYDAY=MO,SU", "FREQ=DAILY;INTERVAL=3;BYMONTH=2,3;BYDAY=TU", "FREQ=YEARLY;BYMONTH=5", "FREQ=YEARLY",
        "FREQ=DAILY;BYMONTHDAY=-1,1",
    ],
)  # fmt: skip
def test_a_recurrence_names_the_days_that_rfc_5545_gives_it(rule, start):
    wanted = [str(day) for day in days_of(rule, start, date(start.year + 9, 6, 1))]
    times = FireTimes(recurrence(rule, f"{start}T09:00"))
    assert [iso(at)[:10] for at in listed(times, 0, len(wanted))] == wanted


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
        ("FREQ=DAILY;INTERVAL=x", "2026-01-01"), ("FREQ=DAILY;INTERVAL=0", "2026-01-01"), ("FREQ=DAILY;COUNT=0", "2026-01-01"),
        ("FREQ=DAILY;BYHOUR=24", "2026-01-01"), ("FREQ=DAILY; BYHOUR=3", "2026-01-01"),
        ("FREQ=DAILY", "yesterday"), ("FREQ=DAILY", "2026-01-01T00:00+01:00"),
        ("FREQ=DAILY;BYHOUR=9;UNTIL=20260105", "2026-01-01"), ("FREQ=DAILY;UNTIL=20261332T000000Z", "2026-01-01"),
        ("FREQ=DAILY;UNTIL=20260105T000000Z;COUNT=3", "2026-01-01"), ("FREQ=DAILY;BYDAY=1MO", "2026-01-01"),
        ("FREQ=WEEKLY;BYMONTHDAY=13", "2026-01-01"), ("FREQ=MONTHLY;BYYEARDAY=13", "2026-01-01"), ("FREQ=DAILY;BYWEEKNO=2", "2026-01-01"),
        ("FREQ=YEARLY;BYWEEKNO=2", "2026-01-01"), ("FREQ=YEARLY;BYWEEKNO=2;BYDAY=1MO", "2026-01-01"),
        ("FREQ=YEARLY;BYWEEKNO=-52;BYDAY=MO", "2026-01-01"), ("FREQ=YEARLY;INTERVAL=2;BYWEEKNO=1;BYDAY=MO", "2026-01-01"),
        ("FREQ=MONTHLY;BYSETPOS=1", "2026-01-01"), ("FREQ=MONTHLY;BYDAY=1MO,FR", "2026-01-01"), ("FREQ=MONTHLY;BYMONTH=13", "2026-01-01"),
        ("FREQ=MONTHLY;BYMONTHDAY=0", "2026-01-01"), ("FREQ=DAILY;FREQ=WEEKLY", "2026-01-01"), ("FREQ=WEEKLY;WKST=1MO", "2026-01-01"),
        ("FREQ=WEEKLY;BYDAY=MO(1)", "2026-01-01"), ("FREQ=DAILY;BYHOUR", "2026-01-01"), ("FREQ=DAILY;;BYHOUR=1", "2026-01-01"),
        ("FREQ=DAILY;BYDAY=XX", "2026-01-01"), ("FREQ=DAILY;COUNT=0;" + "X" * 1_000, "2026-01-01"), ("", "2026-01-01"),
    ],
)  # fmt: skip
def test_a_bad_rule_is_refused(rule, start):
    with pytest.raises(ArgumentError):
        recurrence(rule, start)


@pytest.mark.parametrize("month", range(1, 13))
@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=MONTHLY;BYDAY=20MO", "FREQ=YEARLY;BYMONTH=12;BYDAY=53MO", "FREQ=YEARLY;BYDAY=60MO", "FREQ=MONTHLY;BYDAY=-60MO",
        "FREQ=MONTHLY;BYDAY=1MO,12FR",
    ],
)  # fmt: skip
def test_a_weekday_that_no_month_or_year_counts_is_refused_in_every_month(rule, month):
    with pytest.raises(ArgumentError, match="BYDAY counts from 1 to"):
        recurrence(rule, f"2026-{month:02}-01T00:00:00")


def test_until_in_utc_beside_a_zone_is_an_instant():
    times = recurrence("FREQ=DAILY;BYHOUR=9;UNTIL=20260105T080000Z", "2026-01-01T09:00:00", BERLIN)
    assert local(listed(FireTimes(times), 0, 9)) == [f"01-0{day} 09:00" for day in range(1, 6)]
    ended = times._replace(rule="FREQ=DAILY;BYHOUR=9;UNTIL=20260105T075959Z")
    assert len(listed(FireTimes(ended), 0, 9)) == 4
    hours = recurrence("FREQ=HOURLY;UNTIL=20261025T010000Z", "2026-10-25T00:00", BERLIN)
    assert local(listed(FireTimes(hours), 0, 9)) == ["10-25 00:00", "10-25 01:00", "10-25 02:00", "10-25 02:00"]


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
