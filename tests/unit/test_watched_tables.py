"""What the planner makes of a watched table, as its watcher sees the log: tables that are still to come, or become others."""

from typing import Any

import pytest

from tests.support.watched_log import WatchedLog, WatchedPlan


@pytest.fixture
def log(tmp_path):
    return WatchedLog(tmp_path / "orders")


@pytest.fixture
def plan(tmp_path, monkeypatch):
    return WatchedPlan(tmp_path / "data", monkeypatch)


def watching(log: WatchedLog, **more: Any) -> dict[str, Any]:
    return {"kind": "table", "table": str(log.table), **more}


def stands(plan: WatchedPlan) -> tuple[str, int]:
    return plan.planner.state.entries["s"].tables[0][:2]


# -- a table that is still to come ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"per": "p"}, {"minRows": 1}], ids=str)
def test_a_table_that_is_written_after_its_schedule_counts_from_its_first_version_on(plan, log, more):
    plan.put("s", watching(log, **more), overlap="allow_all")
    plan.looks(2)
    assert plan.troubles() == ["missing"]
    log.commit(0, "a", table_id="T")
    plan.looks(3)
    log.commit(1, "a")
    plan.another_planner()
    plan.looks(3)
    assert plan.spans() == [(-1, 0), (0, 1)]
    assert stands(plan)[0] == "T"


def test_a_tree_holds_once_the_table_has_come_that_was_missing(plan, log):
    event = {"kind": "event", "name": "e"}
    plan.put("s", {"kind": "all", "of": [watching(log), event]}, overlap="allow_all")
    plan.put("or", {"kind": "any", "of": [event, watching(log)]}, overlap="allow_all")
    plan.looks(2)
    log.commit(0, "a", table_id="T")
    plan.looks(2)
    log.commit(1, "a")
    plan.looks(2)
    assert plan.spans() == []
    assert plan.spans("or") == [(-1, 0), (0, 1)]
    plan.event("e")
    assert plan.spans() == [(-1, 1)]


def test_what_has_come_to_a_table_that_was_missing_is_not_absent(plan, log):
    plan.put("s", {"kind": "absent", "of": watching(log), "within": "60s"}, overlap="allow_all")
    plan.looks(2)
    for version in range(5):
        log.commit(version, "a", table_id="T" if version == 0 else "")
        plan.looks(2)
        plan.pass_s(40)
    assert plan.verdicts() == ["trouble"]
    assert stands(plan) == ("T", 4)
    plan.pass_s(61)
    assert plan.verdicts() == ["trouble", "launched"]


def test_a_table_that_was_missing_and_is_another_after_its_first_versions_were_seen_begins_anew(plan, log):
    plan.put("s", watching(log), overlap="allow_all", constraints=[{"kind": "delay", "delay": "10s"}])
    plan.looks(2)
    log.commit(0, "a", table_id="T")
    log.commit(1, "a")
    plan.looks(1)
    log.file(1).unlink()
    log.commit(0, "a", table_id="U")
    plan.another_planner()
    plan.looks(20)
    assert plan.spans() == [(-1, 0)]
    assert stands(plan) == ("U", 0)
