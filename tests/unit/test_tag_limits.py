"""Limits of all schedules with a tag: runs at once and launches in a span, for any handler."""

import pytest

from scylla_spark import Constraint, Schedule, Trigger
from scylla_spark.api.schedules.plan_mirror import excerpt
from scylla_spark.client.schedules.explanation_words import standing
from scylla_spark.core.plan.state.plan_state import MOST_TAGS_RATED, PlanState
from scylla_spark.errors import ArgumentError
from tests.support.planner_harness import PlannerHarness, key_of

WAITS = {"kind": "concurrency", "most": 2, "tag": "etl", "otherwise": "wait"}
HOURLY = {"kind": "rate", "most": 2, "per": "1h", "tag": "etl"}


def on(name: str) -> dict[str, str]:
    return {"kind": "event", "name": name}


def put(plan: PlannerHarness, name: str, constraint: dict | None = WAITS, **fields) -> None:
    held = [constraint] if constraint else []
    plan.put(name, on(name), **({"handler": f"of_{name}", "tags": ["etl"], "constraints": held} | fields))


def fire(plan: PlannerHarness, *names: str) -> None:
    for name in names:
        plan.event(name)
        plan.pass_s(1)


def who(plan: PlannerHarness) -> list[str]:
    return [one["uniquenessKey"].split("/")[0] for one in plan.sent]


def end(plan: PlannerHarness, name: str) -> None:
    plan.end_key(key_of([one for one in plan.sent if one["uniquenessKey"].startswith(f"{name}/")][-1]))


def again(plan: PlannerHarness, how: str) -> None:
    """Another planner goes on: from the log, from a snapshot alone, or after a snapshot was read by who knew all before."""
    if how == "snapshot":
        plan.log = plan.snapshot()
    plan.restart()


@pytest.fixture
def plan() -> PlannerHarness:
    return PlannerHarness()


def test_runs_of_all_schedules_with_a_tag_count_for_any_handler(plan: PlannerHarness) -> None:
    for name in "cba":
        put(plan, name)
    put(plan, "free", None)
    put(plan, "other", None, tags=["else"])
    fire(plan, "other", "free", "c", "b", "a")
    assert who(plan) == ["other", "free", "c"]
    waiting = [one["why"] for one in plan.fires if one["verdict"] == "waiting"]
    assert waiting == ["2 of at most 2 runs of the tag 'etl' are active"] * 2
    end(plan, "other")
    assert len(plan.sent) == 3, "it has another tag"
    end(plan, "free")
    assert who(plan)[3:] == ["b"], "the one that has waited for longest"
    end(plan, "c")
    assert who(plan)[4:] == ["a"]


def test_a_limit_below_what_runs_ends_nothing_and_launches_nothing_until_there_is_room(plan: PlannerHarness) -> None:
    for name in "abc":
        put(plan, name, WAITS | {"most": 3})
    fire(plan, "a", "b", "c")
    for name in "abc":
        put(plan, name, WAITS | {"most": 1})
    fire(plan, "a")
    assert (who(plan), plan.cancelled) == (["a", "b", "c"], [])
    end(plan, "b")
    end(plan, "c")
    assert len(plan.sent) == 3
    end(plan, "a")
    assert who(plan)[3:] == ["a"]


@pytest.mark.parametrize("how", ["log", "snapshot"])
@pytest.mark.parametrize("change", ["delete", "other tags", "no tags", "other handler"])
def test_a_run_counts_for_the_tags_of_its_launch_until_it_ends(plan: PlannerHarness, how: str, change: str) -> None:
    put(plan, "a", None)
    put(plan, "b", WAITS | {"most": 1})
    fire(plan, "a")
    if change == "delete":
        plan.ask("delete", names=["a"])
    else:
        new = {"other tags": {"tags": ["x"]}, "no tags": {"tags": []}, "other handler": {"handler": "new"}}[change]
        put(plan, "a", None, **new)
    again(plan, how)
    fire(plan, "b")
    assert who(plan) == ["a"]
    end(plan, "a")
    assert who(plan) == ["a", "b"]
    assert not plan.planner.state.tags


def test_a_run_that_was_launched_without_the_tag_does_not_count_when_its_schedule_gets_it(plan: PlannerHarness) -> None:
    put(plan, "a", None, tags=[])
    fire(plan, "a")
    put(plan, "a", None)
    put(plan, "b", WAITS | {"most": 1})
    plan.restart()
    fire(plan, "b")
    assert who(plan) == ["a", "b"]


@pytest.mark.parametrize("how", ["none", "log", "snapshot"])
def test_launches_of_all_schedules_with_a_tag_count_for_its_rate(plan: PlannerHarness, how: str) -> None:
    for name in "cba":
        put(plan, name, HOURLY)
    put(plan, "free", None)
    plan.ask("run", name="free")
    fire(plan, "free", "c", "b", "a")
    assert who(plan) == ["free", "free", "c"]
    assert plan.fires[-1]["why"] == "2 of at most 2 launches of the tag 'etl' in 3600 s"
    if how != "none":
        again(plan, how)
    plan.pass_s(3_595)
    assert who(plan)[3:] == []
    plan.pass_s(1)
    assert who(plan)[3:] == ["b"], "an hour after the first of these; a run by hand is not counted"
    plan.pass_s(1)
    assert who(plan)[3:] == ["b", "a"]


