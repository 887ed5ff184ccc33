"""The forecast: hand-made histories, played again under other limits."""

from __future__ import annotations

import polars as pl
import pytest

from scylla_spark.core.engine.bounds import Limits
from scylla_spark.core.engine.queue import QueueLimits
from scylla_spark.services.simulate.forecast_beside_history import outlook
from scylla_spark.services.simulate.replay_of_window import NEVER_US, Model, _Play, forecast
from tests.support.delta_tables import at

SECOND = 1_000_000
NOON = at(12)
SCHEMA = {
    "time_us": pl.Int64, "ordering_id": pl.String, "uniqueness_key": pl.String, "queue": pl.String, "handler": pl.String,
    "priority": pl.Int64, "known_us": pl.Int64, "started_us": pl.Int64, "finished_us": pl.Int64, "lasted_us": pl.Int64,
    "earlier": pl.List(pl.Struct({"lasted_us": pl.Int64, "wait_us": pl.Int64})),
}  # fmt: skip


def ran(time_us: int, lane: str, unique: str = "u", **more) -> dict:
    """A task that ran for a second, at once."""
    row = {
        "time_us": time_us, "ordering_id": lane, "uniqueness_key": unique, "queue": "default", "handler": "h", "priority": 0,
        "known_us": time_us, "started_us": time_us, "lasted_us": SECOND, "earlier": None,
    } | more  # fmt: skip
    return {"finished_us": row["started_us"] + row["lasted_us"]} | row


def played(rows: list[dict], *, slots: int = 100, fact_delay_us: int = 0, **more):
    tasks = pl.DataFrame(rows, schema=SCHEMA)
    return tasks, forecast(tasks, Model(4, slots, Limits(partitions=4), fact_delay_us=fact_delay_us, **more))


def delays(rows: list[dict], **more) -> list[float]:
    """Predicted start delays in seconds."""
    tasks, result = played(rows, **more)
    return [(start - known) / SECOND for start, known in zip(result.started_us, tasks["known_us"], strict=True)]


THREE_IN_A_LANE = [ran(NOON, "a", unique) for unique in "xyz"]
THREE_LANES = [ran(NOON, lane) for lane in "abc"]


def test_tasks_of_one_lane_wait_for_each_other():
    assert delays(THREE_IN_A_LANE) == [0, 1, 2]


def test_a_fact_delays_the_next_task_of_its_lane():
    assert delays(THREE_IN_A_LANE, fact_delay_us=10_000) == [0, 1.01, 2.02]


def test_a_replay_queue_does_not_wait_for_facts():
    queues = {"default": QueueLimits(replay=True)}
    assert delays(THREE_IN_A_LANE, fact_delay_us=10_000, queues=queues) == [0, 1, 2]


def test_tasks_of_a_replay_lane_that_are_handed_over_together_still_run_one_after_the_other():
    rows = [ran(NOON, "a", f"{n:03}", lasted_us=1000) for n in range(100)]
    _, result = played(rows, slots=1, fact_delay_us=100_000, queues={"default": QueueLimits(replay=True)})
    assert [start - NOON for start in result.started_us] == [1000 * n for n in range(100)]


def test_lanes_run_beside_each_other():
    assert delays(THREE_LANES) == [0, 0, 0]


@pytest.mark.parametrize(("slots", "expected"), [(1, [0, 1, 2]), (2, [0, 0, 1]), (3, [0, 0, 0])])
def test_slots_bound_what_runs_at_once(slots, expected):
    assert sorted(delays(THREE_LANES, slots=slots)) == expected


def test_the_dispatcher_itself_takes_time_for_each_task():
    assert sorted(delays(THREE_LANES, cost_us=1000)) == [0.001, 0.002, 0.003]


@pytest.mark.parametrize(("most", "expected"), [(1, [0, 1, 2]), (2, [0, 0, 1])])
def test_concurrency_of_a_queue_bounds_what_runs_at_once_in_it(most, expected):
    rows = [ran(NOON, lane, queue="mail") for lane in ("a", "a-1", "a-4")]
    tasks = pl.DataFrame([*rows, *[ran(NOON, f"free-{n}") for n in range(5)]], schema=SCHEMA)
    result = forecast(tasks, Model(1, 100, Limits(partitions=1), {"mail": QueueLimits(concurrency=most)}, 0))
    starts = [(start - NOON) / SECOND for start in result.started_us]
    assert sorted(starts[:3]) == expected
    assert starts[3:] == [0] * 5


