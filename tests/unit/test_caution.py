"""After an unclean stop: of each lane the first task that may have been running announces its start."""

from scylla_spark.core.engine import action
from scylla_spark.core.engine.bounds import Limits
from scylla_spark.core.records.command import Command
from scylla_spark.core.records.fact import Fact, Fence, OutcomeRecord
from scylla_spark.core.tables.progress import Basis, Mark
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.stored_records import Known, ScanRow
from scylla_spark.core.tasks.task import STARTED, SUCCEEDED
from scylla_spark.name_fingerprint import fingerprint
from tests.support.engine_harness import NOW, SECOND, Harness

DEAD = Fence(4, "dead")


def after_an_unclean_stop(*records, limits=None):
    """A harness whose partition is being taken; these records of the dead owner stand in `outcomes`, unread by ingest."""
    world = Harness(limits)
    world.released, world.log, world.other = [], list(records), []
    world.tenure = world.engine.assign(0, Mark(0, 0, DEAD, resigned=False), NOW)
    world.engine.raise_horizon(world.tenure, NOW + 300 * SECOND)
    world.engine.outcome_records(world.tenure, list(enumerate(records)), len(records), NOW)
    return world


def read_log(world, resigned=False):
    """The log is read to its end, and the partition is fenced and confirmed."""
    if resigned:
        world.append(OutcomeRecord(DEAD, "resign"))
    world.engine.noted_end(world.tenure, len(world.log), NOW)
    world.pump()
    world.engine.confirmed(world.tenure, world.fence, 0, NOW)
    world.read_on(10)
    world.pump()


def answer_lookups(world):
    """The tables know of no end of what is asked for."""
    world.pump()
    for asked in [item for item in world.other if isinstance(item, action.Lookup)]:
        world.engine.looked_up(asked.tenure, {key: Known() for key in asked.keys}, Basis(), world.now)
    world.pump()


def row(key, offset):
    return ScanRow(Command("enqueue", key, offset, "h"))


def test_what_was_cut_off_announces_its_start_though_the_rows_before_it_have_ended():
    ended, cut_off = TaskKey(NOW - 2 * SECOND, "a", "u1"), TaskKey(NOW - SECOND, "a", "u2")
    world = after_an_unclean_stop(OutcomeRecord(DEAD, "facts", (Fact(ended, 1, SUCCEEDED),)))
    read_log(world)
    world.engine.rows(world.tenure, [row(ended, 0)], Basis(), NOW)  # tables that have not heard of the end
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {"a": ended}, Mark(), NOW)
    world.pump()
    world.engine.reloaded(world.tenure, "a", [row(cut_off, 1)], Basis(), NOW, more=False)
    world.pump()
    assert [(fact.key, fact.outcome) for fact in world.facts if fact.key == cut_off] == [(cut_off, STARTED)]
    assert [invocation.key for invocation in world.released] == [cut_off]


def test_what_was_cut_off_announces_its_start_though_the_scan_comes_before_the_log_is_read():
    world, key = after_an_unclean_stop(), TaskKey(NOW - SECOND, "a", "u")
    world.engine.rows(world.tenure, [row(key, 0)], Basis(), NOW)
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {}, Mark(), NOW)
    read_log(world)
    assert [(fact.key, fact.outcome) for fact in world.facts] == [(key, STARTED)]
    assert [invocation.key for invocation in world.released] == [key]


def test_after_a_clean_stop_nothing_announces_its_start_though_the_scan_comes_before_the_log_is_read():
    world, key = after_an_unclean_stop(), TaskKey(NOW - SECOND, "a", "u")
    world.engine.rows(world.tenure, [row(key, 0)], Basis(), NOW)
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {}, Mark(), NOW, frozenset({7}))
    read_log(world, resigned=True)
    assert world.facts == []
    assert [invocation.key for invocation in world.released] == [key]
    assert not world.partition.owes_caution


