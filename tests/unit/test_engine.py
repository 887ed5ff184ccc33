"""The engine's decisions, one at a time; the simulation covers their interplay under faults."""

import random

import pytest

from scylla_spark.core.engine import action
from scylla_spark.core.engine.bounds import HandlerPolicy, Limits
from scylla_spark.core.engine.engine import Engine
from scylla_spark.core.engine.outbox import NEVER
from scylla_spark.core.engine.queue import Gate, QueueLimits
from scylla_spark.core.records.command import Command, WireRetry
from scylla_spark.core.records.fact import Fact, Fence, OutcomeRecord
from scylla_spark.core.tables.progress import Basis, Mark
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.stored_records import Known, ScanRow
from scylla_spark.core.tasks.task import (
    ABORTED,
    CANCELLED,
    FAILED,
    NOT_STARTED,
    STARTED,
    SUCCEEDED,
    TIMED_OUT,
    YIELDED,
    Failure,
)
from tests.support.engine_harness import NOW, RETRY, SECOND, Harness


@pytest.fixture
def world():
    return Harness()


def test_task_due_exactly_now_is_released(world):
    world.enqueue(due=1)
    assert world.at(0.999999) == []
    assert [i.key.uniqueness_key for i in world.at(1)] == ["u"]


def test_lateness_counts_from_the_time_of_a_task_or_from_its_enqueueing_if_that_was_later(world):
    world.enqueue(lane="past", due=-60, enqueued_us=NOW - 5 * SECOND)
    world.enqueue(lane="ahead", due=-1, enqueued_us=NOW - 5 * SECOND)
    planned = {one.key.ordering_id: one for one in world.pump()}
    assert {lane: one.planned_us - NOW for lane, one in planned.items()} == {"past": -5 * SECOND, "ahead": -SECOND}
    world.finish(planned["past"], FAILED, failure=Failure("x", "x"))
    world.pump()
    assert {fact.planned_us for fact in world.facts if fact.key.ordering_id == "past"} == {NOW - 5 * SECOND}
    (again,) = world.at(3600)
    assert again.planned_us > NOW


def test_next_wake_is_the_time_of_the_earliest_head(world):
    world.enqueue(lane="a", due=5)
    world.enqueue(lane="b", due=3)
    assert world.engine.next_wake() == NOW + 3 * SECOND


def test_a_lane_runs_one_at_a_time_in_key_order(world):
    for unique in ("c", "a", "b"):
        world.enqueue(unique=unique)
    order = []
    for _ in range(3):
        (invocation,) = world.pump()
        order.append(invocation.key.uniqueness_key)
        assert world.pump() == []
        world.finish(invocation)
    assert order == ["a", "b", "c"]


def test_lanes_run_in_parallel_and_a_stuck_one_blocks_no_other(world):
    for lane in ("a", "b", "c"):
        world.enqueue(lane=lane, unique="1")
        world.enqueue(lane=lane, unique="2")
    first = world.pump()
    assert {i.key.ordering_id for i in first} == {"a", "b", "c"}
    for invocation in first[1:]:
        world.finish(invocation)
    assert {i.key.ordering_id for i in world.pump()} == {"b", "c"}


def test_an_earlier_task_that_arrives_late_jumps_the_queue_but_interrupts_nothing(world):
    world.enqueue(unique="m")
    world.enqueue(unique="z")
    (running,) = world.pump()
    world.enqueue(unique="b")
    assert world.pump() == []
    world.finish(running)
    assert [i.key.uniqueness_key for i in world.pump()] == ["b"]


def test_the_next_task_of_a_lane_waits_until_the_completion_is_read_back(world):
    world.enqueue(unique="1")
    world.enqueue(unique="2")
    (first,) = world.pump()
    world.finish(first)
    assert world.pump(deliver=False) == []
    world.append(OutcomeRecord(world.engine.partitions[0].mine, "facts", (Fact(first.key, 1, SUCCEEDED),)))
    assert [i.key.uniqueness_key for i in world.pump()] == ["2"]


