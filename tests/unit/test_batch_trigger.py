"""Triggers that wait until all tasks of a batch have ended."""

from typing import Any

import pytest

from scylla_spark import Retry, Schedule, Trigger, handler
from scylla_spark.client.schedules.selection import KINDS, Selection
from scylla_spark.core.plan.triggers.trigger import OnBatch, checked
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.dashboard.schedules import KINDS as SHOWN
from scylla_spark.errors import ArgumentError
from scylla_spark.testing import world
from tests.support.planner_harness import PlannerHarness, key_of

NIGHT = {"kind": "batch", "tag": "night", "size": 3}
SAID = {
    "of": "{{ batch.tag }}",
    "ended": "{{ batch.ended }}",
    "bad": "{{ batch.failed }}",
    "cut": "{{ batch.cancelled }}",
}


def waiting(trigger: dict[str, Any] = NIGHT, **fields: Any) -> PlannerHarness:
    plan = PlannerHarness()
    assert plan.put("report", trigger, **({"handler": "tell", "payload": SAID} | fields))[0] == "ok"
    return plan


def told(plan: PlannerHarness) -> list[Any]:
    return [one["taskData"] for one in plan.sent]


def ends(plan: PlannerHarness, *ended: tuple[str, tuple[str, ...]]) -> None:
    """Ends of tasks that nobody has planned: how, and their tags."""
    at = plan.now
    keys = [TaskKey(at, "lane", f"{len(plan.log)}-{number}") for number, _ in enumerate(ended)]
    plan.ends(
        *(
            Fact(key, 1, outcome, at, at, handler="work", tags=tags)
            for key, (outcome, tags) in zip(keys, ended, strict=True)
        )
    )


def test_it_fires_when_so_many_of_its_tasks_have_ended_and_says_how_they_did():
    plan = waiting()
    ends(plan, ("succeeded", ("night", "eu")), ("failed", ("eu", "night")), ("succeeded", ("day",)), ("succeeded", ()))
    assert not told(plan)
    ends(plan, ("expired", ("night",)))
    assert told(plan) == [{"of": "night", "ended": 3, "bad": 1, "cut": 1}]


def test_counting_begins_anew_and_what_comes_while_a_run_waits_is_counted_for_the_next():
    plan = waiting()
    ends(plan, *[("succeeded", ("night",))] * 8)
    assert [one["ended"] for one in told(plan)] == [3, 3]
    ends(plan, ("failed", ("night",)))
    assert [(one["ended"], one["bad"]) for one in told(plan)] == [(3, 0), (3, 0), (3, 1)]


def test_a_planner_that_comes_after_goes_on_counting():
    plan = waiting()
    ends(plan, ("failed", ("night",)), ("cancelled", ("night",)))
    plan.restart()
    ends(plan, ("succeeded", ("night",)))
    assert told(plan) == [{"of": "night", "ended": 3, "bad": 1, "cut": 1}]


def test_several_schedules_wait_for_one_batch_and_for_several_tags_of_one_task():
    plan = waiting()
    plan.put("eu", {"kind": "batch", "tag": "eu", "size": 1}, handler="tell", payload={"of": "{{ batch.tag }}"})
    plan.put("all", {"kind": "all", "of": [NIGHT, {"kind": "batch", "tag": "eu", "size": 2}]}, handler="both", payload={
        "tags": ["{{ batches.night.ended }}", "{{ batches.eu.ended }}"],
    })  # fmt: skip
    ends(plan, *[("succeeded", ("night", "eu"))] * 3)
    both = [one["taskData"] for one in plan.sent if one["handler"] == "both"]
    assert both == [{"tags": [3, 2]}]
    assert [one["of"] for one in told(plan) if "of" in one] == ["eu", "eu", "night", "eu"]


def test_runs_of_schedules_that_carry_the_tag_count_as_well():
    plan = waiting({**NIGHT, "size": 2})
    plan.put("load", {"kind": "event", "name": "go"}, handler="load", tags=["night"], overlap="allow_all")
    plan.event("go")
    plan.event("go")
    for record in list(plan.sent):
        plan.ends(Fact(key_of(record), 1, "succeeded", plan.now, plan.now, tags=tuple(record["tags"])))
    assert [one["ended"] for one in told(plan) if one] == [2]


@pytest.mark.parametrize("tags", [["night"], ["x", "night"]])
def test_a_schedule_whose_own_runs_would_fill_its_batch_is_refused(tags):
    plan = PlannerHarness()
    status, answer, *_ = plan.put("report", NIGHT, handler="tell", tags=tags)
    assert status != "ok"
    assert "circle" in str(answer)
    assert plan.put("load", {"kind": "batch", "tag": "day", "size": 1}, handler="x", tags=["night"])[0] == "ok"
    assert "circle" in str(plan.put("report", NIGHT, handler="tell", tags=["day"]))


def test_whoever_waits_for_a_tag_has_it_no_more_than_whoever_has_it_waits_for_it():
    plan = waiting()
    plan.put("load", {"kind": "event", "name": "go"}, handler="load", tags=["night"])
    entries = plan.planner.state.entries
    chosen = Selection(tag="night"), Selection(kind="batch")
    assert [[name for name, entry in entries.items() if wanted.has(entry)] for wanted in chosen] == [
        ["load"],
        ["report"],
    ]
    assert plan.ask("pause", tag="night")[0] == "ok"
    assert [entries["load"].paused, entries["report"].paused] == [True, False]


def test_the_dashboard_lists_by_each_kind_of_trigger():
    assert set(SHOWN) == KINDS.keys()


def test_a_schedule_that_only_has_tags_asks_for_no_ends_of_tasks():
    plan = PlannerHarness()
    plan.put("load", {"kind": "event", "name": "go"}, handler="load", tags=["night"])
    assert not plan.planner.wants_facts
    plan.put("report", NIGHT, handler="tell")
    assert plan.planner.wants_facts


def test_a_planner_that_does_not_know_batches_stops_before_one():
    plan = PlannerHarness()
    before = len(plan.log)
    plan.put("report", {"kind": "any", "of": [NIGHT]}, handler="tell")
    assert max(value[:6] for value in plan.log[before:]) == b'{"v":8'


@pytest.mark.parametrize(
    "wrong",
    [OnBatch("", 1), OnBatch(" a", 1), OnBatch("a" * 65, 1), OnBatch("a", 0), OnBatch("a", -1), OnBatch("a", 2**60)],
)
def test_a_batch_that_can_never_be_whole_is_refused(wrong):
    with pytest.raises(ArgumentError):
        checked(wrong)


def test_in_the_test_kit_a_batch_of_tasks_is_followed_by_one_run():
    @handler("batch.work")
    def work(task):
        return 1 / (task.payload["number"] - 1)

    @handler("batch.report")
    def report(task):
        return task.payload

    with world(handlers=[work, report]) as w:
        w.put_schedules(Schedule("report", "batch.report", Trigger.batch("night", 3), payload=SAID))
        for number in range(3):
            w.enqueue(
                "batch.work", {"number": number}, ordering_id=str(number), tags=["night"], retry=Retry(max_retries=0)
            )
        w.run_until_idle()
        assert [task.result for task in w.tasks("batch.report")] == [{"of": "night", "ended": 3, "bad": 1, "cut": 0}]