def test_what_was_cut_off_announces_its_start_though_its_lane_was_left_to_the_tables_before_the_scan():
    world, key = after_an_unclean_stop(), TaskKey(NOW - SECOND, "a", "u")
    world.partition.leave("a", 5)  # memory was short when the tail brought a record of the lane
    read_log(world)
    world.engine.rows(world.tenure, [row(key, 0)], Basis(3, 0), NOW)
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {}, Mark(3), NOW, frozenset())
    world.engine.rows(world.tenure, [row(key, 0)], Basis(6, 0), NOW)
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {}, Mark(6), NOW, frozenset())
    world.pump()
    assert [(fact.key, fact.outcome) for fact in world.facts] == [(key, STARTED)]


def test_what_was_cut_off_announces_its_start_though_its_lane_was_loaded_and_then_left_to_the_tables_before_the_scan():
    world = after_an_unclean_stop(limits=Limits(least_wait_us=0, max_held_bytes=10_000))
    key = world.enqueue(due=-1)
    world.enqueue(lane="b", due=200, payload="x" * 20_000)
    assert "a" not in world.partition.lanes
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {}, Mark(), NOW, frozenset())
    read_log(world)
    world.engine.rows(world.tenure, [row(key, 0)], Basis(2, 0), NOW)
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {}, Mark(2), NOW, frozenset())
    world.pump()
    assert [(fact.key, fact.outcome) for fact in world.facts] == [(key, STARTED)]
    assert [invocation.key for invocation in world.released] == [key]


def test_what_was_cut_off_announces_its_start_though_a_row_that_is_not_due_comes_before_its_lane_is_read_on():
    ended, cut_off = TaskKey(NOW - 2 * SECOND, "a", "u1"), TaskKey(NOW - SECOND, "a", "u2")
    world = after_an_unclean_stop(OutcomeRecord(DEAD, "facts", (Fact(ended, 1, SUCCEEDED),)))
    read_log(world)
    world.engine.rows(world.tenure, [row(ended, 0)], Basis(), NOW)
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {"a": ended}, Mark(), NOW)
    world.engine.rows(world.tenure, [row(TaskKey(NOW + 400 * SECOND, "a", "u3"), 2)], Basis(), NOW, whole=False)
    world.pump()
    world.engine.reloaded(world.tenure, "a", [row(cut_off, 1)], Basis(), NOW, more=True)  # tables of before that row
    world.engine.reloaded(world.tenure, "a", [row(cut_off, 1)], Basis(), NOW, more=False)
    world.pump()
    assert [(fact.key, fact.outcome) for fact in world.facts if fact.key == cut_off] == [(cut_off, STARTED)]


def test_what_was_cut_off_announces_its_start_though_all_that_is_loaded_before_it_ends_while_a_scan_is_coming_in():
    first, cut_off = TaskKey(NOW - 2 * SECOND, "a", "u1"), TaskKey(NOW - SECOND, "a", "u2")
    world = after_an_unclean_stop()
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {}, Mark(), NOW, frozenset({fingerprint("a")}))
    read_log(world)
    world.engine.rows(world.tenure, [row(first, 0)], Basis(1, 0), NOW)
    world.command("cancel", first)
    world.pump(may_start=False)
    assert "a" not in world.partition.lanes
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {"a": first}, Mark(1), NOW, frozenset())
    world.pump()
    world.engine.reloaded(world.tenure, "a", [row(cut_off, 1)], Basis(1, 0), NOW, more=False)
    world.pump()
    assert [(fact.key, fact.outcome) for fact in world.facts if fact.key == cut_off] == [(cut_off, STARTED)]


