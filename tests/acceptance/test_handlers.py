"""Typed and async handlers, what they leave behind, and the end of what runs, in a whole deployment."""

import pytest

from scylla_spark import Retry, TaskFailed
from scylla_spark.core.tasks.follow_up import unique_key
from scylla_spark.errors import ArgumentError
from tests.acceptance import journal_handlers
from tests.acceptance.journal_handlers import Sum, Total
from tests.acceptance.place import PATIENCE
from tests.support.waiting import eventually


def test_typed_handler_is_checked_when_enqueued_and_where_it_runs_and_returns_its_type(scheduler):
    handle = scheduler.enqueue(journal_handlers.add, Sum(numbers=[1, 2, 3]))
    assert handle.result(timeout="120s") == Total(total=6)
    with pytest.raises(ArgumentError, match="field 'numbers'"):
        scheduler.enqueue(journal_handlers.add, {"numbers": "many"})
    with pytest.raises(TaskFailed, match=r"aborted in attempt 1.*field 'numbers'"):
        scheduler.enqueue("add", {"numbers": "many"}).result(timeout="120s")


def test_many_async_tasks_share_one_process_and_all_end(scheduler):
    handles = [scheduler.enqueue("nap", {"ms": 500}) for _ in range(300)]
    assert len({handle.result(timeout="120s") for handle in handles}) == 1


def test_next_attempt_finds_what_the_one_before_left_behind(scheduler):
    handle = scheduler.enqueue("resume", retry=Retry(max_retries=1, base="1ms"))
    assert handle.result(timeout="120s") == {"row": 7}
    assert handle.status().attempts == 2


@pytest.mark.parametrize("deaf", [False, True])
def test_cancel_ends_what_runs_where_it_says_so(deployment, scheduler, deaf):
    lane = f"cancel-running-{deaf}"
    handle = scheduler.enqueue("until_cancelled", {"deaf": deaf}, ordering_id=lane)
    follower = scheduler.enqueue("work", ordering_id=lane)
    eventually(lambda: deployment.history(lane), PATIENCE)
    assert handle.cancel() == "too_late"
    assert handle.cancel("60s", running=True, grace="1s" if deaf else "60s") == "cancelled"
    assert handle.status().state == "cancelled"
    follower.result(timeout="120s")


def test_command_line_ends_what_runs_where_it_is_given_a_grace(deployment, scheduler):
    handle = scheduler.enqueue("until_cancelled", {}, ordering_id="cancel-by-command")
    eventually(lambda: deployment.history("cancel-by-command"), PATIENCE)
    assert deployment.call("task", "cancel", str(handle.key)).returncode == 4
    told = deployment.call("task", "cancel", str(handle.key), "--grace", "60s", "--timeout", "60s")
    assert told.returncode == 0, told.stderr
    assert handle.status().state == "cancelled"


def test_task_enqueues_another_once_however_often_it_is_tried(deployment, scheduler):
    payload = {"child": "spawned", "ends": ["raise", "die", "raise"]}
    parent = scheduler.enqueue("spawn", payload, retry=Retry(max_retries=5, base="1ms"))
    parent.result(timeout="120s")
    assert parent.status().attempts == 4
    follower = scheduler.enqueue("work", ordering_id="spawned", delay="1s")
    follower.result(timeout="120s")
    child, last = deployment.history("spawned")
    assert (child.key.uniqueness_key, last.key) == (unique_key(parent.key, "child"), follower.key)
    assert scheduler.task(child.key).status().payload == {"of": 4}
