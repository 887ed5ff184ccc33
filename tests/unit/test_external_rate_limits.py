"""Rate limits of others: whoever runs into one, all that share it wait."""

import pytest

from scylla_spark.core.engine import action, external_rate_limits
from scylla_spark.core.engine.bounds import HandlerPolicy, Limits
from scylla_spark.core.engine.queue import QueueLimits
from scylla_spark.core.records.fact import Fact, OutcomeRecord
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import RATE_LIMITED, YIELDED, Failure
from tests.support.engine_harness import NOW, RETRY, SECOND, Harness
from tests.support.worker_harness import PullWorld


def names(invocations):
    return sorted(item.key.uniqueness_key for item in invocations)


def run_into(world, item, key="api.acme", after=90):
    """The attempt is told to wait."""
    world.finish(item, YIELDED, failure=Failure(RATE_LIMITED, key), after_ms=after * 1000)


def limited(world, key="api.acme", after=90):
    """One task runs into a rate limit."""
    world.enqueue("first", "first", tags=(key,))
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
    world.enqueue("first", "first", priority=9, tags=("api.acme",))
    world.enqueue("a", "tagged", tags=("api.acme",))
    (item,) = world.pump()
    run_into(world, item)
    assert world.pump() == []
    (item,) = world.at(91)
    world.finish(item)
    assert names([item, *world.pump()]) == ["first", "tagged"]


def test_a_later_wait_counts_and_an_earlier_one_does_not_shorten_it():
    world = Harness()
    for name in ("1", "2", "3"):
        world.enqueue(name, name, tags=("api.acme",))
    for item, after in zip(sorted(world.pump(), key=lambda item: item.key), (10, 60, 5), strict=True):
        run_into(world, item, after=after)
    world.enqueue("a", "tagged", tags=("api.acme",))
    assert world.at(59) == []
    assert names(world.at(61)) == ["1", "2", "3", "tagged"]


def test_a_task_of_two_limits_waits_for_both():
    world = Harness()
    limited(world, "one", 10)
    world.enqueue("second", "second", tags=("two",))
    (item,) = world.pump()
    run_into(world, item, "two", 20)
    world.enqueue("a", "tagged", tags=("one", "two"))
    assert names(world.at(11)) == ["first"]
    assert names(world.at(21)) == ["second", "tagged"]


def test_workers_are_leased_nothing_that_shares_the_limit():
    world = PullWorld()
    world.put("first", "first", priority=9, tags=("api.acme",))
    world.put("a", "tagged", tags=("api.acme",), priority=5)
    world.put("b", "other", timeout_ms=1_000_000)
    (lease,) = world.leases(world.once(1))
    world.report(lease.token, "yielded", failure=Failure(RATE_LIMITED, "api.acme"), after_ms=30_000)
    assert [lease.task.key.uniqueness_key for lease in world.leases(world.once(9, lease_ms=600_000))] == ["other"]
    world.at(31)
    assert sorted(lease.task.key.uniqueness_key for lease in world.leases(world.once(9))) == ["first", "tagged"]


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
    world.enqueue("first", "first", tags=("api.acme",))
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
    monkeypatch.setattr(external_rate_limits, "MOST_KEYS", 1)
    world = Harness()
    limited(world, after=10 * 86_400)
    world.enqueue("second", "second", tags=("another",))
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
    assert rates._held == {}


# -- who may hold others up --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tags", [(), ("gpu",)])
def test_only_a_task_that_shares_a_limit_runs_into_it(tags):
    world = Harness(
        terms=lambda command: HandlerPolicy(
            "local", 5000, RETRY, rate_keys=("mine",) if command.handler == "own" else ()
        )
    )
    world.enqueue("first", "first", tags=tags)
    world.enqueue("own", "own", handler="own")
    one, other = sorted(world.pump(), key=lambda item: item.key)
    run_into(world, one, "billing")
    run_into(world, other, "mine")
    world.enqueue("b", "bill", tags=("billing",))
    world.enqueue("c", "mine", tags=("mine",))
    assert names(world.pump()) == ["bill"]
    assert world.engine.counts["rate_limits_refused"] == 1


def test_a_worker_holds_up_nothing_whose_key_it_only_knows():
    world = PullWorld()
    world.put("first", "first", tags=("gpu",))
    (lease,) = world.leases(world.once(1))
    world.report(lease.token, "yielded", failure=Failure(RATE_LIMITED, "billing"), after_ms=10**9)
    world.enqueue("b", "bill", tags=("billing",), queue="billing")
    assert names(world.pump()) == ["bill"]


def test_a_limit_lasts_a_day_from_the_attempt_that_ran_into_it_whoever_reads_of_it_when():
    world = Harness()
    limited(world, after=10 * 86_400)
    (fact,) = [fact for fact in world.facts if fact.outcome == YIELDED]
    assert fact.next_us - fact.finished_us == 86_400 * SECOND


# -- the clock ---------------------------------------------------------------------------------------------------------


