"""`on_job_timeout = "run"`: a job that has waited for its job timeout is launched, and its handler learns what was missing."""

import json

import pytest

from scylla_spark import Constraint, Schedule, Trigger
from scylla_spark.clock import from_us
from scylla_spark.core.leases.messages import Granted, lease_view
from scylla_spark.core.plan.state import plan_log, schedule_entry
from scylla_spark.core.plan.tables.growth import Growth
from scylla_spark.core.records.command import Rules, validate
from scylla_spark.core.tasks.key import partition_of
from scylla_spark.errors import ArgumentError
from scylla_spark.testing import world
from scylla_spark.worker.lease import Lease
from tests.support.planner_harness import SECOND, PlannerHarness

X, Y = ({"kind": "event", "name": name} for name in "xy")
BOTH = {"kind": "all", "of": [X, Y]}
NIGHT = {"kind": "time_range", "begin": "22:00", "end": "23:00"}
RUN = {"jobTimeout": "2m", "onJobTimeout": "run"}


def missing(plan: PlannerHarness) -> list[list[str]]:
    return [record.get("missing", []) for record in plan.sent]


def test_half_a_round_is_launched_at_its_job_timeout_with_what_there_is() -> None:
    plan = PlannerHarness()
    plan.put("a", BOTH, payload={"n": '{{ event.n | default("none") }}'}, **RUN)
    plan.event("x", n=1)
    plan.pass_s(119)
    assert not plan.sent
    plan.pass_s(1)
    assert missing(plan) == [["event:y"]]
    assert plan.sent[0]["taskData"] == {"n": 1}
    assert plan.fires[-1]["why"] == "it has waited for longer than its job timeout; it was launched without event:y"
    plan.event("y", n=2)
    assert len(plan.sent) == 1, "it begins the next round"


def test_versions_of_a_table_go_with_the_run_that_goes_anyway() -> None:
    plan = PlannerHarness()
    table = {"kind": "table", "table": "/t"}
    plan.put("a", {"kind": "all", "of": [table, X]}, payload={"to": "{{ table.to_version }}"}, **RUN)
    (place,) = plan.planner.watched()
    plan.planner.looked("a", lambda tables: tables.begins(place, "t", 0), plan.now)
    plan.turn()
    plan.planner.looked("a", lambda tables: tables.grew(place, Growth("t", 0, 3, 3, 30), plan.now), plan.now)
    plan.turn()
    plan.pass_s(120)
    assert (plan.sent[0]["taskData"], missing(plan)) == ({"to": 3}, [["event:x"]])
    assert plan.planner.state.entries["a"].tables[0].version == 3


def test_the_bound_holds_across_a_restart_of_the_planner() -> None:
    plan = PlannerHarness()
    plan.put("a", BOTH, **RUN)
    plan.event("x", n=1)
    plan.restart(after_us=60 * SECOND)
    plan.pass_s(59)
    assert not plan.sent
    plan.pass_s(1)
    assert missing(plan) == [["event:y"]]
    plan.restart(after_us=600 * SECOND)
    plan.pass_s(0)
    assert len(plan.sent) == 1


def test_of_alternatives_only_branches_that_do_not_hold_are_missing() -> None:
    plan = PlannerHarness()
    either = {"kind": "any", "of": [X, {"kind": "event", "name": "z"}]}
    after = {"kind": "after", "work": "other", "atLeast": 2}
    plan.put("a", {"kind": "all", "of": [either, Y, after]}, **RUN)
    plan.event("x")
    plan.pass_s(120)
    assert missing(plan) == [["event:y", "work:other"]]


def test_a_constraint_is_waited_for_until_the_job_timeout_and_named() -> None:
    plan = PlannerHarness()
    plan.put("a", X, constraints=[NIGHT, {"kind": "rate", "most": 5, "per": "1h"}], **RUN)
    plan.event("x")
    plan.pass_s(119)
    assert plan.verdicts() == ["waiting"]
    plan.pass_s(1)
    assert missing(plan) == [["time_range"]]
    assert plan.verdicts() == ["waiting", "launched"]


def test_branches_and_constraints_are_missing_together() -> None:
    plan = PlannerHarness()
    plan.put("a", BOTH, constraints=[NIGHT], **RUN)
    plan.event("y")
    plan.pass_s(120)
    assert missing(plan) == [["event:x", "time_range"]]


