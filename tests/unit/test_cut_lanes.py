"""Lanes that are cut before a task that they run, or were cut before: what is earlier may stand in the tables."""

from scylla_spark.core.engine.action import Reload
from scylla_spark.core.records.command import Command
from scylla_spark.core.tables.progress import Basis, Mark
from scylla_spark.core.tasks.stored_records import ScanRow
from scylla_spark.core.tasks.task import FAILED
from scylla_spark.name_fingerprint import fingerprint
from tests.support.engine_harness import NOW, SECOND, Harness


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


def test_a_scan_of_later_times_cuts_a_lane_again_that_memory_had_cut_further_on():
    world = Harness()
    first, last = world.enqueue(unique="u1", due=310), world.enqueue(unique="u9", due=330)
    assert not world.partition.lanes  # past the horizon
    world.engine.raise_horizon(world.tenure, NOW + 600 * SECOND)
    late = world.enqueue(unique="u8", due=320)
    lane = world.partition.lanes["a"]
    lane.cut(late)
    world.engine.rows(world.tenure, [ScanRow(Command("enqueue", first, 0, "h"))], Basis(3), world.now, whole=False)
    world.engine.scanned(world.tenure, NOW + 600 * SECOND, {"a": first}, Mark(3), world.now)
    assert (lane.frontier, list(lane.entries), list(lane.beyond)) == (first, [first], [late])
    assert last not in lane.entries


def test_a_whole_scan_that_left_a_lane_in_the_tables_cuts_it_again_where_memory_had_cut_it_beyond_the_scans_before():
    world = Harness()
    world.enqueue(unique="u1", due=310)
    assert not world.partition.lanes  # past the horizon: the tables alone have it
    world.engine.raise_horizon(world.tenure, NOW + 600 * SECOND)
    late = world.enqueue(unique="u8", due=320)
    lane = world.partition.lanes["a"]
    lane.cut(late)
    left = frozenset({fingerprint("a")})
    world.engine.scanned(world.tenure, NOW + 600 * SECOND, {}, Mark(3), world.now, left)
    assert (list(lane.entries), list(lane.beyond)) == ([], [late])
    assert [i.key for i in world.at(320)] == [], "what is earlier is read first"
    assert lane.reloading


def test_a_lane_that_is_being_read_is_not_let_go_of_since_the_answer_is_too_old_for_what_that_would_leave():
    world = Harness()
    first = world.enqueue(unique="u1", due=100)
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {"a": first}, Mark(1), world.now)
    lane = world.partition.lanes["a"]
    assert lane.reloading
    early = world.enqueue(unique="u0", due=50)
    assert not world.partition.unload(lane)
    later = ScanRow(Command("enqueue", first._replace(uniqueness_key="u2"), 0, "h"))
    world.engine.take_actions()
    world.engine.reloaded(world.tenure, "a", [later], Basis(1), world.now, more=False)
    (again,) = [item for item in world.engine.take_actions() if isinstance(item, Reload)]
    assert (lane.frontier < early, again.covering) == (True, 1)
    assert [i.key for i in world.at(100)] == [], "the earlier one is read first"


def test_a_lane_that_is_being_read_is_not_let_go_of():
    partition = Harness().partition
    lane = partition.lane("a")
    lane.reloading = True
    assert not partition.unload(lane)
    assert partition.lanes["a"] is lane
    lane.reloading = False
    assert partition.unload(lane)
    assert partition.is_left("a")
