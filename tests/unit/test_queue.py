"""What queues allow: concurrency, rate, pause, groups, and how a lane of each order goes on."""

import pytest

from scylla_spark.core.engine.bounds import HandlerPolicy, Limits
from scylla_spark.core.engine.queue import Gate, QueueLimits
from scylla_spark.core.tasks.task import FAILED, NOT_STARTED
from tests.support.engine_harness import NOW, RETRY, SECOND, Harness


def harness(max_batch=1, **queue):
    terms = HandlerPolicy("local", 5000, RETRY, max_batch)
    return Harness(terms=lambda command: terms, queues={"default": QueueLimits(**queue)})


def keys(invocations):
    return [invocation.key.uniqueness_key for invocation in invocations]


def fill(world, lanes, per_lane=1):
    for lane in lanes:
        for number in range(per_lane):
            world.enqueue(lane=lane, unique=f"{number}")


def test_no_more_tasks_run_at_once_than_the_queue_allows():
    world = harness(concurrency=2)
    fill(world, "abcde")
    first = world.pump()
    assert len(first) == 2
    world.finish(first[0])
    assert len(world.pump()) == 1


def test_a_full_queue_does_not_hold_up_another():
    world = harness(concurrency=1)
    fill(world, "abc")
    world.enqueue(lane="x", queue="other")
    assert sorted(invocation.queue for invocation in world.pump()) == ["default", "other"]


def test_a_paused_queue_starts_nothing_and_keeps_its_lanes_in_order():
    world = harness(paused=True)
    world.enqueue(lane="a", unique="1")
    world.enqueue(lane="a", unique="2", queue="other")
    world.enqueue(lane="b", unique="3", queue="other")
    assert keys(world.pump()) == ["3"]


def test_starts_are_spread_by_the_rate_and_the_engine_wakes_for_the_next():
    world = harness(rate=2.0)
    fill(world, "abcdef")
    started = len(world.pump())
    assert started == 1
    assert world.engine.next_wake() == NOW + SECOND // 2 - 50_000
    for half_seconds in range(1, 5):
        started += len(world.at(half_seconds / 2))
    assert started == 5


def test_lanes_of_a_group_share_its_slots_and_none_is_forgotten():
    world = harness(group_concurrency=1)
    for lane in ("t1:a", "t1:b", "t1:c", "t2:a"):
        world.enqueue(lane=lane)
    running = world.pump()
    assert sorted(i.key.ordering_id for i in running) == ["t1:a", "t2:a"]
    seen = {i.key.ordering_id for i in running}
    while running:
        world.finish(running.pop())
        running += world.pump()
        assert len([i for i in running if i.key.ordering_id.startswith("t1")]) <= 1
        seen |= {i.key.ordering_id for i in running}
    assert seen == {"t1:a", "t1:b", "t1:c", "t2:a"}


def test_a_waiting_lane_of_a_group_starts_though_the_one_before_it_was_cancelled():
    world = harness(group_concurrency=1)
    for lane in ("t:a", "t:b", "t:c"):
        world.enqueue(lane=lane)
    (first,) = world.pump()
    second = next(lane for lane in ("t:a", "t:b", "t:c") if lane != first.key.ordering_id)
    entry = world.engine.partitions[0].lanes[second].head()
    world.command("cancel", entry.key)
    world.finish(first)
    assert len(world.pump()) == 1


def test_shares_of_all_dispatchers_add_up_to_the_limit():
    gates = [Gate(QueueLimits(concurrency=5, rate=10.0)) for _ in range(2)]
    for gate, owned in zip(gates, [{0, 1, 2}, {3, 4, 5, 6, 7}], strict=True):
        gate.share(frozenset(owned), 8)
    admitted = []
    for gate in gates:
        gate.limits = QueueLimits(concurrency=5)
        count = 0
        while gate._slots is not None and gate.running < gate._slots:
            gate.begin(f"lane{count}", 0)
            count += 1
        admitted.append(count)
    assert admitted == [1, 4]


def test_a_replay_lane_goes_on_before_its_fact_is_recorded():
    world = harness(replay=True)
    fill(world, "a", 3)
    (first,) = world.pump()
    world.finish(first)
    second = world.pump(deliver=False)
    assert keys(second) == ["1", "2"]


def test_a_durable_lane_waits_for_its_fact():
    world = harness()
    fill(world, "a", 3)
    (first,) = world.pump()
    world.finish(first)
    assert world.pump(deliver=False) == []


@pytest.mark.promise
def test_a_replay_lane_waits_for_a_failed_task_and_starts_nothing_behind_it():
    world = harness(replay=True)
    fill(world, "a", 3)
    (first,) = world.pump()
    world.finish(first, FAILED)
    assert world.pump() == []
    assert keys(world.at(10))[0] == "0"


def test_quick_tasks_of_a_replay_lane_are_handed_over_together_in_order():
    world = harness(replay=True)
    fill(world, "a", 50)
    (first,) = world.pump()
    world.finish(first)
    assert keys(world.pump()) == sorted((f"{n}" for n in range(1, 50)), key=str)


@pytest.mark.parametrize("replay", [False, True])
def test_a_batch_handler_gets_consecutive_tasks_of_a_lane_together(replay):
    world = harness(max_batch=3, replay=replay)
    fill(world, "a", 7)
    batch = world.pump()
    assert keys(batch) == ["0", "1", "2"]
    for invocation in batch:
        world.finish(invocation)
    assert keys(world.pump())[:3] == ["3", "4", "5"]


def test_what_comes_back_unstarted_behind_a_failure_runs_after_it():
    world = harness(max_batch=3)
    fill(world, "a", 3)
    first, second, third = world.pump()
    world.finish(first)
    world.finish(second, FAILED)
    world.finish(third, NOT_STARTED)
    assert world.pump() == []
    assert keys(world.at(20)) == ["1", "2"]
    assert [fact.attempt for fact in world.facts if fact.key.uniqueness_key == "2"] == []


def test_tasks_of_another_handler_or_queue_end_a_batch():
    world = harness(max_batch=9)
    world.enqueue(unique="1")
    world.enqueue(unique="2", handler="other")
    world.enqueue(unique="3")
    assert keys(world.pump()) == ["1"]


def test_a_limited_queue_lets_go_of_its_slots_when_a_partition_is_lost():
    world = harness(concurrency=1)
    fill(world, "ab")
    assert len(world.pump()) == 1
    world.engine.drop(0)
    assert world.engine.gate("default").running == 0


def test_too_many_unrecorded_facts_hold_up_a_replay_lane():
    terms = HandlerPolicy("local", 5000, RETRY)
    world = Harness(Limits(max_unrecorded=2), terms=lambda command: terms, queues={"default": QueueLimits(replay=True)})
    fill(world, "a", 9)
    (first,) = world.pump()
    world.finish(first)
    released = world.pump(deliver=False)
    for invocation in released:
        world.finish(invocation)
    assert len(released) >= 2
    assert world.pump(deliver=False) == []
