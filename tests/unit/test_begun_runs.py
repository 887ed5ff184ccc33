"""`after(work, on="started")`: fires when a run begins, once for each run."""

import pytest

from scylla_spark import Schedule, Trigger
from scylla_spark.core.plan.state import plan_log
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import ArgumentError
from scylla_spark.testing import world
from tests.support.planner_harness import SECOND, PlannerHarness, key_of

EVENT = {"kind": "event", "name": "e"}
ON_START = {"kind": "after", "work": "first", "on": ["started"]}
SEEN = {name: f"{{{{ upstream.{name} }}}}" for name in ("schedule", "handler", "outcome", "attempts", "planned")}


def begun(plan: PlannerHarness, which: int = 0, attempt: int = 1, outcome: str = "started", **more) -> None:
    more = {"started_us": plan.now, "handler": "work"} | more
    plan.ends(Fact(key_of(plan.sent[which]), attempt, outcome, **more))


def running(**fields) -> PlannerHarness:
    plan = PlannerHarness()
    plan.put("first", EVENT)
    plan.put("a", ON_START, **fields)
    plan.event("e")
    return plan


def runs_of(plan: PlannerHarness, name: str = "a") -> int:
    return sum(one.startswith(f"{name}/") for one in plan.launched())


def test_a_start_fires_and_its_end_does_not() -> None:
    plan = running(payload=SEEN)
    assert runs_of(plan) == 0
    begun(plan)
    assert plan.sent[-1]["taskData"] == {
        "schedule": "first",
        "handler": "work",
        "outcome": "started",
        "attempts": 1,
        "planned": plan.sent[0]["uniquenessKey"].split("/")[1],
    }
    plan.end(0)
    assert runs_of(plan) == 1
    assert plan.planner.state.begun == {}


def test_a_run_that_ends_before_its_start_is_recorded_fires_at_its_end() -> None:
    plan = running()
    plan.end(0, "failed")
    assert runs_of(plan) == 1
    assert plan.planner.state.begun == {}


def test_a_run_that_never_begins_does_not_fire() -> None:
    plan = running()
    plan.unrun(0)
    assert runs_of(plan) == 0


@pytest.mark.parametrize("snapshot", [False, True])
def test_attempts_that_follow_do_not_fire_also_after_a_restart(snapshot) -> None:
    plan = running()
    begun(plan)
    for attempt in (1, 2):
        if snapshot:
            plan.log = plan.snapshot()
        plan.restart(after_us=SECOND)
        begun(plan, attempt=attempt, outcome="failed", finished_us=plan.now, next_us=plan.now + 1)
        begun(plan, attempt=attempt + 1)
    plan.end(0)
    assert runs_of(plan) == 1


def test_a_first_attempt_that_fails_at_once_fires() -> None:
    plan = running()
    begun(plan, outcome="failed", finished_us=plan.now, next_us=plan.now + 1)
    assert runs_of(plan) == 1
    begun(plan, attempt=2)
    plan.end(0)
    assert runs_of(plan) == 1


@pytest.mark.promise
@pytest.mark.parametrize("quick", [True, False])
def test_each_schedule_hears_of_a_start_once_wherever_the_planner_ends(quick) -> None:
    names = [f"a{n}" for n in range(6)]

    def made() -> PlannerHarness:
        plan = PlannerHarness()
        plan.put("first", EVENT)
        for n, name in enumerate(names):
            plan.put(name, ON_START | {"work": "work" if n % 2 else "first"}, handler="other")
        plan.put("both", {"kind": "any", "of": [ON_START, ON_START | {"work": "work"}]}, handler="other")
        plan.put("ended", {"kind": "after", "work": "first"}, handler="other")
        plan.event("e")
        return plan

    def told(plan: PlannerHarness) -> None:
        key = key_of(plan.sent[0])
        plan.planner._journal._group_bytes = 1  # each schedule that hears of it is a group of its own
        end = ("succeeded", plan.now, plan.now) if quick else ("started", plan.now, 0)
        plan.ends(Fact(key, 1, *end, plan.now, 1, handler="work"))

    plan = made()
    before = len(plan.log)
    told(plan)
    cuts = len(plan.log) - before
    assert cuts >= len(names)
    for cut in range(cuts):
        plan = made()
        told(plan)
        del plan.log[before + cut :]
        plan.sent = plan.sent[:1]
        for value in plan.log:
            for change in plan_log.decode(value).changes:
                if change[0] == "send":
                    plan.look(change)
        del plan.sent[0]
        plan._facts -= 1
        plan.shadow = type(plan.shadow)()
        for value in plan.log:
            plan.shadow.fold(plan_log.decode(value))
        plan.restart()
        told(plan)
        plan.pass_s(1)
        assert [runs_of(plan, name) for name in names] == [1] * len(names), cut
        assert (runs_of(plan, "both"), runs_of(plan, "ended")) == (1, int(quick)), cut


