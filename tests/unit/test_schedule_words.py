"""What schedules mean in words, what clocks and holidays do to their times, and what is suspicious about them."""

import random
from dataclasses import replace
from datetime import UTC, date, datetime
from itertools import takewhile

import pytest

from scylla_spark import Constraint, Schedule, Trigger
from scylla_spark.client.schedules.lint import findings
from scylla_spark.client.schedules.times import following, preceding, under_time_ranges
from scylla_spark.client.schedules.trigger_words import brief, in_words
from scylla_spark.clock import iso, to_us
from scylla_spark.core.plan.constraint import TimeRange
from scylla_spark.core.plan.times.breaks import Days
from scylla_spark.core.plan.times.fire_times import Every
from scylla_spark.core.plan.times.planned_times import planned_after, planned_before
from scylla_spark.core.plan.trigger_format import read_trigger
from scylla_spark.core.plan.triggers.trigger import AtTimes, leaves
from scylla_spark.errors import ArgumentError

NOW = to_us(datetime(2026, 11, 1, tzinfo=UTC))
BERLIN = "Europe/Berlin"


def series(trigger):
    return [leaf.times for leaf in leaves(read_trigger(trigger.definition)) if isinstance(leaf, AtTimes)]


def instant(text):
    return to_us(datetime.fromisoformat(text))


def told(rows):
    return [(iso(row.at_us), row.local[4:], row.fires, row.note) for row in rows]


@pytest.mark.parametrize(
    ("trigger", "short", "words"),
    [
        (Trigger.cron("0 2 * * *", BERLIN), "0 2 * * * Europe/Berlin", "at 02:00 every day, Europe/Berlin time"),
        (Trigger.cron("0 0 31 * *"), "0 0 31 * *", "at 00:00 on the 31st day of every month, UTC time"),
        (Trigger.every("90m", jitter="5m"), "every 1h30m", "every 1h30m, up to 5m later, always as much at one time"),
        (
            Trigger.cron("0 5 * * *", calendar="de", on_holiday="next"),
            "0 5 * * *",
            "at 05:00 every day, UTC time, on the next open day instead of the days of the calendar 'de'",
        ),
        (Trigger.event("stock", {"site": 3}), "event:stock", "on the event 'stock' with site = 3"),
        (
            Trigger.partitions("orders", 5, rows=10),
            "dataset:orders",
            "when 5 partitions and 10 rows of the dataset 'orders' were told of",
        ),
        (Trigger.after("load", ["failed"]), "after:load", "after a run of 'load' has failed"),
        (Trigger.after("load", at_least=3), "after:load 3 times", "after 3 runs of 'load' have succeeded"),
        (
            Trigger.absent(Trigger.event("beat"), "26h"),
            "no event:beat for 1d2h",
            "when nothing came of event:beat for 1d2h",
        ),
        (
            Trigger.absent(Trigger.after("load", ["succeeded", "failed"]), "26h"),
            "no after:load for 1d2h",
            "when no run of 'load' has failed or succeeded for 1d2h",
        ),
        (
            Trigger.table("orders", min_rows=2, settle="1m"),
            "table:orders",
            "when the table 'orders' has grown by 1 commit and 2 rows, and was quiet for 1m",
        ),
        (
            Trigger.table("orders", min_bytes=10**9),
            "table:orders",
            "when the table 'orders' has grown by 1 commit and 1,000,000,000 bytes",
        ),
        (Trigger.manual(), "manual", "when a run is asked for, and at no other time"),
        (
            Trigger.event("a") & (Trigger.event("b") | Trigger.every("1h")),
            "event:a & (event:b | every 1h)",
            "on the event 'a'; and (on the event 'b'; or every 1h)",
        ),
        (
            Trigger.any_of(2, Trigger.event("a"), Trigger.event("b"), Trigger.event("c")),
            "2 of (event:a, event:b, event:c)",
            "when 2 of these have come: on the event 'a'; on the event 'b'; on the event 'c'",
        ),
    ],
)
def test_a_trigger_is_said_in_short_and_in_words(trigger, short, words):
    read = read_trigger(trigger.definition)
    assert (brief(read), in_words(read)) == (short, words)


