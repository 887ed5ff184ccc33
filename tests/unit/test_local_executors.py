"""Pools of handlers that ask for isolation, without processes: which of them start, wait, or refuse their tasks."""

import errno
import os

import pytest

from scylla_spark.executors.local import local_executors
from scylla_spark.executors.local.local_executors import LocalExecutors
from scylla_spark.handlers.description import LOCAL, HandlerInfo
from scylla_spark.handlers.isolation import Isolation
from tests.support.executor_conformance import invocation
from tests.support.waiting import holds


class Pool:
    """A pool whose starts fail as given, one after the other."""

    executor = LOCAL

    def __init__(self, name, errors=(), handlers=None):
        self.name, self.errors, self.known = name, errors, handlers or {}

    def start(self, sink):
        if self.errors:
            raise self.errors.pop(0)

    def handlers(self):
        return self.known

    def rooms(self):
        return {self.name: 1}

    def stop(self, *, drain_s):
        """Nothing runs."""


@pytest.fixture
def started(monkeypatch):
    """Starts pools: a shared one, and one of the handler `boxed` whose starts fail as given."""
    monkeypatch.setattr(local_executors, "_AGAIN_S", 0.01)
    made = []

    def start(*errors):
        info, left, outcomes = HandlerInfo("boxed", runs_on=LOCAL, isolation=Isolation()), list(errors), []
        executors = LocalExecutors(Pool(LOCAL, handlers={"boxed": info}), lambda _: Pool("own/boxed", left))
        made.append(executors)
        executors.start(outcomes.extend)
        return executors, outcomes

    yield start
    for one in made:
        one.stop(drain_s=0)


def test_tasks_wait_while_the_machine_has_no_descriptors_for_their_pool(started, monkeypatch):
    monkeypatch.setattr(local_executors, "_AGAIN_S", 60)
    executors, _ = started(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    assert executors.rooms() == {LOCAL: 1, "own/boxed": 0}


def test_a_pool_for_which_there_were_no_descriptors_is_started_once_there_are(started):
    executors, _ = started(*(OSError(errno.EMFILE, os.strerror(errno.EMFILE)) for _ in range(3)))
    assert holds(lambda: executors.rooms() == {LOCAL: 1, "own/boxed": 1})


def test_tasks_of_a_handler_that_cannot_be_isolated_fail(started):
    executors, outcomes = started(PermissionError(errno.EACCES, "bwrap"))
    assert executors.rooms()["own/boxed"] > 1
    executors.submit([invocation("boxed")])
    assert [one.failure.kind for one in outcomes] == ["isolation_unavailable"]
