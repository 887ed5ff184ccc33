"""Tasks that expire: one that has not begun in time ends as such, for good and in the log, and its lane goes on."""

import pytest

from scylla_spark.core.engine.action import Lookup
from scylla_spark.core.engine.bounds import HandlerPolicy, Limits
from scylla_spark.core.engine.lane import NEVER_EXPIRES_US
from scylla_spark.core.engine.queue import QueueLimits
from scylla_spark.core.records.fact import FACTS, NEWER, Fact, Fence, decode, encode_facts
from scylla_spark.core.tables.progress import Basis
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.stored_records import Known, ScanRow
from scylla_spark.core.tasks.task import EXPIRED, FAILED, NOT_STARTED, STARTED, SUCCEEDED, Invocation
from tests.support.engine_harness import NOW, RETRY, SECOND, Harness
from tests.support.worker_harness import PullWorld

MINUTE_MS = 60_000


def harness(**queue):
    terms = HandlerPolicy("local", 5000, RETRY, queue.pop("max_batch", 1))
    return Harness(terms=lambda command: terms, queues={"default": QueueLimits(**queue)})


def ends(world):
    return [(fact.key.uniqueness_key, fact.outcome) for fact in world.facts if fact.terminal]


def test_a_task_of_a_paused_queue_ends_when_it_expires():
    world = harness(paused=True)
    world.enqueue(unique="late", expires_ms=MINUTE_MS)
    assert world.at(59) == []
    assert ends(world) == []
    assert world.engine.next_wake() == NOW + 60 * SECOND
    world.at(60)
    assert ends(world) == [("late", EXPIRED)]
    assert world.partition.lanes == {}


def test_the_fact_says_until_when_the_task_was_to_begin_and_whose_it_was():
    world = harness(paused=True)
    world.enqueue(expires_ms=MINUTE_MS)
    world.at(61)
    (fact,) = world.facts
    assert (fact.attempt, fact.used, fact.started_us, fact.queue, fact.handler) == (0, 0, 0, "default", "h")
    assert fact.failure.kind == EXPIRED
    assert "2023-11-14T22:14:20" in fact.failure.message


def test_a_task_that_has_begun_in_time_runs_on_and_is_tried_again_after_it_would_have_expired():
    world = harness()
    world.enqueue(expires_ms=MINUTE_MS)
    (first,) = world.pump()
    world.at(61)
    world.finish(first, FAILED)
    (second,) = world.at(70)
    world.finish(second)
    world.pump()
    assert second.attempt == 2
    assert second.expires_us == NEVER_EXPIRES_US
    assert ends(world) == [("u", SUCCEEDED)]


def test_what_waits_behind_a_task_of_its_lane_expires_when_its_turn_comes_and_the_lane_goes_on():
    world = harness()
    world.enqueue(unique="1")
    world.enqueue(unique="2", due=1, expires_ms=MINUTE_MS)
    world.enqueue(unique="3", due=2)
    (first,) = world.pump()
    assert world.at(100) == []
    world.finish(first)
    (third,) = world.pump()
    assert third.key.uniqueness_key == "3"
    assert ends(world) == [("1", SUCCEEDED), ("2", EXPIRED)]


@pytest.mark.parametrize("replay", [False, True])
def test_a_train_of_a_lane_leaves_out_what_has_expired(replay):
    world = harness(max_batch=10, replay=replay)
    world.now += 100 * SECOND
    world.enqueue(unique="1", due=0)
    world.enqueue(unique="2", due=1, expires_ms=MINUTE_MS)
    world.enqueue(unique="3", due=2)
    ran = []
    while released := world.pump():
        for one in released:
            ran.append(one.key.uniqueness_key)
            world.finish(one)
    assert ran == ["1", "3"]
    assert sorted(ends(world)) == [("1", SUCCEEDED), ("2", EXPIRED), ("3", SUCCEEDED)]


def test_what_an_executor_could_not_start_in_time_expires_when_it_is_handed_back():
    world = harness()
    world.enqueue(expires_ms=MINUTE_MS)
    (first,) = world.pump()
    assert first.expires_us == NOW + 60 * SECOND
    world.at(61)
    world.finish(first, NOT_STARTED)
    assert world.pump() == []
    assert ends(world) == [("u", EXPIRED)]


def test_an_executor_is_told_by_its_own_clock_until_when_a_task_may_start():
    one = Invocation(1, TaskKey(0, "a", "u"), 1, 1, "h", "q", "{}", 0, 0, 1000, start_by_us=500, expires_us=1_300)
    assert one.in_time(1_000).start_by_us == 300
    assert one.in_time(100) is one


def test_an_overwrite_moves_the_moment_of_expiring_and_may_take_it_away():
    world = harness(paused=True)
    world.enqueue(expires_ms=MINUTE_MS)
    world.enqueue(expires_ms=2 * MINUTE_MS)
    world.at(90)
    assert ends(world) == []
    world.enqueue()
    world.at(500)
    assert ends(world) == []
    world.enqueue(expires_ms=MINUTE_MS)
    world.pump()
    assert ends(world) == [("u", EXPIRED)]


