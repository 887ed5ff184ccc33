"""Which part of the children one queue may hold: tasks that run for long leave some of them to other queues."""

import pytest

from scylla_spark.core.engine.bounds import HandlerPolicy, Limits
from scylla_spark.core.engine.queue import QueueLimits
from scylla_spark.core.engine.shares_of_children import most_of
from scylla_spark.core.tasks.task import SUCCEEDED, Outcome
from scylla_spark.services.dispatch.describe import describe_waiting, explain
from tests.support.engine_harness import RETRY, SECOND, Harness

CHILDREN = 16


class World(Harness):
    """An engine whose executor has so many children."""

    def __init__(self, children=CHILDREN, **queues):
        self.children, self.running = children, []
        policy = HandlerPolicy("local", 1_000_000, RETRY, children=children)
        super().__init__(Limits(least_wait_us=0), terms=lambda _: policy, queues=queues or None)

    def fill(self):
        """Releases what there is room for; what was released so far runs on."""
        self.running += self.pump(room=self.children - len(self.running))
        return self.running

    def end(self, invocation, after_s=10.0):
        began, self.now = self.now, self.now + int(after_s * SECOND)
        self.running.remove(invocation)
        self.engine.finished([Outcome(invocation.id, SUCCEEDED, began, self.now)], self.now)


@pytest.mark.parametrize(("children", "most"), [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4), (10, 8), (16, 13), (100, 80)])
def test_the_last_fifth_is_for_others_and_with_few_children_one(children, most):
    assert most_of(children) == most


def test_long_tasks_of_one_queue_leave_children_to_others():
    world = World()
    for number in range(60):
        world.enqueue(lane=f"a{number:02}", queue="bulk")
    assert len(world.fill()) == 13
    other = world.enqueue(lane="b", queue="mail")
    assert world.fill()[-1].key == other
    world.end(world.running[0])
    assert len(world.fill()) == 14, "one of the first queue takes the place of the one that has ended"
    assert [one.queue for one in world.running].count("bulk") == 13


def test_nothing_of_a_queue_that_had_to_wait_is_forgotten():
    world = World(children=5)
    keys = [world.enqueue(lane=f"a{number:02}", queue="bulk") for number in range(20)]
    ended = []
    while len(ended) < len(keys):
        one = world.fill()[0]
        assert len(world.running) <= 4
        ended.append(one.key)
        world.end(one)
    assert sorted(ended) == sorted(keys)


def test_the_concurrency_of_a_queue_says_how_many_it_may_hold():
    world = World(bulk=QueueLimits(concurrency=CHILDREN))
    for number in range(60):
        world.enqueue(lane=f"a{number:02}", queue="bulk")
    assert len(world.fill()) == CHILDREN


def test_quick_tasks_are_not_counted_since_many_share_one_child():
    world = World()
    world.enqueue(lane="first", queue="bulk")
    world.end(world.fill()[0], after_s=0.0001)
    for number in range(60):
        world.enqueue(lane=f"a{number:02}", queue="bulk")
    assert len(world.pump(room=60)) == 60


def test_a_single_child_is_everybodys():
    world = World(children=1)
    world.enqueue(lane="a", queue="bulk")
    assert len(world.fill()) == 1


def test_lanes_that_wait_for_their_queue_to_hold_less_go_when_they_are_cancelled_or_the_queue_is_changed():
    world = World(children=2)
    first = world.enqueue(lane="a", queue="bulk")
    waiting = world.enqueue(lane="b", queue="bulk")
    world.fill()
    world.enqueue(lane="c", queue="bulk")
    world.command("cancel", waiting)
    world.pump(room=1)
    assert [fact.key for fact in world.facts if fact.terminal] == [waiting]
    world.engine.put_queue("bulk", QueueLimits(concurrency=2), world.now)
    assert [one.key.ordering_id for one in world.fill()] == ["a", "c"]
    assert world.running[0].key == first


def test_the_answer_to_why_names_the_queue_that_holds_the_children():
    world = World()
    keys = [world.enqueue(lane=f"a{number:02}", queue="bulk") for number in range(14)]
    world.fill()
    told = explain(world.engine, world.now, keys[-1])
    assert "queue 'bulk' holds 13 of its 16 children" in told["why"]
    assert [one["name"] for one in told["conditions"] if not one["met"]] == ["its queue may hold another child"]
    other = world.enqueue(lane="b", queue="mail")
    assert "queue 'bulk' holds 13 of its 16 children" in explain(world.engine, world.now, other)["why"]
    holding = describe_waiting(world.engine)["holding"]
    assert holding == [{"queue": "bulk", "executor": "local", "held": 13, "children": 16, "lanes": 2}]