def test_a_time_that_a_clock_skips_is_marked_where_it_runs_instead():
    found = following(series(Trigger.cron("30 2 * * *", BERLIN)), {}, instant("2027-03-27T12:00:00Z"), 2)
    assert told(found) == [
        ("2027-03-28T01:00:00Z", "2027-03-28 03:00", True, "02:30 does not exist: the clock goes from 02:00 to 03:00"),
        ("2027-03-29T00:30:00Z", "2027-03-29 02:30", True, ""),
    ]


def test_a_time_that_a_clock_skips_is_listed_as_left_out_where_the_schedule_says_so():
    found = following(series(Trigger.cron("30 2 * * *", BERLIN, gap="skip")), {}, instant("2027-03-27T12:00:00Z"), 1)
    assert told(found) == [
        ("2027-03-28T01:00:00Z", "2027-03-28 02:30", False, "left out: the clock skips it"),
        ("2027-03-29T00:30:00Z", "2027-03-29 02:30", True, ""),
    ]


def test_times_that_a_clock_skips_of_an_expression_that_goes_on_within_the_hour_are_listed_as_left_out():
    found = following(series(Trigger.cron("*/30 2 * * *", BERLIN)), {}, instant("2027-03-28T00:00:00Z"), 1)
    assert told(found) == [
        ("2027-03-28T01:00:00Z", "2027-03-28 02:00", False, "left out: the clock skips it"),
        ("2027-03-28T01:00:00Z", "2027-03-28 02:30", False, "left out: the clock skips it"),
        ("2027-03-29T00:00:00Z", "2027-03-29 02:00", True, ""),
    ]


@pytest.mark.parametrize(("fold", "times"), [("first", ["first"]), ("both", ["first", "second"])])
def test_a_time_that_comes_twice_is_marked(fold, times):
    found = following(series(Trigger.cron("30 2 * * *", BERLIN, fold=fold)), {}, instant("2027-10-30T12:00:00Z"), 3)
    marked = [row.note for row in found if row.note]
    assert marked == [
        f"02:30 comes twice, this is the {which}: the clock goes from 03:00 back to 02:00" for which in times
    ]


def test_holidays_are_listed_with_what_becomes_of_their_times():
    days = {"de": Days({date(2026, 12, 25), date(2026, 12, 26)}, {date(2026, 12, 25): "Christmas Day"})}
    skipped = Trigger.cron("0 5 * * *", calendar="de")
    moved = Trigger.cron("0 5 25 12 *", calendar="de", on_holiday="next")
    at_us = instant("2026-12-24T12:00:00Z")
    assert [(row.local[4:14], row.fires) for row in following(series(skipped), days, at_us, 1)] == [
        ("2026-12-25", False), ("2026-12-26", False), ("2026-12-27", True),
    ]  # fmt: skip
    assert [(row.local[4:14], row.note) for row in following(series(moved), days, at_us, 1)] == [
        ("2026-12-25", "moved to the next open day: Christmas Day, a day of the calendar 'de'"),
        ("2026-12-27", "moved here from a day of the calendar 'de'"),
    ]


@pytest.mark.parametrize(
    ("on_holiday", "days"), [("next", [23, 24, 26]), ("skip", [23, 24]), ("previous", [23, 24, 24])]
)
def test_the_last_of_counted_times_counts_where_a_holiday_moves_it(on_holiday, days):
    start = datetime(2026, 12, 23, tzinfo=UTC)
    trigger = Trigger.cron("0 5 * * *", calendar="de", on_holiday=on_holiday, start_at=start, count=3)
    calendars = {"de": Days({date(2026, 12, 25)})}
    found = following(series(trigger), calendars, instant("2026-12-20T00:00:00Z"), 5)
    assert [int(row.local[12:14]) for row in found if row.fires] == sorted(set(days))
    back = preceding(series(trigger), calendars, instant("2027-06-01T00:00:00Z"), 5)
    assert [row.at_us for row in back if row.fires] == [row.at_us for row in found if row.fires]


@pytest.mark.parametrize("trigger", [
    Trigger.cron("* * * * * *"), Trigger.every("1s"), Trigger.cron("0 2 * * *", BERLIN), Trigger.cron("0 0 29 2 *"),
    Trigger.at(*(datetime(2026, 3, day, tzinfo=UTC) for day in range(1, 29))),
])  # fmt: skip
@pytest.mark.parametrize("count", [1, 2, 7])
def test_the_times_before_an_instant_are_those_that_follow_an_earlier_one(trigger, count):
    found = [row.at_us for row in preceding(series(trigger), {}, NOW, count)]
    assert len(found) == count
    after = [row.at_us for row in following(series(trigger), {}, found[0] - 1, count)]
    assert found == after
    assert all(row.at_us >= NOW for row in following(series(trigger), {}, found[-1], 1))


