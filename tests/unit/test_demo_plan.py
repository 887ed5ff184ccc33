"""What the demo promises to show is really in its plan."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from scylla_spark.clock import now_us
from scylla_spark.core.records.command import Command, Rejection, Rules, validate
from scylla_spark.core.tasks.key import partition_of
from scylla_spark.handlers.registry import load as load_handlers
from scylla_spark_tools.demo import bad_records as bad
from scylla_spark_tools.demo import planned_tasks
from scylla_spark_tools.demo.tour import MOST_LEAD_S

START = 1_800_000_000_000_000
RULES = Rules(8)


@pytest.fixture(scope="module")
def plan() -> planned_tasks.Plan:
    return planned_tasks.make(START, "127.0.0.1:1")


@pytest.mark.slow
def test_at_least_5000_tasks_over_300_lanes_due_within_40_seconds(plan: planned_tasks.Plan) -> None:
    assert len(plan.tasks) >= 5_000
    assert len({key.ordering_id for key in plan.tasks}) == planned_tasks.LANES
    assert min(key.time_us for key in plan.tasks) >= START
    assert plan.last_us - START <= 40_000_000


def test_most_tasks_come_from_a_data_frame_and_some_from_each_other_client(plan: planned_tasks.Plan) -> None:
    by = Counter(task.via for task in plan.tasks.values())

    assert by[planned_tasks.FRAME] > len(plan.tasks) / 2
    assert by[planned_tasks.FOREIGN] >= 500
    assert by[planned_tasks.CLIENT] >= 50


def test_every_trouble_is_shown_by_at_least_one_task(plan: planned_tasks.Plan) -> None:
    assert {
        "fails, then succeeds", "hangs, then succeeds", "hangs for ever", "due while its head hangs", "kills its process",
        "exhausts its retries", "aborts", "12 at one instant", "twice in one frame", "again in a later frame",
        "again by another client", "sent again when done", "cancelled", "overwritten later", "overwritten at once",
        "overwritten while it runs", "unknown handler", "unknown fields", "names no handler",
    } == plan.shown().keys()  # fmt: skip


def test_the_same_arguments_give_the_same_plan(plan: planned_tasks.Plan) -> None:
    assert planned_tasks.make(START, "127.0.0.1:1") == plan


def test_every_expected_task_is_sent_first_by_the_means_it_names(plan: planned_tasks.Plan) -> None:
    rows = {planned_tasks.FRAME: plan.first, planned_tasks.FOREIGN: plan.foreign, planned_tasks.CLIENT: plan.client}
    first = {(via, row.key): row for via, sent in rows.items() for row in reversed(sent)}

    assert all(first[task.via, key] == task.row for key, task in plan.tasks.items())


def test_a_changed_task_is_changed_once_and_long_before_it_is_due(plan: planned_tasks.Plan) -> None:
    cancels = [row.key for rows in plan.cancels.values() for row in rows]
    changed = cancels + [row.key for row in plan.second]

    assert len(set(changed)) == len(changed)
    assert all(key.time_us > START + planned_tasks.SAFE_S * 1_000_000 for key in changed)


def test_foreign_records_are_valid(plan: planned_tasks.Plan) -> None:
    for row in plan.foreign:
        verdict = validate(partition_of(row.key.ordering_id, 8), 0, START, None, json.dumps(row.wire()).encode(), RULES)
        assert isinstance(verdict, Command)
        assert verdict.key == row.key


def test_handlers_named_by_the_plan_are_registered_except_the_unknown_one(plan: planned_tasks.Plan) -> None:
    named = {task.row.handler for task in plan.tasks.values()}
    known = load_handlers([planned_tasks.HANDLERS])

    assert named - known.keys() == {None, "nobody.knows.me"}
    assert {known[name].info.runs_on for name in named & known.keys()} == {"auto", "spark"}


@pytest.mark.parametrize("lead_s", [8, MOST_LEAD_S])
def test_bad_records_are_refused_for_the_reason_they_name(lead_s: int) -> None:
    now = now_us()
    lane = partition_of("bad", 8)

    for record in bad.records(now + lead_s * 1_000_000, now):
        verdict = validate(lane + record.wrong_partition, 0, now, record.key, record.value, RULES)
        assert isinstance(verdict, Rejection), record.what
        assert verdict.reason == record.reason, record.what
