"""Answers that come late: of an earlier tenure, of an earlier fence, or of tables that were read before something was forgotten."""

import pytest

from scylla_spark.core.engine import action
from scylla_spark.core.engine.bounds import Limits
from scylla_spark.core.records.command import Command
from scylla_spark.core.records.fact import Fact, Fence, OutcomeRecord
from scylla_spark.core.tables.progress import Basis, Mark
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.stored_records import Known, ScanRow
from scylla_spark.core.tasks.task import CANCELLED, FAILED, STARTED, SUCCEEDED
from tests.support.engine_harness import NOW, SECOND, Harness

KEY = TaskKey(NOW, "a", "u")
ROW = ScanRow(Command("enqueue", KEY, 0, "h"))


def of_kind(world, kind):
    found = [item for item in world.other if isinstance(item, kind)]
    world.other = [item for item in world.other if item not in found]
    return found


@pytest.mark.parametrize(
    "late",
    [
        lambda engine, old: engine.rows(old, [ROW], Basis(), NOW),
        lambda engine, old: engine.commands(old, [ROW.command], 99, NOW),
        lambda engine, old: engine.looked_up(old, {KEY: Known(ended=True)}, Basis(), NOW),
        lambda engine, old: engine.remember_cancelled(old, [KEY]),
        lambda engine, old: engine.noted_end(old, 0, NOW),
        lambda engine, old: engine.scanned(old, NOW, {}, Mark(), NOW),
        lambda engine, old: engine.outcome_records(old, [(0, OutcomeRecord(Fence(9, "x"), "fence"))], 50, NOW),
    ],
)
def test_an_answer_to_an_earlier_tenure_is_dropped(late):
    world = Harness()
    old = world.tenure
    world.engine.assign(0, Mark(), NOW)
    taken = world.engine.partitions[0]
    late(world.engine, old)
    assert (taken.lanes, taken.cancelled, taken.scanned, taken.outcomes_end) == ({}, {}, False, None)
    assert (taken.tasks_position, taken.outcomes_position, taken.log.fence.epoch) == (0, 0, 0)


def test_records_of_outcomes_that_were_read_before_are_passed_over():
    world = Harness()
    position = world.partition.outcomes_position
    world.engine.outcome_records(world.tenure, [(0, OutcomeRecord(Fence(99, "thief"), "fence"))], 1, NOW)
    assert world.engine.partitions[0].outcomes_position == position


def test_a_confirmation_asked_for_under_an_earlier_fence_does_not_count():
    world = Harness()
    first = world.fence
    world.engine.doubt(world.now)
    world.pump()
    world.engine.confirmed(world.tenure, first, 0, world.now)
    assert world.partition.state == "loading"
    world.engine.confirmed(world.tenure, world.fence, 0, world.now)
    assert world.partition.state == "active"


def test_after_two_failed_sends_the_newest_fence_holds_and_the_partition_is_kept():
    world = Harness()
    sent = world.fence
    world.engine.sent(world.tenure, sent, ok=False, now=NOW)
    (first,) = world.engine.take_actions()
    world.engine.sent(world.tenure, sent, ok=False, now=NOW)  # the second send of the group
    assert world.engine.take_actions() == []
    world.engine.sent(world.tenure, first.fence, ok=False, now=NOW)  # that of the fence, which lands all the same
    (second,) = world.engine.take_actions()
    assert (first.fence.epoch, second.fence.epoch) == (2, 3)
    world.append(OutcomeRecord(first.fence, "fence"))
    assert world.partition.state == "fencing"
    world.append(OutcomeRecord(second.fence, "fence"))
    world.pump()
    world.engine.confirmed(world.tenure, second.fence, 0, world.now)
    assert world.partition.state == "active"


