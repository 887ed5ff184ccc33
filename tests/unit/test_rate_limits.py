"""Rate limits of others: whoever runs into one, all that share it wait."""

import pytest

from scylla_spark.core.engine import rate_limits
from scylla_spark.core.engine.bounds import HandlerPolicy
from scylla_spark.core.engine.queue import QueueLimits
from scylla_spark.core.key import TaskKey
from scylla_spark.core.records.fact import Fact, OutcomeRecord
from scylla_spark.core.task import RATE_LIMITED, YIELDED, Failure
from tests.support.engine_harness import NOW, RETRY, SECOND, Harness
from tests.support.worker_harness import PullWorld


def names(invocations):
    return sorted(item.key.uniqueness_key for item in invocations)


def run_into(world, item, key="api.acme", after=90):
    """The attempt is told to wait."""
    world.finish(item, YIELDED, failure=Failure(RATE_LIMITED, key), after_ms=after * 1000)


def limited(world, key="api.acme", after=90):
    """One task runs into a rate limit."""
    world.enqueue("first", "first")
    (item,) = world.pump()
    run_into(world, item, key, after)
    assert world.pump() == []


def test_all_that_bear_the_key_as_a_tag_wait_and_others_do_not():
    world = Harness()
    world.enqueue("before", "before", due=10, tags=("api.acme",))
    limited(world)
    world.enqueue("a", "tagged", tags=("eu", "api.acme"))
    world.enqueue("b", "other", tags=("api.other",))
    world.enqueue("c", "plain")
    assert names(world.pump()) == ["other", "plain"]
    assert world.at(89) == []
    assert world.engine.next_wake() <= NOW + 90 * SECOND
    assert names(world.at(91)) == ["before", "first", "tagged"]


def test_all_whose_handler_is_registered_with_the_key_wait():
    world = Harness(
        terms=lambda command: HandlerPolicy(
            "local", 5000, RETRY, rate_keys=("api.acme",) if command.handler == "charge" else ()
        )
    )
    limited(world)
    world.enqueue("a", "charged", handler="charge")
    world.enqueue("b", "plain")
    assert names(world.pump()) == ["plain"]
    assert names(world.at(91)) == ["charged", "first"]


def test_what_waited_for_room_waits_for_the_limit_then():
    world = Harness(queues={"default": QueueLimits(concurrency=1)})
    world.enqueue("first", "first", priority=9)
    world.enqueue("a", "tagged", tags=("api.acme",))
    (item,) = world.pump()
    run_into(world, item)
    assert world.pump() == []
    (item,) = world.at(91)
    world.finish(item)
    assert names([item, *world.pump()]) == ["first", "tagged"]


def test_a_later_wait_counts_and_an_earlier_one_does_not_shorten_it():
    world = Harness()
    limited(world, after=10)
    world.enqueue("second", "second")
    (item,) = world.pump()
    run_into(world, item, after=60)
    world.enqueue("third", "third")
    (item,) = world.pump()
    run_into(world, item, after=5)
    world.enqueue("a", "tagged", tags=("api.acme",))
    assert names(world.at(11)) == ["first", "third"]
    assert names(world.at(61)) == ["second", "tagged"]


def test_a_task_of_two_limits_waits_for_both():
    world = Harness()
    limited(world, "one", 10)
    world.enqueue("second", "second")
    (item,) = world.pump()
    run_into(world, item, "two", 20)
    world.enqueue("a", "tagged", tags=("one", "two"))
    assert names(world.at(11)) == ["first"]
    assert names(world.at(21)) == ["second", "tagged"]


def test_workers_are_leased_nothing_that_shares_the_limit():
    world = PullWorld()
    world.put("first", "first", priority=9)
    world.put("a", "tagged", tags=("api.acme",), priority=5)
    world.put("b", "other", timeout_ms=1_000_000)
    (lease,) = world.leases(world.once(1))
    world.report(lease.token, "yielded", failure=Failure(RATE_LIMITED, "api.acme"), after_ms=30_000)
    assert [lease.key.uniqueness_key for lease in world.leases(world.once(9, lease_ms=600_000))] == ["other"]
    world.at(31)
    assert sorted(lease.key.uniqueness_key for lease in world.leases(world.once(9))) == ["first", "tagged"]


