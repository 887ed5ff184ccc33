"""Constraints, one at a time and together; the time range against a stepper of minutes."""

import random
from bisect import bisect_left
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from scylla_spark.core.plan.constraint import (
    Concurrency,
    Delay,
    LastRun,
    Rate,
    Situation,
    TimeRange,
    checked,
    decide,
)
from scylla_spark.core.plan.times import zone
from scylla_spark.errors import ArgumentError

S = 1_000_000
NOW = 1_774_000_000 * S
BERLIN = "Europe/Berlin"


def us(text, tz="UTC"):
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz)).timestamp()) * S


def test_concurrency_counts_every_active_run():
    assert Concurrency(2).judge(Situation(NOW, active=1), NOW).met
    refused = Concurrency(2).judge(Situation(NOW, active=2), NOW)
    assert (refused.met, refused.again_us) == (False, None)
    assert "2 of at most 2" in refused.why


def test_a_delay_runs_from_the_first_event():
    waiting = Delay(10 * S).judge(Situation(NOW), NOW + 9 * S)
    assert (waiting.met, waiting.again_us) == (False, NOW + 10 * S)
    assert Delay(10 * S).judge(Situation(NOW), NOW + 10 * S).met


def test_the_last_run_counts_only_if_it_succeeded_lately_or_is_still_active():
    five_minutes = LastRun(300 * S)
    assert five_minutes.judge(Situation(NOW), NOW).met
    assert not five_minutes.judge(Situation(NOW, active=1), NOW).met
    early = five_minutes.judge(Situation(NOW, last_success_us=NOW - 299 * S), NOW)
    assert (early.met, early.again_us) == (False, NOW + S)
    assert five_minutes.judge(Situation(NOW, last_success_us=NOW - 300 * S), NOW).met


def test_a_rate_of_more_than_is_counted_was_stored_once_and_is_judged_by_what_is_counted():
    launches = tuple(range(NOW - 1_000, NOW))
    assert not Rate(5_000, 10 * S).judge(Situation(NOW, launches_us=launches), NOW).met


def test_a_rate_holds_in_any_stretch():
    rng, launches, now = random.Random(1), [], NOW
    rate = Rate(3, 10 * S)
    for _ in range(500):
        now += rng.randrange(3 * S)
        judgement = rate.judge(Situation(NOW, launches_us=launches), now)
        if judgement.met:
            launches.append(now)
        else:
            assert judgement.again_us > now
            assert rate.judge(Situation(NOW, launches_us=launches), judgement.again_us).met
            assert not rate.judge(Situation(NOW, launches_us=launches), judgement.again_us - 1).met
    assert all(later - earlier >= 10 * S for earlier, later in zip(launches, launches[3:], strict=False))


@pytest.mark.parametrize("day", ["2026-03-28", "2026-06-01", "2026-10-24"])
@pytest.mark.parametrize(("begin", "end"), [(120, 180), (150, 160), (1380, 60), (0, 1440), (1439, 1), (90, 1200)])
def test_a_time_range_agrees_with_a_stepper_of_minutes(day, begin, end):
    times = TimeRange(begin, end, BERLIN)
    minutes = [us(day, BERLIN) + number * 60 * S for number in range(3 * 24 * 60)]

    def inside(at):
        here = zone.local(at, zone.offset_us(BERLIN, at))
        minute = here.hour * 60 + here.minute
        return begin <= minute < end if begin < end else minute >= begin or minute < end

    allowed = [at for at in minutes if inside(at)]
    for at in minutes[: 2 * 24 * 60 : 17]:
        judgement = times.judge(Situation(NOW), at)
        assert judgement.met == inside(at)
        if not judgement.met:
            later = bisect_left(allowed, at)
            looks = 0
            while not judgement.met and looks < 3:  # it may look once in vain where a clock was set
                assert judgement.again_us > at
                assert later == len(allowed) or judgement.again_us <= allowed[later]
                judgement, looks = times.judge(Situation(NOW), judgement.again_us), looks + 1
            assert judgement.met


def test_a_job_is_launched_when_all_hold_waits_while_it_may_and_is_dropped_else():
    waits, aborts = Delay(10 * S), Concurrency(1)
    assert decide([], Situation(NOW), NOW).launch
    assert decide([waits, aborts], Situation(NOW - 10 * S), NOW).launch
    waiting = decide([waits, Concurrency(1, "wait"), TimeRange(0, 1440)], Situation(NOW, active=1), NOW)
    assert (waiting.launch, waiting.drop, waiting.again_us) == (False, False, NOW + 10 * S)
    assert len(waiting.unmet) == 2
    assert decide([waits, aborts], Situation(NOW, active=1), NOW).drop


@pytest.mark.parametrize(
    "wrong",
    [
        Concurrency(0), Concurrency(-1), Concurrency(1 << 40), Rate(0, S), Rate(1, 0), Rate(1, -S), Delay(0), Delay(-1), Delay(S, "abort"),
        LastRun(0), LastRun(1 << 62), TimeRange(60, 60), TimeRange(-1, 60), TimeRange(0, 1441), TimeRange(1440, 60),
        TimeRange(0, 60, "Mars"), Concurrency(1, "perhaps"),
    ],
)  # fmt: skip
def test_what_can_never_be_met_is_refused(wrong):
    with pytest.raises(ArgumentError):
        checked(wrong)


def test_what_can_be_met_is_taken():
    for right in (Concurrency(1), Rate(1, S), Delay(S), LastRun(S), TimeRange(0, 1440), TimeRange(1320, 360, BERLIN)):
        assert checked(right) is right