def test_a_clock_set_while_a_fence_is_under_way_needs_another_fence():
    world = Harness()
    world.engine.sent(world.tenure, world.fence, ok=False, now=NOW)
    world.engine.doubt(world.now)
    first, second = world.engine.take_actions()
    world.append(OutcomeRecord(first.fence, "fence"))
    assert world.partition.state == "fencing", "it was sent by the clock as it was"
    world.append(OutcomeRecord(second.fence, "fence"))
    assert world.partition.state == "loading"


def forget_all(world, offset=50):
    """Scans until memory has let go of what ended."""
    for _ in range(2):
        world.now += 120 * SECOND
        world.pump()
        world.engine.scanned(world.tenure, world.now + 300 * SECOND, {}, Mark(offset, offset), world.now)


def test_a_key_cancelled_long_ago_that_comes_again_is_looked_up():
    world = Harness()
    world.command("cancel", KEY)
    world.pump()
    forget_all(world)
    assert world.partition.cancelled == {}
    assert len(world.partition.ended) == 0
    world.command("enqueue", KEY, handler="h")
    assert world.pump() == []
    assert [item.keys for item in of_kind(world, action.Lookup)] == [[KEY]]


def test_a_key_cancelled_ahead_of_its_time_is_remembered_until_then():
    world = Harness()
    key = TaskKey(NOW + 250 * SECOND, "a", "u")
    world.command("cancel", key)
    world.pump()
    world.now += 100 * SECOND
    world.engine.scanned(world.tenure, world.now + 300 * SECOND, {}, Mark(50, 50), world.now)
    world.command("enqueue", key, handler="h")
    assert world.at(260) == []
    assert [fact.outcome for fact in world.facts] == [CANCELLED]


def test_a_reload_older_than_what_was_forgotten_is_asked_again():
    world = Harness(Limits(lane_depth=4))
    keys = [TaskKey(NOW + n, "a", "u") for n in range(3)]
    rows = [ScanRow(Command("enqueue", key, n, "h")) for n, key in enumerate(keys)]
    world.read_on(len(rows))
    world.engine.rows(world.tenure, rows[:1], Basis(), NOW)
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {"a": keys[0]}, Mark(), NOW)
    world.finish(*world.pump())
    world.pump()
    (asked,) = of_kind(world, action.Reload)
    forget_all(world)
    world.engine.reloaded(asked.tenure, "a", [rows[0]], Basis(3, 0), world.now, more=False)  # read before it had ended
    assert world.pump() == []
    (again,) = of_kind(world, action.Reload)
    world.engine.reloaded(again.tenure, "a", rows[1:], Basis(50, 50), world.now, more=False)
    assert [i.key for i in world.pump()] == [keys[1]]


def test_an_answer_about_a_key_that_is_older_than_what_was_forgotten_is_asked_again():
    world = Harness()
    world.enqueue()
    world.finish(*world.pump())
    world.pump()
    forget_all(world)
    world.command("enqueue", KEY, handler="h")
    world.pump()
    of_kind(world, action.Lookup)
    world.engine.looked_up(world.tenure, {KEY: Known()}, Basis(0, 0), world.now)
    assert world.pump() == []
    assert len(of_kind(world, action.Lookup)) == 1


def test_back_off_is_kept_where_the_start_is_in_the_tables_and_the_failure_still_in_the_log():
    world = Harness()
    failed = Fact(KEY, 2, FAILED, NOW, NOW, used=2, next_us=NOW + 30 * SECOND)
    world.append(OutcomeRecord(world.fence, "facts", (failed,)))
    world.engine.rows(world.tenure, [ROW._replace(attempt=2, used=2)], Basis(), NOW)  # its start
    assert world.at(29) == []
    assert [i.attempt for i in world.at(30)] == [3]


