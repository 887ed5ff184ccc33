"""Which children get which calls, without processes: the crews of a pool whose children do nothing by themselves."""

import errno
import json
import os
import struct

import pytest

from scylla_spark.clock import boot_us
from scylla_spark.core.tasks.task import FAILED, NOT_STARTED
from scylla_spark.executors.local.child_handle import BUSY_US
from scylla_spark.executors.local.crews import Limits
from scylla_spark.executors.local.supervisor import Supervisor
from scylla_spark.handlers.description import HandlerInfo
from scylla_spark.handlers.shared_memory import SharedMemory
from tests.support.executor_conformance import invocation

LIMITS = Limits(min_children=1, fast_children=2, max_children=4, idle_us=5_000_000, grace_ms=100)
HANDLERS = {"noop": HandlerInfo("noop"), "loop": HandlerInfo("loop", concurrency=4)}


class Nursery:
    """Starts no process: a test acts as the child."""

    def __init__(self):
        self.ends = []
        self.killed = []

    def spawn(self, child):
        sock, slot_fd = child.hand_over()
        self.ends.append((child, sock.dup(), SharedMemory(slot_fd)))
        child.handed_over()
        child.pid = 2

    def kill_child(self, number, grace_ms):
        self.killed.append(number)

    def of(self, executor):
        return [end for end in self.ends if end[0].executor == executor]


def orders(sock):
    """Ids of the calls that a child was given."""
    sock.setblocking(False)
    try:
        data = sock.recv(1 << 20)
    except BlockingIOError:
        return []
    size = struct.unpack(">I", data[:4])[0]
    return [order[0] for order in json.loads(data[4 : 4 + size])[0]]


def test_a_lean_pool_starts_no_child_beside_another_one_and_has_no_room_for_it(nursery):
    supervisor = Supervisor(LIMITS, HANDLERS, nursery)
    supervisor.be_lean(True)
    supervisor.submit([invocation("noop"), invocation("noop"), invocation("loop")])
    supervisor.hand_out(boot_us())
    assert [len(nursery.of(name)) for name in ("local", "async/loop")] == [1, 1]
    assert supervisor.rooms()["local"] == 0
    supervisor.be_lean(False)
    supervisor.hand_out(boot_us())
    assert len(nursery.of("local")) == 2
    assert supervisor.rooms()["local"] > 0


@pytest.fixture
def nursery():
    made = Nursery()
    yield made
    for child, sock, slot in made.ends:
        child.close()
        sock.close()
        slot.close()


def test_a_loop_that_is_held_by_what_an_ended_call_has_left_behind_is_given_no_call(nursery):
    supervisor, now = Supervisor(LIMITS, HANDLERS, nursery), boot_us()
    supervisor.submit([invocation("loop")])
    supervisor.grow(now)
    ((held, sock, slot),) = nursery.of("async/loop")
    assert orders(sock) == [1]
    slot.claim(1, 0)
    slot.put(json.dumps([1, "succeeded", 0, 10, None, None, 0]).encode())
    sock.send(struct.pack(">I", len(slot.take()) + 2) + b"[" + slot.take() + b"]")
    slot.clear()
    supervisor.receive(held, now)
    assert not held.calls
    slot.step(1, now)
    later = now + 2 * BUSY_US
    supervisor.submit([second := invocation("loop")])
    assert not supervisor.fill(later)
    assert supervisor.grow(later)
    assert orders(sock) == []
    _, (other, other_sock, _) = nursery.of("async/loop")
    assert list(other.calls.values()) == [[second]]
    assert orders(other_sock) == [1]


def test_a_call_that_a_held_loop_has_not_begun_is_killed_with_the_child_after_the_grace(nursery):
    supervisor, now = Supervisor(LIMITS, HANDLERS, nursery), boot_us()
    holds, waits = invocation("loop"), invocation("loop")
    supervisor.submit([holds, waits])
    supervisor.grow(now)
    ((child, _, slot),) = nursery.of("async/loop")
    slot.claim(1, 0)
    slot.step(1, now)
    supervisor.kill([waits.id], now)
    supervisor.watch(now + 99_000)
    assert nursery.killed == []
    supervisor.watch(now + 100_000)
    assert nursery.killed == [child.number]
    supervisor.died(child, -9, now + 110_000)
    assert {one.id: one.outcome for one in supervisor.done} == {holds.id: FAILED, waits.id: NOT_STARTED}


def test_a_stop_ends_a_loop_that_has_begun_none_of_its_calls(nursery):
    supervisor, now = Supervisor(LIMITS, HANDLERS, nursery), boot_us()
    supervisor.submit([invocation("loop")])
    supervisor.grow(now)
    ((child, _, _),) = nursery.of("async/loop")
    supervisor.stop(now + 50_000)
    supervisor.watch(now + 50_000)
    assert nursery.killed == [child.number]


def test_calls_that_find_a_child_keep_no_other_crew_from_starting_one(nursery):
    supervisor, now = Supervisor(LIMITS, HANDLERS, nursery), boot_us()
    supervisor.hand_out(now)
    assert len(nursery.of("local")) == 1
    supervisor.submit([invocation("noop"), waiting := invocation("loop")])
    assert supervisor.hand_out(now)
    assert [child.calls for child, _, _ in nursery.of("async/loop")] == [{1: [waiting]}]


def test_a_child_for_which_there_are_no_descriptors_is_tried_again_and_others_work_on(nursery, monkeypatch):
    supervisor, now = Supervisor(LIMITS, HANDLERS, nursery), boot_us()
    supervisor.hand_out(now)
    open_files = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(SharedMemory, "__init__", _too_many_files)
        supervisor.submit([first := invocation("noop"), waiting := invocation("loop")])
        assert supervisor.hand_out(now)
        assert not supervisor.grow(now + 999_999)
    assert [list(child.calls.values()) for child, _, _ in nursery.ends] == [[[first]]]
    assert len(os.listdir("/proc/self/fd")) == open_files
    assert supervisor.grow(now + 1_000_000)
    assert [child.calls for child, _, _ in nursery.of("async/loop")] == [{1: [waiting]}]


def _too_many_files(*_):
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