def test_facts_of_another_fence_do_not_count(world):
    world.enqueue(unique="1")
    (first,) = world.pump()
    world.append(OutcomeRecord(Fence(0, "other"), "facts", (Fact(first.key, 1, SUCCEEDED),)))
    assert first.key not in world.engine.partitions[0].ended


def test_the_same_key_again_overwrites_while_it_waits(world):
    world.enqueue(due=1, payload='{"v":1}')
    world.enqueue(due=1, payload='{"v":2}')
    (invocation,) = world.at(1)
    assert invocation.payload == '{"v":2}'


def test_what_is_in_memory_is_counted_until_it_has_ended(world):
    partition = world.engine.partitions[0]
    world.enqueue(unique="1", due=1, payload='{"v":"' + "x" * 100 + '"}')
    world.enqueue(unique="2", due=1, payload="{}")
    large = partition.holding.bytes
    assert partition.holding.tasks == 2
    world.enqueue(unique="1", due=1, payload='{"v":3}')
    assert (partition.holding.tasks, partition.holding.bytes) == (2, large - 101)
    world.command("cancel", TaskKey(NOW + SECOND, "a", "2"))
    world.pump()
    for invocation in world.at(1):
        world.finish(invocation)
    world.pump()
    assert (partition.holding.tasks, partition.holding.bytes, world.engine.held_bytes) == (0, 0, 0)


def test_a_key_re_sent_while_it_runs_changes_only_the_next_attempt(world):
    world.enqueue(payload='{"v":1}')
    (first,) = world.pump()
    world.enqueue(payload='{"v":2}')
    assert world.pump() == []
    world.finish(first, FAILED)
    (second,) = world.at(10)
    assert (first.payload, second.payload, second.attempt) == ('{"v":1}', '{"v":2}', 2)


def test_a_completed_key_never_runs_again(world):
    world.enqueue()
    world.finish(*world.pump())
    world.pump()
    world.enqueue()
    assert world.at(100) == []


def test_a_failed_task_waits_between_half_and_all_of_its_back_off(world):
    world.enqueue()
    world.finish(*world.pump(), outcome=FAILED, failure=Failure("ValueError"))
    world.pump()
    wait = world.facts[-1].next_us - NOW
    assert SECOND // 2 <= wait <= SECOND
    assert world.at(0.49) == []
    assert [i.attempt for i in world.at(1)] == [2]


@pytest.mark.parametrize(("asked_ms", "least_s", "most_s"), [(0, 30, 60), (1_000, 30, 60), (600_000, 600, 600)])
def test_who_asks_for_a_wait_gets_that_of_the_policy_in_force_if_it_is_longer(world, asked_ms, least_s, most_s):
    world.enqueue(retry=WireRetry(None, 60_000, 60_000))
    world.finish(*world.pump(), outcome=FAILED, failure=Failure("http_503"), least_wait_ms=asked_ms)
    world.pump()
    assert least_s * SECOND <= world.facts[-1].next_us - NOW <= most_s * SECOND


def test_followers_of_a_failing_head_do_not_start(world):
    world.enqueue(unique="1")
    world.enqueue(unique="2")
    world.finish(*world.pump(), outcome=FAILED)
    assert [i.key.uniqueness_key for i in world.at(5)] == ["1"]


def test_an_exhausted_task_fails_and_frees_its_lane(world):
    world.enqueue(unique="1")
    world.enqueue(unique="2")
    for attempt in (1, 2, 3):
        (invocation,) = world.at(20 * attempt)
        assert invocation.attempt == attempt
        world.finish(invocation, TIMED_OUT)
    assert [i.key.uniqueness_key for i in world.pump()] == ["2"]
    (end,) = [fact for fact in world.facts if fact.terminal]
    assert (end.outcome, end.attempt, end.used) == (FAILED, 3, 3)


def test_a_tasks_own_retry_policy_wins(world):
    world.enqueue(retry=WireRetry(0, 1, 1))
    world.finish(*world.pump(), outcome=FAILED)
    world.pump()
    assert world.facts[-1].terminal


def test_retry_for_ever_never_exhausts(world):
    world.enqueue(retry=WireRetry(None, 1000, 1000))
    for attempt in range(1, 50):
        (invocation,) = world.at(attempt * 2)
        world.finish(invocation, FAILED)
    assert not any(fact.terminal for fact in world.facts)


