"""A task that has not begun in time ends as expired, never runs, and its lane goes on."""

import pytest

from scylla_spark import TaskFailed
from tests.acceptance.place import PATIENCE, SECOND, now
from tests.support.waiting import eventually


def test_a_task_that_has_expired_never_starts_and_its_lane_goes_on(deployment, scheduler, tmp_path):
    lane, go = "expiry", tmp_path / "go"
    first = scheduler.enqueue("work", {"until": str(go)}, ordering_id=lane, uniqueness_key="1", expires="2m")
    second = scheduler.enqueue("work", ordering_id=lane, uniqueness_key="2", expires="1s", tags=["late"])
    third = scheduler.enqueue("work", ordering_id=lane, uniqueness_key="3", delay="1s")
    expired_at = now() + SECOND
    eventually(lambda: now() > expired_at, PATIENCE, "the second is expired")
    go.touch()
    third.result(timeout="120s")
    assert [run.key for run in deployment.history(lane)] == [first.key, third.key]
    with pytest.raises(TaskFailed, match="expired"):
        second.result(timeout="120s")
    assert (second.status().state, second.status().attempts, second.status().tags) == ("expired", 0, ("late",))
    assert first.status().state == "succeeded"
    assert deployment.recorded([second.key])[second.key].outcome == "expired"
