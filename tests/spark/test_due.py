"""The due scan: what of the open tasks is loaded, and what is left in the tables."""

from __future__ import annotations

import pytest

from scylla_spark.core.queues.in_force import Budget
from scylla_spark.core.tables.progress import OpenHours
from scylla_spark.name_fingerprint import fingerprint
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, TASKS
from scylla_spark.services.dispatch.spark_scan import found_in
from scylla_spark.transforms.due import due, first_of_queues, maybe_open, uncompleted

NOW = 1_800_000_000_000_000
SECOND = 1_000_000


@pytest.fixture(scope="module")
def frames(spark):
    from datetime import UTC, datetime

    def task(lane, number, *, queue="q", priority=0, handler="h", payload="{}", cancelled=False, expires_ms=None):
        at = datetime.fromtimestamp(NOW / 1e6 - 3600 + number, UTC)
        values = {
            "partition_id": 0, "hour": int(at.timestamp()) // 3600, "scheduled_time": at, "ordering_id": lane,
            "uniqueness_key": "u", "queue": queue, "priority": priority, "handler": handler, "payload": payload, "data_offset": number,
            "cancel_offset": number if cancelled else None, "expires_ms": expires_ms,
        }  # fmt: skip
        return tuple(values.get(name) for name in TASKS.names)

    def make(tasks, waiting=()):
        """Open tasks; those of lanes in `waiting` have failed once and wait for a second attempt."""
        rows = spark.createDataFrame([task(*row[:2], **row[2]) for row in tasks], TASKS.ddl)
        attempts = [
            tuple({"attempt": 1, "used": 1, "fact_offset": 1, "next_at": datetime.fromtimestamp(NOW / 1e6 + 60, UTC)}.get(name, value)
                  for name, value in zip(ATTEMPTS.names, [*r[:5], *[None] * (len(ATTEMPTS.names) - 5)], strict=True))
            for r in (task(*row[:2], **row[2]) for row in tasks) if r[3] in waiting
        ]  # fmt: skip
        nothing = spark.createDataFrame([], COMPLETIONS.ddl)
        return uncompleted(rows, nothing, spark.createDataFrame(attempts, ATTEMPTS.ddl))

    return make


def loaded(frame, budget, paused=(), most_bytes=1 << 62):
    found = found_in(first_of_queues(frame, Budget(budget, most_bytes, ["full", "p"], paused), now=NOW).toArrow())
    part = found[0]
    rows = [(row.command.key.ordering_id, row.command.offset) for row in part.rows]
    return sorted(rows), {lane: key.time_us for lane, key in part.cuts.items()}, part.unloaded


def test_heads_of_all_lanes_come_before_what_stands_behind_them(frames):
    rows = due(frames([(lane, number, {}) for lane in "abc" for number in range(4)]), depth=3)
    found, cuts, unloaded = loaded(rows, budget=4)
    assert [row for row in found if row[1] == 0] == [("a", 0), ("b", 0), ("c", 0)]
    assert len(found) == 4
    assert set(cuts) == {"a", "b", "c"}, "each has more in the tables"
    assert unloaded == set()


def test_lanes_that_do_not_fit_are_named_and_none_of_their_tasks_is_loaded(frames):
    rows = due(frames([(f"l{number:02}", number, {}) for number in range(10)]), depth=3)
    found, cuts, unloaded = loaded(rows, budget=4)
    assert found == [(f"l{number:02}", number) for number in range(4)], "the oldest"
    assert cuts == {}
    assert unloaded == {fingerprint(f"l{number:02}") for number in range(4, 10)}


