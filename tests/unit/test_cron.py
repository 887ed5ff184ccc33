"""Cron in zones: against a stepper that looks at every minute, and at the changes of clocks one by one."""

import random
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest

from scylla_spark.core.plan.times.cron import cron, is_fixed
from scylla_spark.errors import ArgumentError

BERLIN = "Europe/Berlin"
ZONES = ["UTC", BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]


def us(text, tz="UTC"):
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz)).timestamp()) * 1_000_000


def times(expression, begin, count, tz="UTC", **rules):
    """The next times as local texts with their offset."""
    found, at = [], us(begin, tz)
    times = cron(expression, tz, **rules)
    for _ in range(count):
        at = times.next_after(at)
        found.append(datetime.fromtimestamp(at / 1e6, ZoneInfo(tz)).isoformat(timespec="minutes"))
    return found


# -- changes of clocks -----------------------------------------------------------------------------------------------------


def test_a_daily_time_that_the_clock_skips_comes_at_the_end_of_the_gap_once():
    assert times("30 2 * * *", "2026-03-28", 3, BERLIN) == [
        "2026-03-28T02:30+01:00", "2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00",
    ]  # fmt: skip


def test_a_time_that_the_clock_skips_is_left_out_if_asked_for():
    assert times("30 2 * * *", "2026-03-28", 2, BERLIN, gap="skip") == [
        "2026-03-28T02:30+01:00", "2026-03-30T02:30+02:00",
    ]  # fmt: skip


def test_several_times_in_the_gap_come_as_one_and_do_not_double_what_is_due_then():
    assert times("0,30 2,3 * * *", "2026-03-28T23:00", 3, BERLIN) == [
        "2026-03-29T03:00+02:00", "2026-03-29T03:30+02:00", "2026-03-30T02:00+02:00",
    ]  # fmt: skip


def test_a_daily_time_that_comes_twice_counts_once():
    assert times("30 2 * * *", "2026-10-24", 3, BERLIN) == [
        "2026-10-24T02:30+02:00", "2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00",
    ]  # fmt: skip


def test_a_daily_time_that_comes_twice_counts_twice_if_asked_for():
    assert times("30 2 * * *", "2026-10-24", 3, BERLIN, fold="both") == [
        "2026-10-24T02:30+02:00", "2026-10-25T02:30+02:00", "2026-10-25T02:30+01:00",
    ]  # fmt: skip


def test_it_counts_once_also_for_who_asks_between_the_two():
    between = us("2026-10-25T00:45")  # 02:45 in summer time
    found = cron("30 2 * * *", BERLIN).next_after(between)
    assert found == us("2026-10-26T01:30")
    second = us("2026-10-25T01:15")  # 02:15 in winter time, for the second time
    assert cron("30 2 * * *", BERLIN).next_after(second) == us("2026-10-26T01:30")


def test_what_repeats_within_the_hour_goes_on_whatever_the_clock_does():
    for begin in ("2026-03-29T00:00", "2026-10-25T00:00"):
        at, found = us(begin) - 1, []
        for _ in range(20):
            at = cron("*/15 * * * *", BERLIN).next_after(at)
            found.append(at)
        assert found == [us(begin) + number * 900_000_000 for number in range(20)]


