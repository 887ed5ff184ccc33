"""Sessions of attempts that have ended are released side by side, and their outcomes handed on in order, also where the server is slow."""

import threading

import pytest

from scylla_spark.core.tasks.task import FAILED, NOT_STARTED, SUCCEEDED, Outcome
from scylla_spark.executors.connect import pool
from scylla_spark.executors.connect.pool import ConnectPool
from scylla_spark.executors.connect.releases import Releases
from scylla_spark.io.host.connect_server import ServerAddress
from tests.support.waiting import eventually


class Server:
    """Releases sessions when it is told to."""

    def __init__(self):
        self.asked, self.returned = [], []
        self._may = threading.Condition()
        self._answers = set()

    def release(self, number):
        with self._may:
            self.asked.append(number)
            self._may.wait_for(lambda: number in self._answers, 60)
        self.returned.append(number)
        if number % 2:
            raise TimeoutError

    def answer(self, *numbers):
        with self._may:
            self._answers.update(numbers)
            self._may.notify_all()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.answer(*range(100))


def started(server, sessions=8):
    told = []
    releases = Releases(server.release, lambda outcomes: told.append([one.id for one in outcomes]), sessions=sessions)
    releases.start()
    return releases, told


def ended(number, outcome=SUCCEEDED):
    return Outcome(number, outcome, 1, 2)


@pytest.mark.slow
def test_sessions_are_released_side_by_side_and_what_is_not_released_is_counted(server):
    releases, told = started(server)
    for number in range(8):
        releases.put([ended(number)])
    eventually(lambda: len(server.asked) == 8, 10, "none waits for another")
    assert (releases.unreleased, told) == (8, [])
    server.answer(*range(8))
    eventually(lambda: len(told) == 8, 10)
    assert (releases.unreleased, told) == (0, [[number] for number in range(8)])
    releases.stop(5)


@pytest.mark.slow
def test_outcomes_are_handed_on_as_they_came_and_what_was_told_together_stays_so(server):
    releases, told = started(server)
    releases.put([ended(0, FAILED), ended(7, NOT_STARTED), ended(1)])
    releases.put([ended(2)])
    releases.put([ended(9, NOT_STARTED)])
    server.answer(2, 0)
    eventually(lambda: releases.unreleased == 1, 10)
    assert told == []
    server.answer(1)
    eventually(lambda: len(told) == 3, 10)
    assert told == [[0, 7, 1], [2], [9]]
    assert not {7, 9} & set(server.asked), "what has not started has no session"
    releases.stop(5)


@pytest.mark.slow
def test_a_stop_waits_for_what_is_released_in_time(server):
    releases, told = started(server)
    releases.put([ended(0)])
    eventually(lambda: server.asked, 10)
    threading.Timer(0.2, server.answer, (0,)).start()
    releases.stop(20)
    assert told == [[0]]


@pytest.mark.slow
def test_a_stop_does_not_wait_for_a_silent_server_and_no_outcome_is_lost(server):
    releases, told = started(server, sessions=2)
    for number in range(6):
        releases.put([ended(number)])
    releases.stop(0.3)
    assert server.returned == []
    assert told == [[number] for number in range(6)]


class Part:
    """What a pool has begun; it says when it is stopped."""

    def __init__(self):
        self.stopped = threading.Event()

    def stop(self, *_, **__):
        self.stopped.set()


@pytest.mark.slow
def test_a_pool_that_is_stopped_while_it_begins_does_not_wait_for_that_and_what_begins_late_ends(monkeypatch):
    go, gone, late = threading.Event(), [], (Part(), Part())
    monkeypatch.setattr(pool, "_BEGIN_S", 0.2)
    monkeypatch.setattr(pool, "_check_packages", lambda: gone.append(go.wait(60)))
    monkeypatch.setattr(ConnectPool, "_started", lambda self, endpoint: late)
    connect = ConnectPool([], server=ServerAddress("sc://h:1", ""), sessions=2, longest_s=10)
    connect.start(lambda outcomes: None)
    connect.stop(drain_s=0)
    assert gone == []
    go.set()
    assert all(part.stopped.wait(10) for part in late)
    assert connect.rooms()["connect"] == 0
