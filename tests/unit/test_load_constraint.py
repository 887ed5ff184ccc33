"""Schedules that wait until a queue, or the deployment, has little to do."""

import json
from datetime import UTC, datetime

import pytest

from scylla_spark import Constraint, Schedule, Trigger
from scylla_spark.core.plan.constraint import MaxLoad, Situation
from scylla_spark.core.plan.load import Load, QueueLoad
from scylla_spark.services.plan import dispatchers, load_watcher
from scylla_spark.services.plan.load_watcher import EVERY_US, LoadWatcher, figures_of
from scylla_spark.testing import world
from tests.support.planner_harness import SECOND, PlannerHarness

CALM = {"kind": "load", "ready": 1, "queue": "bulk"}
EVENT = {"kind": "event", "name": "e"}


@pytest.fixture
def plan() -> PlannerHarness:
    made = PlannerHarness()
    made.put("low", EVENT, constraints=[CALM])
    return made


def figures(plan: PlannerHarness, ready: int, age_s: int = 0, queue: str = "bulk") -> None:
    at_us = plan.now - age_s * SECOND
    plan.planner.take_load(Load(at_us, {queue: QueueLoad(ready)}, plan.planner.load), plan.now)
    plan.turn()


def waits_for(plan: PlannerHarness) -> str:
    return next(one["why"] for one in reversed(plan.fires) if one["verdict"] == "waiting")


# -- the constraint ----------------------------------------------------------------------------------------------------


def test_each_limit_is_compared_with_the_figure_of_the_queue_or_of_the_deployment() -> None:
    load = Load(0, {"a": QueueLoad(3, 2, 5 * SECOND), "b": QueueLoad(1, 4, 9 * SECOND)})
    situation = Situation(0, load=load)

    def met(**limits) -> bool:
        return MaxLoad(**limits).judge(situation, SECOND).met

    assert [met(ready=3, queue="a"), met(ready=2, queue="a")] == [True, False]
    assert [met(running=6), met(running=5)] == [True, False]
    assert [met(oldest_us=9 * SECOND), met(oldest_us=8 * SECOND)] == [True, False]
    assert [met(ready=0, running=0, oldest_us=0, queue="idle"), met(ready=4, running=5)] == [True, False]


def test_figures_are_judged_for_ten_seconds_waited_for_until_a_minute_and_then_left_out() -> None:
    limit, busy = MaxLoad(ready=0), Situation(0, load=Load(0, {"a": QueueLoad(1)}))
    found = [limit.judge(busy, age * SECOND) for age in (10, 11, 59, 60)]
    assert [one.met for one in found] == [False, False, False, True]
    assert [one.again_us for one in found[:3]] == [60 * SECOND] * 3
    assert [one.unjudged for one in found] == [False, False, False, True]
    calm = Situation(0, load=Load(0, {}))
    assert [limit.judge(calm, age * SECOND).met for age in (10, 11, 60)] == [True, False, True]


@pytest.mark.parametrize(
    "constraint",
    [
        {"kind": "load"},
        {"kind": "load", "queue": "bulk"},
        {"kind": "load", "ready": -1},
        {"kind": "load", "ready": 1.5},
        {"kind": "load", "ready": 1, "queue": "no name"},
        {"kind": "load", "ready": 1, "tag": "etl"},
        {"kind": "rate", "most": 1, "per": "1h", "queue": "bulk"},
    ],
)
def test_a_constraint_on_no_load_is_refused(plan: PlannerHarness, constraint: dict) -> None:
    assert plan.put("other", EVENT, constraints=[constraint])[0] == "argument"


def test_older_planners_stop_before_such_a_definition(plan: PlannerHarness) -> None:
    assert b'{"v":13,' in plan.log[-1][:10]


# -- the planner -------------------------------------------------------------------------------------------------------


def test_a_run_waits_until_the_queue_has_little_to_do(plan: PlannerHarness) -> None:
    figures(plan, ready=2)
    plan.event("e")
    why = "the queue 'bulk' has 2 ready tasks, 0 that run, and the oldest ready one has waited 0 s; at most are 1 ready"
    assert (plan.verdicts(), waits_for(plan)) == (["waiting"], why)
    for ready in (5, 2):
        plan.pass_s(5)
        figures(plan, ready)
    assert not plan.sent
    plan.pass_s(5)
    figures(plan, ready=1)
    assert plan.verdicts() == ["waiting", "launched"]
    assert plan.fires[-1]["why"] == ""


