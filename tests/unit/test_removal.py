"""What else goes when schedules are removed: told before as the planner does it, and refused where a set would not become what it says."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from scylla_spark import Schedule, Trigger
from scylla_spark.client.schedules.sets import compared
from scylla_spark.core.plan.commands.definitions import text_of
from scylla_spark.core.plan.commands.removal import losses
from scylla_spark.errors import ArgumentError
from scylla_spark.testing import world
from tests.support.planner_harness import PlannerHarness

START = datetime(2026, 3, 1, tzinfo=UTC)


def report(task):
    return task.payload


def store(task):
    return task.payload


@pytest.fixture
def w():
    with world([report, store], START) as made:
        yield made


def some_schedules(rng: random.Random) -> list[Schedule]:
    """Schedules that wait for earlier ones, alone or in trees; some are named like a handler."""
    names = ["report", *(f"s{number}" for number in range(7))]
    rng.shuffle(names)
    found = []
    for number, name in enumerate(names):
        branches = [Trigger.after(rng.choice(names[:number])) for _ in range(rng.randrange(3)) if number]
        branches += [Trigger.event("e")] if not branches or rng.random() < 0.4 else []
        found.append(
            Schedule(name, rng.choice(["report", "store"]), Trigger.any_of(rng.randint(1, len(branches)), *branches))
        )
    return found


@pytest.mark.parametrize("seed", range(40))
def test_what_is_told_before_is_what_the_planner_does(w, seed):
    rng = random.Random(seed)
    for schedule in some_schedules(rng):
        with suppress(ArgumentError):  # it would close a circle
            w.put_schedules(schedule)
    entries = w.plan.state().entries
    names = rng.sample(sorted(entries), rng.randint(1, 3))
    told = losses(entries, names)
    done = w.plan.ask("delete", names=names).done
    assert {name: loss.becomes for name, loss in told.items()} == {
        name: done[name] for name in done.keys() - set(names)
    }
    left = w.plan.state().entries
    for name, loss in told.items():
        assert (name in left) == (loss.trigger is not None)
        if loss.trigger is not None:
            assert left[name].schedule.definition["trigger"] == loss.trigger


def test_a_removal_that_reaches_a_schedule_outside_of_the_callers_queues_is_refused_and_nothing_is_done():
    plan, after_down = PlannerHarness(), {"kind": "after", "work": "down"}
    plan.put("up", {"kind": "event", "name": "e"}, queue="own/a")
    plan.put("down", {"kind": "after", "work": "up"}, queue="own/b")
    plan.put("foreign", {"kind": "any", "of": [after_down, {"kind": "event", "name": "e"}]}, queue="other/a")
    refused = plan.ask("delete", names=["up"], bounds={"beginnings": ["own/"]})
    assert refused[:2] == ("conflict", "Others wait for it: a schedule that you may not change would lose its trigger.")
    assert set(plan.planner.state.entries) == {"up", "down", "foreign"}
    assert plan.ask("delete", names=["foreign"], bounds={"beginnings": ["own/"]})[0] == "not_found"
    assert plan.ask("pause", names=["up"], bounds={"names": ["own/b"]})[0] == "not_found"
    assert plan.ask("pause", tag="none", bounds={"names": ["own/b"]})[0] == "ok"
    assert plan.ask("delete", names=["up"])[3] == {"up": "removed", "down": "removed", "foreign": "changed"}


def test_a_set_that_waits_for_what_it_removes_is_refused_and_nothing_is_done(w):
    before = [Schedule("up", "report", Trigger.event("e"), owner="bi")]
    before += [Schedule("down", "store", Trigger.after("up"), owner="bi")]
    w.put_schedules(*before)
    renamed = [Schedule("up2", "report", Trigger.event("e"), owner="bi"), before[1]]
    for call in (lambda: w.put_schedules(*renamed, prune="bi"), lambda: compared(w.plan.state(), renamed, "bi")):
        with pytest.raises(ArgumentError, match="'down' of the set waits for 'up'"):
            call()
    assert sorted(w.plan.state().entries) == ["down", "up"]
    renamed[1] = Schedule("down", "store", Trigger.after("up2"), owner="bi")
    wanted = {"up2": "added", "down": "changed", "up": "removed"}
    assert compared(w.plan.state(), renamed, "bi") == wanted
    assert w.put_schedules(*renamed, prune="bi") == wanted
    assert sorted(w.plan.state().entries) == ["down", "up2"]


def test_what_others_lose_by_a_set_is_told_before(w):
    w.put_schedules(Schedule("up", "report", Trigger.event("e"), owner="bi"))
    w.put_schedules(
        Schedule("down", "store", Trigger.after("up"), owner="ml"),
        Schedule("either", "store", Trigger.after("up") | Trigger.event("e"), owner="ml"),
    )
    wanted = {"up": "removed", "down": "removed", "either": "changed"}
    assert compared(w.plan.state(), [], "bi") == wanted
    assert w.put_schedules(prune="bi") == wanted
    assert w.plan.state().entries["either"].schedule.definition["trigger"] == {"kind": "event", "name": "e"}


def test_a_set_of_several_parts_says_what_is_stored_where_a_later_part_is_refused(w):
    many = [Schedule(f"s{number:03}", "report", Trigger.event("e"), note="x" * 1_000) for number in range(500)]
    circle = [Schedule("x", "report", Trigger.after("y")), Schedule("y", "store", Trigger.after("x"))]
    with pytest.raises(ArgumentError, match="in a circle") as alone:
        w.put_schedules(*circle)
    assert "are stored" not in str(alone.value)
    with pytest.raises(ArgumentError, match="in a circle") as refused:
        w.put_schedules(*many, *circle)
    stored = len(w.plan.state().entries)
    assert f"{stored} schedules were looked at before, and are stored" in str(refused.value)
    assert 0 < stored < 500


def test_what_has_gone_with_another_one_is_not_looked_for_again(w):
    w.put_schedules(
        Schedule("up", "report", Trigger.event("e")),
        Schedule("a", "store", Trigger.after("up")),
        Schedule("b", "store", Trigger.after("up") & Trigger.after("a")),
    )
    assert w.plan.ask("delete", names=["up"]).done == {"up": "removed", "a": "removed", "b": "removed"}
    assert not w.plan.state().entries


def test_a_payload_that_names_what_was_removed_keeps_nothing_from_going_and_is_told_of_when_its_schedule_fires() -> (
    None
):
    plan = PlannerHarness()
    plan.put("up", {"kind": "event", "name": "go"})
    either = {"kind": "any", "of": [{"kind": "after", "work": "up"}, {"kind": "event", "name": "e"}]}
    plan.put("down", either, payload={"n": "{{ upstream.result }}"})
    plan.put("ready", either, payload={"n": '{{ upstream.result | default("none") }}'})
    assert plan.ask("delete", names=["up"])[3] == {"up": "removed", "down": "changed", "ready": "changed"}
    plan.restart()
    plan.event("e")
    assert [one["taskData"] for one in plan.sent] == [{"n": "none"}]
    assert plan.verdicts() == ["failed", "launched"]
    assert "upstream.result" in plan.fires[0]["why"]
    left = json.loads(plan.planner.state.entries["down"].text)
    assert plan.ask("put", schedules=[left])[:2] == ("argument", "No fire of this schedule knows 'upstream'.")


def test_a_definition_that_would_be_refused_by_now_keeps_nothing_from_going() -> None:
    plan = PlannerHarness()
    plan.put("up", {"kind": "event", "name": "go"})
    either = {"kind": "any", "of": [{"kind": "after", "work": "up"}, {"kind": "event", "name": "e"}]}
    plan.put("down", either)
    entry = plan.planner.state.entries["down"]
    stored = json.loads(entry.text) | {"constraints": [{"kind": "delay", "delay": "2d"}]}
    plan.planner._journal.note("set", "down", {"text": text_of(stored)})  # as it was stored when nobody looked at that
    plan.turn()
    assert plan.ask("put", schedules=[stored])[0] == "argument"
    assert plan.ask("delete", names=["up"])[3] == {"up": "removed", "down": "changed"}
    assert not plan.planner.state.entries.keys() - {"down"}
