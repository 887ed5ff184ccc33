"""A defect of ours that one record meets ends that task as failed, and nothing else."""

import pytest

from scylla_spark import failpoint
from scylla_spark.core.engine.queue import QueueLimits
from scylla_spark.core.records.command import Command
from scylla_spark.core.records.fact import Fact, OutcomeRecord
from scylla_spark.core.tables.progress import Basis
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.stored_records import ScanRow
from scylla_spark.core.tasks.task import FAILED, SUCCEEDED
from tests.support.engine_harness import NOW, SECOND, Harness


@pytest.fixture
def planted(monkeypatch):
    """Arms fail points that records meet whose uniqueness key is poison."""

    def arm(name):
        monkeypatch.setattr(failpoint, "armed", {name: (failpoint.RAISE, 1)})

    return arm


def told(world):
    return [(fact.key.uniqueness_key, fact.outcome, fact.failure and fact.failure.kind) for fact in world.facts]


@pytest.mark.parametrize("point", ["engine.offer", "engine.release"])
def test_a_record_that_meets_a_defect_is_set_aside_and_its_lane_goes_on(planted, point):
    world = Harness()
    planted(point)
    world.enqueue(unique="poison")
    world.enqueue(unique="sound")
    world.enqueue(lane="b", unique="sound")
    ran = [*world.pump(), *world.pump()]
    assert sorted(i.key.uniqueness_key for i in ran) == ["sound", "sound"]
    assert ("poison", FAILED, "defect") in told(world)
    assert world.engine.counts["defects"] == 1
    assert "InjectedFault" in next(fact.failure.stack for fact in world.facts if fact.failure)
    assert len(world.engine.take_defects()) == 1


def test_a_row_of_the_tables_that_meets_a_defect_is_set_aside(planted):
    world = Harness()
    planted("engine.row")
    keys = [TaskKey(NOW - SECOND, "a", unique) for unique in ("poison", "sound")]
    rows = [ScanRow(Command("enqueue", key, n, "h")) for n, key in enumerate(keys)]
    world.engine.rows(world.tenure, rows, Basis(), NOW)
    assert [i.key.uniqueness_key for i in world.pump()] == ["sound"]
    assert told(world) == [("poison", FAILED, "defect")]


def test_a_task_that_meets_a_defect_when_it_expires_is_set_aside_and_its_lane_goes_on(planted):
    world = Harness(queues={"paused": QueueLimits(paused=True)})
    world.enqueue(unique="poison", queue="paused", expires_ms=1000)
    world.enqueue(unique="sound", due=1)
    planted("engine.expire")
    assert [i.key.uniqueness_key for i in [*world.at(2), *world.at(3)]] == ["sound"]
    assert ("poison", FAILED, "defect") in told(world)


def test_a_fact_that_meets_a_defect_keeps_no_other_fact_from_counting(planted):
    world = Harness()
    planted("engine.fact")
    facts = tuple(Fact(TaskKey(NOW, "a", unique), 1, SUCCEEDED) for unique in ("poison", "sound"))
    world.append(OutcomeRecord(world.fence, "facts", facts))
    assert [fact.key in world.partition.ended for fact in facts] == [False, True]
    assert world.engine.counts["defects"] == 1


@pytest.mark.parametrize("point", ["engine.offer", "engine.release"])
def test_memory_that_is_short_is_no_defect_of_a_task(planted, monkeypatch, point):
    world = Harness()
    planted(point)

    def short(*_args):
        raise MemoryError

    def meet():
        world.enqueue()
        world.pump()

    monkeypatch.setattr(failpoint, "reach", short)
    with pytest.raises(MemoryError):
        meet()
    assert told(world) == []