def test_times_that_ended_long_ago_are_found():
    old = Trigger.every("1s", start_at=datetime(2020, 1, 1, tzinfo=UTC), end_at=datetime(2020, 1, 2, tzinfo=UTC))
    assert [iso(row.at_us) for row in preceding(series(old), {}, NOW, 2)] == [
        "2020-01-01T23:59:59Z",
        "2020-01-02T00:00:00Z",
    ]


def test_the_last_times_before_a_long_silence_take_few_steps(monkeypatch):
    """Every second but for a week: whoever lists what came before has hundreds of thousands behind it."""
    steps, plain = [], Every.next_after
    monkeypatch.setattr(Every, "next_after", lambda self, after_us: steps.append(0) or plain(self, after_us))
    week = 7 * 86_400_000_000
    silent = replace(series(Trigger.every("1s"))[0], blackouts=((NOW - week, NOW),))
    found = [row.at_us for row in preceding([silent], {}, NOW, 5)]
    assert found == [NOW - week - n * 1_000_000 for n in range(5, 0, -1)]
    assert len(steps) < 1_000


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_going_back_finds_what_going_on_has_found(seed):
    rng = random.Random(seed)
    begin = NOW - 86_400_000_000
    some = []
    for _ in range(rng.randint(1, 3)):
        at_us = begin + rng.randrange(86_400_000_000)
        times = series(Trigger.every(f"{rng.choice([7, 60, 613, 3600, 7201])}s"))[0]
        some.append(replace(times, blackouts=((at_us, at_us + rng.randrange(1, 40_000_000_000)),)))
    days = {"c": frozenset({date(2026, 10, 31)} if rng.random() < 0.3 else ())}
    some[0] = replace(some[0], calendar="c", on_holiday=rng.choice(["skip", "next", "previous"]))
    ahead = list(takewhile(lambda at_us: at_us < NOW, planned_after(some, begin, days)))
    assert list(planned_before(some, NOW, days, after_us=begin)) == ahead[::-1]


def texts(trigger, handlers=None, **fields):
    schedule = Schedule("s", "h", trigger, **{"overlap": "skip", **fields})
    return [f"{one.level}: {one.text}" for one in findings(schedule, NOW, handlers)]


@pytest.mark.parametrize(
    ("trigger", "part"),
    [
        (Trigger.cron("*/7 * * * *"), 'the last distance is 4 minutes; every = "7m"'),
        (Trigger.cron("0 */5 * * *"), "the last distance is 4 hours"),
        (Trigger.cron("0 3 */2 * *"), "begin anew on the 1st"),
        (Trigger.cron("0 0 13 * 5"), "fires on days for which either is true"),
        (Trigger.cron("0 16 */2 * SAT"), "fires on days for which both are true"),
        (Trigger.cron("*/20 2 * * *", BERLIN), "clocks in Europe/Berlin are set, next on 2027-03-28: left out"),
        (Trigger.cron("0 */2 * * *", BERLIN), "next on 2027-10-31: it comes twice, and runs twice"),
        (Trigger.cron("0 30 2 * * *", BERLIN), "next on 2027-03-28: the clock skips it: it runs at the end of the gap"),
        (Trigger.cron("0 0 31 * *"), "5 of its months have no day 31"),
        (Trigger.cron("0 0 30 * *"), "1 of its months have no day 30"),
        (Trigger.cron("0 0 29 2 *"), "leap years"),
        (Trigger.cron("* * * * * *"), "it fires every second"),
        (Trigger.every("1d", tz=BERLIN), "every 1d counts days of 24 hours"),
        (Trigger.every("1m", jitter="10m"), "never longer than 10m after its planned time"),
        (Trigger.every("1s"), "it fires every second"),
        (Trigger.cron("30 2 * * *", BERLIN), "02:30 lies in the hour in which clocks in Europe/Berlin are set, next on 2027-03-28"),
        (Trigger.at(datetime(2020, 1, 1, tzinfo=UTC)), "never fires"),
    ],
)  # fmt: skip
def test_a_suspicious_time_is_told_of(trigger, part):
    found = texts(trigger)
    assert [text for text in found if part in text], found
    assert all(text.startswith("warning: ") for text in found)


