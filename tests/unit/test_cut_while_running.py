"""A lane that is cut before the task that it runs: what is earlier may stand in the tables."""

from scylla_spark.core.partition import Mark
from scylla_spark.core.task import FAILED
from scylla_spark.fingerprint import fingerprint
from tests.unit.engine_harness import NOW, SECOND, Harness


def test_a_failed_head_waits_for_earlier_tasks_of_a_lane_that_was_left_to_the_tables_meanwhile():
    world = Harness()
    head = world.enqueue(unique="u2", due=1)
    (invocation,) = world.at(1)
    world.enqueue(unique="u1", due=0.5)  # jumps the queue, but interrupts nothing
    left = frozenset({fingerprint("a")})
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {}, Mark(), world.now, left)
    world.finish(invocation, FAILED)
    world.pump()
    assert [i.key for i in world.at(60)] == []
    lane = world.partition.lanes["a"]
    assert (lane.reloading, head in lane.beyond) == (True, True)
