"""In which state people see a schedule: which triggers can never fire again."""

from dataclasses import replace
from typing import Any

import pytest

from scylla_spark.client.schedules.handle import status_of
from scylla_spark.clock import iso
from scylla_spark.core.plan.schedule_state import can_fire, quick_state, state_of
from scylla_spark.core.plan.state.schedule_entry import Latch
from scylla_spark.core.plan.trigger_format import read_trigger
from scylla_spark.core.plan.triggers.trigger import leaves
from tests.support.planner_harness import SECOND, START, PlannerHarness

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY_S = 86_400

HOURLY = {"kind": "every", "period": "1h"}
BEAT = {"kind": "event", "name": "beat"}
LATER = {"kind": "at", "times": [iso(START + HOUR)]}
PAST = {"kind": "at", "times": [iso(START - HOUR)]}
UNTIL = iso(START + 2 * HOUR)
START_AT = iso(START)


def state(plan: PlannerHarness, name: str = "s") -> str:
    entry = plan.shadow.entries[name]
    quick = quick_state(entry)
    found = state_of(entry, plan.shadow.calendars, plan.now)
    assert quick in (None, found)
    return found


def put(trigger: dict[str, Any], **fields: Any) -> PlannerHarness:
    plan = PlannerHarness()
    assert plan.put("s", trigger, **fields)[0] == "ok"
    return plan


def both(*branches: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "all", "of": list(branches)}


def either(*branches: dict[str, Any], at_least: int = 1) -> dict[str, Any]:
    return {"kind": "any", "of": list(branches), "atLeast": at_least}


@pytest.mark.parametrize(
    "trigger",
    [
        LATER,
        {"kind": "at", "times": [iso(START + HOUR), iso(START + 2 * HOUR)]},
        {"kind": "cron", "expression": "*/30 * * * *", "endAt": UNTIL},
        {"kind": "cron", "expression": ["0 1 * * *", "30 1 * * *"], "endAt": UNTIL},
        {"kind": "cron", "expression": "30 * * * *", "startAt": START_AT, "count": 2},
        {**HOURLY, "endAt": UNTIL},
        {**HOURLY, "startAt": START_AT, "count": 2},
        {**HOURLY, "endAt": UNTIL, "jitter": "10m"},
        {"kind": "rrule", "rule": "FREQ=HOURLY;COUNT=2", "start": "2026-03-01T01:00"},
        {"kind": "rrule", "rule": "FREQ=HOURLY;UNTIL=20260301T020000", "start": "2026-03-01T01:00"},
        either(LATER, {**HOURLY, "endAt": UNTIL}),
        both(LATER, {**HOURLY, "endAt": UNTIL}),
        either(both(LATER, {**HOURLY, "endAt": UNTIL}), PAST),
    ],
)
def test_a_trigger_whose_times_are_over_is_completed_once_its_runs_have_ended(trigger):
    plan = put(trigger, overlap="allow_all")
    for _ in range(30):
        assert state(plan) == "active" or plan.now >= START + HOUR
        plan.pass_s(600)
    assert plan.sent
    assert state(plan) == "active", "a run of it has not ended"
    for which in range(len(plan.sent)):
        plan.end(which)
    assert state(plan) == "completed"
    before = len(plan.sent)
    plan.pass_s(10 * DAY_S)
    assert len(plan.sent) == before
    plan.restart()
    assert state(plan) == "completed"


@pytest.mark.parametrize(
    "trigger",
    [
        HOURLY, {"kind": "cron", "expression": "0 2 * * *"}, {"kind": "rrule", "rule": "FREQ=DAILY", "start": "2026-03-01T01:00"}, BEAT,
        {"kind": "partitions", "dataset": "d"}, {"kind": "table", "table": "/t"}, {"kind": "after", "work": "w"},
        {"kind": "absent", "of": BEAT, "within": "1h"}, {"kind": "absent", "of": {"kind": "after", "work": "w"}, "within": "1h"},
        both(HOURLY, BEAT), either(PAST, BEAT), either(PAST, HOURLY, BEAT, at_least=2), either(PAST, both(HOURLY, BEAT)),
    ],
)  # fmt: skip
def test_a_trigger_that_may_fire_again_is_active(trigger):
    plan = put(trigger)
    plan.pass_s(3 * DAY_S)
    for which in range(len(plan.sent)):
        plan.end(which)
    assert state(plan) == "active"