def test_what_waits_expires_and_is_cancelled_in_time():
    world = Harness()
    limited(world)
    world.enqueue("a", "late", tags=("api.acme",), expires_ms=5_000)
    gone = world.enqueue("b", "gone", tags=("api.acme",))
    world.pump()
    world.command("cancel", gone)
    world.at(6)
    ends = {fact.key.uniqueness_key: fact.outcome for fact in world.facts if fact.terminal}
    assert ends == {"late": "expired", "gone": "cancelled"}
    assert names(world.at(91)) == ["first"]


def test_a_lane_that_goes_on_waits_with_its_next_head():
    world = Harness()
    limited(world)
    world.enqueue("a", "2", due=-1, tags=("api.acme",))
    world.pump()
    world.enqueue("a", "1", due=-2)
    (item,) = world.pump()
    assert item.key.uniqueness_key == "1"
    world.finish(item)
    assert world.pump() == []
    assert names(world.at(91)) == ["2", "first"]


def test_a_slot_of_a_group_is_not_taken_by_what_waits():
    world = Harness(queues={"default": QueueLimits(group_concurrency=1)})
    limited(world)
    world.enqueue("g:a", "tagged", tags=("api.acme",), priority=9)
    world.enqueue("g:b", "plain")
    assert names(world.pump()) == ["plain"]


def test_tasks_of_a_lane_that_go_together_stop_at_the_one_that_waits():
    world = Harness(terms=lambda command: HandlerPolicy("local", 5000, RETRY, max_batch=10))
    limited(world)
    world.enqueue("a", "1")
    world.enqueue("a", "2", tags=("api.acme",))
    assert names(world.pump()) == ["1"]


def test_the_next_owner_knows_of_the_limit_by_the_task_that_ran_into_it():
    world = Harness()
    why = Failure(RATE_LIMITED, "api.acme")
    fact = Fact(TaskKey(NOW, "first", "first"), 1, YIELDED, NOW, NOW, used=0, next_us=NOW + 50 * SECOND, failure=why)
    world.append(OutcomeRecord(world.fence, "facts", (fact,)))
    world.enqueue("first", "first")
    world.enqueue("a", "tagged", tags=("api.acme",))
    assert world.pump() == []
    assert names(world.at(51)) == ["first", "tagged"]


@pytest.mark.parametrize(("key", "after"), [("", 10), (" ", 10), ("x" * 65, 10), ("api.acme", 0)])
def test_what_is_no_key_or_no_wait_holds_nothing_up(key, after):
    world = Harness()
    world.enqueue("first", "first")
    (item,) = world.pump()
    run_into(world, item, key, after)
    world.enqueue("a", "tagged", tags=("api.acme",))
    assert "tagged" in names(world.pump())


def test_limits_are_bounded_in_number_and_length(monkeypatch):
    monkeypatch.setattr(rate_limits, "MOST_KEYS", 1)
    world = Harness()
    limited(world, after=10 * 86_400)
    world.enqueue("second", "second")
    (item,) = world.pump()
    run_into(world, item, "another")
    world.enqueue("a", "tagged", tags=("api.acme",))
    world.enqueue("b", "other", tags=("another",))
    assert names(world.pump()) == ["other"]
    assert "tagged" in names(world.at(86_401))


def test_a_partition_that_is_left_leaves_nothing_behind():
    world = Harness()
    limited(world)
    world.enqueue("a", "tagged", tags=("api.acme",))
    world.pump()
    rates = world.engine._rates
    assert [len(held) for held in rates._held.values()] == [1]
    world.engine.drop(0)
    assert [len(held) for held in rates._held.values()] == [0]
