"""Slots of groups: one that was given to a lane which goes away before its turn comes is given to the next."""

from scylla_spark.core.engine.queue import QueueLimits
from tests.support.engine_harness import Harness
from tests.support.worker_harness import PullWorld

GROUPED = {"q": QueueLimits(group_concurrency=1, group_separator=".")}


def test_a_free_slot_of_a_group_is_offered_again_once_the_lane_that_was_let_in_is_forgotten():
    world = Harness(queues=GROUPED)
    for lane in ("g.1", "g.2", "g.3"):
        world.enqueue(lane=lane, queue="q")
    (first,) = world.pump()
    world.finish(first)  # lets g.2 in …
    second = world.partition.lanes["g.2"]
    second.stamp += 1  # … which goes on by itself, and is forgotten before its turn comes
    world.engine._ready.sweep()
    assert world.engine.next_wake() == 0
    assert [invocation.key.ordering_id for invocation in world.pump()] == ["g.3"]


def test_a_free_slot_of_a_group_is_offered_to_the_next_lane_of_workers_too():
    world = PullWorld(group_concurrency=1, group_separator=".")
    for lane in ("g.1", "g.2", "g.3"):
        world.put(lane)
    (first,) = world.leases(world.once(3))  # the others wait for the slot of their group
    second = world.partition.lanes["g.2"]
    world.report(first.token)  # lets g.2 in …
    second.stamp += 1  # … which goes on by itself, and is forgotten before anybody asks
    world.engine._waiting.forget_left()
    assert [lease.task.key.ordering_id for lease in world.leases(world.once(3))] == ["g.3"]
