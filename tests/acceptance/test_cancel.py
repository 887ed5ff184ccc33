"""A cancelled task does not start, and its lane goes on."""

import pytest

from scylla_spark import Retry, TaskFailed, TaskKey
from tests.acceptance.place import PATIENCE, SECOND, now
from tests.support.waiting import eventually


@pytest.mark.promise
def test_a_cancelled_task_never_starts_and_its_lane_goes_on(deployment, scheduler, tmp_path):
    go = tmp_path / "go"
    head = scheduler.enqueue("work", {"until": str(go)}, ordering_id="cancel-wait", uniqueness_key="0")
    first = scheduler.enqueue("work", ordering_id="cancel-wait", uniqueness_key="1")
    second = scheduler.enqueue("work", ordering_id="cancel-wait", uniqueness_key="2")
    assert first.cancel() == "cancelled"
    assert first.cancel() == "cancelled", "as often as one likes"
    go.touch()
    second.result(timeout="120s")
    assert [run.key for run in deployment.history("cancel-wait")] == [head.key, second.key]
    assert first.status().state == "cancelled"
    with pytest.raises(TaskFailed, match="cancelled"):
        first.result(timeout="1s")
    assert deployment.recorded([first.key])[first.key].outcome == "cancelled"


def test_dropping_the_head_in_back_off_frees_the_lane_at_once(deployment, scheduler):
    retry = Retry(max_retries=9, base="10m", cap="10m")
    head = scheduler.enqueue("work", {"failures": 99}, ordering_id="cancel-backoff", uniqueness_key="1", retry=retry)
    follower = scheduler.enqueue("work", ordering_id="cancel-backoff", uniqueness_key="2")
    eventually(lambda: head.status().state == "retry_wait", PATIENCE)
    assert [run.key for run in deployment.history("cancel-backoff")] == [head.key]
    assert head.cancel() == "cancelled"
    follower.result(timeout="120s")
    assert [run.key for run in deployment.history("cancel-backoff")] == [head.key, follower.key]


@pytest.mark.promise
def test_a_cancel_sent_before_the_task_itself_is_heeded(deployment, scheduler):
    key = TaskKey(now() + 2 * SECOND, "cancel-before", "1")
    assert scheduler.task(key).cancel() == "cancelled"
    scheduler.enqueue("work", ordering_id="cancel-before", uniqueness_key="1", at=key.scheduled_time)
    scheduler.enqueue("work", ordering_id="cancel-before", uniqueness_key="2", delay="2s").result(timeout="120s")
    assert [run.key.uniqueness_key for run in deployment.history("cancel-before")] == ["2"]


def test_a_cancel_of_what_runs_comes_too_late(deployment, scheduler):
    handle = scheduler.enqueue("work", {"ms": 2000}, ordering_id="cancel-late", uniqueness_key="1")
    eventually(lambda: deployment.history("cancel-late"), PATIENCE)
    assert handle.cancel() == "too_late"
    handle.result(timeout="120s")
    assert handle.cancel() == "too_late"
    assert handle.status().state == "succeeded"