def test_tasks_of_a_handler_fire_too() -> None:
    plan = PlannerHarness()
    plan.put("a", ON_START | {"work": "load"})
    assert plan.planner.wants_facts
    key = TaskKey(plan.now, "lane", "u")
    start = Fact(key, 1, "started", plan.now, handler="load")
    plan.ends(start)
    plan.ends(start)
    plan.ends(Fact(key, 1, "failed", plan.now, plan.now, next_us=plan.now + 1))
    plan.ends(Fact(key, 2, "started", plan.now, handler="load"))
    plan.ends(Fact(key, 2, "succeeded", plan.now, plan.now, handler="load"))
    plan.ends(Fact(TaskKey(plan.now, "lane", "other"), 1, "started", plan.now, handler="else"))
    assert runs_of(plan) == 1
    assert plan.planner.state.begun == {}


def test_a_run_that_began_before_the_schedule_was_there_does_not_fire_it() -> None:
    plan = PlannerHarness()
    plan.put("first", EVENT)
    plan.event("e")
    begin = plan.now
    plan.pass_s(1)
    plan.put("a", ON_START)
    plan.pass_s(1)
    begun(plan, started_us=begin)
    begun(plan, outcome="failed", started_us=begin, finished_us=plan.now, next_us=plan.now)
    begun(plan, attempt=2)
    plan.end(0)
    assert runs_of(plan) == 0


def test_a_change_of_words_loses_no_start() -> None:
    plan = running()
    begin = plan.now
    plan.pass_s(1)
    plan.put("a", ON_START, note="of interest")
    begun(plan, started_us=begin)
    assert runs_of(plan) == 1


def test_a_pause_that_keeps_has_heard_of_starts() -> None:
    plan = running(onPause="keep")
    plan.ask("pause", names=["a"])
    begun(plan)
    plan.ask("resume", names=["a"])
    plan.pass_s(0)
    assert runs_of(plan) == 1


def test_a_resume_from_now_on_does_not_count_what_began_during_the_pause() -> None:
    plan = PlannerHarness()
    plan.put("first", EVENT)
    plan.put("a", {"kind": "any", "of": [ON_START, {"kind": "table", "table": "/t"}]})
    (place,) = plan.planner.watched()
    plan.planner.tables.begins(place, "id", 3)
    plan.turn()
    plan.ask("pause", names=["a"])
    plan.event("e")
    begin = plan.now
    plan.pass_s(1)
    plan.ask("resume", names=["a"], fromNow=True)
    begun(plan, started_us=begin)
    assert runs_of(plan) == 0


def test_starts_are_counted_and_missed() -> None:
    plan = PlannerHarness()
    plan.put("first", EVENT, overlap="allow_all")
    plan.put("three", ON_START | {"atLeast": 3})
    plan.put("quiet", {"kind": "absent", "of": ON_START, "within": "60s"})
    for _ in range(3):
        plan.event("e")
        plan.pass_s(30)
        begun(plan, -1)
    assert (runs_of(plan, "three"), runs_of(plan, "quiet")) == (1, 0)
    plan.pass_s(60)
    assert runs_of(plan, "quiet") == 1


def test_schedules_that_start_each_other_are_refused() -> None:
    plan = PlannerHarness()
    plan.put("first", {"kind": "after", "work": "a", "on": ["started"]}, handler="x")
    answer = plan.put("a", ON_START, handler="y")
    assert "circle" in answer[1]


def test_a_schedule_goes_with_the_one_whose_starts_it_waits_for() -> None:
    plan = running(handler="other")
    plan.ask("delete", names=["first"])
    assert "a" not in plan.planner.state.entries


def test_starts_and_ends_are_not_counted_together() -> None:
    with pytest.raises(ArgumentError, match="not both"):
        Trigger.after("first", on=["started", "failed"])


def test_only_such_a_definition_needs_the_newest_version_of_the_log() -> None:
    plan = PlannerHarness()
    plan.put("b", EVENT, payload={"on": "started"})
    assert b'"v":2,' in plan.log[-1]
    plan.put("a", {"kind": "any", "of": [EVENT, ON_START]})
    assert b'"v":13,' in plan.log[-1]


def test_a_run_is_followed_while_it_runs() -> None:
    def load(task):
        pass

    def watch(task):
        return task.payload

    with world([load, watch]) as w:
        w.put_schedules(
            Schedule("nightly", "load", Trigger.event("e")),
            Schedule("a", "watch", Trigger.after("nightly", on="started"), payload={"of": "{{ upstream.schedule }}"}),
        )
        w.emit("e")
        w.advance("2s")
        assert [run.payload for run in w.runs if run.handler == "watch"] == [{"of": "nightly"}]
