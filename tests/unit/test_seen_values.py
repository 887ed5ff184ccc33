"""What templates know of several events, runs, tables and partitions that make one job."""

import json

import pytest

from scylla_spark.core.plan.state.schedule_entry import Latch
from scylla_spark.core.plan.triggers.template_values import all_by_name, held, last_of_each, partitions_with
from scylla_spark.core.plan.triggers.trigger import AnyOf, OnEvent
from tests.support.planner_harness import PlannerHarness


def both(*branches: object) -> dict[str, object]:
    return {"kind": "all", "of": list(branches)}


def event(name: str) -> dict[str, object]:
    return {"kind": "event", "name": name}


def test_a_job_of_several_events_knows_each_by_its_name_and_which_was_the_last() -> None:
    plan = PlannerHarness()
    payload = {"a": "{{ events.a.x }}", "b": "{{ events.b.x }}", "dots": "{{ events.c.d.x }}", "last": "{{ event.x }}"}
    plan.put("s", both(event("a"), event("b"), event("c.d")), payload=payload)
    for name, x in (("c.d", 1), ("b", 2), ("a", 3), ("a", 4)):
        plan.event(name, x=x)
        plan.restart()
    assert plan.sent[0]["taskData"] == {"a": 3, "b": 2, "dots": 1, "last": 3}
    seen = json.loads(plan.fires[0]["values"])
    assert seen["event"]["name"] == "a"
    assert {name: one["x"] for name, one in seen["events"].items()} == {"a": 3, "b": 2, "c.d": 1}


def test_a_job_of_several_runs_knows_each_result() -> None:
    plan = PlannerHarness()
    after = ({"kind": "after", "work": name} for name in "xy")
    plan.put("s", both(*after), payload={"x": "{{ upstreams.x.result.n }}", "y": "{{ upstreams.y.result.n }}"})
    for name, n in (("x", 1), ("y", 2)):
        plan.put(name, event(name))
        plan.event(name)
        plan.end(result=json.dumps({"n": n}))
    assert plan.sent[-1]["taskData"] == {"x": 1, "y": 2}


@pytest.mark.parametrize("kind", ["all", "any"])
@pytest.mark.parametrize("works", [["s", "work"], ["work", "s"], ["s", "work", "s"]])
def test_a_run_that_is_waited_for_by_its_schedule_and_by_its_handler_is_known_by_both(
    kind: str, works: list[str]
) -> None:
    plan = PlannerHarness()
    plan.put("s", event("e"))
    after = [{"kind": "after", "work": work} for work in works]
    payload = {name: f"{{{{ upstreams.{name}.result.n }}}}" for name in works}
    plan.put("d", {"kind": kind, "of": after}, handler="other", payload=payload)
    for n in (1, 2):
        plan.event("e")
        plan.end(result=json.dumps({"n": n}))
        assert plan.sent[-1]["taskData"] == dict.fromkeys(works, n)


def test_a_job_of_several_partitions_knows_the_values_of_all() -> None:
    plan = PlannerHarness()
    trigger = {"kind": "partitions", "dataset": "d", "atLeast": 4}
    plan.put("s", trigger, payload={"all": "{{ partitions.all }}", "same": "{{ datasets.d.all }}"})
    plan.ask("partitions", name="d", partitions=[{"values": {"day": 1}}, {"values": {"day": 2}}])
    plan.restart()
    plan.ask("partitions", name="d", partitions=[{}])
    plan.ask("partitions", name="d", partitions=[{"values": {"day": 3}}])
    days = [{"day": 1}, {"day": 2}, {"day": 3}]
    assert plan.sent[0]["taskData"] == {"all": days, "same": days}


def test_of_very_many_partitions_the_first_are_known_and_how_many_more_there_were() -> None:
    found = partitions_with(None, [{"n": n} for n in range(70)])
    found = partitions_with(found, [{"n": n} for n in range(70)])
    assert (len(found["all"]), found["more"]) == (100, 40)
    large = partitions_with(None, [{"text": "x" * 3_000}] * 4)
    assert (len(large["all"]), large["more"]) == (2, 2)


def test_what_is_held_of_a_job_has_a_bound_and_the_newest_is_known() -> None:
    trigger = AnyOf(tuple(OnEvent(str(number)) for number in range(20)), at_least=20)
    latches: dict[int, Latch] = {}
    for number in range(20):
        latches = held(trigger, latches, number, Latch(True, values={"event": {"text": f"{number}" * 8_000}}))
    assert all(latch.fired for latch in latches.values())
    assert len(json.dumps([latch.values for latch in latches.values()])) < 100_000
    assert list(all_by_name(trigger, latches)["events"])[-1] == "19"
    assert last_of_each(latches)["event"]["text"].startswith("19")
    assert len(latches) == 20


def test_of_an_event_that_comes_again_the_newest_stands_for_all_its_branches() -> None:
    trigger = AnyOf((OnEvent("a", (("n", 1),)), OnEvent("a", (("n", 2),)), OnEvent("b")), at_least=3)
    latches = held(trigger, {}, 0, Latch(True, values={"event": {"n": 1}}))
    latches = held(trigger, latches, 2, Latch(True, values={"event": {"b": 1}}))
    latches = held(trigger, latches, 1, Latch(True, values={"event": {"n": 2}}))
    assert all_by_name(trigger, latches) == {"events": {"a": {"n": 2}, "b": {"b": 1}}}
    assert last_of_each(latches) == {"event": {"n": 2}}