def test_what_was_cut_off_announces_its_start_though_the_log_holds_a_later_task_of_its_lane_that_is_not_due():
    ended, cut_off = TaskKey(NOW - 2 * SECOND, "a", "u1"), TaskKey(NOW - SECOND, "a", "u2")
    world = after_an_unclean_stop(OutcomeRecord(DEAD, "facts", (Fact(ended, 1, SUCCEEDED),)))
    read_log(world)
    world.enqueue(unique="u3", due=30)
    world.engine.rows(world.tenure, [row(ended, 0)], Basis(), NOW)  # tables that have not heard of the end
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {"a": ended}, Mark(), NOW)
    world.engine.reloaded(world.tenure, "a", [row(cut_off, 1)], Basis(), NOW, more=False)
    world.pump()
    assert [(fact.key, fact.outcome) for fact in world.facts if fact.key == cut_off] == [(cut_off, STARTED)]
    assert [invocation.key for invocation in world.released] == [cut_off]


def test_a_lane_announces_one_start_though_memory_lets_go_of_it_and_its_tasks_are_read_again():
    first, second = TaskKey(NOW - 2 * SECOND, "a", "u1"), TaskKey(NOW - SECOND, "a", "u2")
    world = after_an_unclean_stop()
    world.engine.rows(world.tenure, [row(first, 0)], Basis(), NOW)
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {"a": first}, Mark(), NOW, frozenset())
    read_log(world)
    world.finish(world.released[-1])
    world.pump()
    world.engine.reloaded(world.tenure, "a", [], Basis(), NOW, more=True)
    world.partition.lanes["a"].reloading = False  # memory is short before it asks again
    assert world.partition.unload(world.partition.lanes["a"])
    world.engine.rows(world.tenure, [row(second, 1)], Basis(), NOW)
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {}, Mark(), NOW, frozenset())
    world.pump()
    assert [(fact.key, fact.outcome) for fact in world.facts] == [(first, STARTED), (first, SUCCEEDED)]
    assert [invocation.key for invocation in world.released] == [first, second]


def test_a_lane_left_to_the_tables_announces_nothing_if_its_first_open_task_is_not_due():
    world, key = after_an_unclean_stop(), TaskKey(NOW + 6 * SECOND, "a", "u")
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {}, Mark(), NOW, frozenset({fingerprint("a")}))
    read_log(world)
    world.engine.rows(world.tenure, [row(key, 0)], Basis(1, 0), NOW)
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {}, Mark(1), NOW, frozenset())
    world.at(7)
    answer_lookups(world)
    assert world.facts == []
    assert [invocation.key for invocation in world.released] == [key]
    assert not world.partition.owes_caution


def test_caution_is_over_once_nothing_of_its_lanes_is_open():
    world = after_an_unclean_stop()
    key = world.enqueue(due=-1)
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {}, Mark(), NOW)
    read_log(world)
    assert world.partition.owes_caution
    world.command("cancel", key)
    answer_lookups(world)
    assert world.partition.lanes == {}
    assert not world.partition.owes_caution


def test_what_was_cut_off_announces_its_start_though_it_stands_in_the_log_only():
    world = after_an_unclean_stop()
    key = world.enqueue(due=-1)
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {}, Mark(), NOW)
    read_log(world)
    answer_lookups(world)
    assert [(fact.key, fact.outcome) for fact in world.facts] == [(key, STARTED)]
    assert [invocation.key for invocation in world.released] == [key]


def test_what_comes_after_the_take_announces_nothing():
    world = after_an_unclean_stop()
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {}, Mark(), NOW)
    read_log(world)
    key = world.enqueue(due=-1)
    answer_lookups(world)
    assert world.facts == []
    assert [invocation.key for invocation in world.released] == [key]


def test_an_owner_that_leaves_before_it_has_read_the_log_of_tasks_leaves_the_caution_to_the_next():
    world = after_an_unclean_stop()
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {}, Mark(), NOW)
    world.engine.noted_end(world.tenure, 0, NOW)
    world.pump()
    world.engine.confirmed(world.tenure, world.fence, 5, NOW)  # five records of `tasks` are still to be read
    world.engine.revoke(0, NOW)
    world.pump()
    assert [record.kind for record in world.log] == ["fence"]