def test_an_abort_is_terminal_at_once(world):
    world.enqueue()
    world.finish(*world.pump(), outcome=ABORTED)
    world.pump()
    assert world.facts[-1].outcome == ABORTED
    assert world.facts[-1].terminal


def test_a_yield_uses_up_no_attempt_but_numbers_go_on(world):
    world.enqueue(retry=WireRetry(0, 1000, 1000))
    world.finish(*world.pump(), outcome=YIELDED, after_ms=3000)
    assert world.at(2.9) == []
    (second,) = world.at(3)
    assert second.attempt == 2
    world.finish(second, FAILED)
    world.pump()
    assert world.facts[-1].terminal
    assert world.facts[-1].used == 1


def test_what_an_executor_hands_back_unrun_uses_no_attempt(world):
    world.enqueue()
    world.finish(*world.pump(), outcome=NOT_STARTED)
    (again,) = world.pump()
    assert again.attempt == 1


def test_a_cancelled_task_never_starts_and_frees_its_lane(world):
    first = world.enqueue(unique="1", due=1)
    world.enqueue(unique="2", due=1)
    world.command("cancel", first, request_id="r")
    assert [i.key.uniqueness_key for i in world.at(1)] == ["2"]
    assert [(fact.outcome, fact.request_id) for fact in world.facts if fact.key == first] == [(CANCELLED, "r")]
    assert [(fact.queue, fact.handler) for fact in world.facts if fact.key == first] == [("default", "h")]


def test_ends_tell_the_tags_of_their_tasks_and_attempts_that_are_followed_by_others_do_not(world):
    world.enqueue(unique="1", tags=("night",))
    cancelled = world.enqueue(unique="2", due=9, tags=("night", "eu"))
    world.finish(*world.pump(), outcome=FAILED)
    world.command("cancel", cancelled)
    world.finish(*world.at(5))
    world.pump()
    told = [(fact.outcome, fact.tags) for fact in world.facts if fact.outcome != "started"]
    assert told == [(FAILED, None), (CANCELLED, ("night", "eu")), (SUCCEEDED, ("night",))]


def test_a_cancel_of_a_running_task_is_too_late_but_stops_its_retries(world):
    key = world.enqueue()
    (invocation,) = world.pump()
    world.command("cancel", key, request_id="r")
    world.pump()
    assert [(fact.outcome, fact.request_id) for fact in world.facts] == [("too_late", "r")]
    world.finish(invocation, FAILED)
    world.pump()
    assert world.facts[-1].outcome == CANCELLED


def test_a_cancel_of_a_task_past_the_last_scan_asks_the_tables_first(world):
    world.engine.raise_horizon(world.tenure, NOW + 600 * SECOND)
    key = world.enqueue(due=400)
    world.command("cancel", key)
    world.pump()
    (asked,) = [item for item in world.other if isinstance(item, action.Lookup)]
    world.engine.looked_up(
        world.tenure, {key: Known(ended=True)}, Basis(), world.now
    )  # by a cancel that came long before
    world.pump()
    assert asked.keys == [key]
    assert world.facts == []


def test_a_cancel_ends_a_key_that_was_never_seen(world):
    key = TaskKey(NOW + SECOND, "a", "u")
    world.command("cancel", key)
    world.command("enqueue", key, handler="h")
    assert world.at(2) == []
    assert [fact.outcome for fact in world.facts] == [CANCELLED]


def test_a_task_without_a_handler_waits(world):
    world.enqueue(handler=None)
    assert world.at(100) == []


def test_urgent_tasks_come_first_when_room_is_scarce(world):
    for lane, priority in (("a", 0), ("b", 200), ("c", 100)):
        world.enqueue(lane=lane, priority=priority)
    assert [i.priority for i in world.pump(room=1)[:1]] == [200]


def test_no_more_than_the_limit_is_in_flight_per_partition():
    world = Harness(Limits(max_in_flight=3))
    for lane in range(10):
        world.enqueue(lane=f"lane{lane}")
    first = world.pump()
    assert len(first) == 3
    world.finish(first[0])
    assert len(world.pump()) == 1