def test_rate_of_a_queue_spreads_its_starts():
    rows = [ran(NOON, f"lane-{n}", lasted_us=1000) for n in range(4)]
    tasks = pl.DataFrame(rows, schema=SCHEMA)
    result = forecast(tasks, Model(1, 100, Limits(partitions=1), {"default": QueueLimits(rate=1)}, 0))
    waits = sorted((start - NOON) / SECOND for start in result.started_us)
    assert waits == pytest.approx([0, 1, 2, 3], abs=0.11)


def test_a_task_starts_neither_before_its_time_nor_before_it_was_enqueued():
    rows = [ran(NOON, "a"), ran(NOON + 5 * SECOND, "b"), ran(NOON, "c", known_us=NOON + 3 * SECOND)]
    _, result = played(rows)
    assert [start - NOON for start in result.started_us] == [0, 5 * SECOND, 3 * SECOND]


def test_a_failed_attempt_is_repeated_after_the_wait_that_was_recorded():
    twice = [{"lasted_us": SECOND, "wait_us": 4 * SECOND}, {"lasted_us": 2 * SECOND, "wait_us": SECOND}]
    rows = [ran(NOON, "a", "x", earlier=twice), ran(NOON, "a", "y")]
    _, result = played(rows)
    assert [start - NOON for start in result.started_us] == [0, 9 * SECOND]
    assert [end - NOON for end in result.finished_us] == [9 * SECOND, 10 * SECOND]


def test_a_paused_queue_never_starts_and_the_others_do():
    rows = [ran(NOON, "a", queue="mail"), ran(NOON, "b")]
    tasks, result = played(rows, queues={"mail": QueueLimits(paused=True)})
    assert (result.started_us[0], result.started_us[1]) == (NEVER_US, NOON)
    found = {row["name"]: row for row in outlook(tasks, played(rows)[1], result, lanes=1)}
    assert found["mail"]["p50_ms"] == 0
    assert (found["mail"]["never_started"], found["mail"]["predicted_p50_ms"]) == (1, None)
    assert found["a"]["never_started"] == 1  # the worst lane is the one that does not run at all


def test_priority_decides_who_gets_the_slot():
    rows = [ran(NOON, "a"), ran(NOON, "b", priority=9)]
    assert delays(rows, slots=1) == [1, 0]


def test_what_ran_for_hours_and_what_is_late_for_hours_comes_to_its_end():
    rows = [ran(NOON, "a", unique, lasted_us=3600 * SECOND) for unique in "wxyz"]
    assert delays(rows) == [0, 3600, 7200, 10800]


def test_what_has_ended_is_forgotten_in_a_long_window():
    rows = [ran(NOON + n * 60 * SECOND, "a", f"{n}") for n in range(200)]
    play = _Play(pl.DataFrame(rows, schema=SCHEMA), Model(1, 1))
    play.run()
    assert len(play._engine.partitions[0].ended) < 10


def test_the_same_history_gives_the_same_forecast():
    rows = [ran(NOON + n * 1000, f"lane-{n % 7}", f"{n}") for n in range(200)]
    assert played(rows, slots=3)[1] == played(rows, slots=3)[1]


def test_outlook_tells_what_is_simulated_today_beside_what_is_simulated_under_changed_limits():
    rows = [ran(NOON, "a", "x", started_us=NOON + 7 * SECOND, queue="mail"), *THREE_LANES[1:]]
    tasks, today = played(rows, slots=2)
    _, changed = played(rows, slots=1)
    everything, default, mail, worst = outlook(tasks, today, changed, lanes=1)
    assert (everything["scope"], everything["count"]) == ("all", 3)
    assert [everything[f"{side}max_ms"] for side in ("measured_", "", "predicted_")] == [7000, 1000, 2000]
    assert [everything[f"{side}p50_ms"] for side in ("measured_", "", "predicted_")] == [0, 0, 1000]
    assert [everything[f"{side}makespan_s"] for side in ("measured_", "", "predicted_")] == [8, 2, 3]
    assert (default["name"], default["count"], mail["name"], mail["measured_p99_ms"]) == ("default", 2, "mail", 7000)
    assert (worst["scope"], worst["predicted_max_ms"]) == ("lane", 2000)
