"""Constraints that a handler of the user judges: what each answer does, and what happens where there is none."""

import json
from datetime import UTC, datetime

import pytest

from scylla_spark import Constraint, Schedule, Trigger
from scylla_spark.client.schedules.explanation_words import standing
from scylla_spark.core.plan.checks import answer_of
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import Failure
from scylla_spark.testing import world
from tests.support.planner_harness import SECOND, PlannerHarness, key_of

CHECK = {"kind": "check", "handler": "is_quiet", "timeout": "20s"}
EVENT = {"kind": "event", "name": "e"}


@pytest.fixture
def plan() -> PlannerHarness:
    made = PlannerHarness()
    made.put("low", EVENT, constraints=[CHECK], queue="bulk", priority=7)
    made.event("e")
    return made


def checks(plan: PlannerHarness) -> list[dict]:
    return [one for one in plan.sent if one["orderingId"].startswith("check/")]


def runs(plan: PlannerHarness) -> list[dict]:
    return [one for one in plan.sent if not one["orderingId"].startswith("check/")]


def answer(plan: PlannerHarness, value: object, outcome: str = "succeeded") -> None:
    plan.end_key(key_of(checks(plan)[-1]), outcome, json.dumps(value))


# -- asking ------------------------------------------------------------------------------------------------------------


def test_a_task_of_the_handler_is_asked_and_the_job_waits_for_its_answer(plan: PlannerHarness) -> None:
    (asked,) = checks(plan)
    assert (asked["handler"], asked["queue"], asked["priority"], asked["timeout"]) == ("is_quiet", "bulk", 7, "20000ms")
    assert asked["retry"]["maxRetries"] == 0
    assert asked["taskData"] == {
        "schedule": "low",
        "planned": "2026-03-01T00:00:00Z",
        "since": "2026-03-01T00:00:00Z",
        "generation": 1,
        "number": 1,
    }
    plan.pass_s(3_600)
    assert (len(plan.sent), plan.verdicts()) == (1, ["waiting"])
    answer(plan, "satisfied")
    assert (len(runs(plan)), plan.verdicts()) == (1, ["waiting", "launched"])


@pytest.mark.parametrize("how", ["log", "snapshot"])
def test_a_new_planner_asks_nothing_twice_and_takes_the_answer(plan: PlannerHarness, how: str) -> None:
    if how == "snapshot":
        plan.log = plan.snapshot()
    plan.restart(after_us=SECOND)
    plan.pass_s(1)
    assert len(plan.sent) == 1
    answer(plan, "satisfied")
    assert len(runs(plan)) == 1


def test_it_is_asked_when_all_other_constraints_hold_and_they_are_judged_again_at_its_answer() -> None:
    plan = PlannerHarness()
    plan.put("busy", {"kind": "event", "name": "other"})
    limit = {"kind": "concurrency", "most": 1, "otherwise": "wait"}
    plan.put("low", EVENT, constraints=[CHECK, {"kind": "delay", "delay": "1m"}, limit])
    plan.event("e")
    plan.pass_s(59)
    assert not plan.sent
    plan.pass_s(1)
    assert len(checks(plan)) == 1
    plan.event("other")
    answer(plan, "satisfied")
    assert [one["uniquenessKey"].split("/")[0] for one in runs(plan)] == ["busy"]
    plan.end_key(key_of(runs(plan)[0]))
    assert len(checks(plan)) == 2, "the answer of before is old"
    answer(plan, "satisfied")
    assert len(runs(plan)) == 2


def test_a_job_that_takes_the_place_of_another_takes_its_question_too() -> None:
    plan = PlannerHarness()
    plan.put("low", {"kind": "every", "period": "10s"}, constraints=[CHECK])
    plan.pass_s(35)
    assert len(plan.sent) == 1
    answer(plan, "satisfied")
    assert [one["uniquenessKey"] for one in runs(plan)] == ["low/2026-03-01T00:00:30Z/1"]


@pytest.mark.parametrize("kind", ["pause", "delete"])
def test_an_answer_that_nothing_waits_for_has_no_effect(plan: PlannerHarness, kind: str) -> None:
    plan.ask(kind, names=["low"])
    answer(plan, "satisfied")
    answer(plan, "never")
    assert not runs(plan)
    for lane in ("check/low/x", "check/", "check/low/99999999999999999999999", "check/low/²"):
        plan.end_key(TaskKey(plan.now, lane, "u"))
    assert "failed" not in plan.verdicts()


def test_ends_of_tasks_are_read_as_long_as_a_schedule_has_a_check(plan: PlannerHarness) -> None:
    assert not plan.planner.state.runs
    assert plan.planner.wants_facts
    plan.restart()
    assert plan.planner.wants_facts
    plan.ask("delete", names=["low"])
    assert not plan.planner.wants_facts


def test_a_task_that_was_never_sent_is_asked_again(plan: PlannerHarness) -> None:
    plan.restart(after_us=2 * 3_600 * SECOND)
    plan.planner.anew(key_of(checks(plan)[0]), checks(plan)[0]["taskData"], plan.now)
    plan.turn()
    plan.pass_s(0)
    assert [one["taskData"]["number"] for one in checks(plan)] == [1, 2]
    plan.end_key(key_of(checks(plan)[0]), "succeeded", '"satisfied"')
    assert runs(plan) == []
    answer(plan, "satisfied")
    assert len(runs(plan)) == 1


