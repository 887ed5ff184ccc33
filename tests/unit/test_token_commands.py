"""What the planner makes of tokens: put, revoked and deleted; state is the fold of the log, and no table has a secret."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scylla_spark.core.access.token_text import digest_of, new_token
from scylla_spark.core.plan.state import plan_log
from scylla_spark.core.records.fact import Unreadable
from scylla_spark.transforms.plan_rows import plan_rows
from tests.support.planner_harness import PlannerHarness, assert_same

TOKEN = new_token()


def fields(token=TOKEN, **more: Any) -> dict[str, Any]:
    return {"id": token.id, "digest": digest_of(token), "name": "ci", "scopes": ["read", "lease:gpu"]} | more


def rows(plan: PlannerHarness) -> list[dict[str, Any]]:
    found = []
    for offset, value in enumerate(plan.log):
        group = plan_log.decode(value)
        assert not isinstance(group, Unreadable)
        found += [json.loads(row.text) for row in plan_rows(group, offset) if row.kind == "tokens"]
    return found


@pytest.fixture
def plan() -> PlannerHarness:
    return PlannerHarness()


def test_a_token_is_stored_and_stands_in_the_table_without_its_digest(plan):
    assert plan.ask("put_token", tokens=[fields(namespaces=["team/"], expires=99)], author="me")[0] == "ok"
    stored = plan.planner.state.tokens[TOKEN.id]
    assert (stored.name, stored.scopes, stored.namespaces, stored.expires_us) == (
        "ci",
        ("read", "lease:gpu"),
        ("team/",),
        99,
    )
    (row,) = rows(plan)
    assert (row["id"], row["author"], json.loads(row["scopes"]), row["revoked"]) == (
        TOKEN.id,
        "me",
        ["read", "lease:gpu"],
        False,
    )
    assert digest_of(TOKEN) not in json.dumps(row)
    assert TOKEN.secret not in json.dumps(row)
    assert_same(plan.planner.state, plan.shadow)


def test_what_was_revoked_stays_revoked(plan):
    plan.ask("put_token", tokens=[fields()])
    assert plan.ask("put_token", tokens=[fields(revoked=True)])[0] == "ok"
    assert plan.ask("put_token", tokens=[fields()])[0] == "conflict"
    assert plan.planner.state.tokens[TOKEN.id].revoked
    assert not plan.planner.state.tokens[TOKEN.id].holds(0)


def test_an_id_keeps_its_secret(plan):
    plan.ask("put_token", tokens=[fields()])
    assert plan.ask("put_token", tokens=[fields(digest="0" * 64)])[0] == "conflict"
    assert plan.planner.state.tokens[TOKEN.id].digest == digest_of(TOKEN)


def test_a_deleted_token_is_gone(plan):
    plan.ask("put_token", tokens=[fields()])
    assert plan.ask("delete_token", names=[TOKEN.id])[0] == "ok"
    assert plan.planner.state.tokens == {}
    assert [row["deleted"] for row in rows(plan)] == [False, True]
    assert plan.ask("delete_token", names=[TOKEN.id])[0] == "not_found"
    assert_same(plan.planner.state, plan.shadow)


@pytest.mark.parametrize(
    "change",
    [
        {"id": "X"}, {"digest": "secret"}, {"scopes": []}, {"scopes": ["all"]}, {"scopes": "read"}, {"expires": "soon"},
        {"secret": "x"}, {"name": ""}, {"namespaces": ["a b"]}, {"revoked": 1}, {"expires": -1}, {"name": None},
    ],
)  # fmt: skip
def test_what_is_no_token_is_refused_and_nothing_is_stored(plan, change):
    assert plan.ask("put_token", tokens=[fields(new_token()), fields() | change])[0] == "argument"
    assert plan.planner.state.tokens == {}


def test_a_snapshot_has_all_tokens(plan):
    from scylla_spark.core.plan.state.plan_state import PlanState

    plan.ask("put_token", tokens=[fields(), fields(new_token(), revoked=True, expires=5)])
    before = len(plan.log)
    names = plan.planner.begin_snapshot(plan.now)
    while names:
        plan.planner.snapshot(names, plan.now)
    plan.turn()
    state = PlanState()
    for value in plan.log[before:]:
        group = plan_log.decode(value)
        assert not isinstance(group, Unreadable)
        state.fold(group)
    assert state.tokens == plan.planner.state.tokens
    assert len(state.tokens) == 2
    assert state.unreadable == 0


def test_a_token_is_worth_nothing_from_its_expiry_on(plan):
    plan.ask("put_token", tokens=[fields(expires=100)])
    stored = plan.planner.state.tokens[TOKEN.id]
    assert (stored.holds(99), stored.holds(100)) == (True, False)