def test_nothing_starts_while_membership_is_uncertain(world):
    world.enqueue()
    assert world.pump(may_start=False) == []
    assert len(world.pump()) == 1


def test_release_stops_while_facts_are_not_recorded(world):
    world.enqueue(lane="a")
    world.finish(*world.pump())
    world.pump(deliver=False)
    world.now += 11 * SECOND
    world.enqueue(lane="b", due=3)
    assert world.pump(deliver=False) == []


def test_a_long_run_gets_a_start_fact_after_a_second(world):
    world.enqueue()
    (invocation,) = world.pump()
    world.engine.handed([invocation.id], world.now)
    world.at(0.9)
    assert not world.engine.asks_who_runs(world.now)
    world.at(1)
    assert world.engine.asks_who_runs(world.now)
    world.engine.running({}, world.now)  # it waits in the executor
    world.at(2)
    assert world.facts == []
    world.engine.running({invocation.id: world.now - SECOND}, world.now)
    world.pump()
    assert [(fact.outcome, fact.attempt) for fact in world.facts] == [(STARTED, 1)]
    world.finish(invocation, FAILED)
    world.pump()
    assert world.facts[-1].used == 1


def test_after_an_unclean_stop_overdue_heads_announce_their_start_first():
    world = Harness.__new__(Harness)
    world.now, world.log, world.released, world.other, world.offset = NOW, [], [], [], 0
    world.stored, world.tells_names = [], True
    world.engine = Engine(lambda command: HandlerPolicy("local", 5000, RETRY), Limits(), random.Random(1))
    world.tenure = world.engine.assign(0, Mark(0, 0, Fence(4, "dead"), resigned=False), NOW)
    world.engine.raise_horizon(world.tenure, NOW + 300 * SECOND)
    world.engine.noted_end(world.tenure, 0, NOW)
    world.pump()
    key = TaskKey(NOW - SECOND, "a", "u")
    world.engine.rows(world.tenure, [ScanRow(Command("enqueue", key, 1, "h"), attempt=2, used=2)], Basis(), NOW)
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {}, Mark(), NOW)
    world.engine.confirmed(world.tenure, world.fence, 0, NOW)
    world.pump()
    assert [(fact.outcome, fact.attempt) for fact in world.facts] == [(STARTED, 3)]
    assert [invocation.attempt for invocation in world.released] == [3]
    assert world.engine.partitions[0].mine.epoch == 5


def test_a_failed_send_fences_again_and_sends_what_did_not_land():
    world = Harness()
    world.enqueue()
    (invocation,) = world.pump()
    world.finish(invocation)
    world.engine.tick(world.now, {"local": 9}, start_by_us=NEVER)
    world.engine.take_actions()  # lost
    world.engine.sent(world.tenure, world.fence, ok=False, now=world.now)
    world.pump()
    world.engine.confirmed(world.tenure, world.fence, world.offset, world.now)
    world.pump()
    assert [(record.fence.epoch, fact.outcome) for record in world.log for fact in record.facts] == [(2, SUCCEEDED)]


def test_a_higher_fence_takes_the_partition_away_at_once(world):
    world.enqueue()
    world.pump()
    world.append(OutcomeRecord(Fence(9, "thief"), "fence"))
    world.pump()
    assert world.engine.partitions == {}
    assert any(isinstance(item, action.Kill) for item in world.other)
    assert world.other[-1] == action.Left(world.tenure, False)


def test_a_revoked_partition_drains_resigns_and_leaves(world):
    world.enqueue(unique="1")
    world.enqueue(unique="2")
    (running,) = world.pump()
    world.engine.revoke(0, world.now)
    assert world.pump() == []
    assert world.other == [action.Confirm(world.tenure, world.fence)]
    world.finish(running)
    assert world.pump() == []
    assert world.other[-1] == action.Left(world.tenure, True)
    assert world.engine.partitions == {}


