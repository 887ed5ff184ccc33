"""How far a trigger is, branch by branch, as its schedule is shown."""

from __future__ import annotations

import pytest

from scylla_spark.client.schedules.trigger_progress import progress_of
from tests.support.planner_harness import PlannerHarness

EVENT = {"kind": "event", "name": "stock"}
AFTER = {"kind": "after", "work": "load"}
PARTS = {"kind": "partitions", "dataset": "sales", "atLeast": 3, "rows": 100}


@pytest.fixture
def planner():
    return PlannerHarness()


def shown(planner) -> list[tuple[int, str, bool, str]]:
    return [tuple(one) for one in progress_of(planner.shadow.entries["s"])]


def test_a_single_trigger_is_one_branch(planner):
    planner.put("s", EVENT)
    assert shown(planner) == [(0, "on the event 'stock'", False, "")]


def test_branches_show_what_has_come_and_the_whole_how_many_hold(planner):
    planner.put("s", {"kind": "all", "of": [EVENT, {"kind": "any", "of": [AFTER, PARTS]}]})
    planner.ask("event", name="stock", payload={})
    planner.ask("partitions", name="sales", partitions=[{"rows": 40}])
    assert shown(planner) == [
        (0, "all of these", False, "1 of 2"),
        (1, "on the event 'stock'", True, ""),
        (1, "any of these", False, "0 of 1"),
        (2, "after a run of 'load' has succeeded", False, ""),
        (2, "when 3 partitions and 100 rows of the dataset 'sales' were told of", False, "1 of 3 partitions, 40 of 100 rows"),
    ]  # fmt: skip


def test_the_launch_clears_what_was_seen(planner):
    planner.put("s", {"kind": "all", "of": [EVENT]})
    planner.ask("event", name="stock", payload={})
    assert [row[2] for row in shown(planner)] == [False, False]