@pytest.mark.parametrize(
    ("spelled", "plain"),
    [
        ("0 30 2 * * *", "30 2 * * *"), ("0 0 2 * * *", "0 2 * * *"), ("0 0-59 2 * * *", "* 2 * * *"), ("0 0/15 2 * * *", "*/15 2 * * *"),
        ("0 0-23 * * *", "0 * * * *"), ("0-59/20 2 * * *", "*/20 2 * * *"), ("0 */60 2 * * *", "0 2 * * *"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("begin", ["2026-03-28", "2026-10-24"])
def test_the_meaning_of_an_expression_decides_what_a_change_of_the_clock_does_not_its_spelling(spelled, plain, begin):
    assert times(spelled, begin, 100, BERLIN) == times(plain, begin, 100, BERLIN)


def test_a_daily_time_with_a_seconds_field_runs_once_a_day_where_a_clock_skips_or_repeats_it():
    assert times("0 30 2 * * *", "2025-03-08T12:00", 2, "America/Los_Angeles") == [
        "2025-03-09T03:00-07:00", "2025-03-10T02:30-07:00",
    ]  # fmt: skip
    assert times("0 0 2 * * *", "2023-10-28T12:00", 2, BERLIN) == ["2023-10-29T02:00+02:00", "2023-10-30T02:00+01:00"]


def test_a_day_that_a_zone_skips_comes_at_its_end():
    assert times("0 12 * * *", "2011-12-29T00:00", 3, "Pacific/Apia") == [
        "2011-12-29T12:00-10:00", "2011-12-31T00:00+14:00", "2011-12-31T12:00+14:00",
    ]  # fmt: skip


def test_half_an_hour_skipped_and_repeated():
    tz = "Australia/Lord_Howe"
    assert times("15 2 * * *", "2026-10-03T00:00", 2, tz) == ["2026-10-03T02:15+10:30", "2026-10-04T02:30+11:00"]
    assert times("45 1 * * *", "2026-04-04T00:00", 3, tz) == [
        "2026-04-04T01:45+11:00", "2026-04-05T01:45+11:00", "2026-04-06T01:45+10:30",
    ]  # fmt: skip


# -- against brute force -----------------------------------------------------------------------------------------------------


def stepped(expression, tz, gap, fold, first, last):
    """Every minute of UTC from `first` to `last` whose local time fits, by the same words without any arithmetic of offsets."""
    minutes, hours, days, months, weekdays = (
        _numbers(field, number) for number, field in enumerate(expression.split())
    )
    either = not expression.split()[2].startswith("*") and not expression.split()[4].startswith("*")
    weekdays = {number % 7 for number in weekdays}

    def fits(at):
        if at.minute not in minutes or at.hour not in hours or at.month not in months:
            return False
        day, weekday = at.day in days, at.isoweekday() % 7 in weekdays
        return day or weekday if either else day and weekday

    found, seen, fixed, minute = set(), set(), is_fixed(expression), timedelta(minutes=1)
    before = local_minutes(tz, first, last)[0][1] - minute
    for at, here in local_minutes(tz, first, last):
        skipped = here - before - minute
        if fixed and gap == "next" and timedelta(0) < skipped:
            inside = (before + timedelta(minutes=number + 1) for number in range(skipped // timedelta(minutes=1)))
            if any(map(fits, inside)):
                found.add(at)
        if fits(here) and not (fixed and fold == "first" and here in seen):
            found.add(at)
        seen.add(here)
        before = here
    return sorted(found)


@cache
def local_minutes(tz, first, last):
    """Every minute of UTC from `first` to `last`, with the local time."""
    zone, count = ZoneInfo(tz), (last - first) // timedelta(minutes=1)
    moments = [first + timedelta(minutes=number) for number in range(count)]
    return [(at, at.astimezone(zone).replace(tzinfo=None)) for at in moments]


def _numbers(field, number):
    low, high = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 7)][number]
    found = set()
    for term in field.split(","):
        span, _, step = term.partition("/")
        first, _, last = span.partition("-")
        begin, end = (low, high) if span == "*" else (int(first), int(last or (high if step else first)))
        found |= set(range(begin, end + 1, int(step or 1)))
    return found


def _expression(rng):
    minute = rng.choice(["0", "30", "*/15", "5,35", "10-50/20", "59"])
    hour = rng.choice(["*", "2", "1", "*/6", "1-3", "0,2,12", "23", "3"])
    day = rng.choice(["*", "*", "*", "1", "29", "*/7", "10-20"])
    month = rng.choice(["*", "*", "*", "3,10", "2", "4"])
    weekday = rng.choice(["*", "*", "*", "0", "7", "1-5", "6"])
    return f"{minute} {hour} {day} {month} {weekday}"


@pytest.mark.promise
@pytest.mark.slow
@pytest.mark.parametrize("tz", ZONES)
def test_weeks_around_changes_of_clocks_agree_with_a_stepper_of_minutes(tz):
    rng = random.Random(tz)
    zone_days = {"UTC": [(2026, 3, 1)], "Asia/Kathmandu": [(2026, 2, 20)]}
    days = zone_days.get(tz, [(2026, 3, 6), (2026, 3, 26), (2026, 4, 2), (2026, 10, 1), (2026, 10, 22), (2026, 10, 30)])
    for day in days:
        first = datetime(*day, tzinfo=UTC)
        last = first + timedelta(days=5)
        for _ in range(4):
            expression, gap, fold = _expression(rng), rng.choice(["next", "skip"]), rng.choice(["first", "both"])
            wanted = [
                round(at.timestamp()) * 1_000_000
                for at in stepped(expression, tz, gap, fold, first - timedelta(days=1), last)
            ]
            wanted = [at for at in wanted if at >= round(first.timestamp()) * 1_000_000]
            found, at = [], round(first.timestamp()) * 1_000_000 - 1
            while (at := cron(expression, tz, gap, fold).next_after(at)) is not None and at < last.timestamp() * 1e6:
                found.append(at)
            assert found == wanted, (expression, gap, fold, day)


# -- what is refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "named", "hint"),
    [
        ("60 * * * *", "minute", "0-59"), ("0 24 * * *", "hour", "0-23"), ("0 0 ? * *", "day-of-month", "Quartz"),
        ("0 0 * 13 *", "month", "JAN"), ("0 0 * * MONDAY", "day-of-week", "SUN"), ("0 0 * * 5-1", "day-of-week", "upwards"),
        ("0 0 30 2 *", "no day", "day-of-month"), ("* * * *", "4 fields", "Five"), ("0 0 * * * * 2026", "7 fields", "six"),
        ("@reboot", "@reboot", "no start"), ("@dayly", "@dayly", "@daily"), ("*/0 * * * *", "minute", "Allowed"),
        ("", "0 fields", "Five"), ("1" * 2_000, "2000 characters", ""), ("0-1000000000 * * * *", "minute", "Allowed"),
        ("٣ * * * *", "minute", "Allowed"), ("0 0 * * \x00", "day-of-week", "Allowed"),
    ],
)  # fmt: skip
def test_a_bad_expression_says_which_field_and_what_was_meant(expression, named, hint):
    with pytest.raises(ArgumentError) as error:
        cron(expression)
    assert named in str(error.value)
    assert hint in str(error.value)


def test_an_unknown_zone_is_refused():
    with pytest.raises(ArgumentError, match="time zone"):
        cron("0 0 * * *", "Europe/Berlim")
    with pytest.raises(ArgumentError, match="time zone"):
        cron("0 0 * * *", "../../etc/passwd")


def test_a_step_in_the_day_beside_a_weekday_names_days_that_match_both_as_debians_cron_does():
    assert times("0 16 */2 * SAT", "2023-05-01", 2) == ["2023-05-13T16:00+00:00", "2023-05-27T16:00+00:00"]


def test_names_of_common_expressions_are_known():
    assert cron("@daily").expression == "0 0 * * *"
    assert cron(" 0  2 * *  mon ").expression == "0 2 * * MON"