@pytest.mark.parametrize("trigger", [
    Trigger.cron("0 30 0-23 * * *", BERLIN),
    Trigger.cron("*/15 * * * *", BERLIN), Trigger.cron("0 12 * * MON-FRI", BERLIN), Trigger.cron("0 0 L * *"), Trigger.cron("0 0 31 1 *"),
    Trigger.every("1h", jitter="1h"), Trigger.cron("30 2 * * *"), Trigger.event("x"),
])  # fmt: skip
def test_nothing_is_said_of_what_is_plain(trigger):
    assert texts(trigger) == []


def test_the_default_of_overlap_is_told_of_where_it_buffers():
    assert "buffer_all" in texts(Trigger.event("x"), overlap=None)[0]
    assert texts(Trigger.every("1h"), overlap=None) == []


def test_times_that_are_past_when_they_are_put_are_told_of():
    past, future = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)
    (told,) = texts(Trigger.at(past, future))
    assert "1 of its times lie in the past: they are not run" in told
    assert texts(Trigger.at(future)) == []


def test_a_number_of_runs_that_the_policy_does_not_look_at_is_told_of():
    told = texts(Trigger.event("x"), max_running=2, overlap="buffer_all")
    assert ["max_running = 2 does nothing, since overlap is buffer_all" in one for one in told] == [True]
    assert texts(Trigger.event("x"), max_running=2, overlap="skip") == []


def test_a_name_of_a_table_that_no_setting_knows_is_told_of():
    (told,) = texts(Trigger.table("orders"))
    assert "the table 'orders' is neither an absolute path nor a URI" in told
    assert len(texts(Trigger.absent(Trigger.table("orders"), within="1h"))) == 1
    for table in ("/lake/orders", "s3://lake/orders", "known"):
        schedule = Schedule("s", "h", Trigger.table(table), overlap="skip")
        assert findings(schedule, NOW, tables={"known"}) == []


def test_fields_and_handlers_that_nobody_knows_are_errors():
    with pytest.raises(ArgumentError, match=r"No fire knows 'upstream\.kee'"):
        texts(Trigger.after("load"), payload={"a": ["{{ upstream.key }} {{ upstream.kee }}"]})
    with pytest.raises(ArgumentError, match="'planned' has no fields"):
        texts(Trigger.after("load"), payload={"b": '{{ planned.day | default("x") }}'})
    assert texts(Trigger.every("1h"), {"g"}) == ["error: no module registers the handler 'h'; registered: g"]
    check = [Constraint.check("quiet")]
    assert texts(Trigger.every("1h"), {"h"}, constraints=check) == [
        "error: no module registers the handler 'quiet'; registered: h"
    ]
    assert texts(Trigger.every("1h"), {"h"}) == []


def test_times_outside_of_a_time_range_do_not_fire_or_wait_for_it():
    rows = following(series(Trigger.cron("0 2,12 * * *")), {}, NOW, 2)
    office = TimeRange(9 * 60, 17 * 60)
    assert [(row.fires, row.note) for row in under_time_ranges(rows, [replace(office, otherwise="abort")])] == [
        (False, "dropped: it is 02:00 in UTC; allowed is 09:00 to 17:00"),
        (True, ""),
    ]
    assert [(row.fires, row.note) for row in under_time_ranges(rows, [office])] == [
        (True, "waits for its time range: it is 02:00 in UTC; allowed is 09:00 to 17:00"),
        (True, ""),
    ]


def test_a_time_range_in_which_no_time_lies_is_a_warning():
    dropped = Constraint.time_range("09:00", "17:00", otherwise="abort")
    (told,) = texts(Trigger.cron("0 2 * * *"), constraints=[dropped])
    assert told.startswith(
        "warning: none of its next 50 times lies in its time range: it is 02:00 in UTC; allowed is 09:00 to 17:00"
    )
    assert told.endswith("each run is dropped")
    assert texts(Trigger.cron("0 2,12 * * *"), constraints=[dropped]) == []
