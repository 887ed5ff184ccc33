"""`async def` handlers: many tasks on one event loop, in a child that only they can harm."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from scylla_spark.clock import boot_us, now_us
from scylla_spark.core.tasks.task import LastError
from scylla_spark.defaults import MAX_CHILDREN
from scylla_spark.executors.local.pool import LocalPool
from scylla_spark.handlers.framing import pack
from tests.support.executor_conformance import GRACE_S, Running, invocation
from tests.support.waiting import holds

HANDLERS = str(Path(__file__).parents[1] / "support" / "async_handlers.py")


@pytest.fixture(scope="module")
def running():
    pool = LocalPool([HANDLERS], kill_grace_s=GRACE_S, min_children=0)
    yield Running(pool)
    pool.stop(drain_s=0)


def resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def test_pool_serves_an_executor_for_each_async_handler_beside_its_own(running):
    asked = {info.executor for info in running.executor.handlers().values()}
    assert running.executor.rooms().keys() == {"local"} | asked


def test_many_tasks_run_at_once_in_one_child(running, tmp_path):
    go = tmp_path / "go"
    calls = [invocation("a.wait_for_file", str(go)) for _ in range(100)]
    running.executor.submit(calls)
    assert holds(lambda: {one.id for one in calls} <= running.executor.running().keys())
    go.touch()
    assert len({outcome.result for outcome in running.wait(calls)}) == 1


def test_no_more_run_at_once_than_the_handler_says(running):
    outcomes = running.run(*[invocation("a.few", 0.1) for _ in range(12)])
    begun = sorted(json.loads(one.result) for one in outcomes)
    assert all(later - earlier >= 0.09 for earlier, later in zip(begun, begun[3:], strict=False))


def test_each_handler_has_room_of_its_own(running, tmp_path):
    pool, go = running.executor, tmp_path / "go"
    calls = [invocation("a.wait_for_file", str(go)) for _ in range(105)]
    assert pool.rooms()["async/a.wait_for_file"] == 100
    pool.submit(calls)
    rooms = pool.rooms()
    assert (rooms["async/a.wait_for_file"], rooms["async/a.few"], rooms["local"]) == (0, 3, MAX_CHILDREN)
    go.touch()
    running.wait(calls)
    assert pool.rooms()["async/a.wait_for_file"] == 100


def test_payload_and_result_have_the_declared_types(running):
    assert running.one("a.typed", {"item": "tea"}).result == '{"item":"tea 3"}'
    wrong = running.one("a.typed", {"item": None})
    assert (wrong.outcome, wrong.failure.kind) == ("aborted", "payload_invalid")


@pytest.mark.parametrize(
    ("what", "outcome"),
    [
        ("ValueError", "failed"),
        ("SystemExit", "failed"),
        ("KeyboardInterrupt", "failed"),
        ("CancelledError", "failed"),
        ("Abort", "aborted"),
        ("Yield", "yielded"),
    ],
)
def test_whatever_a_handler_raises_ends_its_own_task_only(running, what, outcome):
    other = invocation("a.raise", "ValueError")
    found = running.run(invocation("a.raise", what), other)
    assert found[0].outcome == outcome
    if outcome == "failed":
        assert found[0].failure.kind == what
    assert "in raise_named" in found[1].failure.stack


def test_part_of_a_handler_that_exits_ends_nothing_else(running):
    assert running.one("a.part_raises").result == '"unharmed"'


def test_handler_that_stops_the_loop_is_gone_past(running):
    assert running.one("a.mixed", "stop").result == '"done"'


def test_time_out_cancels_one_task_and_no_other(running):
    other = invocation("a.mixed", 1.0)
    slow = invocation("a.mixed", "sleep", timeout_ms=200)
    swallows = invocation("a.mixed", "late", timeout_ms=200)
    found = running.run(slow, swallows, other)
    assert [one.outcome for one in found] == ["timed_out", "timed_out", "succeeded"]
    assert found[0].failure.kind == "timed_out"
    assert found[0].finished_us - found[0].started_us >= 200_000


def test_task_that_does_not_obey_its_cancellation_is_killed_with_its_child(running):
    other = invocation("a.mixed", "sleep")
    stubborn = invocation("a.mixed", "stubborn", timeout_ms=200)
    found = running.run(stubborn, other)
    assert [one.outcome for one in found] == ["timed_out", "failed"]
    assert "did not obey" in found[0].failure.message
    assert (found[1].failure.kind, "shared its child" in found[1].failure.message) == ("child_died", True)
    assert all(one.finished_us - one.started_us >= 200_000 for one in found)
    assert running.one("a.mixed", 0.0).outcome == "succeeded"


def test_task_that_blocks_the_loop_is_named_and_killed_when_its_time_is_over(running, caplog):
    blocking = invocation("a.mixed", "block", timeout_ms=2_000)
    with caplog.at_level(logging.WARNING):
        found = running.run(blocking)
    assert (found[0].outcome, found[0].failure.kind) == ("timed_out", "timed_out")
    (said,) = [one.getMessage() for one in caplog.records if "blocks the event loop" in one.getMessage()]
    assert "'a.mixed'" in said
    assert str(blocking.key) in said


def test_while_a_loop_is_blocked_new_tasks_get_another(running, tmp_path):
    go = tmp_path / "go"
    blocking = invocation("a.mixed", {"block_until": str(go)})
    running.executor.submit([blocking])
    children = running.executor._supervisor.children
    assert holds(lambda: any(child.hangs(boot_us() - 50_000) for child in list(children.values())))
    assert running.one("a.mixed", 0.0).outcome == "succeeded"
    assert blocking.id not in running.reported_at
    go.touch()
    assert running.wait([blocking])[0].outcome == "succeeded"


def test_death_of_a_child_fails_what_ran_there_and_says_who_had_the_loop(running):
    other, killer = invocation("a.mixed", "sleep"), invocation("a.mixed", "segfault")
    found = running.run(other, killer)
    assert {(one.outcome, one.failure.kind) for one in found} == {("failed", "child_died")}
    assert "which it shared with others" in found[0].failure.message
    assert "while it had the event loop" in found[1].failure.message
    assert "in mixed" in found[1].failure.stack


def test_what_a_handler_leaves_on_the_loop_is_cancelled(running, tmp_path):
    file = tmp_path / "lines"
    assert running.one("a.leave", str(file)).result == '"left"'
    size = file.stat().st_size
    assert running.one("a.leave", str(tmp_path / "other")).result == '"left"'
    assert file.stat().st_size <= size + 1


def framed(*records: object) -> str:
    return pack(json.dumps(records).encode()).hex()


@pytest.mark.parametrize(
    "payload",
    [
        {"bytes": "ffffffff00"},
        {"bytes": pack(b"{").hex()},
        {"bytes": pack(b"[]").hex()},
        {"bytes": framed([77, "succeeded", 1, 1, None, None, 0])},
        {"bytes": framed(["note", 1, 7, None, None])},
        {"bytes": framed(["note", 1, 0.5, "[]", None])},
        {"bytes": framed([1, "batch", 1, 1, [], None, 0])},
        {"bytes": framed([1, "returned", 0, 0, None, None, 0])},
        {"words": {"1": 1 << 40}},
        {"words": {"1": -5}},
    ],
)
def test_handler_that_speaks_or_writes_in_our_place_costs_its_child_its_life(running, payload):
    found = running.one("a.junk", payload)
    assert (found.outcome, found.failure.kind) == ("failed", "child_died")
    assert "user code in our place" in found.failure.message
    assert running.one("a.mixed", 0.0).outcome == "succeeded"


@pytest.mark.parametrize(
    "words", [{"0": 1 << 60}, {"0": -1, "5": 99}, {"4": 1 << 50}, {"2": 0, "3": 1 << 60}, {"6": 1}]
)
def test_nonsense_in_the_memory_that_cannot_be_told_from_sense_ends_nothing_else(running, words):
    found = running.run(invocation("a.junk", {"words": words}, timeout_ms=300), invocation("a.mixed", 0.1))
    assert found[0].outcome in ("timed_out", "failed")
    assert found[1].outcome == "succeeded"


def test_killed_tasks_are_cancelled_and_others_go_on(running):
    gone, stays = [invocation("a.mixed", "sleep") for _ in range(3)], invocation("a.mixed", 0.6)
    running.executor.submit([*gone, stays])
    assert holds(lambda: gone[0].id in running.executor.running())
    running.executor.kill([one.id for one in gone])
    assert {one.outcome for one in running.wait(gone)} == {"timed_out"}
    assert running.wait([stays])[0].outcome == "succeeded"


def test_task_that_returns_although_it_was_cancelled_has_succeeded(running):
    returns, raises = invocation("a.mixed", "late"), invocation("a.mixed", "late and wrong")
    running.executor.submit([returns, raises])
    assert holds(lambda: {returns.id, raises.id} <= running.executor.running().keys())
    running.executor.kill([returns.id, raises.id], grace_ms=10_000)
    returned, raised = running.wait([returns, raises])
    assert (returned.outcome, returned.result, returned.failure) == ("succeeded", '"swallowed"', None)
    assert (raised.outcome, raised.failure.kind) == ("timed_out", "killed")


def test_task_that_is_cancelled_with_a_grace_has_it_to_end(running):
    stubborn, obeys = invocation("a.mixed", "stubborn"), invocation("a.mixed", "sleep")
    running.executor.submit([stubborn, obeys])
    assert holds(lambda: {stubborn.id, obeys.id} <= running.executor.running().keys())
    begun = boot_us()
    running.executor.kill([stubborn.id, obeys.id], grace_ms=1_000)
    assert {one.outcome for one in running.wait([obeys, stubborn])} == {"timed_out"}
    assert running.reported_at[obeys.id] <= running.reported_at[stubborn.id]
    assert boot_us() - begun > 1_000_000


def test_killed_task_that_goes_on_is_killed_with_its_child(running):
    call = invocation("a.mixed", "stubborn")
    running.executor.submit([call])
    assert holds(lambda: call.id in running.executor.running())
    running.executor.kill([call.id])
    assert running.wait([call])[0].outcome == "timed_out"


def test_tasks_that_run_are_named_with_their_start(running, tmp_path):
    go = tmp_path / "go"
    before = now_us()
    calls = [invocation("a.wait_for_file", str(go)) for _ in range(3)]
    running.executor.submit(calls)
    assert holds(lambda: {one.id for one in calls} <= running.executor.running().keys())
    named, after = running.executor.running(), now_us()
    go.touch()
    for outcome in running.wait(calls):
        assert before <= named[outcome.id] <= after
        assert before <= outcome.started_us <= after
    assert not {one.id for one in calls} & running.executor.running().keys()


def test_each_of_many_tasks_asks_for_its_own(running):
    calls = [invocation("a.asks", number) for number in range(50)]
    for number, found in enumerate(running.run(*calls)):
        task, event = found.follow_ups
        assert json.loads(task.record)["taskData"] == json.loads(event.record)["fields"] == {"n": number}


def test_task_that_asks_for_longer_gets_it_and_its_neighbours_do_not(running):
    calls = [invocation("a.extends", seconds, timeout_ms=500) for seconds in (5, 0, 5)]
    assert [one.outcome for one in running.run(*calls)] == ["succeeded", "timed_out", "succeeded"]


def test_task_is_told_why_the_attempt_before_failed(running):
    fresh, again = invocation("a.last_error"), invocation("a.last_error")._replace(last_error=LastError("Busy", "ü"))
    assert [one.result for one in running.run(fresh, again)] == [None, '["Busy","ü"]']


def test_tasks_of_a_loop_share_what_is_set_up_and_it_is_torn_down_when_the_pool_stops(tmp_path):
    running = Running(LocalPool([HANDLERS], kill_grace_s=GRACE_S, min_children=0))
    found = running.run(*[invocation("a.share", {"folder": str(tmp_path)}) for _ in range(5)])
    told = [json.loads(one.result) for one in found]
    assert sorted(count for _, count in told) == [1, 2, 3, 4, 5]
    running.executor.stop(drain_s=0)
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [(str(told[0][0]), "5")]


def test_each_of_many_tasks_says_and_leaves_behind_its_own(running):
    first = invocation("a.go_on", 1)._replace(checkpoint='{"row":0}')
    second = invocation("a.go_on", 2, timeout_ms=300)
    running.executor.submit([first, second])
    said = {}
    assert holds(lambda: said.update(running.executor.notes()) or len(said) == 2)
    assert (said[first.id].progress, said[first.id].checkpoint) == (0.5, '{"row":1}')
    found = running.wait([first, second])
    assert [(one.outcome, one.work.checkpoint) for one in found] == [
        ("succeeded", '{"row":1}'),
        ("timed_out", '{"row":2}'),
    ]
    assert found[0].result == '{"row":0}'
    assert running.executor.notes() == {}


def test_tasks_of_a_lane_run_one_after_the_other_and_stop_at_a_failure(running, tmp_path):
    file = tmp_path / "lines"
    calls = [
        invocation("a.append", {"file": str(file), "line": n, "fail": n == 3}, lane=f"lane {tmp_path}")
        for n in range(6)
    ]
    found = running.run(*calls)
    assert [one.outcome for one in found] == ["succeeded"] * 3 + ["failed"] + ["not_started"] * 2
    assert file.read_text().split() == ["0", "1", "2", "3"]


def test_task_whose_time_to_start_is_past_is_handed_back_unrun(running):
    calls = [invocation("a.mixed", 0.0)._replace(start_by_us=1), invocation("a.mixed", 0.0)]
    running.executor.submit(calls)
    assert [one.outcome for one in running.wait(calls)] == ["not_started", "succeeded"]


def test_unknown_handlers_fail(running):
    assert running.one("nobody").failure.kind == "handler_unknown"


def test_stop_hands_back_what_waits_and_ends_what_runs():
    pool = LocalPool([HANDLERS], kill_grace_s=GRACE_S, min_children=0)
    running = Running(pool)
    runs, waits = [invocation("a.few", 300) for _ in range(3)], invocation("a.few", 300)
    pool.submit([*runs, waits])
    assert holds(lambda: {one.id for one in runs} <= pool.running().keys())
    pool.stop(drain_s=0.2)
    found = running.wait([*runs, waits])
    assert [one.outcome for one in found] == ["failed"] * 3 + ["not_started"]
    assert found[0].failure.kind == "executor_stopped"


def test_ten_thousand_tasks_that_sleep_a_second_take_one_child_and_a_few_seconds(running):
    calls = [invocation("a.nap", 1.0) for _ in range(10_000)]
    warm = running.one("a.pid")
    begun = boot_us()
    running.executor.submit(calls)
    outcomes = running.wait(calls, within=120)
    took = (boot_us() - begun) / 1e6
    assert {one.outcome for one in outcomes} == {"succeeded"}
    assert warm.outcome == "succeeded"
    first, last = min(one.started_us for one in outcomes), max(one.finished_us for one in outcomes)
    (child,) = [one for one in running.executor._supervisor.children.values() if one.executor == "async/a.nap"]
    print(f"{took:.2f} s, from first to last {(last - first) / 1e6:.2f} s, {resident_mb(child.pid):.0f} MB")
    assert (
        last - first < 60e6
    )  # far more than it takes, for machines that are busy; one after the other, they take three hours
    assert resident_mb(child.pid) < 300
