"""A task that has not begun in time ends as expired, never runs, and its lane goes on."""

import pytest

from scylla_spark import TaskFailed


def test_a_task_that_has_expired_never_starts_and_its_lane_goes_on(deployment, scheduler):
    lane = "expiry"
    first = scheduler.enqueue("work", {"ms": 5000}, ordering_id=lane, uniqueness_key="1", expires="2m")
    second = scheduler.enqueue("work", ordering_id=lane, uniqueness_key="2", expires="1s", tags=["late"])
    third = scheduler.enqueue("work", ordering_id=lane, uniqueness_key="3", delay="1s")
    third.result(timeout="120s")
    assert [run.key for run in deployment.history(lane)] == [first.key, third.key]
    with pytest.raises(TaskFailed, match="expired"):
        second.result(timeout="120s")
    assert (second.status().state, second.status().attempts, second.status().tags) == ("expired", 0, ("late",))
    assert first.status().state == "succeeded"
    assert deployment.recorded([second.key])[second.key].outcome == "expired"
