"""The same enqueue again: it is the task that stands, also after the grace, and never another one."""

from __future__ import annotations

import pytest

from scylla_spark.client.scheduler import Scheduler
from scylla_spark.client.tasks.same_enqueue import is_same
from scylla_spark.clock import from_us, now_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.records.command import ENQUEUE, Command, WireRetry
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import ArgumentError, UnreachableError
from scylla_spark.schemas import COMPLETIONS, TASKS
from tests.support.api_site import SiteConnection
from tests.support.delta_tables import append, fact, make, task

HOUR_AGO = TaskKey(now_us() - 3_600_000_000, "cust-1", "u")


@pytest.fixture
def scheduler(tmp_path):
    make(f"{tmp_path}/tables")
    append(f"{tmp_path}/tables", TASKS, [task(HOUR_AGO, 1, payload='{"b": 1, "a": 2}', timeout_ms=5_000)])
    found = Scheduler(Settings(data_dir=tmp_path))
    found.connection = SiteConnection(str(tmp_path))
    return found


def enqueue(scheduler, payload, **more):
    given = {"at": from_us(HOUR_AGO.time_us), "ordering_id": "cust-1", "uniqueness_key": "u", "timeout": "5s"} | more
    return scheduler.enqueue("h", payload, **given)


def test_the_same_call_again_after_the_grace_is_the_task_that_stands(scheduler):
    again = enqueue(scheduler, {"a": 2, "b": 1})
    assert (again.key, again.repeated, scheduler.connection.sent) == (HOUR_AGO, True, [])


def test_the_handle_on_an_ended_task_says_repeated_and_what_is_shown_of_the_task_stays(scheduler):
    ended = HOUR_AGO._replace(time_us=now_us())  # within the grace, so that the rules would let another payload pass
    append(scheduler.connection.readers.path, TASKS, [task(ended, 2, payload='{"v": 1}')])
    append(scheduler.connection.readers.path, COMPLETIONS, [fact(ended, 1, "succeeded", 9, result="7")])
    again = enqueue(scheduler, {"v": 2}, at=from_us(ended.time_us))
    assert (again.repeated, scheduler.connection.sent) == (True, [])
    assert (again.status().payload, again.result("1s")) == ({"v": 1}, 7)


def test_a_task_is_sent_while_the_tables_cannot_be_reached(scheduler, monkeypatch):
    def silent(*_):
        raise UnreachableError("The store does not answer.")

    monkeypatch.setattr(scheduler.connection.readers, "completion", silent)
    assert not enqueue(scheduler, {"v": 2}, at=from_us(now_us())).repeated
    assert len(scheduler.connection.sent) == 1


@pytest.mark.parametrize(("unique", "later_us"), [("new", 0), ("u", 3_600_000_000), ("u", None)])
def test_the_handle_on_a_task_that_was_sent_does_not_say_repeated(scheduler, unique, later_us):
    at = None if later_us is None else from_us(now_us() + later_us)
    sent = enqueue(scheduler, {"v": 2}, uniqueness_key=unique, at=at)
    assert (sent.repeated, [one.key for one in scheduler.connection.sent]) == (False, [sent.key])


@pytest.mark.parametrize(
    ("payload", "more"),
    [
        ({"a": 3, "b": 1}, {}),
        ({"a": 2, "b": 1}, {"timeout": "6s"}),
        ({"a": 2, "b": 1}, {"queue": "mail"}),
        ({"a": 2, "b": 1}, {"uniqueness_key": "another"}),
        ({"a": 2, "b": 1}, {"uniqueness_key": None}),
    ],
)
def test_another_task_is_refused_as_too_late_all_the_same(scheduler, payload, more):
    with pytest.raises(ArgumentError) as refused:
        enqueue(scheduler, payload, **more)
    assert refused.value.fields["reason"] == "too_late"


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"handler": "default"}, True),
        ({"enqueued_us": 7, "traceparent": "x", "request_id": "r", "offset": 9}, True),
        ({"payload": '{ "a":1.0 }'}, True),
        ({"retry": WireRetry(3, 1, 2)}, False),
        ({"tags": ("t",)}, False),
        ({"expires_ms": 1}, False),
        ({"priority": 1}, False),
        ({"unique": True}, False),
    ],
)
def test_what_a_task_does_is_compared_and_not_how_it_was_sent(change, same):
    before = Command(ENQUEUE, HOUR_AGO, 1, payload='{"a":1}')
    assert is_same(before, before._replace(**change), "default") is same