def test_an_overwrite_that_the_tables_tell_of_counts_too():
    world = harness(paused=True)
    key = world.enqueue()
    world.pump()
    newer = world.partition.lanes["a"].find(key).data._replace(offset=7, expires_ms=MINUTE_MS)
    world.engine.rows(world.tenure, [ScanRow(newer, False, 0, 0, 0)], Basis(), world.now)
    world.at(61)
    assert ends(world) == [("u", EXPIRED)]


def test_a_cancel_before_the_end_wins_and_one_after_it_comes_too_late():
    world = harness(paused=True)
    key = world.enqueue(expires_ms=MINUTE_MS)
    world.at(61)
    world.command("cancel", key, request_id="r")
    world.pump()
    assert [(fact.outcome, fact.request_id) for fact in world.facts] == [(EXPIRED, None), ("too_late", "r")]
    assert world.enqueue(expires_ms=MINUTE_MS) == key
    world.at(300)
    assert ends(world) == [("u", EXPIRED)]


def test_a_task_that_may_have_ended_before_is_looked_up_before_it_expires():
    world = harness(paused=True)
    world.partition.ended.since_us = NOW + 10 * SECOND
    key = world.enqueue(expires_ms=MINUTE_MS)
    world.at(61)
    (lookup,) = [item for item in world.other if isinstance(item, Lookup)]
    assert (lookup.keys, ends(world)) == ([key], [])
    world.engine.looked_up(world.tenure, {key: Known(True)}, Basis(), world.now)
    world.pump()
    assert ends(world) == []
    assert world.partition.lanes == {}


def test_a_task_that_was_not_looked_up_as_ended_expires_then():
    world = harness(paused=True)
    world.partition.ended.since_us = NOW + 10 * SECOND
    key = world.enqueue(expires_ms=MINUTE_MS)
    world.at(61)
    world.engine.looked_up(world.tenure, {key: Known(False)}, Basis(), world.now)
    world.pump()
    assert ends(world) == [("u", EXPIRED)]


def test_an_announced_start_is_no_beginning():
    world = harness()
    world.partition.cautious = True
    world.enqueue(expires_ms=MINUTE_MS)
    world.pump(room=0)
    lane = world.partition.lanes["a"]
    lane.untouched = False
    (first,) = world.pump()
    assert [fact.outcome for fact in world.facts] == [STARTED]
    world.at(61)
    world.finish(first, NOT_STARTED)
    world.pump()
    assert [(fact.outcome, fact.attempt) for fact in world.facts] == [(STARTED, 1), (EXPIRED, 1)]


def test_a_task_for_workers_expires_while_nobody_leases_it_and_is_not_leased_after_that():
    world = PullWorld()
    world.put(expires_ms=MINUTE_MS)
    world.at(61)
    assert world.leases(world.once()) == []
    assert ends(world) == [("u", EXPIRED)]


def test_a_task_that_a_worker_has_leased_in_time_does_not_expire():
    world = PullWorld()
    world.put(expires_ms=MINUTE_MS)
    assert len(world.leases(world.once())) == 1
    world.at(61)
    assert EXPIRED not in [fact.outcome for fact in world.facts]


def test_no_more_expire_at_once_than_facts_may_be_unrecorded_and_all_do_in_the_end():
    def world_of_five():
        world = Harness(Limits(least_wait_us=0, max_unrecorded=2), queues={"default": QueueLimits(paused=True)})
        for number in range(5):
            world.enqueue(lane=str(number), expires_ms=MINUTE_MS)
        world.pump()
        world.now = NOW + 61 * SECOND
        return world

    world = world_of_five()
    world.pump(deliver=False)
    assert sorted(lane.state for lane in world.partition.lanes.values()) == ["ready"] * 3 + ["recording"] * 2
    world = world_of_five()
    for second in range(61, 65):
        world.at(second)
    assert ends(world) == [("u", EXPIRED)] * 5


# -- the format of facts ----------------------------------------------------------------------------------------------------


def test_a_group_that_tells_of_an_expired_task_has_a_version_of_its_own_so_that_older_readers_stop():
    fence, key = Fence(1, "n"), TaskKey(0, "a", "u")
    (plain,) = encode_facts(fence, [Fact(key, 1, SUCCEEDED)])
    (expired,) = encode_facts(fence, [Fact(key, 1, SUCCEEDED), Fact(key, 0, EXPIRED, finished_us=5)])
    assert plain.startswith(b'{"v":2,')
    assert expired.startswith(b'{"v":3,')
    read = decode(expired)
    assert read.kind == FACTS
    assert read.facts[1] == Fact(key, 0, EXPIRED, finished_us=5)
    assert decode(expired.replace(b'"v":3', b'"v":5')).kind == NEWER