# -- answers -----------------------------------------------------------------------------------------------------------


def test_never_drops_the_job_and_its_row_says_so(plan: PlannerHarness) -> None:
    answer(plan, "never")
    assert (plan.fires[-1]["verdict"], plan.fires[-1]["why"]) == ("skipped", "the check 'is_quiet' answered never")
    assert not plan.planner.state.entries["low"].jobs


def test_it_is_asked_again_when_the_wait_is_over_also_by_a_new_planner(plan: PlannerHarness) -> None:
    answer(plan, {"wait": "5m"})
    plan.pass_s(200)
    plan.restart()
    plan.pass_s(99)
    assert len(checks(plan)) == 1
    plan.pass_s(1)
    assert [one["taskData"]["number"] for one in checks(plan)] == [1, 2]


@pytest.mark.parametrize("outcome", ["failed", "aborted", "cancelled", "expired", "succeeded"])
def test_three_tasks_in_a_row_without_an_answer_count_as_never(plan: PlannerHarness, outcome: str) -> None:
    for number in (1, 2):
        answer(plan, "perhaps", outcome)
        assert len(checks(plan)) == number
        plan.pass_s(20)
        assert len(checks(plan)) == number + 1
    answer(plan, "perhaps", outcome)
    assert plan.fires[-1]["verdict"] == "skipped"
    assert plan.fires[-1]["why"].startswith(
        "the check 'is_quiet' has failed 3 times in a row, which counts as never: it"
    )
    plan.pass_s(3_600)
    assert len(plan.sent) == 3


def test_an_answer_ends_the_row_of_failures(plan: PlannerHarness) -> None:
    for value in ("perhaps", "perhaps", {"wait": "20s"}, "perhaps", "perhaps"):
        answer(plan, value)
        plan.pass_s(20)
    assert plan.verdicts() == ["waiting"]
    answer(plan, "satisfied")
    assert len(runs(plan)) == 1


@pytest.mark.parametrize(
    "result",
    [None, "", "null", "true", "[]", '"Satisfied"', '{"wait": "5m", "more": 1}', '{"wait": 0}', '{"wait": -1}', '{"wait": "soon"}',
     '{"wait": null}', '{"wait": 1e300}', '{"wait": "400d"}', "[" * 100_000, "not json"],
)  # fmt: skip
def test_nonsense_is_no_answer_and_says_what_is_expected(result: str | None) -> None:
    found = answer_of(Fact(TaskKey(0, "l", "u"), 1, "succeeded", result=result))
    assert found.kind == "failed"
    assert 'expected is "satisfied", "never" or {"wait"' in found.why


def test_the_error_of_a_check_is_part_of_the_reason() -> None:
    failure = Failure("ValueError", "x" * 10_000, "")
    found = answer_of(Fact(TaskKey(0, "l", "u"), 1, "failed", failure=failure))
    assert found.why.startswith("it ended as failed: ValueError: xxx")
    assert len(found.why) < 600


# -- around ------------------------------------------------------------------------------------------------------------


def test_explain_names_the_task_that_is_to_answer(plan: PlannerHarness) -> None:
    said = next(iter(standing(plan.shadow.entries["low"], plan.shadow, plan.now)))
    assert f"the check 'is_quiet' has not answered yet; its task: {key_of(checks(plan)[0])}" in said


@pytest.mark.parametrize(
    "constraints",
    [
        [{"kind": "check"}],
        [{"kind": "check", "handler": "no name"}],
        [{"kind": "check", "handler": "h", "timeout": 0}],
        [{"kind": "check", "handler": "h", "otherwise": "abort"}],
        [{"kind": "check", "handler": "h", "most": 1}],
        [CHECK, CHECK],
    ],
)
def test_a_check_that_cannot_be_asked_is_refused(plan: PlannerHarness, constraints: list) -> None:
    assert plan.put("other", EVENT, constraints=constraints)[0] == "argument"


@pytest.mark.parametrize("first", ["is_quiet", "other"])
def test_a_schedule_that_waits_for_its_own_checks_is_refused(first: str) -> None:
    made = PlannerHarness()
    made.put("other", {"kind": "after", "work": "is_quiet"}, handler="x")
    assert "circle" in made.put("low", {"kind": "after", "work": first}, constraints=[CHECK])[1]


def test_older_planners_stop_before_such_a_definition(plan: PlannerHarness) -> None:
    assert b'{"v":13,' in plan.log[0][:10]


def report(task) -> None:
    """Does nothing."""


def test_in_a_world_the_handler_of_the_test_answers() -> None:
    answers = [{"wait": "1h"}, "satisfied"]

    def is_quiet(task) -> object:
        return answers.pop(0)

    with world([report, is_quiet], datetime(2026, 3, 1, tzinfo=UTC)) as w:
        w.put_schedules(Schedule("low", "report", Trigger.event("e"), constraints=[Constraint.check("is_quiet")]))
        w.emit("e")
        w.advance("59m")
        assert [one.handler for one in w.runs] == ["is_quiet"]
        w.advance("1m")
        assert [one.handler for one in w.runs] == ["is_quiet", "is_quiet", "report"]
