"""Backfills under way: what runs at once, what is left, and what becomes of it when the planner ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scylla_spark.core.plan.commands.plan_command import Refused, encode_command, read_command
from scylla_spark.core.plan.state import plan_log
from scylla_spark.core.plan.state.backfill_entry import BackfillEntry
from scylla_spark.core.plan.state.plan_log import Partly
from scylla_spark.core.plan.state.schedule_entry import Handed
from scylla_spark.core.plan.suspect_inputs import Met
from scylla_spark.core.plan.tables.growth import Growth
from scylla_spark.core.plan.tables.watch import Place
from scylla_spark.core.records.fact import Fact, Unreadable
from scylla_spark.core.tasks.task import Failure
from tests.support.planner_harness import SECOND, START, PlannerHarness, key_of

MINUTE = 60 * SECOND
EVERY_MINUTE = {"kind": "cron", "expression": "* * * * *"}
TABLE = {"kind": "table", "table": "/t"}
RANGE = {"fromVersion": 10, "toVersion": 13, "rows": 7, "commits": 2, "bytes": 99, "at": START - MINUTE}


def begun(runs: int = 5, **fields: Any) -> PlannerHarness:
    """A planner with a backfill of some minutes, of which the first runs are launched."""
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE, paused=True)
    assert plan.ask("backfill", name="a", begin=START - runs * MINUTE, end=START, **fields)[0] == "ok"
    plan.pass_s(0)
    return plan


def backfill_of(plan: PlannerHarness) -> BackfillEntry:
    return plan.planner.state.entries["a"].backfills[1]


def minutes(plan: PlannerHarness) -> list[str]:
    """Of each launch, the minute that it was planned for."""
    return [one["uniquenessKey"].split("/")[1][14:16] for one in plan.sent]


def counts(plan: PlannerHarness) -> tuple[int, ...]:
    found = backfill_of(plan)
    return len(found.left), len(found.running), found.succeeded, found.failed, found.cancelled


def snapshot(plan: PlannerHarness) -> list[bytes]:
    """The records of a snapshot of the state as it is."""
    before = len(plan.log)
    names = plan.planner.begin_snapshot(plan.now)
    while names:
        plan.planner.snapshot(names, plan.now)
    plan.turn()
    return plan.log[before:]


def test_as_many_runs_as_may_run_at_once_are_launched_and_the_next_when_one_has_ended() -> None:
    plan = begun(5, maxRunning=2)
    assert minutes(plan) == ["55", "56"]
    plan.end(1, "failed")
    assert minutes(plan) == ["55", "56", "57"]
    plan.end(0)
    plan.end(2, "expired")
    assert counts(plan) == (0, 2, 1, 1, 1)
    plan.end(3)
    plan.end(4)
    found = backfill_of(plan)
    assert (counts(plan), found.state, found.over_us) == ((0, 0, 3, 1, 1), "ended", plan.now)


def test_a_backfill_goes_on_when_another_planner_takes_over_also_one_that_begins_with_a_snapshot() -> None:
    plan = begun(4)
    plan.restart()
    plan.end(0)
    plan.log = snapshot(plan)
    plan.restart()
    plan.end(1)
    plan.end(2)
    assert minutes(plan) == ["56", "57", "58", "59"]
    assert plan.verdicts() == ["launched"] * 4


def test_a_backfill_of_which_nothing_was_launched_yet_begins_with_the_next_planner() -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE)
    plan.ask("backfill", name="a", begin=START - MINUTE, end=START)
    assert plan.sent == []
    plan.restart()
    plan.pass_s(0)
    assert minutes(plan) == ["59"]


def test_a_run_whose_payload_cannot_be_made_has_failed_and_the_next_is_launched() -> None:
    plan = PlannerHarness()
    either = {"kind": "any", "of": [EVERY_MINUTE, {"kind": "event", "name": "e"}]}
    plan.put("a", either, paused=True, payload={"x": "{{ event.n }}"})
    plan.ask("backfill", name="a", begin=START - 3 * MINUTE, end=START)
    plan.pass_s(0)
    assert plan.verdicts() == ["failed"] * 3
    assert (counts(plan), backfill_of(plan).state) == ((0, 0, 0, 3, 0), "ended")


def test_no_more_runs_of_backfills_of_a_schedule_are_open_than_may_be() -> None:
    plan = begun(600)
    wanted = {"name": "a", "begin": START - 1_200 * MINUTE, "end": START - 600 * MINUTE}
    code, message, *_ = plan.ask("backfill", **wanted)
    assert (code, "600 of other backfills" in message) == ("conflict", True)
    assert plan.ask("backfill", **wanted | {"begin": START - 1_000 * MINUTE})[0] == "ok"


def test_backfills_that_are_over_for_longest_are_forgotten() -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE, paused=True)
    for number in range(12):
        plan.ask("backfill", name="a", begin=START - (number + 1) * MINUTE, end=START - number * MINUTE)
        plan.pass_s(1)
        plan.end()
    plan.ask("backfill", name="a", begin=START - 20 * MINUTE, end=START - 19 * MINUTE)
    found = plan.planner.state.entries["a"].backfills
    assert sorted(found) == list(range(5, 26, 2))


@pytest.mark.parametrize("way", ["ended", "cancelled", "not launched"])
def test_no_more_backfills_that_are_over_are_known_than_may_be_though_none_begins(way: str) -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE, paused=True)
    for number in range(15):
        plan.ask("backfill", name="a", begin=START - (number + 1) * MINUTE, end=START - number * MINUTE)
    if way != "not launched":
        plan.pass_s(0)
    for number in range(15):
        if way == "ended":
            plan.end(number)
        else:
            steer(plan, "cancel", number + 1)
            if way == "cancelled":
                taken_back(plan, number)
    found = plan.planner.state.entries["a"].backfills
    assert len(found) == 10
    snapshot(plan)
    plan.log = snapshot(plan)
    plan.restart()
    assert plan.planner.state.entries["a"].backfills == found


def test_a_backfill_goes_with_its_schedule_and_stays_when_that_is_changed() -> None:
    plan = begun(3)
    plan.put("a", EVERY_MINUTE, paused=True, payload={"new": True})
    plan.end(0)
    assert plan.sent[1]["taskData"] == {"new": True}
    plan.ask("delete", names=["a"])
    plan.end(1)
    assert len(plan.sent) == 2


def test_a_backfill_that_a_planner_of_before_has_launched_in_part_goes_on_with_the_rest() -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE, paused=True)
    offset = plan.planner.state.commands
    group = plan_log.decode(plan.log[-1])
    assert not isinstance(group, Unreadable)
    launched = group._replace(number=group.number + 1, changes=(), partly=Partly(-1, offset, 0, "2/7/2"))
    plan.log.append(plan_log.encode(launched))
    plan.restart()
    plan.raw(encode_command("backfill", id="b", name="a", begin=START - 5 * MINUTE, end=START))
    plan.pass_s(0)
    assert plan.answers["b"][-1] == {"planned": 5, "launched": 5, "tag": "backfill:a/7"}
    for number in range(3):
        plan.end(number)
    assert minutes(plan) == ["57", "58", "59"]


def fails(*_: object) -> None:
    raise RuntimeError("a defect")


def test_a_backfill_that_a_defect_has_kept_from_launching_goes_on_when_its_schedule_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = begun(2)
    plan.ask("resume", names=["a"])
    with monkeypatch.context() as patch:
        patch.setattr("scylla_spark.core.plan.launching.Launching.next_of", fails)
        plan.end(0)
    assert "a defect" in plan.planner.state.entries["a"].note
    plan.pass_s(30)
    assert len(plan.sent) == 1
    plan.ask("resume", names=["a"])
    plan.pass_s(0)
    assert minutes(plan) == ["58", "59"]


@pytest.mark.parametrize("mended", [{"paused": False}, {"paused": True}])
def test_a_backfill_that_a_defect_has_kept_from_launching_goes_on_when_its_schedule_is_put_again(
    monkeypatch: pytest.MonkeyPatch, mended: dict[str, bool]
) -> None:
    plan = begun(2)
    plan.put("a", EVERY_MINUTE, **mended)
    with monkeypatch.context() as patch:
        patch.setattr("scylla_spark.core.plan.launching.Launching.next_of", fails)
        plan.end(0)
    plan.put("a", EVERY_MINUTE, note="mended", **mended)
    plan.pass_s(0)
    assert minutes(plan) == ["58", "59"]


def test_a_backfill_goes_on_after_the_end_of_a_run_that_brought_the_state_in_doubt() -> None:
    plan = begun(3)
    plan.doubts.inputs[Partly(0, 1, 0, "")] = Met(1, "a defect", "")
    plan.end(0)
    plan.pass_s(0)
    assert (minutes(plan), counts(plan)) == (["57", "58"], (1, 1, 1, 0, 0))


# -- versions of a table ------------------------------------------------------------------------------------------------


def test_a_run_of_past_versions_knows_them_as_one_that_its_trigger_fires_and_moves_nothing() -> None:
    plan = PlannerHarness()
    plan.put("a", TABLE, payload={"from": "{{ table.from_version }}", "rows": "{{ table.rows }}"})
    place = Place("a", 0, (1, plan.now))
    plan.planner.looked("a", lambda tables: tables.begins(place, "id", 12), plan.now)
    plan.turn()
    later = RANGE | {"fromVersion": 13, "toVersion": 20, "part": "x", "at": plan.now + MINUTE}
    done = plan.ask("backfill", name="a", tableId="id", versions=[RANGE, later], maxRunning=2)[3]
    assert done == {"planned": 2, "launched": 2, "tag": "backfill:a/1"}
    plan.pass_s(0)
    assert [one["taskData"]["from"] for one in plan.sent] == [10, 13]
    seen = [json.loads(one["values"])["table"] for one in plan.fires]
    assert [(one["from_version"], one["to_version"], one["partition"]) for one in seen] == [
        (10, 13, None),
        (13, 20, "x"),
    ]
    assert (seen[0]["name"], seen[0]["table_id"], seen[0]["commits"], seen[0]["bytes"]) == ("/t", "id", 2, 99)
    assert [one["planned_us"] for one in plan.fires] == [START - MINUTE, plan.now]
    assert plan.planner.state.entries["a"].tables == {0: Handed("id", 12)}
    plan.planner.looked("a", lambda tables: tables.grew(place, Growth("id", 12, 14), plan.now), plan.now)
    plan.turn()
    assert plan.sent[-1]["taskData"]["from"] == 12


@pytest.mark.parametrize(
    ("trigger", "said"),
    [
        (EVERY_MINUTE, "watches no table"),
        ({"kind": "absent", "of": TABLE, "within": "1h"}, "watches no table"),
        ({"kind": "any", "of": [TABLE, {"kind": "table", "table": "/u"}]}, "watches 2 tables"),
    ],
)
def test_versions_of_a_schedule_that_watches_not_one_table_are_refused(trigger: dict[str, Any], said: str) -> None:
    plan = PlannerHarness()
    plan.put("a", trigger)
    code, message, *_ = plan.ask("backfill", name="a", tableId="id", versions=[RANGE])
    assert (code, said in message) == ("argument", True)


def test_versions_without_the_id_of_their_table_are_refused() -> None:
    refused = read_command(encode_command("backfill", name="a", versions=[RANGE]))
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.detail) == ("missing_field", "tableId: Field required for 'backfill'.")


def test_a_planner_that_knows_no_versions_refuses_them() -> None:
    assert json.loads(encode_command("backfill", name="a", tableId="id", versions=[RANGE]))["version"] == 3
    assert json.loads(encode_command("resume", names=["a"], fromNow=True))["version"] == 2
    assert json.loads(encode_command("backfill", name="a", begin=1, end=2))["version"] == 1


@pytest.mark.parametrize("way", ["another table", "another column", "times", "a table that was replaced"])
def test_what_is_left_of_a_backfill_over_versions_is_not_launched_where_another_table_is_watched(way: str) -> None:
    plan = PlannerHarness()
    plan.put("a", TABLE)
    later = RANGE | {"fromVersion": 13, "toVersion": 15}
    plan.ask("backfill", name="a", tableId="id", versions=[RANGE, later, later])
    plan.pass_s(0)
    if way == "a table that was replaced":
        place = Place("a", 0, (1, plan.now))
        plan.planner.looked("a", lambda tables: tables.begins(place, "another", 1), plan.now)
    else:
        other = {"another table": {"kind": "table", "table": "/other"}, "another column": TABLE | {"per": "day"}}
        plan.put("a", other.get(way, EVERY_MINUTE))
    plan.end(0)
    assert len(plan.sent) == 1
    assert [one["why"] for one in plan.fires if one["verdict"] == "failed"] == [
        "the backfill runs versions 13 to 15 of the table '/t' (id 'id'), and the schedule no longer watches that"
    ] * 2
    assert (counts(plan), backfill_of(plan).state) == ((0, 0, 1, 2, 0), "ended")


def test_versions_are_launched_of_a_table_that_the_planner_has_not_met_at_its_place_yet() -> None:
    plan = PlannerHarness()
    plan.put("a", TABLE)
    place = Place("a", 0, (1, plan.now))
    plan.planner.looked("a", lambda tables: tables.begins(place, "old", 1), plan.now)
    plan.turn()
    plan.ask("backfill", name="a", tableId="new", versions=[RANGE])
    plan.put("a", {"kind": "any", "of": [EVERY_MINUTE, TABLE]}, payload={"id": "{{ table.table_id }}"}, paused=True)
    plan.restart()
    plan.pass_s(0)
    assert [one["taskData"] for one in plan.sent] == [{"id": "new"}]


# -- paused, resumed and cancelled --------------------------------------------------------------------------------------


def steer(plan: PlannerHarness, kind: str, number: int = 1) -> tuple[Any, ...]:
    return plan.ask(f"{kind}_backfill", name="a", backfill=number)


def taken_back(plan: PlannerHarness, which: int) -> None:
    """The dispatcher has taken a run back."""
    plan.ends(Fact(key_of(plan.sent[which]), 0, "cancelled", finished_us=plan.now, request_id="planner"))


def too_late(plan: PlannerHarness, which: int) -> None:
    """The dispatcher says that a run has begun."""
    plan.ends(Fact(key_of(plan.sent[which]), 0, "too_late", finished_us=plan.now, request_id="planner"))


def test_a_pause_is_answered_when_each_run_that_was_launched_has_begun_or_was_taken_back() -> None:
    plan = begun(6, maxRunning=3)
    assert steer(plan, "pause") == ()
    assert [key_of(one) for one in plan.cancelled] == [key_of(one) for one in plan.sent]
    assert all(one["requestId"] and "grace" not in one for one in plan.cancelled)
    taken_back(plan, 1)
    too_late(plan, 0)
    answers = {to: answer for to, answer in plan.answers.items() if "state" in answer[3]}
    assert answers == {}
    taken_back(plan, 2)
    (answer,) = [answer for answer in plan.answers.values() if "state" in answer[3]]
    assert (answer[0], answer[3]) == ("ok", {"tag": "backfill:a/1", "state": "paused"})
    plan.end(0)
    plan.pass_s(100)
    assert (len(plan.sent), counts(plan)) == (3, (5, 0, 1, 0, 0))


def test_a_pause_that_no_dispatcher_answers_says_so_after_a_moment() -> None:
    plan = begun(3)
    steer(plan, "pause")
    plan.pass_s(6)
    assert [answer[0] for answer in plan.answers.values()][-1] == "pending"


@pytest.mark.parametrize("way", ["the same planner", "another planner", "a snapshot"])
def test_a_backfill_that_goes_on_runs_the_rest_in_its_order_under_its_tag(way: str) -> None:
    plan = begun(5, maxRunning=2)
    steer(plan, "pause")
    taken_back(plan, 1)
    too_late(plan, 0)
    if way == "a snapshot":
        plan.log = snapshot(plan)
    if way != "the same planner":
        plan.restart(after_us=MINUTE)
    plan.pass_s(100)
    assert len(plan.sent) == 2
    assert steer(plan, "resume")[0] == "ok"
    plan.pass_s(0)
    plan.end(0)
    for number in (2, 3, 4, 5):
        plan.end(number)
    assert minutes(plan) == ["55", "56", "56", "57", "58", "59"]
    assert {tuple(one["tags"]) for one in plan.sent} == {("backfill:a/1",)}
    assert (counts(plan), backfill_of(plan).state) == ((0, 0, 5, 0, 0), "ended")


def test_what_is_taken_back_after_a_backfill_has_gone_on_is_run_in_its_place() -> None:
    plan = begun(3)
    steer(plan, "pause")
    steer(plan, "resume")
    plan.pass_s(0)
    assert minutes(plan) == ["57"]
    taken_back(plan, 0)
    plan.end(1)
    plan.end(2)
    assert minutes(plan) == ["57", "57", "58", "59"]


def test_a_run_whose_attempt_fails_after_a_pause_and_is_not_tried_again_runs_when_it_goes_on() -> None:
    plan = begun(2)
    steer(plan, "pause")
    too_late(plan, 0)
    failed = Failure("ValueError", "no such file")
    plan.ends(Fact(key_of(plan.sent[0]), 1, "cancelled", plan.now, plan.now, failure=failed))
    assert (counts(plan), plan.verdicts()) == ((2, 0, 0, 0, 0), ["launched"])


@pytest.mark.parametrize("began", [True, False])
def test_those_that_come_after_it_are_not_told_of_a_run_that_a_pause_has_taken_back_though_an_attempt_was_under_way(
    began: bool,
) -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE, paused=True)
    plan.put("b", {"kind": "after", "work": "a", "on": ["cancelled"]}, handler="after")
    plan.put("c", {"kind": "batch", "tag": "backfill:a/1", "size": 2}, handler="batch")
    plan.ask("backfill", name="a", begin=START - 2 * MINUTE, end=START)
    plan.pass_s(0)
    for which in range(2):
        steer(plan, "pause")
        found = Fact(key_of(plan.sent[which]), 1, "cancelled", plan.now * began, plan.now, request_id="planner")
        plan.ends(found._replace(tags=("backfill:a/1",)))
        steer(plan, "resume")
        plan.pass_s(1)
    assert [one["handler"] for one in plan.sent] == ["work"] * 3
    assert counts(plan) == (1, 1, 0, 0, 0)


@pytest.mark.parametrize(
    "end", [{"request_id": "of a person"}, {"failure": Failure("killed", "It was cancelled while it ran.")}]
)
def test_what_a_person_cancels_after_a_pause_came_too_late_for_it_is_not_run_again(end: dict[str, Any]) -> None:
    plan = begun(2)
    steer(plan, "pause")
    too_late(plan, 0)
    steer(plan, "resume")
    plan.ends(Fact(key_of(plan.sent[0]), 1, "cancelled", plan.now, plan.now, **end))
    plan.pass_s(0)
    assert (minutes(plan), counts(plan)) == (["58", "59"], (0, 1, 0, 0, 1))
    plan.restart()
    assert counts(plan) == (0, 1, 0, 0, 1)


def test_a_second_pause_asks_again_what_has_begun() -> None:
    plan = begun(3)
    steer(plan, "pause")
    too_late(plan, 0)
    steer(plan, "resume")
    steer(plan, "pause")
    assert len(plan.cancelled) == 2
    too_late(plan, 0)
    assert [answer[0] for answer in plan.answers.values()][-1] == "ok"


def test_a_backfill_that_is_cancelled_launches_nothing_more_and_what_runs_goes_on() -> None:
    plan = begun(5, maxRunning=2)
    steer(plan, "cancel")
    too_late(plan, 0)
    taken_back(plan, 1)
    plan.end(0)
    plan.pass_s(100)
    assert (len(plan.sent), counts(plan), backfill_of(plan).state) == (2, (0, 0, 1, 0, 1), "cancelled")
    for kind in ("pause", "resume", "cancel"):
        assert steer(plan, kind)[0] == "conflict"


def test_a_paused_backfill_is_cancelled_or_ends_with_its_last_run() -> None:
    plan = begun(1)
    assert steer(plan, "resume")[:2] == ("conflict", "The backfill backfill:a/1 is not paused.")
    steer(plan, "pause")
    assert steer(plan, "pause")[0] == "conflict"
    too_late(plan, 0)
    plan.end(0)
    assert backfill_of(plan).state == "ended"
    plan.ask("backfill", name="a", begin=START - 9 * MINUTE, end=START)
    steer(plan, "pause", 3)
    assert steer(plan, "cancel", 3)[0] == "ok"
    assert steer(plan, "pause", 99)[0] == "not_found"
    assert plan.ask("pause_backfill", name="b", backfill=1)[0] == "not_found"


def test_a_run_that_was_never_sent_and_is_too_old_is_launched_anew_by_its_backfill_and_not_while_that_is_paused() -> (
    None
):
    plan = begun(2)
    plan.planner.anew(key_of(plan.sent[0]), {}, plan.now)
    plan.turn()
    assert minutes(plan) == ["58", "58"]
    steer(plan, "pause")
    plan.planner.anew(key_of(plan.sent[1]), {}, plan.now)
    plan.turn()
    assert (minutes(plan), counts(plan)) == (["58", "58"], (2, 0, 0, 0, 0))


def test_the_end_of_a_backfill_is_estimated_by_its_own_pace_without_the_time_in_which_it_was_paused() -> None:
    plan = begun(4)
    assert backfill_of(plan).ends_us(plan.now) is None
    plan.pass_s(10)
    plan.end(0)
    assert backfill_of(plan).ends_us(plan.now) == plan.now + 30 * SECOND
    steer(plan, "pause")
    assert backfill_of(plan).ends_us(plan.now) is None
    taken_back(plan, 1)
    plan.pass_s(1_000)
    steer(plan, "resume")
    plan.pass_s(10)
    assert backfill_of(plan).ends_us(plan.now) == plan.now + 60 * SECOND
