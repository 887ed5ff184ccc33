"""Triggers that fire because no run of some work has ended for too long."""

from typing import Any

import pytest

from scylla_spark import Trigger
from scylla_spark.core.plan.triggers.trigger import OnAbsence, OnRuns, checked
from scylla_spark.core.plan.triggers.without_deleted import without_work
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import ArgumentError
from tests.support.planner_harness import PlannerHarness

HOUR = 3_600
ORDERS = {"kind": "event", "name": "orders"}
AFTER = {"kind": "after", "work": "rollup"}
ABSENT = {"kind": "absent", "of": AFTER, "within": "26h"}


def alarmed(absent: dict[str, Any] = ABSENT, **fields: Any) -> PlannerHarness:
    plan = PlannerHarness()
    plan.put("rollup", ORDERS, handler="roll")
    assert plan.put("alarm", absent, handler="page", **fields)[0] == "ok"
    return plan


def alarms(plan: PlannerHarness) -> list[Any]:
    return [one["taskData"] for one in plan.sent if one["handler"] == "page"]


def rolled_up(plan: PlannerHarness, outcome: str = "succeeded") -> None:
    plan.event("orders")
    plan.end(outcome=outcome)


@pytest.mark.parametrize(
    ("trigger", "version"),
    [
        (ABSENT, 6),
        ({"kind": "any", "of": [ORDERS, ABSENT]}, 6),
        ({"kind": "all", "of": [ORDERS, AFTER | {"atLeast": 3}]}, 6),
        ({"kind": "any", "of": [AFTER, {"kind": "absent", "of": ORDERS, "within": "1h"}]}, 2),
        ({"kind": "all", "of": [AFTER, {"kind": "partitions", "dataset": "d", "atLeast": 3}]}, 2),
    ],
)
def test_a_planner_that_cannot_read_a_trigger_stops_before_it(trigger: dict[str, Any], version: int) -> None:
    plan = PlannerHarness()
    plan.put("rollup", ORDERS, handler="roll")
    before = len(plan.log)
    assert plan.put("alarm", trigger, handler="page")[0] == "ok"
    versions = [value[:6] for value in plan.log[before:]]
    assert f'{{"v":{version}'.encode() in versions
    assert max(versions) == f'{{"v":{version}'.encode()


def test_it_fires_once_when_no_run_has_ended_so_and_again_only_after_one_has() -> None:
    plan = alarmed(payload={"said": "{{ absent.of }} since {{ absent.since }}"})
    plan.pass_s(20 * HOUR)
    rolled_up(plan)
    plan.pass_s(26 * HOUR - 1)
    assert not alarms(plan)
    plan.pass_s(1)
    assert alarms(plan) == [{"said": "work:rollup since 2026-03-01T20:00:00Z"}]
    plan.pass_s(100 * HOUR)
    assert len(alarms(plan)) == 1
    rolled_up(plan)
    plan.pass_s(26 * HOUR)
    assert len(alarms(plan)) == 2


def test_ends_that_do_not_count_do_not_begin_the_wait_anew() -> None:
    plan = alarmed()
    plan.pass_s(20 * HOUR)
    rolled_up(plan, "failed")
    plan.pass_s(6 * HOUR)
    assert len(alarms(plan)) == 1
    plan = alarmed({**ABSENT, "of": {**AFTER, "on": ["failed", "cancelled"]}})
    plan.pass_s(20 * HOUR)
    rolled_up(plan, "failed")
    plan.pass_s(6 * HOUR)
    assert not alarms(plan)


@pytest.mark.parametrize("restarts_at", [0, 10, 25])
def test_the_wait_goes_on_in_the_next_planner_from_the_log(restarts_at: int) -> None:
    plan = alarmed()
    plan.pass_s(5 * HOUR)
    rolled_up(plan)
    plan.pass_s(restarts_at * HOUR)
    plan.restart()
    plan.pass_s((26 - restarts_at) * HOUR - 1)
    assert not alarms(plan)
    plan.pass_s(1)
    assert len(alarms(plan)) == 1
    plan.restart()
    plan.pass_s(100 * HOUR)
    assert len(alarms(plan)) == 1, "it was told of"


def test_what_goes_missing_while_no_planner_runs_is_told_of_by_the_next_one() -> None:
    plan = alarmed()
    rolled_up(plan)
    plan.restart(after_us=30 * HOUR * 1_000_000)
    plan.pass_s(1)
    assert len(alarms(plan)) == 1


def test_the_tasks_of_a_handler_count_whoever_enqueued_them() -> None:
    plan = alarmed({**ABSENT, "of": {**AFTER, "work": "load"}})
    assert plan.planner.wants_facts, "dispatchers are asked for ends of tasks that no schedule has launched"
    plan.pass_s(20 * HOUR)
    key = TaskKey(plan.now, "lane", "by-hand")
    plan.ends(Fact(key, 1, "succeeded", plan.now, plan.now, plan.now, 1, handler="load"))
    plan.pass_s(26 * HOUR - 1)
    assert not alarms(plan)
    plan.pass_s(1)
    assert len(alarms(plan)) == 1


def test_a_work_that_is_deleted_takes_the_branch_with_it() -> None:
    plan = alarmed()
    plan.put("either", {"kind": "any", "of": [ABSENT, {"kind": "event", "name": "beat"}]}, handler="page")
    plan.put("both", {"kind": "all", "of": [ABSENT, {"kind": "event", "name": "beat"}]}, handler="page")
    done = plan.ask("delete", names=["rollup"])[-1]
    assert {name: done[name] for name in ("alarm", "both", "either")} == {
        "alarm": "removed", "both": "removed", "either": "changed"
    }  # fmt: skip
    assert plan.planner.state.entries.keys() == {"either"}
    plan.pass_s(100 * HOUR)
    assert not alarms(plan)
    plan.event("beat")
    assert len(alarms(plan)) == 1
    assert without_work({**ABSENT, "of": ORDERS}, "rollup") == {**ABSENT, "of": ORDERS}


def test_a_schedule_may_run_what_is_missing_since_such_a_circle_takes_its_time() -> None:
    plan = PlannerHarness()
    plan.put("rollup", ORDERS, handler="roll")
    assert plan.put("rescue", ABSENT, handler="rollup")[0] == "ok", "it runs a handler that its trigger names"
    assert plan.put("loop", {"kind": "after", "work": "rescue"}, handler="roll")[0] == "ok"
    assert plan.put("rollup", {"kind": "after", "work": "rescue"}, handler="roll")[0] == "ok"
    assert plan.put("rescue", AFTER, handler="other")[0] == "argument", "without the absence it is a circle"
    plan.pass_s(26 * HOUR)
    assert [one["handler"] for one in plan.sent] == ["rollup"]
    plan.end()
    plan.pass_s(1)
    assert len(plan.sent) == 3


def test_how_many_ends_are_missing_cannot_be_said() -> None:
    assert checked(OnAbsence(OnRuns("load"), 10**9)) == OnAbsence(OnRuns("load"), 10**9)
    with pytest.raises(ArgumentError, match="at_least"):
        checked(OnAbsence(OnRuns("load", at_least=2), 10**9))


def test_it_is_written_in_python_as_in_json() -> None:
    assert Trigger.absent(Trigger.after("rollup"), within="26h").definition == {
        "kind": "absent", "of": {"kind": "after", "work": "rollup", "on": ["succeeded"]}, "within": "26h"
    }  # fmt: skip