def test_what_waits_for_longest_is_launched_first_when_a_rate_has_room(plan: PlannerHarness) -> None:
    put(plan, "z", HOURLY | {"most": 1})
    put(plan, "a", HOURLY | {"most": 1})
    fire(plan, "a", "z")
    for _ in range(4):
        plan.pass_s(1_800)
        fire(plan, "a")
    assert who(plan)[:3] == ["a", "z", "a"]


def test_launches_are_counted_from_the_first_limit_on_and_a_deleted_schedule_keeps_its_own(
    plan: PlannerHarness,
) -> None:
    put(plan, "a", None)
    fire(plan, "a")
    put(plan, "b", HOURLY | {"most": 1})
    end(plan, "a")
    fire(plan, "a")
    plan.ask("delete", names=["a"])
    again(plan, "snapshot")
    fire(plan, "b")
    assert who(plan) == ["a", "a"]
    plan.pass_s(3_600)
    assert who(plan) == ["a", "a", "b"]


def test_of_the_tags_only_so_many_are_counted() -> None:
    state = PlanState()
    for number in range(MOST_TAGS_RATED + 5):
        state.apply(("rated", [f"t{number}"], number))
    assert len(state.launches) == MOST_TAGS_RATED
    assert "t0" not in state.launches


def test_no_rate_is_limited_that_cannot_be_counted(plan: PlannerHarness, monkeypatch) -> None:
    monkeypatch.setattr("scylla_spark.core.plan.state.plan_state.MOST_TAGS_RATED", 2)
    monkeypatch.setattr("scylla_spark.core.plan.commands.definitions.MOST_TAGS_RATED", 2)
    limits = {name: HOURLY | {"most": 1, "tag": name} for name in "abc"}
    for name, limit in limits.items():
        put(plan, name, limit, tags=[name])
    assert sorted(plan.planner.state.entries) == ["a", "b"]
    fire(plan, "a", "b")
    plan.ask("delete", names=["b"])
    put(plan, "c", limits["c"], tags=["c"])
    again(plan, "snapshot")
    fire(plan, "a", "c", "c")
    assert who(plan) == ["a", "b", "c"]


def test_explain_names_the_tag_that_holds_a_run(plan: PlannerHarness) -> None:
    put(plan, "a", None)
    put(plan, "b", WAITS | {"most": 1})
    put(plan, "c", HOURLY | {"most": 1})
    fire(plan, "a", "b", "c")
    put(plan, "d", HOURLY | {"most": 1})
    fire(plan, "d")

    def said(name: str) -> str:
        kept = excerpt(plan.shadow, name)
        found = list(standing(kept.entries[name], kept, plan.now))
        assert found == list(standing(plan.shadow.entries[name], plan.shadow, plan.now)), (
            "what the API keeps shows the same"
        )
        return found[0]

    assert "1 of at most 1 runs of the tag 'etl' are active;" in said("b")
    assert "1 of at most 1 launches of the tag 'etl' in 3600 s (asked again at 2026-03-01T01:00:00Z)" in said("d")


def test_older_planners_stop_before_definitions_with_a_tag_in_a_constraint(plan: PlannerHarness) -> None:
    put(plan, "a", {"kind": "rate", "most": 1, "per": "1h"})
    assert b'{"v":2,' in plan.log[-1][:10]
    put(plan, "b", HOURLY)
    assert b'{"v":13,' in plan.log[-1][:10]


@pytest.mark.parametrize(
    "constraint",
    [
        {"kind": "delay", "delay": "1h", "tag": "etl"},
        {"kind": "last_run", "within": "1h", "tag": "etl"},
        {"kind": "concurrency", "most": 1, "tag": ""},
        {"kind": "rate", "most": 1, "per": "1h", "tag": 5},
        {"kind": "rate", "most": 1, "per": "1h", "tz": "UTC"},
        {"kind": "rate", "most": 1_001, "per": "1h", "tag": "etl"},
    ],
)
def test_a_constraint_that_no_tag_belongs_to_is_refused(plan: PlannerHarness, constraint: dict) -> None:
    put(plan, "a", constraint)
    assert [one[0] for one in plan.answers.values()] == ["argument"]


def test_limits_of_a_tag_in_python() -> None:
    assert Constraint.max_running(2, tag="etl").definition == {
        "kind": "concurrency", "most": 2, "otherwise": "abort", "tag": "etl",
    }  # fmt: skip
    assert Constraint.rate(2, "1h", tag="etl").definition["tag"] == "etl"
    with pytest.raises(ArgumentError):
        Schedule("a", "h", Trigger.event("e"), constraints=[Constraint.max_running(2, tag="")])