def test_a_clock_that_is_set_back_makes_no_limit_longer_than_a_day():
    world = Harness()
    world.enqueue("first", "first", tags=("api.acme",))
    world.at(365 * 86_400)
    (item,) = world.released
    run_into(world, item)
    world.pump()
    world.now = NOW
    world.engine.doubt(NOW)
    world.pump()
    world.engine.confirmed(world.tenure, world.fence, 0, NOW)
    world.enqueue("a", "tagged", tags=("api.acme",))
    assert world.pump() == []
    assert names(world.at(86_401)) == ["tagged"]


# -- memory ------------------------------------------------------------------------------------------------------------


def crowded(**fields):
    """Many lanes of one task each that wait for a limit for hours, in a dispatcher of little memory."""
    world = Harness(limits=Limits(least_wait_us=0, max_held_bytes=300_000), **fields)
    limited(world, after=3_600)
    for number in range(1_000):
        world.enqueue(f"l{number}", "u", tags=("api.acme",), payload="x" * 300)
        if number % 50 == 0:
            world.pump()
    world.at(5)
    return world


@pytest.mark.slow
def test_what_waits_long_is_left_to_the_tables_where_memory_is_short():
    world = crowded()
    assert not world.engine.choked
    assert world.engine.held_bytes < 300_000
    world.enqueue("other", "other")
    assert names(world.pump()) == ["other"]


@pytest.mark.slow
def test_the_tables_are_looked_at_when_a_limit_is_over_for_whose_sake_tasks_were_left():
    world = crowded()
    assert not [item for item in world.other if isinstance(item, action.LookAgain)]
    world.at(3_601)
    assert len([item for item in world.other if isinstance(item, action.LookAgain)]) == 1
    limited_again = Harness()
    limited(limited_again)
    limited_again.at(91)
    assert not [item for item in limited_again.other if isinstance(item, action.LookAgain)], "nothing was left"


def test_lanes_that_go_on_by_themselves_are_not_kept(monkeypatch):
    monkeypatch.setattr(external_rate_limits, "_SLACK", 50)
    world = Harness()
    world.engine._rates._sweep_at = 50
    limited(world, after=3_600)
    waits = world.enqueue("waits", "waits", tags=("api.acme",))
    for turn in range(20):
        for number in range(50):
            world.enqueue(f"{turn}-{number}", "u", due=3 * turn, tags=("api.acme",), expires_ms=1_000)
        world.at(3 * turn)
        world.at(3 * turn + 2)
    (places,) = world.engine._rates._held.values()
    assert waits in [place.lane.active.key for place in places if place.lane.active is not None]
    assert len(places) <= 2 * 51 + 50


# -- one place at a time -----------------------------------------------------------------------------------------------


def asked_for(world, key, **call):
    return world.leases(world.once(1, key=key, **call))


def test_a_task_that_waits_for_a_limit_and_is_asked_for_by_its_key_starts_once_where_dispatchers_run_it_then():
    world = PullWorld()
    limited(world, after=30)
    key = world.put("a", "u", tags=("api.acme",))
    world.pump()
    assert asked_for(world, key) == []
    world.engine.put_queue("gpu", QueueLimits(), world.now)
    world.pump(room=0)
    started = [item for item in world.at(31) if item.key == key]
    assert len(started) == 1
    for item in world.released[-2:]:
        world.finish(item)
    world.pump()
    assert "a" not in world.partition.lanes


def test_a_task_without_a_slot_for_its_group_that_is_asked_for_by_its_key_starts_once():
    world = PullWorld(group_concurrency=1)
    world.put("g:x", "hold")
    (lease,) = world.leases(world.once(1))
    key = world.put("g:a", "u")
    for _ in range(3):
        assert asked_for(world, key) == []
    world.engine.put_queue("gpu", QueueLimits(), world.now)
    assert [item.key for item in world.pump()] == [key]
    assert world.report(lease.token) == "ok"


def test_asking_by_key_counts_a_lane_once_in_its_queue():
    world = PullWorld()
    world.put("a", "u", tags=("api.acme",))
    key = world.put("b", "u", tags=("api.acme",))
    world.enqueue("first", "first", tags=("api.acme",))
    (item,) = world.pump()
    for turn in range(3):
        run_into(world, item, after=10)
        world.pump()
        assert asked_for(world, key) == []
        (item,) = world.at((turn + 1) * 10.1)
        assert world.engine.scarcity("gpu", world.now).ready == 2


def test_who_is_leased_by_key_gives_the_slot_that_others_of_its_group_wait_for():
    world = PullWorld(group_concurrency=1)
    world.put("g:x", "hold")
    (lease,) = world.leases(world.once(1))
    keys = [world.put(f"g:{number}", "u") for number in range(3)]
    assert world.leases(world.once(1)) == []
    world.report(lease.token)
    (lease,) = asked_for(world, keys[2])
    assert asked_for(world, keys[1]) == []
    world.report(lease.token)
    for _ in range(2):
        (lease,) = world.leases(world.once(1))
        world.report(lease.token)
    assert world.leases(world.once(1)) == []
