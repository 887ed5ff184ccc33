"""A cancel that says so ends what runs, and is answered by the end of it."""

import pytest

from scylla_spark.core.engine import action
from scylla_spark.core.engine.bounds import LEASED, HandlerPolicy
from scylla_spark.core.records.command import CANCEL
from scylla_spark.core.tasks.task import CANCELLED, FAILED, NOT_STARTED, SUCCEEDED, TIMED_OUT
from tests.support.engine_harness import RETRY, Harness


def running_task(**terms):
    world = Harness(terms=(lambda command: HandlerPolicy("local" if command.handler else LEASED, 5000, RETRY, **terms)))
    key = world.enqueue()
    (invocation,) = world.pump()
    return world, key, invocation


def kills(world):
    return [item for item in world.other if isinstance(item, action.Kill)]


@pytest.mark.parametrize("outcome", [TIMED_OUT, FAILED])
def test_what_runs_is_ended_and_recorded_as_cancelled(outcome):
    world, key, invocation = running_task()
    world.command(CANCEL, key, request_id="r", grace_ms=700)
    world.pump()
    assert kills(world) == [action.Kill("local", [invocation.id], 700)]
    assert world.facts == [], "it is answered by its end"
    world.finish(invocation, outcome)
    world.pump()
    assert [(fact.outcome, fact.request_id) for fact in world.facts] == [(CANCELLED, "r")]


def test_what_returns_all_the_same_has_succeeded():
    world, key, invocation = running_task()
    world.command(CANCEL, key, request_id="r", grace_ms=700)
    world.pump()
    world.finish(invocation, SUCCEEDED)
    world.pump()
    assert [fact.outcome for fact in world.facts] == [SUCCEEDED]


def test_what_had_not_begun_is_cancelled_and_does_not_start_again():
    world, key, invocation = running_task()
    world.command(CANCEL, key, request_id="r", grace_ms=700)
    world.pump()
    world.finish(invocation, NOT_STARTED)
    assert world.pump() == []
    assert [(fact.outcome, fact.request_id) for fact in world.facts] == [(CANCELLED, "r")]


def test_cancel_that_does_not_say_so_leaves_what_runs_alone():
    world, key, _ = running_task()
    world.command(CANCEL, key, request_id="r")
    world.pump()
    assert kills(world) == []
    assert [(fact.outcome, fact.request_id) for fact in world.facts] == [("too_late", "r")]


def test_task_of_a_batch_is_left_alone_for_the_sake_of_the_others():
    world, key, _ = running_task(max_batch=5)
    world.command(CANCEL, key, request_id="r", grace_ms=700)
    world.pump()
    assert kills(world) == []
    assert [fact.outcome for fact in world.facts] == ["too_late"]


def test_lane_goes_on_behind_what_was_ended():
    world, key, invocation = running_task()
    world.enqueue(unique="v")
    world.command(CANCEL, key, grace_ms=1)
    assert world.pump() == []
    world.finish(invocation, TIMED_OUT)
    (found,) = world.pump()
    assert found.key.uniqueness_key == "v"
