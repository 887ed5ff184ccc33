"""Starts, jobs that run anyway, pauses that keep, and schedules beside handlers, on a real broker and in real processes."""

import json
import urllib.error

import pytest

from scylla_spark import Schedule, Trigger
from scylla_spark.client.schedules.files import owner_of
from scylla_spark.errors import ArgumentError
from tests.acceptance import journal_handlers
from tests.acceptance.http_api import Wire
from tests.acceptance.place import HANDLERS, PATIENCE
from tests.support.waiting import eventually, holds


def tasks_of(scheduler, name):
    return [fire.task for fire in scheduler.schedule(name).fires() if fire.task is not None]


def only_result(scheduler, name):
    (task,) = eventually(lambda: tasks_of(scheduler, name), PATIENCE)
    return scheduler.task(task).result(timeout="120s")


def test_a_start_fires_while_the_run_goes_on_and_once_though_it_is_tried_again(deployment, scheduler):
    gate = deployment.folder / "started-gate"
    payload = {"mark": "first", "failures": 1, "until": str(gate), "until_from": 1}
    scheduler.put_schedules(
        Schedule("slow", "work", Trigger.event("begin-slow"), payload=payload),
        Schedule("follows", "work", Trigger.after("slow", on="started"), payload={"mark": "{{ upstream.schedule }}"}),
    )
    scheduler.emit("begin-slow")
    assert only_result(scheduler, "follows") == {"mark": "slow"}
    (slow,) = tasks_of(scheduler, "slow")
    assert scheduler.task(slow).status().state == "running"
    gate.touch()
    scheduler.task(slow).result(timeout="120s")
    assert scheduler.task(slow).status().attempts == 2
    assert not holds(lambda: len(tasks_of(scheduler, "follows")) > 1, 1)


def test_a_job_runs_anyway_and_its_handler_learns_what_was_missing(scheduler):
    both = Trigger.event("anyway-x") & Trigger.event("anyway-y")
    scheduler.put_schedules(Schedule("anyway", "missing", both, job_timeout="1s", on_job_timeout="run"))
    scheduler.emit("anyway-x")
    assert only_result(scheduler, "anyway") == ["event:anyway-y"]
    (fire,) = (one for one in scheduler.schedule("anyway").fires() if one.task is not None)
    assert "launched without event:anyway-y" in fire.why


def test_a_backlog_of_a_pause_is_drained_in_order(deployment, scheduler):
    trigger = Trigger.event("kept-go")
    scheduler.put_schedules(
        Schedule("kept", "work", trigger, payload={"mark": "{{ event.n }}"}, on_pause="backlog", overlap="skip")
    )
    scheduler.schedule("kept").pause()
    for n in range(3):
        scheduler.emit("kept-go", {"n": n})
    assert not holds(lambda: tasks_of(scheduler, "kept"), 1)
    scheduler.schedule("kept").resume()
    eventually(lambda: len(deployment.history("schedule/kept")) == 3, PATIENCE)
    assert [run.mark for run in deployment.history("schedule/kept")] == [0, 1, 2]


@pytest.fixture
def brought(scheduler):
    """The schedule that `up --schedules` has stored."""
    return eventually(lambda: [one for one in scheduler.list_schedules() if one.name == "brought"], PATIENCE)[0]


def test_up_stores_the_schedules_of_its_handlers_under_the_file_as_their_owner(brought):
    assert (brought.handler, brought.owner) == ("add", owner_of(HANDLERS))
    assert brought.owner.endswith("/tests/acceptance/journal_handlers.py")


def test_a_payload_of_a_run_by_hand_is_checked_by_the_schema_of_its_handler(deployment, scheduler, brought):
    handle = scheduler.schedule(brought.name)
    assert journal_handlers.Total.model_validate(handle.run_now({"numbers": [1, 2]}).result(timeout="120s")).total == 3
    with pytest.raises(ArgumentError, match="numbers"):
        handle.run_now({"numbers": "many"})
    told = deployment.call("schedule", "run", brought.name, "--payload", json.dumps({"number": [1]}))
    assert told.returncode == 2, told.stderr
    assert "'numbers' is a required property" in told.stderr
    wire = Wire(deployment.api)
    with pytest.raises(urllib.error.HTTPError) as refused:
        wire("POST", f"/v1/schedules/{brought.name}:run", {"payload": {"numbers": ["x"]}})
    assert refused.value.code == 422
    assert "numbers.0" in json.loads(refused.value.read())["detail"]