def test_the_minute_begins_when_the_first_schedule_wants_figures() -> None:
    plan = PlannerHarness()
    plan.pass_s(600)  # dispatchers are not asked meanwhile
    for _ in range(2):
        plan.put("low", EVENT, constraints=[CALM])
        plan.event("e")
        assert (plan.sent, waits_for(plan)) == ([], "there are no figures of the load of the queue 'bulk' yet")
        plan.ask("delete", names=["low"])
        plan.pass_s(600)
    plan.put("low", EVENT, constraints=[CALM])
    plan.pass_s(59)
    plan.put("low", EVENT, constraints=[CALM], note="other words")
    plan.event("e")
    assert not plan.sent
    plan.pass_s(1)
    assert len(plan.sent) == 1


def test_without_figures_for_a_minute_the_run_is_launched_and_its_row_says_so(plan: PlannerHarness) -> None:
    figures(plan, ready=2)
    plan.event("e")
    plan.pass_s(59)
    assert not plan.sent
    plan.pass_s(1)
    why = "the load of the queue 'bulk' was not judged: there are no figures of the last 60 s"
    assert [(one["verdict"], one["why"]) for one in plan.fires[1:]] == [("launched", why)]


def test_a_run_that_is_skipped_after_a_load_that_was_not_judged_says_why_it_is_skipped(plan: PlannerHarness) -> None:
    plan.put("busy", EVENT, overlap="skip", constraints=[CALM])
    plan.pass_s(60)
    plan.event("e")
    plan.event("e")
    assert plan.verdicts("busy") == ["launched", "skipped"]
    assert next(one["why"] for one in plan.fires if one["verdict"] == "skipped").endswith("is active")


def test_a_new_planner_waits_a_minute_for_its_first_figures(plan: PlannerHarness) -> None:
    figures(plan, ready=0)
    plan.restart(after_us=SECOND)
    plan.event("e")
    assert waits_for(plan) == "there are no figures of the load of the queue 'bulk' yet"
    plan.restart(after_us=30 * SECOND)
    plan.pass_s(59)
    assert not plan.sent
    plan.pass_s(1)
    assert len(plan.sent) == 1


def test_what_is_launched_counts_until_the_next_figures_show_it(plan: PlannerHarness) -> None:
    for name in ("b", "a"):
        plan.put(name, EVENT, queue="bulk", constraints=[{**CALM, "ready": 0}])
    figures(plan, ready=5)
    plan.event("e")
    plan.pass_s(5)
    figures(plan, ready=0)
    assert len(plan.sent) == 2, "the one of another queue, and one of these"
    plan.pass_s(5)
    figures(plan, ready=0, age_s=6)
    assert len(plan.sent) == 2, "the figures were taken before that launch"
    figures(plan, ready=0)
    assert len(plan.sent) == 3


def test_new_figures_are_judged_once_for_all_schedules_of_a_limit(plan: PlannerHarness, monkeypatch) -> None:
    for number in range(50):
        plan.put(f"s{number}", EVENT, constraints=[{**CALM, "ready": number % 2}])
    figures(plan, ready=5)
    plan.event("e")
    judged = []
    judge = MaxLoad.judge
    monkeypatch.setattr(MaxLoad, "judge", lambda self, *rest: judged.append(self) or judge(self, *rest))
    plan.pass_s(5)
    figures(plan, ready=5)
    assert len(judged) == 2


def test_dispatchers_are_asked_only_as_long_as_a_schedule_has_such_a_constraint(plan: PlannerHarness) -> None:
    assert plan.planner.load is not None
    plan.restart()
    assert plan.planner.load is not None
    plan.ask("delete", names=["low"])
    assert plan.planner.load is None


# -- the figures -------------------------------------------------------------------------------------------------------


def answer(partitions: list[int], **queues: tuple[int, int, float]) -> dict:
    names = ("ready", "running", "oldest_ready_seconds")
    return {
        "partitions": partitions,
        "queues": {name: dict(zip(names, one, strict=True)) for name, one in queues.items()},
    }