def test_a_key_whose_time_has_passed_is_looked_up_before_it_runs(world):
    world.engine.partitions[0].ended.since_us = NOW + SECOND
    key = world.enqueue()
    assert world.pump() == []
    assert world.other[-1] == action.Lookup(world.tenure, [key])
    world.engine.looked_up(world.tenure, {key: Known(ended=False, attempt=1, used=1)}, Basis(), world.now)
    assert [i.attempt for i in world.pump()] == [2]


def test_a_key_that_the_tables_know_as_completed_does_not_run(world):
    world.engine.partitions[0].ended.since_us = NOW + SECOND
    key = world.enqueue()
    world.pump()
    world.engine.looked_up(world.tenure, {key: Known(ended=True)}, Basis(), world.now)
    assert world.at(50) == []


def test_a_cut_lane_reloads_and_keeps_its_order():
    world = Harness(Limits(lane_depth=4))
    keys = [TaskKey(NOW - SECOND + n, "a", "u") for n in range(6)]
    rows = [ScanRow(Command("enqueue", key, n, "h")) for n, key in enumerate(keys)]
    world.read_on(len(rows))
    world.engine.rows(world.tenure, rows[:3], Basis(), NOW)
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {"a": keys[2]}, Mark(), NOW)
    late = world.enqueue(unique="late", due=0)  # past the frontier: waits for the reload
    ran = []
    for _ in range(7):
        for invocation in world.pump():
            ran.append(invocation.key)
            world.finish(invocation)
        for _ in reloads(world):
            world.engine.reloaded(world.tenure, "a", rows[3:], Basis(), world.now, more=False)
    assert ran == [*keys, late]


def reloads(world):
    """The reloads asked for and not answered so far; each is told once."""
    found = [item for item in world.other if isinstance(item, action.Reload)]
    world.other = [item for item in world.other if item not in found]
    return found


def cut_lane(depth, tasks):
    """A world with a lane of overdue tasks of which the first `depth` are loaded, and the rows of all."""
    world = Harness(Limits(lane_depth=depth))
    rows = [ScanRow(Command("enqueue", TaskKey(NOW - SECOND + n, "a", "u"), n, "h")) for n in range(tasks)]
    world.read_on(tasks)
    world.engine.rows(world.tenure, rows[:depth], Basis(), NOW)
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {"a": rows[depth - 1].command.key}, Mark(), NOW)
    return world, rows