@pytest.mark.parametrize("restart", [False, True])
def test_no_more_jobs_wait_than_may_also_after_their_job_timeout(restart, monkeypatch) -> None:
    monkeypatch.setattr(schedule_entry, "MOST_RUNS", 1)
    monkeypatch.setattr(schedule_entry, "MOST_JOBS", 2)
    plan = PlannerHarness()
    plan.put("a", BOTH, overlap="allow_all", **RUN)
    for _ in range(6):
        plan.event("x")
        plan.pass_s(130)
    if restart:
        plan.restart()
        plan.pass_s(0)
    assert [job.state for job in plan.planner.state.entries["a"].jobs.values()] == ["pending_launch"] * 2 + [
        "pending_trigger"
    ]
    for number in range(4):
        plan.end(number)
        plan.pass_s(0)
    assert missing(plan) == [["event:y"]] * 4
    assert not plan.planner.state.entries["a"].jobs


def test_a_constraint_that_drops_jobs_drops_this_one_too() -> None:
    plan = PlannerHarness()
    plan.put("a", BOTH, constraints=[{**NIGHT, "otherwise": "abort"}], **RUN)
    plan.event("y")
    plan.pass_s(120)
    assert (plan.sent, plan.verdicts()) == ([], ["skipped"])


def test_another_run_of_the_schedule_is_waited_for_all_the_same() -> None:
    plan = PlannerHarness()
    plan.put("a", X, overlap="buffer_one", **RUN)
    plan.event("x")
    plan.event("x")
    plan.pass_s(600)
    assert len(plan.sent) == 1
    plan.end()
    assert missing(plan) == [[], []]


def test_a_run_whose_conditions_hold_misses_nothing() -> None:
    plan = PlannerHarness()
    plan.put("a", BOTH, **RUN)
    plan.event("x")
    plan.event("y")
    assert "missing" not in plan.sent[0]
    assert plan.fires[-1]["why"] == ""
    assert "missing" not in plan.fires[-1]


def test_without_the_field_such_a_job_is_dropped() -> None:
    plan = PlannerHarness()
    plan.put("a", X, constraints=[NIGHT], jobTimeout="2m", onJobTimeout="cancel")
    plan.event("x")
    plan.pass_s(120)
    assert plan.verdicts() == ["waiting", "obsolete"]


def test_a_task_keeps_what_was_missing_through_its_record() -> None:
    plan = PlannerHarness()
    plan.put("a", BOTH, **RUN)
    plan.event("x")
    plan.pass_s(120)
    record = plan.sent[0]
    value, lane = json.dumps(record).encode(), record["orderingId"]
    command = validate(partition_of(lane, 8), 0, plan.now, lane.encode(), value, Rules(8))
    item = command.invocation(1, 1, 1, 0, handler="work", timeout_ms=1)
    assert item.missing == ("event:y",)
    assert type(item).read(json.loads(json.dumps(item.fields))) == item
    lease = Lease(lease_view(Granted("token", item, 1_000, 1_000)), None)
    assert lease.invocation.context(from_us(0), None, None, lease.lost).missing == ("event:y",)


@pytest.mark.parametrize("found", ['{"missing": 1}', '{"missing": [1]}', '{"a": {"missing": ["x"]}}'])
def test_a_foreign_field_of_that_name_is_no_list_of_conditions(found) -> None:
    plan = PlannerHarness()
    plan.put("a", X)
    plan.event("x")
    record = plan.sent[0] | json.loads(found)
    lane = record["orderingId"]
    value = json.dumps(record).encode()
    command = validate(partition_of(lane, 8), 0, plan.now, lane.encode(), value, Rules(8))
    assert command.invocation(1, 1, 1, 0, handler="work", timeout_ms=1).missing == ()


def test_only_a_definition_with_the_field_needs_the_newest_version_of_the_log() -> None:
    plan = PlannerHarness()
    plan.put("a", X, payload={"onJobTimeout": 1}, jobTimeout="1h")
    assert {json.loads(group)["v"] for group in plan.log} == {2}
    plan.put("b", X, **RUN)
    assert json.loads(plan.log[-1])["v"] == plan_log.VERSION == 13


def test_a_handler_is_given_what_was_missing() -> None:
    seen = []

    def report(task, ctx):
        seen.append(ctx.missing)

    with world([report]) as w:
        trigger = Trigger.event("x") & Trigger.event("y")
        w.put_schedules(Schedule("a", "report", trigger, job_timeout="2m", on_job_timeout="run"))
        w.emit("x")
        w.advance("121s")
        w.emit("x")
        w.emit("y")
        w.advance("1s")
    assert seen == [("event:y",), ()]


def test_there_is_no_third_action() -> None:
    with pytest.raises(ArgumentError, match="onJobTimeout"):
        Schedule("a", "report", Trigger.event("x"), on_job_timeout="wait", constraints=[Constraint.delay("1s")])
