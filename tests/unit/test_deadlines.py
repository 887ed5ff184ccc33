"""Promises of schedules: what is not kept is told of once, whatever planner looks, and what is kept is never told of."""

import json
from typing import Any

import pytest

from scylla_spark.core.records.fact import Fact
from tests.support.planner_harness import SECOND, START, PlannerHarness, key_of

EVERY_MINUTE = {"kind": "cron", "expression": "* * * * *"}
HOURLY = {"kind": "cron", "expression": "0 * * * *"}
TAKES_OVER = ["the same", "another", "another, from a snapshot"]


def takes_over(plan: PlannerHarness, who: str) -> None:
    """Another planner begins, if one is to, some seconds later."""
    if who == "the same":
        plan.pass_s(5)
        return
    if "snapshot" in who:
        begin = len(plan.log)
        plan.planner.snapshot(plan.planner.begin_snapshot(plan.now), plan.now)
        plan.turn()
        plan.log = plan.log[begin:]
    plan.restart(after_us=5 * SECOND)
    plan.pass_s(0)


def launched(**policies: Any) -> PlannerHarness:
    """A run that is planned for the first hour and was launched then."""
    plan = PlannerHarness()
    assert plan.put("a", HOURLY, **policies)[0] == "ok"
    plan.to(START + 3_600 * SECOND)
    assert plan.verdicts() == ["launched"]
    return plan


def tells(plan: PlannerHarness, outcome: str, late_s: int = 1, **more: Any) -> None:
    """A fact about the last run that was launched, and whose attempt began so many seconds after its time."""
    key = key_of(plan.sent[-1])
    plan.ends(Fact(key, 1, outcome, key.time_us + late_s * SECOND, 0, key.time_us, 1, **more))


@pytest.mark.parametrize("who", TAKES_OVER)
def test_a_run_that_started_in_time_is_not_late_whoever_plans_by_then(who) -> None:
    plan = launched(lateAfter="1m")
    plan.pass_s(2)
    tells(plan, "started")
    takes_over(plan, who)
    plan.pass_s(600)
    takes_over(plan, who)
    plan.end()
    assert plan.verdicts() == ["launched"]


@pytest.mark.parametrize("who", TAKES_OVER)
def test_a_run_that_does_not_start_is_told_of_as_late_once(who) -> None:
    plan = launched(lateAfter="1m")
    takes_over(plan, who)
    plan.pass_s(60)
    assert plan.verdicts() == ["launched", "late"]
    takes_over(plan, who)
    plan.pass_s(60)
    tells(plan, "started", late_s=100)
    tells(plan, "succeeded", late_s=100)
    assert plan.verdicts() == ["launched", "late"]


@pytest.mark.parametrize("who", TAKES_OVER)
def test_a_run_that_starts_late_is_told_of_when_that_is_known(who) -> None:
    plan = launched(lateAfter="1m")
    plan.pass_s(61)
    tells(plan, "started", late_s=61)
    assert plan.fires[-1]["why"] == "it started 61 s late"
    takes_over(plan, who)
    plan.pass_s(60)
    plan.end()
    assert plan.verdicts() == ["launched", "late"]


@pytest.mark.parametrize("first", ["started", "failed"])
def test_the_first_attempt_of_a_run_says_whether_it_started_in_time(first) -> None:
    plan = launched(lateAfter="1m")
    tells(plan, first, **({"next_us": plan.now + 600 * SECOND} if first == "failed" else {}))
    plan.pass_s(620)
    tells(plan, "started", late_s=600)
    tells(plan, "succeeded", late_s=600)
    assert plan.verdicts() == ["launched"]


@pytest.mark.parametrize("who", TAKES_OVER)
def test_a_run_that_does_not_end_is_told_of_as_overdue_once(who) -> None:
    plan = launched(endWithin="1m")
    takes_over(plan, who)
    plan.pass_s(60)
    for _ in range(3):
        takes_over(plan, who)
        plan.pass_s(60)
    assert plan.verdicts() == ["launched", "overdue"]


@pytest.mark.parametrize("who", TAKES_OVER)
def test_silence_is_told_of_again_after_as_long_and_not_by_each_planner(who) -> None:
    plan = PlannerHarness()
    plan.put("a", {"kind": "event", "name": "e"}, expectEvery="10m")
    plan.pass_s(600)
    for _ in range(5):
        takes_over(plan, who)
    plan.pass_s(574)
    assert plan.verdicts() == ["silent"]
    plan.pass_s(1)
    assert [fire["at_us"] for fire in plan.fires] == [START + 600 * SECOND, START + 1_200 * SECOND]


@pytest.mark.parametrize("who", TAKES_OVER)
def test_a_run_keeps_the_promises_that_it_was_launched_with(who) -> None:
    plan = launched(lateAfter="1m", endWithin="2m")
    tells(plan, "started")
    plan.put("a", HOURLY, lateAfter="5s")
    takes_over(plan, who)
    plan.pass_s(300)
    assert plan.verdicts() == ["launched", "overdue"]


