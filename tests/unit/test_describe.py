"""What a dispatcher says of tasks that do not start, and of those that run."""

import pytest

from scylla_spark.core.engine.queue import QueueLimits
from scylla_spark.core.task import RATE_LIMITED, YIELDED, Failure
from scylla_spark.services.dispatch.describe import explain
from tests.support.engine_harness import SECOND, Harness


@pytest.fixture
def world():
    return Harness(queues={"grouped": QueueLimits(group_concurrency=1)})


def why(world, key):
    return explain(world.engine, world.now, key)["why"]


def test_a_run_has_its_number_also_once_its_start_is_recorded(world):
    key = world.enqueue()
    (run,) = world.pump()
    assert "attempt 1" in why(world, key)
    world.engine.handed([run.id], world.now)
    world.now += 2 * SECOND
    world.engine.running({run.id: world.now - 2 * SECOND}, world.now)
    world.pump()
    assert world.partition.lanes["a"].active.attempt == 1, "its start counts"
    assert "attempt 1" in why(world, key)


def test_every_condition_that_is_not_met_is_told(world):
    world.enqueue(lane="shop:1", queue="grouped")
    world.pump()
    waiting = world.enqueue(lane="shop:2", queue="grouped")
    world.pump()
    told = explain(world.engine, world.now, waiting)["conditions"]
    assert [one["name"] for one in told if not one["met"]] == ["its group has room"]
    assert len(told) >= 9
    later = world.enqueue(lane="shop:1", unique="later", due=60, queue="grouped")
    told = explain(world.engine, world.now, later)["conditions"]
    assert [one["name"] for one in told if not one["met"]] == [
        "it is due",
        "it is the head of its lane",
        "its group has room",
    ]


def test_a_lane_whose_group_is_busy_says_so(world):
    world.enqueue(lane="shop:1", queue="grouped")
    waiting = world.enqueue(lane="shop:2", queue="grouped")
    world.pump()
    assert "group 'shop'" in why(world, waiting)


def test_what_waits_for_a_rate_limit_says_so(world):
    world.enqueue("first", "first", tags=("api.acme",))
    (item,) = world.pump()
    world.finish(item, YIELDED, failure=Failure(RATE_LIMITED, "api.acme"), after_ms=90_000)
    waiting = world.enqueue(tags=("api.acme",))
    world.pump()
    assert "rate limit 'api.acme'" in why(world, waiting)
    told = explain(world.engine, world.now, waiting)["conditions"]
    assert [one["name"] for one in told if not one["met"]] == ["no rate limit that it shares is waited for"]
    assert "api.acme" in next(one["detail"] for one in told if not one["met"])