def test_an_owner_that_owes_caution_does_not_resign():
    world = Harness.__new__(Harness)
    fresh = Harness()
    world.__dict__.update(fresh.__dict__)
    world.tenure = world.engine.assign(0, Mark(0, 0, Fence(4, "dead"), resigned=False), NOW)
    world.log = []
    world.engine.raise_horizon(world.tenure, NOW + 300 * SECOND)
    world.engine.noted_end(world.tenure, 0, NOW)
    world.pump()
    world.engine.rows(
        world.tenure, [ROW, ROW._replace(command=ROW.command._replace(key=KEY._replace(ordering_id="b")))], Basis(), NOW
    )
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {}, Mark(), NOW)
    world.engine.confirmed(world.tenure, world.fence, 0, NOW)
    world.pump(may_start=False)
    world.engine.revoke(0, NOW)
    world.pump(may_start=False)
    assert world.engine.partitions == {}
    assert [record.kind for record in world.log] == ["fence"]


def test_of_two_clients_that_cancel_at_once_both_are_answered():
    world = Harness()
    world.partition.ended.since_us = NOW + SECOND  # so that the tables are asked
    for request in ("r1", "r2", "r3"):
        world.command("cancel", KEY, request_id=request)
    world.pump()
    (asked,) = of_kind(world, action.Lookup)
    world.engine.looked_up(world.tenure, {KEY: Known()}, Basis(), NOW)
    world.pump()
    assert asked.keys == [KEY]
    assert [(fact.outcome, fact.request_id) for fact in world.facts] == [
        (CANCELLED, "r1"), ("too_late", "r2"), ("too_late", "r3"),
    ]  # fmt: skip


def test_the_start_of_a_long_run_is_written_though_its_second_passes_while_the_partition_is_fenced_anew():
    world = Harness()
    world.enqueue()
    (invocation,) = world.pump()
    world.engine.handed([invocation.id], world.now)
    world.engine.sent(world.tenure, world.fence, ok=False, now=world.now)
    world.now += 2 * SECOND
    world.engine.running({invocation.id: NOW}, world.now)
    world.pump()
    world.engine.confirmed(world.tenure, world.fence, world.offset, world.now)
    world.now += SECOND
    assert world.engine.asks_who_runs(world.now)
    world.engine.running({invocation.id: NOW}, world.now)
    world.pump()
    assert [fact.outcome for fact in world.facts] == [STARTED]
    world.finish(invocation)
    world.pump()
    assert [(fact.outcome, fact.used) for fact in world.facts] == [(STARTED, 1), (SUCCEEDED, 1)]


def test_followers_that_wait_in_the_executor_use_up_no_attempt():
    world = Harness()
    for lane in "abc":
        world.enqueue(lane=lane)
    waiting = world.pump()
    world.engine.handed([i.id for i in waiting], world.now)
    for seconds in range(1, 6):
        world.at(seconds)
        if world.engine.asks_who_runs(world.now):
            world.engine.running({waiting[0].id: NOW}, world.now)
    world.pump()
    assert [fact.key.ordering_id for fact in world.facts] == ["a"]


def test_a_task_that_fails_at_once_for_ever_waits_a_little_between_attempts():
    from scylla_spark.core.records.command import WireRetry

    world = Harness(Limits(least_wait_us=100_000))
    world.enqueue(retry=WireRetry(None, 0, 0))
    for attempt in range(5):
        world.finish(*world.pump(), outcome=FAILED)
        world.pump()
        assert world.pump() == []
        world.now = world.facts[-1].next_us
        assert len(world.facts) == attempt + 1
    assert world.now >= NOW + 500_000


def test_an_offer_of_another_partition_is_refused():
    from scylla_spark.core.tasks.key import partition_of

    world = Harness(Limits(partitions=8))
    for lane in (f"lane{n}" for n in range(40)):
        world.enqueue(lane=lane)
        row = ScanRow(Command("enqueue", TaskKey(NOW, f"{lane}x", "u"), 0, "h"))
        world.engine.rows(world.tenure, [row], Basis(), NOW)
    ran = {i.key.ordering_id for i in world.pump()}
    assert ran
    assert {partition_of(lane, 8) for lane in ran} == {0}
    assert world.engine.counts["offers_misplaced"] == 80 - len(ran)