def run_through(world, rows, step_us, parts=1):
    """Runs all tasks, each reload answered in so many parts; returns the keys as they ran and how much each reload asked for."""
    ran, depths = [], []
    while len(ran) < len(rows):
        for invocation in world.at((world.now + step_us - NOW) / SECOND):
            ran.append(invocation.key)
            world.finish(invocation)
        for item in reloads(world):
            depths.append(item.most)
            first = next(n for n, row in enumerate(rows) if row.command.key > item.after)
            found, more = rows[first : first + item.most], len(rows) > first + item.most
            size = -(-len(found) // parts)
            for begin in range(0, len(found), size):
                last = begin + size >= len(found)
                world.engine.reloaded(
                    world.tenure, "a", found[begin : begin + size], Basis(), world.now, more=more, last=last
                )
    return ran, depths


@pytest.mark.parametrize("parts", [1, 3])
def test_a_lane_that_runs_through_its_tasks_is_read_in_ever_larger_pieces(parts):
    world, rows = cut_lane(4, 200)
    ran, depths = run_through(world, rows, 1000, parts)
    assert ran == [row.command.key for row in rows]
    assert depths[:4] == [4, 8, 16, 32]


@pytest.mark.parametrize("parts", [1, 2])
def test_an_answer_that_is_older_than_a_scan_does_not_pass_what_the_scan_offered(parts):
    world, rows = cut_lane(4, 8)
    ran, old = [], [*rows[5:7]]  # read before rows[4] was in the tables
    for _ in range(12):
        for invocation in world.pump():
            ran.append(invocation.key)
            world.finish(invocation)
        for item in reloads(world):
            found = old or [row for row in rows if row.command.key > item.after]
            if old:
                world.engine.rows(world.tenure, [rows[4]], Basis(), world.now, whole=False)
            if parts == 2:
                world.engine.reloaded(world.tenure, "a", found[:1], Basis(), world.now, more=False, last=False)
                found = found[1:]
            world.engine.reloaded(world.tenure, "a", found, Basis(), world.now, more=False)
            old = []
    assert ran == [row.command.key for row in rows]


def test_a_slow_lane_is_read_in_small_pieces():
    world, rows = cut_lane(4, 40)
    ran, depths = run_through(world, rows, 40 * SECOND)
    assert ran == [row.command.key for row in rows]
    assert set(depths) == {4}


@pytest.mark.slow
def test_no_piece_is_larger_than_a_bound():
    world, rows = cut_lane(1, 1200)
    assert max(run_through(world, rows, 1000)[1]) == 250


def test_far_tasks_are_not_kept_but_noted(world):
    world.enqueue(due=1000)
    assert world.engine.partitions[0].lanes == {}
    assert world.engine.raise_horizon(world.tenure, NOW + 2000 * SECOND) == 0


def test_a_task_past_the_last_scan_waits_for_the_next(world):
    world.engine.raise_horizon(world.tenure, NOW + 600 * SECOND)
    world.enqueue(due=400)
    assert world.at(401) == []
    world.engine.scanned(world.tenure, NOW + 600 * SECOND, {}, Mark(), world.now)
    assert len(world.pump()) == 1


def test_far_tasks_that_keep_coming_do_not_hold_up_a_scan(world):
    world.enqueue(unique="far", due=1000)
    covered = world.engine.raise_horizon(world.tenure, world.now + 500 * SECOND)
    world.enqueue(unique="farther", due=1001)
    assert world.engine.raise_horizon(world.tenure, world.now + 500 * SECOND) == covered
    assert world.engine.raise_horizon(world.tenure, world.now + 2000 * SECOND) > covered


def test_a_fact_that_nobody_waits_for_waits_for_others_a_moment(world):
    world.enqueue("a")
    (first,) = world.pump()
    world.enqueue("b", due=0.01)
    world.finish(first)
    assert world.pump(patient=False) == []
    assert world.facts == []
    world.finish(*world.at(0.01, patient=False))
    assert world.pump(patient=False) == []
    assert world.engine.next_wake() == NOW + 50_000
    world.at(0.02)
    assert [fact.key.ordering_id for fact in world.facts] == ["a", "b"]
    assert len([record for record in world.log if record.facts]) == 1


@pytest.mark.parametrize("arrives", ["before", "after"])
def test_a_fact_that_the_next_task_of_the_lane_waits_for_is_sent_at_once(world, arrives):
    world.enqueue(unique="1")
    (first,) = world.pump()
    if arrives == "before":
        world.enqueue(unique="2")
    world.finish(first)
    if arrives == "after":
        world.enqueue(unique="2")
    (second,) = world.pump(patient=False)
    assert second.key.uniqueness_key == "2"


def test_facts_gather_after_a_large_group(world):
    for lane in range(90):
        world.enqueue(f"lane{lane}", unique="1")
        world.enqueue(f"lane{lane}", unique="2")
    crowd = world.pump()
    for invocation in crowd[:50]:
        world.finish(invocation)
    assert len(world.pump(patient=False)) == 50
    for invocation in crowd[50:60]:
        world.finish(invocation)
    assert world.pump(patient=False) == []
    assert world.engine.next_wake() == NOW + 1_000
    for invocation in crowd[60:]:
        world.finish(invocation)
    assert len(world.pump()) == 40
    assert len([record for record in world.log if record.facts]) == 2


def test_a_set_clock_does_not_cut_a_drain_short(world):
    world.enqueue()
    (running,) = world.pump()
    world.engine.revoke(0, world.now)
    world.now += 60 * SECOND
    world.engine.doubt(world.now)
    world.pump()
    assert not any(isinstance(item, action.Kill | action.Left) for item in world.other)
    world.finish(running)
    world.pump()
    assert [item for item in world.other if isinstance(item, action.Left)] == [action.Left(world.tenure, True)]
    assert [fact.outcome for fact in world.facts] == [SUCCEEDED]


def test_a_lane_that_is_gone_does_not_take_a_later_one_of_its_name_along(world):
    world.engine.raise_horizon(world.tenure, NOW + 600 * SECOND)
    first = world.enqueue(unique="1", due=301)
    assert world.at(302) == []  # the tables may hold earlier ones: it waits for the next scan
    world.command("cancel", first)
    world.engine.looked_up(world.tenure, {first: Known()}, Basis(), world.now)
    world.pump()
    assert world.engine.partitions[0].lanes == {}
    second = world.enqueue(unique="2", due=310)
    world.engine.scanned(world.tenure, NOW + 600 * SECOND, {}, Mark(), world.now)
    world.finish(*world.at(310), outcome=FAILED)
    world.pump()
    assert [(again.key, again.attempt) for again in world.at(320)] == [(second, 2)]


RATED = QueueLimits(rate=10.0)


def test_a_rate_that_has_opened_wakes_nobody_while_something_else_holds_tasks_back():
    world = Harness(queues={"default": RATED})
    for number in range(5):
        world.enqueue(lane=f"l{number}")
    world.pump(room=1)
    world.now += SECOND
    world.pump(room=0)
    assert world.engine.next_wake() > world.now + SECOND
    world.pump(room=1)
    assert len(world.released) == 2
    assert world.now < world.engine.next_wake() <= world.now + SECOND // 10


def test_a_faster_rate_does_not_wait_for_the_pause_of_a_slower_one_also_after_none():
    slow, fast = QueueLimits(rate=0.001), QueueLimits(rate=50.0)
    for between in ((), (QueueLimits(),)):
        world = Harness(queues={"default": slow})
        world.enqueue(lane="first")
        world.pump()
        for limits in (*between, fast):
            world.engine.put_queue("default", limits, world.now)
        for number in range(3):
            world.enqueue(lane=f"l{number}")
        world.at(1)
        assert len(world.released) == 4


def test_a_larger_share_of_a_rate_counts_from_the_last_start():
    gate = Gate(QueueLimits(rate=0.001))
    gate.share(frozenset({0}), 64)
    gate.begin("x", NOW)
    gate.share(frozenset(range(64)), 64)
    assert NOW < gate.next_us <= NOW + 1_000 * SECOND


def test_what_is_said_while_the_start_is_on_its_way_is_recorded_behind_it():
    world = Harness()
    world.enqueue()
    (run,) = world.pump()
    began, note = {run.id: world.now}, WorkNote(progress=0.5, checkpoint='{"page":3}')
    world.engine.handed([run.id], world.now)
    for at_ms in (1_000, 1_020, 1_100, 2_500, 4_000, 6_000):
        world.now = NOW + at_ms * 1_000
        world.engine.running(began, world.now)
        world.engine.noted({run.id: note} if at_ms == 1_020 else {}, began if at_ms == 1_020 else {}, world.now)
        world.pump(patient=False)
    assert [fact.work for fact in world.facts] == [None, note]


@pytest.mark.slow
def test_timers_of_tasks_that_have_ended_are_let_go_of():
    world = Harness()
    for number in range(1_000):
        world.enqueue(lane=f"l{number}", expires_ms=86_400_000)
        world.finish(world.pump()[0])
        world.pump()
    assert not world.partition.lanes
    assert len(world.engine._expiries._timers.marks) <= 64


@pytest.mark.parametrize("limits", [QueueLimits(paused=True), QueueLimits(concurrency=1), QueueLimits(pull=True)])
def test_nothing_refers_to_a_partition_that_is_lost(limits):
    world = Harness(queues={"default": limits})
    for number in range(50):
        world.enqueue(lane=f"l{number}", expires_ms=86_400_000)
        world.enqueue(lane=f"later{number}", due=60)
    world.pump(room=1)
    ours = {id(lane) for lane in world.partition.lanes.values()}
    assert len(ours) == 100
    world.engine.drop(world.partition.number)
    world.engine.tick(world.now, {}, start_by_us=0)
    assert [place for place in world.engine._ready.places() if id(place.lane) in ours] == []
    assert list(world.engine._pulls.places()) == []
    assert not world.engine._waiting.timers()
    assert not world.engine._expiries._timers.marks
