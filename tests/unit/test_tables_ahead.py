"""Tables that are ahead of the tail: what they tell of later tasks must not pass what the tail has not brought yet."""

import pytest

from scylla_spark.core.engine.action import Lookup
from scylla_spark.core.engine.queue import QueueLimits
from scylla_spark.core.records.command import CANCEL, Command
from scylla_spark.core.tables.progress import Basis, Mark
from scylla_spark.core.tasks.key import HOUR_US, TaskKey
from scylla_spark.core.tasks.stored_records import Known, ScanRow
from scylla_spark.core.tasks.task import CANCELLED
from tests.support.engine_harness import NOW, SECOND, Harness

EARLY = TaskKey(NOW + SECOND, "a", "u1")  # stands in the log at 0, and is due within what was scanned before
LATER = TaskKey(NOW + 310 * SECOND, "a", "u2")  # at 1


def read_further(world):
    world.engine.raise_horizon(world.tenure, NOW + 600 * SECOND)
    world.now = NOW + 320 * SECOND
    world.engine.rows(world.tenure, [row(LATER, 1)], Basis(2), world.now, whole=False)
    world.engine.scanned(world.tenure, NOW + 600 * SECOND, {}, Mark(2), world.now)


def reload_further(world):
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {"a": TaskKey(NOW + 2 * SECOND, "a", "u")}, Mark(2), NOW)
    world.engine.raise_horizon(world.tenure, NOW + 600 * SECOND)
    world.engine.scanned(world.tenure, NOW + 600 * SECOND, {}, Mark(2), NOW)
    world.now = NOW + 320 * SECOND
    world.engine.reloaded(world.tenure, "a", [row(LATER, 1)], Basis(2), world.now, more=False)


def row(key, offset, **fields):
    return ScanRow(Command("enqueue", key, offset, "h"), **fields)


@pytest.mark.parametrize("reads", [read_further, reload_further])
def test_a_later_task_of_the_tables_waits_for_an_earlier_one_that_the_tail_has_still_to_bring(reads):
    world = Harness()
    reads(world)
    assert world.pump() == []
    world.engine.commands(
        world.tenure, [Command("enqueue", EARLY, 0, "h"), Command("enqueue", LATER, 1, "h")], 2, world.now
    )
    ran = []
    for _ in range(4):
        for invocation in world.pump():
            ran.append(invocation.key)
            world.finish(invocation)
        for asked in [item for item in world.other if isinstance(item, Lookup)]:
            world.engine.looked_up(world.tenure, {key: Known() for key in asked.keys}, Basis(2), world.now)
    assert ran == [EARLY, LATER]


def test_a_task_that_the_tail_has_come_to_is_taken_from_the_tables():
    world = Harness()
    world.read_on(2)
    read_further(world)
    assert [invocation.key for invocation in world.pump()] == [LATER]


def test_what_has_begun_is_taken_from_the_tables_wherever_the_tail_is():
    world = Harness()
    world.engine.raise_horizon(world.tenure, NOW + 600 * SECOND)
    world.engine.rows(world.tenure, [row(LATER, 1, attempt=1, used=1)], Basis(2), world.now, whole=False)
    assert world.partition.lanes["a"].find(LATER).attempt == 1


def test_a_key_of_a_closed_hour_is_looked_up_since_no_scan_tells_that_an_earlier_owner_has_ended_it():
    world = Harness()
    hour = NOW // HOUR_US + 1
    key = TaskKey(hour * HOUR_US, "a", "u1")
    world.now = key.time_us + 40 * HOUR_US  # the machine was suspended between two scans
    world.engine.raise_horizon(world.tenure, world.now)
    world.engine.scanned(world.tenure, world.now, {}, Mark(1, 1, closed_hour=hour + 1), world.now)
    world.command(CANCEL, key, request_id="r")
    world.pump()
    (asked,) = [item for item in world.other if isinstance(item, Lookup)]
    assert (asked.keys, [fact.outcome for fact in world.facts]) == ([key], [])
    world.engine.looked_up(world.tenure, {key: Known(ended=True)}, Basis(1, 1), world.now)
    world.pump()
    assert CANCELLED not in [fact.outcome for fact in world.facts]


def test_a_cancel_ends_a_due_task_of_a_paused_queue_once_the_tables_have_answered():
    world = Harness(queues={"stopped": QueueLimits(paused=True)})
    world.partition.ended.since_us = NOW + 2 * SECOND  # ends before that are forgotten: the tables know
    key = world.enqueue(due=1, queue="stopped")
    world.at(2)
    world.command(CANCEL, key, request_id="r")
    world.pump()
    (asked,) = [item for item in world.other if isinstance(item, Lookup)]
    world.engine.looked_up(world.tenure, {key: Known()}, Basis(2), world.now)
    world.pump()
    assert (asked.keys, [(fact.outcome, fact.request_id) for fact in world.facts]) == ([key], [(CANCELLED, "r")])
