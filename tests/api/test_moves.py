"""Moving a task to another time: nothing is lost, doubled or overwritten, whatever else happens to it meanwhile."""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from scylla_spark.cli.commands.task_import import tasks
from scylla_spark.client.tasks.enqueue_arguments import command as enqueued
from scylla_spark.client.tasks.enqueue_arguments import keywords, moved, stamped_anew, under_unused_key
from scylla_spark.client.tasks.handle import TaskHandle
from scylla_spark.clock import from_us, now_us
from scylla_spark.core.records.command import CANCEL, ENQUEUE, Command
from scylla_spark.core.records.fact import TOO_LATE, Fact
from scylla_spark.core.tasks.key import TaskKey, instant_us
from scylla_spark.core.tasks.task import CANCELLED
from scylla_spark.errors import ArgumentError, ConflictError, UnreachableError, WaitTimeoutError
from tests.support.api_site import SiteConnection
from tests.support.delta_tables import make

HOUR = timedelta(hours=1)
LONG_US = 56 * 60_000_000


class Deployment(SiteConnection):
    """Logs in memory, and a dispatcher that answers every cancel at once, if it runs.

    Attributes:
        runs: whether cancels are answered.
        by: the id that the end of a task names, where that is not the id of the cancel that is answered.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.runs = True
        self.by: str | None = ""
        self.facts: dict[TaskKey, list[Fact]] = {}
        self.answers: dict[str, Fact] = {}
        self.log_reader = SimpleNamespace(
            watching=lambda key: nullcontext(),
            facts=lambda partition, key: self.facts.get(key, []),
            answer=lambda partition, request: self.answers.get(request),
            commands=lambda partition, key: [one for one in self.sent if one.key == key],
            catch_up=lambda partition, deadline: None,
            until=lambda partition, look, deadline: look(),
        )

    def send(self, command: Command):
        return super().send(command._replace(offset=len(self.sent)))

    def request_cancel(self, key: TaskKey, grace_ms: int | None = None, request_id: str | None = None) -> str:
        assert request_id is not None
        self.send(Command(CANCEL, key, 0, enqueued_us=now_us(), request_id=request_id))
        if self.runs:
            self.end(key, self.by if self.by != "" else request_id)
            self.answers[request_id] = Fact(key, 0, TOO_LATE, request_id=request_id)  # of all that come behind
        return request_id

    def end(self, key: TaskKey, by: str | None) -> None:
        self.facts.setdefault(key, []).append(Fact(key, 0, CANCELLED, finished_us=1, request_id=by))

    def enqueue(self, at: datetime, name: str = "u", **more: object) -> TaskHandle:
        command = enqueued(now_us(), "h", {"a": 1}, ordering_id="lane", uniqueness_key=name, at=at, **more)
        self.send(command)
        return TaskHandle(self, command.key)

    @property
    def kinds(self) -> list[str]:
        return [one.kind for one in self.sent]


@pytest.fixture
def deployment(tmp_path):
    make(f"{tmp_path}/tables")
    return Deployment(str(tmp_path))


@pytest.fixture
def soon():
    return datetime.now(UTC) + HOUR


def test_a_move_to_a_time_that_would_be_refused_sends_no_cancel(deployment, soon):
    handle = deployment.enqueue(soon)
    with pytest.raises(ArgumentError, match="before the enqueueing"):
        handle.reschedule(soon - 2 * HOUR)
    assert deployment.kinds == [ENQUEUE]
    assert handle.reschedule(soon + HOUR).status().open


def test_a_task_that_is_moved_there_and_back_has_a_key_that_was_never_cancelled(deployment, soon):
    first = deployment.enqueue(soon, unique="open", tags=["t"])
    second = first.reschedule(soon + HOUR)
    back = second.reschedule(soon)
    assert back.key == first.key._replace(time_us=first.key.time_us + 1), "the least that makes it another key"
    assert back.status().state == "scheduled"
    command = back.command()
    assert (command.unique, command.tags, command.payload) == (True, ("t",), '{"a":1}')
    assert json.loads(command.extra or "")["moveOf"] == str(second.key)


def test_a_move_onto_the_key_of_an_open_task_leaves_that_one_alone(deployment, soon):
    other = deployment.enqueue(soon + HOUR, priority=9)
    moved_there = deployment.enqueue(soon).reschedule(soon + HOUR)
    assert moved_there.key.time_us == other.key.time_us + 1
    assert other.command().priority == 9


@pytest.mark.parametrize("by", ["another request", None])
def test_a_task_that_another_request_has_cancelled_meanwhile_is_not_moved(deployment, soon, by):
    handle = deployment.enqueue(soon)
    deployment.by = by
    for _ in range(2):
        with pytest.raises(ConflictError, match="another request"):
            handle.reschedule(soon + HOUR)
    assert deployment.kinds == [ENQUEUE, CANCEL]


def test_of_two_moves_that_waited_for_a_dispatcher_one_makes_a_copy(deployment, soon):
    one = deployment.enqueue(soon)
    other = TaskHandle(deployment, one.key)
    deployment.runs = False
    for handle in (one, other):
        with pytest.raises(WaitTimeoutError):
            handle.reschedule(soon + HOUR)
    deployment.end(one.key, deployment.sent[1].request_id)
    with pytest.raises(ConflictError):
        other.reschedule(soon + HOUR)
    assert one.reschedule(soon + HOUR).status().open
    assert deployment.kinds == [ENQUEUE, CANCEL, CANCEL, ENQUEUE]


def test_a_copy_that_was_not_acknowledged_is_told_with_all_that_is_needed_to_enqueue_it(deployment, soon, tmp_path):
    handle = deployment.enqueue(soon, priority=3)
    cancel = deployment.request_cancel
    deployment.request_cancel = lambda *asked: (cancel(*asked), setattr(deployment, "down", True))[0]
    with pytest.raises(UnreachableError, match="is cancelled, but its copy") as told:
        handle.reschedule(soon + HOUR)
    with pytest.raises(ConflictError):
        handle.reschedule(soon + HOUR)
    (tmp_path / "copy.jsonl").write_text(str(told.value.fields["record"]))
    (row,) = tasks(str(tmp_path / "copy.jsonl"), None, None)
    again = enqueued(now_us(), **keywords(row))
    assert (again.key, again.priority) == (handle.key._replace(time_us=instant_us(soon + HOUR)), 3)


def test_a_copy_that_is_sent_after_its_stamp_has_become_old_is_stamped_anew(soon):
    now = now_us()
    copy = enqueued(now, "h", at=soon)
    assert stamped_anew(copy, now + LONG_US - 120_000_000) == copy
    later = stamped_anew(copy, now + 2 * LONG_US)
    assert (later.enqueued_us, later.key.time_us) == (now + 2 * LONG_US, now + 2 * LONG_US), "its time has passed"


def test_a_name_that_has_had_very_many_moments_is_moved_to_none_of_them(soon):
    old = enqueued(now_us(), "h", at=soon)
    copy = moved(old, old.key.time_us + 1, now_us())
    with pytest.raises(ConflictError, match="was used before"):
        under_unused_key(copy, lambda key: True)
    assert from_us(under_unused_key(copy, lambda key: False).key.time_us) > soon