def test_figures_of_all_dispatchers_are_added_up() -> None:
    found = figures_of([answer([0, 2], a=(1, 2, 3.5)), answer([1], a=(4, 5, 1), b=(0, 1, 0))], 3)
    assert found == {"a": QueueLoad(5, 7, 3_500_000), "b": QueueLoad(0, 1, 0)}


@pytest.mark.parametrize(
    "answers",
    [
        [],
        [answer([0])],
        [answer([0, 1]), None],
        [answer([0, 1]), {"partitions": "01", "queues": []}],
        [answer([0, 1], a=("many", 0, 0))],
        [answer([0, 1], a=(float("nan"), 0, 0))],
        [answer([0, 1], a=(0, 0, float("inf")))],
        [{"partitions": [[0], 1], "queues": {}}],
    ],
)
def test_there_are_no_figures_where_a_partition_or_an_answer_is_missing(answers: list) -> None:
    assert figures_of(answers, 2) is None


class Asking:
    """The part of a planner that a watcher meets."""

    def __init__(self) -> None:
        self.load: Load | None = Load(0)
        self.told: list[tuple[int, dict[str, QueueLoad]]] = []

    def take_load(self, load: Load, now: int) -> None:
        self.told.append((load.at_us, load.of("a")))


class Settings:
    partitions = 2


def test_owners_are_looked_up_anew_only_where_the_dispatchers_of_before_do_not_have_all_partitions(monkeypatch) -> None:
    served = {"http://a": answer([0, 1], a=(1, 0, 0))}
    looked, boot = [], [0]

    def fetch(address: str, **_) -> bytes:
        assert address.endswith("/load")
        return json.dumps(served[address.removesuffix("/load")]).encode()

    def owners(_) -> list[str]:
        looked.append(boot[0])
        return sorted({*served, ""})

    monkeypatch.setattr(dispatchers, "fetch", fetch)
    monkeypatch.setattr(load_watcher, "owners", owners)
    watcher, planner = LoadWatcher(Settings, lambda: boot[0]), Asking()
    monkeypatch.setattr(watcher._threads, "do", lambda call: call())
    for _ in range(3):
        watcher.exchange(planner, boot[0])
        boot[0] += EVERY_US
    assert (looked, planner.told) == ([0], [(0, QueueLoad(1)), (EVERY_US, QueueLoad(1))])
    served |= {"http://a": answer([0]), "http://b": answer([1], a=(2, 0, 0))}
    for _ in range(2):
        watcher.exchange(planner, boot[0])
        boot[0] += EVERY_US
    assert (looked[1:], planner.told[-1]) == ([3 * EVERY_US], (3 * EVERY_US, QueueLoad(2)))
    planner.load = None
    watcher.exchange(planner, boot[0])
    boot[0] += EVERY_US
    watcher.exchange(planner, boot[0])
    assert len(planner.told) == 4, "no schedule waits for less load any more"


def test_a_look_that_hangs_is_not_joined_by_another_one(monkeypatch) -> None:
    boot, begun = [0], []
    watcher = LoadWatcher(Settings, lambda: boot[0])
    monkeypatch.setattr(watcher._threads, "do", begun.append)
    for _ in range(3):
        watcher.exchange(Asking(), boot[0])
        boot[0] += EVERY_US
    assert len(begun) == 1


# -- in a test of one's own --------------------------------------------------------------------------------------------


def report(task) -> None:
    """Does nothing."""


def test_in_a_world_the_constraint_sees_the_tasks_of_the_test() -> None:
    with world([report], datetime(2026, 3, 1, tzinfo=UTC)) as w:
        w.takes("report", "4m")
        w.put_schedules(Schedule("low", "report", Trigger.event("e"), constraints=[Constraint.load(running=0)]))
        w.enqueue("report")
        w.advance("2m")
        w.emit("e")
        w.advance("119s")
        assert [one.why[:37] for one in w.fires] == ["the deployment has 0 ready tasks, 1 t"]
        w.advance("1s")
        assert [one.verdict for one in w.fires] == ["waiting", "launched"]