def test_lanes_that_cannot_start_keep_nobody_out(frames):
    tasks = [(f"stuck{number}", 0, {}) for number in range(5)]
    tasks += [(f"paused{number}", 1, {"queue": "p"}) for number in range(5)]
    tasks += [(f"parked{number}", 2, {"handler": None}) for number in range(5)]
    tasks += [("fine", 9, {})]
    rows = due(frames(tasks, waiting={f"stuck{number}" for number in range(5)}), depth=3)
    found, _, unloaded = loaded(rows, budget=2, paused=["p"])
    assert ("fine", 9) in found
    assert len(unloaded) == 16 - len(found)


def test_a_lane_whose_head_is_cancelled_comes_before_lanes_that_cannot_start(frames):
    tasks = [(f"parked{number}", 0, {"handler": None}) for number in range(5)]
    tasks += [("without data", 1, {"handler": None, "cancelled": True}), ("without data", 2, {})]
    tasks += [("paused", 3, {"queue": "p", "cancelled": True})]
    found, _, _ = loaded(due(frames(tasks), depth=3), budget=2, paused=["p"])
    assert ("without data", 1) in found
    assert ("paused", 3) in found


def test_a_lane_whose_head_has_expired_comes_before_lanes_that_cannot_start(frames):
    tasks = [(f"parked{number}", 0, {"handler": None, "expires_ms": 7_200_000}) for number in range(5)]
    tasks += [("begun", 3, {"queue": "p", "expires_ms": 60_000})]
    tasks += [("expired", 4, {"queue": "p", "expires_ms": 60_000})]
    rows = due(frames(tasks, waiting={"begun"}), depth=3)
    found, _, unloaded = loaded(rows, budget=1, paused=["p"])
    assert ("expired", 4) in found
    assert fingerprint("begun") in unloaded
    (expiring,) = [row for row in rows.collect() if row["ordering_id"] == "expired"]
    assert expiring["expires_ms"] == 60_000


def test_a_lane_is_cut_where_a_full_queue_stands_in_it(frames):
    tasks = [("a", 0, {}), ("a", 1, {"queue": "full"}), ("a", 2, {}), ("b", 0, {"queue": "full"})]
    found, cuts, unloaded = loaded(due(frames(tasks), depth=9), budget=1)
    assert found == [("a", 0), ("b", 0)]
    assert set(cuts) == {"a"}
    assert unloaded == set()


def test_the_urgent_come_first(frames):
    rows = due(frames([(f"l{number}", number, {"priority": number}) for number in range(5)]), depth=3)
    assert loaded(rows, budget=2)[0] == [("l3", 3), ("l4", 4)]


def test_queues_whose_names_come_from_data_share_one_budget(frames):
    tasks = [(f"l{number}", number, {"queue": f"name{number}"}) for number in range(5)]
    tasks += [("other", 9, {"queue": "full"})]
    found, _, unloaded = loaded(due(frames(tasks), depth=3), budget=2)
    assert found == [("l0", 0), ("l1", 1), ("other", 9)]
    assert len(unloaded) == 3


def test_large_payloads_use_up_a_budget_of_bytes(frames):
    tasks = [(f"l{number}", number, {"payload": '{"x":"' + "x" * 5000 + '"}'}) for number in range(4)]
    rows = due(frames(tasks), depth=3)
    assert [lane for lane, _ in loaded(rows, budget=9, most_bytes=13_000)[0]] == ["l0", "l1"]
    assert [lane for lane, _ in loaded(rows, budget=9, most_bytes=1)[0]] == ["l0"]


def test_closed_hours_are_left_out_and_open_ones_among_them_are_not(frames):
    tasks = frames([("old", 0, {}), ("older", -7200, {}), ("new", 3600, {})])
    hours = {row["ordering_id"]: row["hour"] for row in tasks.collect()}
    kept = tasks.where(maybe_open(OpenHours(hours["new"], (hours["older"],))))
    assert sorted(row["ordering_id"] for row in kept.collect()) == ["new", "older"]


def test_nothing_comes_of_nothing(frames):
    assert found_in(first_of_queues(due(frames([]), depth=3), Budget(3), now=NOW).toArrow()) == {}
