"""Leases of which a new owner knows from the log alone, because its scan has left their lanes in the tables."""

import random

import pytest

from scylla_spark.core.engine import action
from scylla_spark.core.engine.bounds import Limits
from scylla_spark.core.engine.engine import Engine
from scylla_spark.core.leases.messages import OK
from scylla_spark.core.records.command import Command, WireRetry
from scylla_spark.core.tables.progress import Basis, Mark
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.stored_records import ScanRow
from scylla_spark.core.tasks.task import Failure
from scylla_spark.name_fingerprint import fingerprint
from tests.support.engine_harness import NOW, SECOND
from tests.support.worker_harness import PullWorld


def take_over_blindly(world):
    """The next owner reads the log of outcomes; of the tables it knows only that they hold more of each lane, before its scan."""
    log, now = world.log, world.now
    engine = Engine(
        world.engine._state.policy_of, Limits(least_wait_us=0), random.Random(5),
        queues={"gpu": world.engine.gate("gpu").limits},
    )  # fmt: skip
    world.engine, world.other, world.sequences = engine, [], {}
    world.tenure = engine.assign(0, Mark(), now)
    engine.raise_horizon(world.tenure, now + 300 * SECOND)
    engine.noted_end(world.tenure, len(log), now)
    engine.outcome_records(world.tenure, list(enumerate(log)), len(log), now)
    world.pump()
    engine.confirmed(world.tenure, world.fence, 0, now)
    lanes = {fingerprint(fact.key.ordering_id) for record in log for fact in record.facts}
    engine.scanned(world.tenure, now + 300 * SECOND, {}, Mark(1_000, 0), now, frozenset(lanes))
    world.pump()


def the_row_is_read(world, **fields):
    (asked,) = [item for item in world.other if isinstance(item, action.Reload)]
    row = ScanRow(Command("enqueue", TaskKey(NOW, "a", "u"), 3, "train", "gpu", **fields))
    world.engine.reloaded(world.tenure, asked.ordering_id, [row], Basis(1_000, 0), world.now, more=False)


def taken_over_from_an_older_version(**limits):
    """A lease whose owner before wrote no queue into its start, at its next owner; and what its worker was given."""
    world = PullWorld(**limits)
    world.put(handler="train")
    (lease,) = world.leases(world.once(1))
    world.log[:] = [
        record._replace(facts=tuple(fact._replace(queue=None, handler=None) for fact in record.facts))
        for record in world.log
    ]
    take_over_blindly(world)
    return world, lease


@pytest.mark.parametrize("is_read", [False, True])
def test_a_lease_known_from_the_log_alone_goes_by_its_own_queue(is_read):
    world = PullWorld(group_concurrency=1, redelivers=True)
    world.put(handler="train", tags=("red",))
    (lease,) = world.leases(world.once(1))
    take_over_blindly(world)
    assert world.engine.gate("gpu").running == 1
    if is_read:
        the_row_is_read(world, tags=("red",), priority=7)
        assert [lease.run.invocation.priority for lease in world.engine.leases] == [7]
        assert world.engine.gate("gpu").running == 1
    assert world.report(lease.token, result="false") == OK
    assert [fact.outcome for fact in world.facts if fact.outcome != "started"] == ["yielded"]
    assert (world.engine.gate("gpu").running, world.engine.gate("default").running) == (0, 0)


def test_the_end_of_a_lease_known_from_the_log_alone_names_its_queue_and_handler():
    world = PullWorld()
    world.put(handler="train", tags=("red",))
    (lease,) = world.leases(world.once(1))
    take_over_blindly(world)
    assert world.report(lease.token) == OK
    end = world.facts[-1]
    assert (end.outcome, end.queue, end.handler, end.tags) == ("succeeded", "gpu", "train", ("red",))


def test_a_lease_known_from_the_log_alone_is_retried_as_its_task_says_once_that_is_read():
    world = PullWorld()
    world.put(handler="train", retry=WireRetry(0, 1_000, 1_000))
    (lease,) = world.leases(world.once(1))
    take_over_blindly(world)
    the_row_is_read(world, retry=WireRetry(0, 1_000, 1_000))
    assert world.report(lease.token, "failed", failure=Failure("OSError", "no")) == OK
    assert world.facts[-1].terminal


def test_a_stub_whose_record_named_no_queue_moves_to_its_own_once_it_is_read():
    world, lease = taken_over_from_an_older_version(group_concurrency=1)
    assert (world.engine.gate("gpu").running, world.engine.gate("default").running) == (0, 1)
    the_row_is_read(world)
    assert (world.engine.gate("gpu").running, world.engine.gate("default").running) == (1, 0)
    assert world.report(lease.token) == OK
    assert (world.engine.gate("gpu").running, world.engine.gate("default").running) == (0, 0)


def test_facts_of_a_stub_whose_record_named_no_queue_name_none():
    world, lease = taken_over_from_an_older_version()
    assert world.sign(lease.token, checkpoint="1") == OK
    world.at(5)
    assert [fact.queue for fact in world.facts if fact.outcome == "started"][-1] is None
    assert world.report(lease.token) == OK
    assert (world.facts[-1].outcome, world.facts[-1].queue, world.facts[-1].handler) == ("succeeded", None, None)


@pytest.mark.parametrize("what", ["update", "fence"])
def test_a_lease_that_has_ended_does_not_come_back_when_its_task_is_let_go_of(what):
    retry = WireRetry(9, 3_600_000, 3_600_000)
    world = PullWorld(limits=Limits(least_wait_us=0, max_held_bytes=60 * 1024, lane_depth=4))
    key = world.put(retry=retry)
    (lease,) = world.leases(world.once(1))
    take_over_blindly(world)
    the_row_is_read(world, retry=retry)
    assert world.report(lease.token, "failed", failure=Failure("OSError", "no")) == OK
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {}, Mark(1_000, len(world.log)), world.now)
    for n in range(100):
        world.put(lane=f"later{n}", due=200)
    world.pump()
    if what == "update":
        world.command("enqueue", key, queue="gpu", retry=retry)
    else:
        world.engine.sent(world.tenure, world.fence, ok=False, now=world.now)
        world.pump()
        world.engine.confirmed(world.tenure, world.fence, 0, world.now)
    world.pump()
    assert list(world.engine.leases) == []
    assert world.engine.gate("gpu").running == 0
