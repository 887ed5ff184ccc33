"""What the planner makes of definitions of queues: put, patched and deleted; state is the fold of the log, whatever happens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scylla_spark.core.plan.commands.plan_command import encode_command
from scylla_spark.core.plan.commands.stored_kinds import QueueKind
from scylla_spark.core.plan.planner import Planner
from scylla_spark.core.plan.state import plan_log
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.records.fact import Fence, Unreadable
from scylla_spark.definitions.queue import Queue
from scylla_spark.transforms.plan_rows import plan_rows
from tests.support.planner_harness import PlannerHarness, assert_same


@pytest.fixture
def plan() -> PlannerHarness:
    return PlannerHarness()


def put(plan: PlannerHarness, *queues: dict[str, Any], **fields: Any) -> tuple[Any, ...]:
    return plan.ask("put_queue", queues=list(queues), **fields)


def done(answer: tuple[Any, ...]) -> dict[str, tuple[str, int]]:
    code, message, _, found = answer
    assert code == "ok", message
    return {name: (one["became"], one["revision"]) for name, one in found.items()}


def stored(plan: PlannerHarness, name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(plan.planner.state.queues[name].text)
    return value


def rows(plan: PlannerHarness) -> list[dict[str, Any]]:
    found = []
    for offset, value in enumerate(plan.log):
        group = plan_log.decode(value)
        assert not isinstance(group, Unreadable)
        found += [json.loads(row.text) for row in plan_rows(group, offset) if row.kind == "queues"]
    return found


def test_a_definition_is_stored_and_replaces_the_one_before(plan: PlannerHarness) -> None:
    assert done(put(plan, {"name": "mail", "concurrency": 5, "rate": 2})) == {"mail": ("added", 1)}
    assert done(put(plan, {"name": "mail", "paused": True})) == {"mail": ("changed", 2)}
    assert stored(plan, "mail") == {"name": "mail", "paused": True}


def test_what_says_the_same_changes_nothing(plan: PlannerHarness) -> None:
    put(plan, {"name": "mail", "lease": "60s"})
    assert done(put(plan, {"name": "mail", "lease": "1m", "rate": None, "mode": "push"})) == {"mail": ("unchanged", 1)}
    assert len(rows(plan)) == 1


def test_several_are_stored_together_or_none(plan: PlannerHarness) -> None:
    assert set(done(put(plan, {"name": "b"}, {"name": "a"}))) == {"a", "b"}
    code, message, hint, _ = put(plan, {"name": "c"}, {"name": "d", "concurency": 1})
    assert (code, "concurency" in message, hint) == ("argument", True, "Did you mean concurrency?")
    assert put(plan, {"name": "e"}, {"name": "e"})[0] == "argument"
    assert set(plan.planner.state.queues) == {"a", "b"}
    assert plan.refused[-1][2] == "wrong_value"


def test_a_patch_changes_what_it_names_and_leaves_the_rest(plan: PlannerHarness) -> None:
    put(plan, {"name": "mail", "concurrency": 5, "rate": 2})
    put(plan, {"name": "mail", "paused": True}, patch=True)
    assert stored(plan, "mail") == {"name": "mail", "concurrency": 5, "rate": 2, "paused": True}
    put(plan, {"name": "mail", "maxRetries": None}, patch=True, unset=["rate", "paused"])
    assert stored(plan, "mail") == {"name": "mail", "concurrency": 5, "maxRetries": None}
    assert put(plan, {"name": "mail"}, patch=True, unset=["rates"])[2] == "Did you mean rate?"
    assert put(plan, {"name": "mail", "rate": 0}, patch=True)[0] == "argument"


@pytest.mark.parametrize("name", [None, 5, [], {}, "a b"])
def test_a_patch_without_a_name_is_refused(plan: PlannerHarness, name: object) -> None:
    assert put(plan, {"name": name, "rate": 1}, patch=True)[0] == "rejected"
    assert put(plan, {"rate": 1}, patch=True)[0] == "rejected"


def test_a_patch_of_what_stands_in_the_settings_begins_with_that() -> None:
    plan = PlannerHarness()
    start = {"mail": Queue(name="mail", concurrency=7)}
    plan.planner = Planner(plan.planner.state, Fence(9, "n"), 0, plan.now, start)
    put(plan, {"name": "mail", "paused": True}, patch=True)
    assert stored(plan, "mail") == {"name": "mail", "concurrency": 7, "paused": True}
    plan.ask("delete_queue", names=["mail"])
    code, message, *_ = plan.ask("delete_queue", names=["mail"])
    assert (code, "settings" in message) == ("not_found", True)


def test_a_deleted_queue_is_gone_and_one_of_its_name_has_a_revision_of_its_own(plan: PlannerHarness) -> None:
    put(plan, {"name": "mail"}, {"name": "other"})
    assert done(plan.ask("delete_queue", names=["mail"])) == {"mail": ("removed", 0)}
    assert "mail" not in plan.planner.state.queues
    assert plan.ask("delete_queue", names=["mail", "other"])[0] == "not_found"
    assert "other" in plan.planner.state.queues, "all of one record is done, or nothing"
    assert done(put(plan, {"name": "mail"})) == {"mail": ("added", 4)}


def test_who_names_a_revision_is_refused_when_somebody_else_was_quicker(plan: PlannerHarness) -> None:
    put(plan, {"name": "mail"})
    assert put(plan, {"name": "mail", "rate": 1}, expect={"mail": 0})[0] == "conflict"
    put(plan, {"name": "mail", "rate": 2})
    code, message, *_ = put(plan, {"name": "mail", "rate": 1}, expect={"mail": 1})
    assert (code, message) == ("conflict", "The queue 'mail' is at revision 2, not at 1.")
    assert plan.ask("delete_queue", names=["mail"], expect={"mail": 1})[0] == "conflict"
    assert done(put(plan, {"name": "mail", "rate": 1}, expect={"mail": 2})) == {"mail": ("changed", 3)}
    assert done(put(plan, {"name": "new"}, expect={"new": 0})) == {"new": ("added", 4)}


def test_state_is_the_fold_of_the_log_also_after_a_restart(plan: PlannerHarness) -> None:
    put(plan, {"name": "mail", "rate": 1})
    put(plan, {"name": "gone"})
    plan.ask("delete_queue", names=["gone"])
    before = dict(plan.planner.state.queues)
    plan.restart(after_us=1_000_000)
    assert plan.planner.state.queues == before
    assert plan.planner.state.queues.revision == 3


def test_each_change_is_a_row_with_its_main_fields(plan: PlannerHarness) -> None:
    put(plan, {"name": "mail", "concurrency": 5, "rate": 2, "paused": True, "mode": "pull"}, author="me")
    plan.ask("delete_queue", names=["mail"])
    first, second = rows(plan)
    assert (first["name"], first["revision"], first["author"], first["request_id"]) == ("mail", 1, "me", "r0")
    assert (first["mode"], first["concurrency"], first["rate"], first["paused"]) == ("pull", 5, 2.0, True)
    assert Queue.of(json.loads(first["definition"])).concurrency == 5
    assert (second["revision"], second["deleted"], second.get("definition")) == (2, True, None)
    assert not first["deleted"]


def test_a_row_is_written_also_of_a_definition_that_only_a_newer_version_can_read(plan: PlannerHarness) -> None:
    put(plan, {"name": "mail"})
    group = plan_log.decode(plan.log[-1])
    assert not isinstance(group, Unreadable)
    group.changes[0][2]["text"] = '{"name":"mail","fancy":1}'
    (row,) = [json.loads(row.text) for row in plan_rows(group, 0)]
    assert row["definition"] == '{"name":"mail","fancy":1}'
    assert "mode" not in row


def test_a_snapshot_holds_queues_whatever_is_changed_between_its_parts(plan: PlannerHarness) -> None:
    for number in range(9):
        put(plan, {"name": f"q{number}", "description": "x" * 500})
    plan.ask("delete_queue", names=["q8"])
    begins = len(plan.log)
    names = plan.planner.begin_snapshot(plan.now)
    plan.turn()
    assert len(names) == 8
    put(plan, {"name": "q1", "rate": 1}, {"name": "late"})
    plan.ask("delete_queue", names=["q2"])
    plan.planner.snapshot(names, plan.now)
    plan.turn()
    assert not names
    put(plan, {"name": "q3", "rate": 3})
    plan.ask("delete_queue", names=["q4"])
    plan.planner.end_snapshot(begins)
    state = PlanState()
    for value in plan.log[begins:]:
        group = plan_log.decode(value)
        assert not isinstance(group, Unreadable)
        state.fold(group)
    assert_same(plan.planner.state, state)
    assert len([row for row in rows(plan) if row["name"] == "q5"]) == 1, "a snapshot is no change"


def test_many_large_queues_are_written_in_records_that_fit_and_gone_on_with_after_a_crash() -> None:
    plan = PlannerHarness()
    queues = [{"name": f"q{number:03}", "description": "\x01" * 1000} for number in range(60)]
    command = encode_command("put_queue", queues=queues, id="many")
    plan.planner.command(0, command, plan.now, plan.now)
    groups = plan.planner.take(plan.now)
    assert len(groups) > 2, "in parts"
    for group in groups[:2]:  # the planner ends before the others are written
        plan.log.append(plan_log.encode(group))
        plan.shadow.fold(group)
    plan.restart()
    assert 0 < len(plan.planner.state.queues) < 60
    plan.raw(command)
    assert len(plan.planner.state.queues) == 60
    found = [row["name"] for row in rows(plan)]
    assert found == sorted(set(found)), "each once"
    assert set(plan.answers["many"][3]) == {queue["name"] for queue in queues}


@pytest.mark.slow
def test_there_is_a_bound_to_how_many_are_stored(plan: PlannerHarness) -> None:
    for first in range(0, QueueKind.most, 5_000):
        put(plan, *({"name": f"q{first + number}"} for number in range(5_000)))
    code, message, *_ = put(plan, {"name": "one-more"})
    assert (code, str(QueueKind.most) in message) == ("argument", True)
    assert done(put(plan, {"name": "q1", "rate": 1}))["q1"][0] == "changed"
