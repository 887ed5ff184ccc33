"""What a dispatcher says of tasks that do not start, and of those that run."""

import pytest

from scylla_spark.core.engine.queue import QueueLimits
from scylla_spark.core.tables.progress import Mark
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import RATE_LIMITED, YIELDED, Failure
from scylla_spark.services.dispatch.describe import explain
from tests.support.engine_harness import NOW, SECOND, Harness


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
        "it is the head of its lane",
        "it is due",
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


def unmet(told):
    return {one["name"]: one["detail"] for one in told["conditions"] if not one["met"]}


def behind(world):
    """A world whose tables were last scanned up to 300 s; the next scan waits for a record that ingest has not written."""
    world.enqueue("far", "far", due=900)
    world.engine.raise_horizon(world.tenure, world.now + 600 * SECOND)
    return world


def test_what_is_due_before_the_tables_have_been_scanned_so_far_says_so(world):
    behind(world)
    key = world.enqueue(due=310)
    world.at(310)
    told = explain(world.engine, world.now, key)
    assert told["why"].startswith("It is due, but the tables may hold tasks of its lane that go before it")
    assert "scanned up to 2023-11-14T22:18:20" in told["why"]
    assert "ingest, which was 1 record behind" in told["why"]
    assert list(unmet(told)) == ["the tables have been scanned up to its time"]
    world.engine.scanned(world.tenure, world.now + 600 * SECOND, {}, Mark(tasks_offset=9), world.now)
    assert unmet(explain(world.engine, world.now, key)) == {"somebody can run it": "it waits for room in the executor"}
    world.pump()
    assert "It is running" in why(world, key)


def test_what_runs_on_a_spark_worker_names_its_executor_and_its_host(world):
    key = world.enqueue()
    (item,) = world.pump()
    world.engine.noted({item.id: WorkNote(worker="executor 3 on host-b")}, {item.id: world.now}, world.now)
    world.pump()
    assert why(world, key).endswith("on executor 3 on host-b.")


def test_a_task_that_is_not_loaded_waits_for_what_its_dispatcher_says(world):
    beyond = TaskKey(NOW + 900 * SECOND, "x", "u")
    assert "comes within the look-ahead, which ends at 2023-11-14T22:18:20" in why(world, beyond)
    behind(world)
    stored = TaskKey(NOW + 310 * SECOND, "x", "u")
    assert "reads it from the tables: they have been scanned up to 2023-11-14T22:18:20" in why(world, stored)
    assert list(unmet(explain(world.engine, world.now, stored))) == [
        "the tables have been scanned up to its time",
        "its dispatcher has loaded it",
    ]
    world.partition.leave("left", 3)
    left = TaskKey(NOW, "left", "u")
    assert "has left it in the tables" in why(world, left)
    assert "its lane is not left in the tables" in unmet(explain(world.engine, world.now, left))
    assert "its record has not been read yet" in why(world, TaskKey(NOW, "x", "u"))