@pytest.mark.parametrize(
    "trigger",
    [PAST, either(PAST, PAST), both(PAST, BEAT), both(PAST, HOURLY), either(PAST, PAST, BEAT, at_least=2), both(either(PAST, PAST), BEAT),
     either(both(PAST, BEAT), both(PAST, HOURLY))],
)  # fmt: skip
def test_a_trigger_that_never_could_fire_is_completed_from_the_start_and_a_change_ends_that(trigger):
    plan = put(trigger)
    assert state(plan) == "completed"
    assert status_of(plan.shadow.entries["s"], plan.shadow, plan.now).next_at is None
    plan.event("beat")
    plan.pass_s(60)
    assert state(plan) == "completed", "a branch that has come does not help"
    assert not plan.sent
    plan.put("s", HOURLY)
    assert state(plan) == "active"


def test_a_branch_that_has_come_counts_until_its_round_is_launched():
    plan = put(both(LATER, BEAT))
    plan.pass_s(2 * 3_600)
    assert state(plan) == "active", "it waits for the other branch"
    plan.event("beat")
    plan.end()
    assert state(plan) == "completed"


def test_a_branch_that_has_come_counts_until_its_round_is_too_old():
    plan = put(both(LATER, BEAT), jobTimeout="6h")
    plan.pass_s(7 * 3_600 - 1)
    assert state(plan) == "active"
    plan.pass_s(1)
    assert state(plan) == "completed"
    plan.event("beat")
    assert not plan.sent
    assert state(plan) == "completed"


def test_a_job_that_waits_is_still_to_come():
    plan = put(LATER, constraints=[{"kind": "delay", "delay": "30m"}])
    plan.pass_s(3_660)
    assert not plan.sent
    assert state(plan) == "active"
    plan.pass_s(1_800)
    plan.end()
    assert state(plan) == "completed"


def test_a_time_that_was_missed_is_still_to_be_decided():
    plan = put(LATER)
    plan.now += 2 * HOUR
    assert state(plan) == "active", "no planner has run yet"
    plan.restart()
    plan.pass_s(1)
    plan.end()
    assert state(plan) == "completed"


def test_what_is_paused_is_paused_and_completed_after_it_is_resumed_too_late():
    plan = put(LATER)
    plan.ask("pause", names=["s"])
    plan.pass_s(2 * 3_600)
    assert state(plan) == "paused"
    plan.ask("resume", names=["s"])
    assert state(plan) == "completed"


def test_a_run_by_hand_makes_a_completed_schedule_active_until_it_ends():
    plan = put(PAST)
    assert plan.ask("run", name="s")[0] == "ok"
    assert state(plan) == "active"
    plan.end()
    assert state(plan) == "completed"


def test_a_calendar_that_closes_all_days_left_completes_a_schedule_until_it_changes():
    end = {"endAt": iso(START + DAY_S * SECOND), "calendar": "de"}
    plan = put({**HOURLY, **end})
    both_ = {**HOURLY, **end}
    plan.put("tree", both(both_, BEAT))
    assert [state(plan), state(plan, "tree")] == ["active", "active"]
    assert plan.ask("calendar", name="de", days=["2026-03-01", "2026-03-02"])[0] == "ok"
    assert [state(plan), state(plan, "tree")] == ["completed", "completed"]
    plan.ask("calendar", name="de", days=["2026-03-02"])
    assert [state(plan), state(plan, "tree")] == ["active", "active"]


def test_the_state_of_a_leaf_is_known_without_a_look_at_its_definition():
    plan = put(PAST)
    plan.put("hourly", HOURLY)
    plan.put("tree", both(HOURLY, PAST))
    entries = plan.shadow.entries
    assert quick_state(replace(entries["s"], text="nothing that could be read")) == "completed"
    assert quick_state(replace(entries["hourly"], text="nothing that could be read")) == "active"
    assert quick_state(entries["tree"]) is None


def test_whether_a_tree_can_hold_is_asked_of_the_branches_that_are_needed():
    trigger = read_trigger(either(both(LATER, BEAT), both(LATER, LATER), at_least=2))
    first, _, second, third = range(4)
    assert len(leaves(trigger)) == 4
    assert can_fire(trigger, {}, lambda _: True)
    assert not can_fire(trigger, {}, lambda _: False)
    held = {number: Latch(fired=True) for number in (first, second, third)}
    assert can_fire(trigger, held, lambda _: False)
    for number in held:
        assert not can_fire(trigger, {**held, number: Latch(seen=1)}, lambda _: False)
