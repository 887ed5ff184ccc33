"""What the world of a test hands out is used as in a deployment: names of the package, handles on tasks, and leases."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from scylla_spark import Queue, Schedule, Scheduler, Trigger, handler, testing
from scylla_spark.client.schedules.handle import ScheduleHandle
from scylla_spark.client.tasks.handle import TaskHandle
from scylla_spark.clock import to_us
from scylla_spark.core.leases.messages import Granted, lease_view
from scylla_spark.errors import ArgumentError, ConflictError, NotFoundError, WaitTimeoutError
from scylla_spark.testing import World, world
from scylla_spark.testing.world_handles import ScheduleOfWorld, TaskOfWorld

START = datetime(2026, 3, 1, 9, tzinfo=UTC)
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OF_A_DEPLOYMENT = {"command", "copy_for_move", "explain", "has_ended", "is_known", "logs", "value_of"}


class Sent(BaseModel):
    to: str


@handler("world_handles.remind")
def remind(task) -> Sent:
    return Sent(to="a@example.org")


def leave(task, ctx):
    """Fails once; each attempt leaves a file behind."""
    ctx.output(f"{ctx.attempt}.txt", b"x")
    if ctx.attempt == 1:
        raise ValueError("once")


def test_all_that_the_package_names_is_there():
    found: dict[str, Any] = {}
    exec("from scylla_spark.testing import *", found)
    assert set(testing.__all__) <= set(found)
    assert {name: getattr(testing, name) for name in testing.__all__} == {name: found[name] for name in testing.__all__}


def parameters(method: Any) -> list[tuple[str, Any, Any]]:
    return [(one.name, one.kind, one.default) for one in inspect.signature(method).parameters.values()]


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


@pytest.mark.parametrize(
    "name",
    ["enqueue", "put_schedules", "schedule", "emit", "notify_partitions", "put_calendar", "put_queue", "queue", "task"],
)
def test_a_world_is_called_like_a_scheduler(name):
    assert parameters(getattr(World, name)) == parameters(getattr(Scheduler, name))


def test_what_a_schedule_would_become_is_said_and_nothing_is_done():
    with world([remind], START) as w:
        nightly = Schedule("nightly", "world_handles.remind", Trigger.cron("0 2 * * *"))
        assert w.put_schedules(nightly, dry_run=True) == {"nightly": "added"}
        with pytest.raises(NotFoundError):
            w.schedule("nightly").status()
        w.put_schedules(nightly)
        begin = START + timedelta(days=2)
        assert w.schedule("nightly").next_runs(1, after=begin) == [datetime(2026, 3, 4, 2, tzinfo=UTC)]
        w.schedule("nightly", author="ada").pause()
        assert w.schedule("nightly").next_runs(2) == []
        with pytest.raises(ArgumentError):
            w.schedule("nightly").resume(begin="later")
        w.schedule("nightly").resume(begin="pause")
        assert len(w.schedule("nightly").next_runs(2)) == 2


@pytest.mark.parametrize(
    ("ours", "theirs", "missing"), [(TaskOfWorld, TaskHandle, OF_A_DEPLOYMENT), (ScheduleOfWorld, ScheduleHandle, None)]
)
def test_handles_of_a_world_are_called_like_those_of_a_deployment(ours, theirs, missing):
    assert public(ours) <= public(theirs)
    assert missing is None or public(theirs) - public(ours) == missing
    for name in public(ours):
        assert parameters(getattr(ours, name)) == parameters(getattr(theirs, name)), name


def test_a_result_is_of_the_type_that_its_handler_declares_and_is_waited_for_by_nobody():
    with world([remind], START) as w:
        task = w.enqueue(remind)
        with pytest.raises(WaitTimeoutError):
            task.result(timeout="2h")
        with pytest.raises(ArgumentError):
            task.result(timeout="soon")
        w.advance()
        assert task.result(timeout="2h") == Sent(to="a@example.org")
        assert task.status(live=False).result == {"to": "a@example.org"}
        assert task.retry().result.__self__._returns is not None


def test_attempts_and_their_files_are_told_apart():
    with world([leave], START) as w:
        task = w.enqueue("leave")
        w.run_until_idle()
        assert [one.number for one in task.attempts()] == [1, 2]
        assert [one.number for one in task.attempts(newest=1)] == [2]
        assert [one.number for one in task.attempts(before=2)] == [1]
        assert [one.name for one in task.outputs()] == ["1.txt", "2.txt"]
        assert [one.name for one in task.outputs(2)] == ["2.txt"]


def test_an_ended_task_runs_once_more_and_an_open_one_does_not():
    with world([remind], START) as w:
        task = w.enqueue("world_handles.remind", ordering_id="a", uniqueness_key="b")
        with pytest.raises(ConflictError, match="not ended"):
            task.retry()
        w.advance()
        copy = task.retry()
        w.advance()
        assert (copy.key.ordering_id, copy.status().state) == ("a", "succeeded")
        assert w.ran("world_handles.remind", times=2)


def test_a_task_is_moved_and_keeps_its_name():
    with world([remind], START) as w:
        task = w.enqueue("world_handles.remind", delay="1h", uniqueness_key="b")
        copy = task.reschedule(delay="3h")
        assert task.status().state == "cancelled"
        assert copy.key == task.key._replace(time_us=task.key.time_us + 7_200_000_000)
        with pytest.raises(ConflictError):
            task.reschedule(delay="4h")
        assert copy.reschedule(delay="1h").key.time_us == task.key.time_us + 1, "a cancel holds for its key for ever"
        w.run_until_idle()
        assert w.ran("world_handles.remind", times=1)


def test_what_cannot_be_moved_stays_as_it_is():
    with world([remind], START) as w:
        task = w.enqueue("world_handles.remind", delay="1h")
        with pytest.raises(ArgumentError):
            task.reschedule(START - timedelta(days=400))
        assert task.status().state == "scheduled"
        with pytest.raises(NotFoundError):
            w.reschedule(task.key._replace(uniqueness_key="nobody"), delay="1h")


@pytest.mark.parametrize(
    ("lasts", "running", "answer", "state"),
    [("10m", True, "cancelled", "cancelled"), ("61s", True, "too_late", "succeeded"), ("10m", False, "too_late", "succeeded")],
)  # fmt: skip
def test_a_task_that_runs_is_ended_after_the_grace_if_that_is_asked_for(lasts, running, answer, state):
    with world([remind], START) as w:
        w.takes("world_handles.remind", lasts)
        task = w.enqueue("world_handles.remind", timeout="1h")
        w.advance("1m")
        assert task.cancel(running=running, grace="5s") == answer
        assert task.status().state == "running"
        w.run_until_idle()
        assert task.status().state == state


def test_a_lease_is_told_of_as_the_api_tells():
    with world([], START) as w:
        w.put_queue(Queue(name="gpu", mode="pull", lease="30s"))
        task = w.enqueue("render", {"frame": 1}, queue="gpu", tags=["a", "b"], traceparent=TRACE)
        (lease,) = w.lease("gpu")
        assert (lease.invocation.tags, lease.invocation.traceparent) == (("a", "b"), TRACE)
        granted = Granted(
            lease.token, lease.invocation._replace(payload='{"frame": 1}'), 30_000, lease.view["max_ms"] * 1000
        )
        assert lease.invocation.key == task.key
        assert lease.view == lease_view(granted)
        assert lease.invocation.planned_us == to_us(START)  # it was enqueued at once, and is due at once


def test_a_lease_of_a_queue_that_hands_over_once_has_ended_before_its_work():
    with world([], START) as w:
        w.put_queue(Queue(name="gpu", mode="pull", lease="0s"))
        task = w.enqueue("render", queue="gpu")
        (lease,) = w.lease("gpu")
        assert (lease.token, task.status().state) == ("", "succeeded")
        with lease:
            lease.complete({"bytes": 3})
        assert (lease.status, lease.takes_room) == ("ok", False)