def test_older_readers_stop_before_promises_and_read_all_else() -> None:
    plan = PlannerHarness()
    plan.put("plain", EVERY_MINUTE)
    plan.pass_s(60)
    tells(plan, "started")
    assert {json.loads(value)["v"] for value in plan.log} == {2}
    plan.put("plain", EVERY_MINUTE, lateAfter="1m")
    plan.end()
    plan.pass_s(60)
    assert json.loads(plan.log[-1])["v"] == 7
    begin = len(plan.log)
    tells(plan, "started")
    assert json.loads(plan.log[begin])["v"] == 7


# -- ends that are read when their time has passed --------------------------------------------------------------------------


def ended(plan: PlannerHarness, after_s: float, outcome: str = "succeeded") -> None:
    """The last run that was launched ended so many seconds after its time; that is read now."""
    key = key_of(plan.sent[-1])
    plan.ends(Fact(key, 1, outcome, key.time_us, key.time_us + round(after_s * SECOND), key.time_us, 1))


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "expired"])
def test_a_run_that_ended_late_while_nobody_planned_is_told_of_once_with_how_late(outcome) -> None:
    plan = launched(endWithin="1m")
    plan.put("alarm", {"kind": "event", "name": "schedule.overdue", "where": {"schedule": "a"}})
    plan.restart(after_us=300 * SECOND)
    ended(plan, 95.5, outcome)
    assert plan.verdicts("a") == ["launched", "overdue"]
    assert plan.fires[1]["why"] == "it ended 95.5 s after its planned time"
    assert plan.verdicts("alarm") == ["launched"]
    plan.pass_s(600)
    plan.restart(after_us=5 * SECOND)
    plan.pass_s(600)
    assert plan.verdicts("a") == ["launched", "overdue"]


def test_a_run_that_ended_in_time_while_nobody_planned_is_not_told_of() -> None:
    plan = launched(endWithin="1m")
    plan.restart(after_us=300 * SECOND)
    ended(plan, 60)
    plan.pass_s(600)
    assert plan.verdicts() == ["launched"]


def test_a_run_that_was_told_of_as_overdue_is_not_told_of_again_when_it_ends() -> None:
    plan = launched(endWithin="1m")
    plan.pass_s(90)
    plan.restart(after_us=5 * SECOND)
    ended(plan, 120)
    assert plan.verdicts() == ["launched", "overdue"]


def test_a_run_that_was_asked_to_end_is_not_told_of_as_overdue() -> None:
    plan = launched(endWithin="1m", overlap="cancel_other")
    plan.event("nothing")
    plan.to(START + 7_200 * SECOND)
    assert plan.verdicts() == ["launched", "overdue", "launched"]
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE, overlap="cancel_other", endWithin="90s")
    plan.pass_s(120)
    first = key_of(plan.sent[0])
    plan.ends(Fact(first, 1, "cancelled", first.time_us, first.time_us + 100 * SECOND))
    assert plan.verdicts() == ["launched", "launched"]


# -- runs that are asked for later than their time --------------------------------------------------------------------------


@pytest.mark.parametrize("who", TAKES_OVER)
def test_runs_of_a_backfill_have_no_deadlines(who) -> None:
    plan = PlannerHarness()
    plan.put("a", HOURLY, lateAfter="1m", endWithin="2m")
    begin = START - 5 * 3_600 * SECOND
    assert plan.ask("backfill", name="a", begin=begin, end=START)[0] == "ok"
    plan.pass_s(0)
    takes_over(plan, who)
    plan.pass_s(1_000)
    for number in range(4):
        plan.end(number)
    assert plan.verdicts() == ["launched"] * 5


def test_a_run_by_hand_has_deadlines_from_the_moment_that_it_is_asked_for() -> None:
    plan = PlannerHarness()
    plan.put("a", {"kind": "event", "name": "e"}, lateAfter="1m", endWithin="2m")
    plan.pass_s(500)
    plan.ask("run", name="a")
    plan.pass_s(59)
    assert plan.verdicts() == ["launched"]
    plan.pass_s(61)
    assert plan.verdicts() == ["launched", "late", "overdue"]


def test_a_run_that_is_launched_anew_keeps_what_is_left_of_its_promises() -> None:
    plan = launched(lateAfter="1m", endWithin="3h")
    plan.pass_s(120)
    assert plan.verdicts() == ["launched", "late"]
    begin = START - 2 * 3_600 * SECOND
    plan.ask("backfill", name="a", begin=begin, end=begin + SECOND)
    plan.pass_s(0)
    plan.restart(after_us=3_000 * SECOND)
    for key in list(plan.planner.state.runs):
        plan.planner.anew(key, {}, plan.now)
    plan.turn()
    plan.ask("pause", names=["a"])
    plan.pass_s(4 * 3_600)
    assert plan.verdicts() == [
        "launched",
        "late",
        "launched",
        "obsolete",
        "launched",
        "obsolete",
        "launched",
        "overdue",
    ]
    assert plan.fires[-1]["planned_us"] == START + 3_600 * SECOND
