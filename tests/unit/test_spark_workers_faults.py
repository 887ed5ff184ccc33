"""The dispatcher's end of Spark workers: hostile or silent peers, defects of ours, and stops."""

from __future__ import annotations

import contextlib
import linecache
import socket
import threading
from dataclasses import replace
from types import ModuleType

import pytest

from scylla_spark.clock import boot_us
from scylla_spark.core.records import fast_json
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import FAILED, NOT_STARTED, SUCCEEDED, YIELDED, Invocation, Outcome
from scylla_spark.executors.interface import LogTerms
from scylla_spark.executors.local.outcomes import Moment
from scylla_spark.executors.remote import pool as remote_pool
from scylla_spark.executors.remote.boot_offset import Offset
from scylla_spark.executors.remote.certificate import server_context
from scylla_spark.executors.remote.frames import BEAT, BEGUN, ENDS, HEARD, LINES, RECALL, SAYS
from scylla_spark.executors.remote.handshake import VERSION, Ticket, introduction, nonce, proof_of_worker
from scylla_spark.executors.remote.pool import RemotePool
from scylla_spark.executors.remote.remote_worker import Hello, RemoteWorker
from scylla_spark.executors.remote.resident import Resident, _encrypted
from scylla_spark.executors.remote.supervisor import LOST, RemoteSupervisor, RemoteTerms
from scylla_spark.executors.remote.worker_end import SLICE_CHARS, WorkerEnd
from scylla_spark.executors.remote.worker_lines import WorkerLines
from scylla_spark.handlers.description import HandlerForm, HandlerInfo, form_of
from scylla_spark.handlers.framing import MAX_FRAME_BYTES, PREFIX, pack
from scylla_spark.handlers.registry import registered
from tests.support.waiting import eventually
from tests.unit.test_resident_worker import FakePool, FakeWatchdog
from tests.unit.test_spark_workers import Peer

TERMS = RemoteTerms(lease_us=1_000_000, kill_us=300_000)
HANDLERS = {"h": HandlerInfo("h")}
HELLO = Hello("1", "host", {"h": ""})
US = 1_000_000


def task(number, payload="{}"):
    return Invocation(number, TaskKey(5, f"lane{number}", "u"), 1, 1, "h", "q", payload, 0, 0, 1000)


def success(number):
    return [number, SUCCEEDED, 0, 0, None, None, 0]


def beat(free):
    return [0, 0, [BEAT, 0, 0, 0, {"local": [free, 0]}, 1]]


@pytest.fixture
def busy():
    """A supervisor whose worker has two attempts."""
    supervisor = RemoteSupervisor(TERMS, HANDLERS)
    supervisor.joined("w", HELLO, 0)
    supervisor.workers["w"].offset.note(0, 0, 0, 1)
    supervisor.receive("w", beat(2), Moment(1, 1))
    supervisor.submit([task(7), task(8)], Moment(1, 1))
    assert set(supervisor.workers["w"].held) == {7, 8}
    return supervisor


@pytest.mark.promise
def test_attempts_of_a_frame_that_cannot_be_read_are_lost_with_their_worker_and_do_not_hang(busy):
    assert not busy.receive("w", [1, 0, [ENDS, [success(7), "?", success(8)], {}]], Moment(2, 2))
    assert not busy.rejoined("w", 0, 3)
    assert list(busy.leases(4)) == []
    busy.watch(Moment(2 * US, 2 * US))
    assert [(one.id, one.failure and one.failure.kind) for one in busy.done] == [(7, None), (8, LOST)]


@pytest.mark.promise
def test_an_attempt_that_only_waited_at_a_lost_worker_uses_up_no_retry_the_first_two_times(busy):
    busy.receive("w", [1, 0, [BEGUN, [[7, 1]]]], Moment(2, 2))
    for turn in range(1, 4):
        now = turn * 2 * US
        busy.watch(Moment(now, now))
        busy.joined(f"w{turn}", HELLO, now)
        busy.workers[f"w{turn}"].offset.note(now, 0, 0, now)
        busy.receive(f"w{turn}", beat(1), Moment(now, now))
        busy.submit([task(8)], Moment(now, now))
    assert [(one.id, one.outcome) for one in busy.done] == [(7, FAILED), (8, YIELDED), (8, YIELDED), (8, FAILED)]
    assert {one.failure.kind for one in busy.done} == {LOST}


def test_what_is_known_of_an_attempt_names_the_executor_and_the_host_that_ran_it(busy):
    busy.receive("w", [1, 0, [BEGUN, [[7, 2]]]], Moment(2, 2))
    assert busy.notes(US) == {}, "it is no long run yet"
    busy.receive("w", [2, 0, [SAYS, [["note", 7, 0.5, None, None]]]], Moment(3, 3))
    noted = busy.notes(2 * US)
    assert {number: (note.worker, note.progress) for number, note in noted.items()} == {7: ("executor 1 on host", 0.5)}
    assert busy.notes(3 * US) == {}
    busy.receive("w", [3, 0, [ENDS, [success(7), [8, 5, 5]], {}]], Moment(3 * US, 3 * US))
    assert [(one.id, one.work.worker, one.work.progress) for one in busy.done] == [
        (7, "executor 1 on host", 0.5),
        (8, "executor 1 on host", None),
    ]


def test_an_attempt_that_has_begun_cannot_be_handed_back(busy):
    busy.receive("w", [1, 0, [BEGUN, [[7, 1]]]], Moment(2, 2))
    assert not busy.receive("w", [2, 0, [ENDS, [[7, "returned", 0, 0, None, None, 0]], {}]], Moment(3, 3))
    busy.watch(Moment(2 * US, 2 * US))
    assert [(one.id, one.failure.kind) for one in busy.done] == [(7, LOST), (8, LOST)]


def test_a_handler_that_no_worker_has_does_not_hold_up_the_others():
    supervisor = RemoteSupervisor(TERMS, HANDLERS | {"other": HandlerInfo("other")})
    supervisor.submit([task(1)._replace(handler="other"), task(2), task(3)], Moment(0, 0))
    supervisor.joined("w", HELLO, 0)
    supervisor.workers["w"].offset.note(0, 0, 0, 1)
    supervisor.receive("w", beat(1), Moment(1, 1))
    assert set(supervisor.workers["w"].held) == {2}
    supervisor.joined("v", Hello("2", "host", {"h": "", "other": ""}), 0)
    supervisor.workers["v"].offset.note(0, 0, 0, 1)
    supervisor.receive("v", beat(5), Moment(1, 1))
    assert set(supervisor.workers["v"].held) == {1, 3}


def test_a_worker_that_has_a_handler_in_another_version_gets_no_task_of_it_and_the_handler_is_named():
    new = HandlerForm(digest="new")
    supervisor = RemoteSupervisor(TERMS, {name: HandlerInfo(name, form=new) for name in ("h", "other", "third")})
    supervisor.joined("w", Hello("1", "host", {"h": "new", "other": "old"}), 0)
    supervisor.workers["w"].offset.note(0, 0, 0, 1)
    supervisor.receive("w", beat(5), Moment(1, 1))
    supervisor.submit([task(1)._replace(handler="other"), task(2), task(3)._replace(handler="third")], Moment(1, 1))
    assert set(supervisor.workers["w"].held) == {2}
    assert supervisor.workers["w"].described(1)["lacks"] == ["other", "third"]


def test_a_handler_of_unknown_version_is_that_of_any_worker_that_has_it():
    supervisor = RemoteSupervisor(
        TERMS, {"h": HandlerInfo("h"), "other": HandlerInfo("other", form=HandlerForm(digest="a"))}
    )
    supervisor.joined("w", Hello("1", "host", {"h": "some", "other": ""}), 0)
    assert supervisor.workers["w"].described(1)["lacks"] == []


def test_the_digest_of_a_handler_is_that_of_its_source_with_its_decorator():
    def digest(settings, body):
        module = ModuleType("changing")
        source = f"from scylla_spark.handlers.registry import handler\n@handler('changing', {settings})\ndef run(task):\n    {body}\n"
        linecache.cache["<changing>"] = (len(source), None, source.splitlines(keepends=True), "<changing>")
        exec(compile(source, "<changing>", "exec"), vars(module))
        return form_of(module.run, registered(module.run).signature).digest

    first = digest("", "return 1")
    assert first == digest("", "return 1")
    assert len({first, digest("", "return 2"), digest("timeout='1s'", "return 1")}) == 3


def test_a_worker_is_given_no_task_of_a_handler_that_it_lacks_in_place_of_a_batch_whose_lane_runs():
    supervisor = RemoteSupervisor(TERMS, HANDLERS | {"batch": HandlerInfo("batch", max_batch=1)})
    supervisor.joined("w", Hello("1", "host", {"batch": ""}), 0)
    supervisor.workers["w"].offset.note(0, 0, 0, 1)
    supervisor.receive("w", beat(2), Moment(1, 1))
    first, second = (task(number)._replace(handler="batch", key=TaskKey(number, "a", "u")) for number in (1, 2))
    supervisor.submit([first], Moment(1, 1))
    supervisor.submit([second, task(3)], Moment(1, 1))
    assert set(supervisor.workers["w"].held) == {1}
    supervisor.joined("v", HELLO, 0)
    supervisor.workers["v"].offset.note(0, 0, 0, 1)
    supervisor.receive("v", beat(1), Moment(1, 1))
    assert set(supervisor.workers["v"].held) == {3}
    supervisor.receive("w", [1, 0, [ENDS, [success(1)], {"local": [1, 1]}]], Moment(2, 2))
    assert set(supervisor.workers["w"].held) == {2}


@pytest.mark.slow
def test_no_frame_of_a_worker_is_longer_than_its_dispatcher_reads():
    end = WorkerEnd(0, US)
    end.held.update(range(1, 601))
    end.ended([Outcome(n, SUCCEEDED, 1, 1, "1" * 65_000) for n in range(1, 601)], {"local": 1}, 0)
    end.says([["note", n, None, "{" + " " * 65_000 + "}", None] for n in range(600)])
    end.wrote([["x" * 100_000] * 200, ["y" * 100_000] * 200])
    frames = end.link.take()
    assert max(len(fast_json.dump(frame)) for frame in frames) < MAX_FRAME_BYTES // 2
    bodies = [body for _, _, body in frames]
    assert sum(len(body[1]) for body in bodies if body[0] == ENDS) == 600
    lines = [frame for body in bodies if body[0] == "lines" for child in body[1] for frame in child]
    assert (len(lines), lines == sorted(lines)) == (400, True)


def test_lines_that_a_dispatcher_does_not_take_are_not_gathered_without_bound():
    class Flood(WorkerLines):
        def take(self, most):
            return [["x" * (most // 10)] * 10]

    ticket = Ticket("w", b"k" * 32, "127.0.0.1", 1, b"", US)
    worker = Resident(ticket, FakePool(), executor_id="1", watchdog=FakeWatchdog, lines=Flood(LogTerms(1, 1, 1)))
    for _ in range(50):
        worker._tell()
    waiting = worker._end.link.take()
    assert sum(len(frame) for _, _, body in waiting for child in body[1] for frame in child) < 4 * SLICE_CHARS
    worker._end.link.receive([0, waiting[-1][0], [HEARD]])
    worker._tell()
    assert worker._end.link.waiting > 0


def test_lines_go_in_small_frames_and_their_acknowledgement_does_not_wait_for_other_work(busy):
    end = WorkerEnd(0, US)
    end.wrote([["x" * 1000] * 200])
    frames = end.link.take()
    assert max(len(fast_json.dump(frame)) for frame in frames) < 1.1 * SLICE_CHARS
    assert not end.has_way_for_lines
    busy.workers["w"].take()
    for frame in frames:
        assert frame[2][0] == LINES
        busy.receive("w", frame, Moment(2, 2))
    (answer,) = busy.workers["w"].take()
    assert end.receive(answer, 3) == []
    assert end.lines_were_read
    assert end.has_way_for_lines
    assert busy.workers["w"].take() == []


def test_lanes_that_wait_at_a_busy_worker_go_to_a_free_one_and_are_asked_for_until_a_child_returns_them(busy):
    busy.receive("w", [1, 0, [BEGUN, [[7, 1]]]], Moment(2, 2))
    busy.joined("v", HELLO, 3)
    busy.workers["v"].offset.note(3, 3, 3, 4)
    busy.receive("v", beat(2), Moment(4, 4))
    busy.workers["w"].take()
    after_us = TERMS.recall_us
    assert after_us * 3 // 2 < 100_000, "it is looked at every half of that"
    for again in (1, 2):  # the first request finds the attempt at a child
        busy.watch(Moment(again * after_us + 1, again * after_us + 1))
        ((_, _, recall),) = busy.workers["w"].take()
        assert recall == [RECALL, [8]]
    busy.receive("w", [2, 0, [ENDS, [[8, "returned", 0, 0, None, None, 0]], {"local": [0, 2]}]], Moment(90_000, 90_000))
    assert set(busy.workers["v"].held) == {8}
    assert busy.counts["recalled"] == 1


def test_tasks_behind_a_running_one_of_their_lane_ask_for_no_worker(busy):
    behind = [task(number)._replace(key=TaskKey(number, "lane7", "u")) for number in (9, 10)]
    busy.submit(behind, Moment(2, 2))
    assert busy.waiting("local") == 0
    busy.submit([task(11)], Moment(2, 2))
    assert busy.waiting("local") == 1


@pytest.fixture
def serve(monkeypatch):
    """Starts pools, and stops them."""
    monkeypatch.setattr(remote_pool, "_PROOF_WITHIN_S", 0.5)
    pools = []

    def start(**options):
        pool = RemotePool(TERMS, HANDLERS, host="127.0.0.1", advertise="127.0.0.1", **options)
        pool.outcomes = []
        pool.start(pool.outcomes.extend)
        pools.append(pool)
        return pool

    yield start
    for pool in pools:
        pool.stop(drain_s=0)


def is_closed(sock):
    sock.settimeout(30)
    with contextlib.suppress(ConnectionError):
        return sock.recv(1) == b""
    return True


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def certified(request):
    """Options of a pool, and the digest of its certificate; None without."""
    context, digest = server_context()
    return ({"tls": context, "certificate": digest}, digest) if request.param else ({}, None)


def strangers(stack, ticket, count):
    """Connections of clients that say nothing."""
    return [stack.enter_context(socket.create_connection((ticket.host, ticket.port), timeout=30)) for _ in range(count)]


def test_at_most_64_strangers_are_connected_and_they_keep_no_worker_out(serve, certified, monkeypatch):
    monkeypatch.setattr(remote_pool, "_PROOF_WITHIN_S", 600.0)
    options, digest = certified
    pool = serve(**options)
    ticket = pool.ticket()
    with contextlib.ExitStack() as stack:
        strangers(stack, ticket, 80)
        peer = Peer(ticket)
        if digest is not None:
            peer.sock = _encrypted(peer.sock, digest)
        assert (peer.introduce(ticket), len(pool._unproven) <= 64) == ([0], True)


@pytest.mark.slow
def test_strangers_are_not_connected_for_long(serve, certified):
    options, digest = certified
    ticket = serve(**options).ticket()
    with contextlib.ExitStack() as stack:
        silent = strangers(stack, ticket, 64)
        for sock in silent[::2]:
            sock.sendall(pack(b"[1,2,3]")[:-2])  # half a frame
        assert all(is_closed(sock) for sock in silent)
    peer = Peer(ticket)
    if digest is not None:
        peer.sock = _encrypted(peer.sock, digest)
    assert peer.introduce(ticket) == [0]


def test_of_strangers_that_are_too_many_those_that_name_no_job_go_first(serve, monkeypatch):
    monkeypatch.setattr(remote_pool, "_MOST_UNPROVEN", 2)
    monkeypatch.setattr(remote_pool, "_PROOF_WITHIN_S", 60)
    pool = serve()
    ticket = pool.ticket()
    first, mine = Peer(ticket), nonce()
    first.say([VERSION, ticket.worker_id, mine])
    theirs, _ = first.hear()
    second, third, fourth = Peer(ticket), Peer(ticket), Peer(ticket)
    assert (second.hear(), third.hear()) == (None, None)
    first.say(introduction(proof_of_worker(ticket.key, ticket.worker_id, theirs, mine), None, HELLO))
    assert first.hear() == [0]
    fourth.sock.close()


def connected(pool):
    """A worker with an exact clock and room for some attempts."""
    ticket = pool.ticket()
    peer = Peer(ticket)
    peer.introduce(ticket)
    peer.say(beat(9))
    eventually(lambda: pool.supervisor.workers[ticket.worker_id].rooms, 5, "it has room")
    pool.supervisor.workers[ticket.worker_id].offset.note(boot_us(), boot_us(), boot_us(), boot_us())
    return ticket, peer


@pytest.mark.slow
def test_a_worker_that_does_not_read_keeps_no_connection_after_its_end(serve):
    pool = serve()
    ticket, peer = connected(pool)
    transport = pool._connections[ticket.worker_id]._transport
    pool.submit([task(n, "x" * 3_000_000) for n in range(1, 10)])
    eventually(lambda: transport.get_write_buffer_size() > 0, 5, "more is written than it reads")
    peer.sock.sendall(b"\xff" * 8)
    eventually(lambda: transport.get_write_buffer_size() == 0, 5, "what was written is dropped")


def test_a_worker_whose_long_frame_is_on_its_way_keeps_its_lease(serve):
    pool = serve()
    pool.supervisor.terms = replace(TERMS, lease_us=600 * US)
    ticket, peer = connected(pool)
    worker = pool.supervisor.workers[ticket.worker_id]
    for part in (PREFIX.pack(1_000_000), b" ", b" "):
        with pool.lock:
            worker.silent_since_us = boot_us() - 301 * US
            assert list(pool.supervisor.leases(boot_us())) == []
        peer.sock.sendall(part)
        eventually(lambda: list(pool.supervisor.leases(boot_us())), 5, "it gets a lease again")
    peer.sock.close()


@pytest.mark.promise
@pytest.mark.slow
def test_a_stop_reports_attempts_of_a_silent_worker_only_when_its_lease_has_ended(serve):
    pool = serve()
    _ticket, peer = connected(pool)
    pool.submit([task(1)])
    eventually(lambda: pool.supervisor.workers[_ticket.worker_id].held, 5, "it has the attempt")
    leased_until_us = next(iter(pool.supervisor.workers.values())).leased_until_us
    pool.stop(drain_s=0)
    assert boot_us() >= leased_until_us + TERMS.kill_us
    assert [one.id for one in pool.outcomes] == [1]
    peer.sock.close()


def test_a_stop_waits_for_no_worker_that_is_cut_off_and_has_nothing(serve):
    pool = serve()
    _, peer = connected(pool)
    peer.sock.close()
    eventually(lambda: not any(one.connected for one in pool.supervisor.workers.values()), 5, "it is cut off")
    pool._terms = replace(TERMS, kill_us=600 * US)  # the test would wait as long
    pool.stop(drain_s=0)


def test_an_attempt_that_may_not_start_any_more_is_recalled_from_its_worker():
    supervisor = RemoteSupervisor(TERMS, HANDLERS)
    supervisor.joined("w", HELLO, 0)
    supervisor.workers["w"].offset.note(0, 0, 0, 1)
    supervisor.receive("w", beat(2), Moment(1, 1))
    supervisor.submit([task(7)._replace(start_by_us=500_000), task(8)], Moment(1, 1))
    worker = supervisor.workers["w"]
    worker.link.take()
    supervisor.watch(Moment(400_000, 400_000))
    assert worker.link.take() == []
    supervisor.watch(Moment(500_000, 500_000))
    supervisor.watch(Moment(600_000, 600_000))
    assert [body for _, _, body in worker.link.take()] == 2 * [[RECALL, [7]]], (
        "asked again, since a child may have had it"
    )
    supervisor.receive("w", [1, 0, [ENDS, [[7, "returned", 0, 0, None, None, 0]], {}]], Moment(700_000, 700_000))
    assert [(one.id, one.outcome) for one in supervisor.done] == [(7, NOT_STARTED)]


def test_attempts_with_long_payloads_are_sent_in_several_frames():
    worker = RemoteWorker(HELLO, 0, TERMS.lease_us, HELLO.handlers)
    worker.give([task(number, "x" * 1_000_000) for number in range(1, 41)], "local", Offset(0, 1), 0)
    frames = worker.link.take()
    assert max(len(fast_json.dump(frame)) for frame in frames) < MAX_FRAME_BYTES // 8
    assert sum(len(body[3]) for _, _, body in frames) == 40


def test_workers_whose_jobs_have_ended_are_not_remembered(busy):
    busy.forget("w")
    busy.watch(Moment(2 * US, 2 * US))
    busy.joined("v", HELLO, 2 * US)
    busy.watch(Moment(4 * US, 4 * US))
    assert (busy.workers, busy.has_seen("w"), busy.has_seen("v")) == ({}, False, True)
    busy.forget("v")
    assert not busy.has_seen("v")


def test_a_stop_can_be_asked_for_twice_and_work_that_comes_after_it_does_no_harm(serve):
    pool = serve()
    pool.stop(drain_s=0)
    pool.stop(drain_s=0)
    pool.submit([task(1)])
    pool.kill([1])
    assert pool.outcomes == []


@pytest.mark.parametrize("duty", ["watch", "leases"])
@pytest.mark.slow
def test_a_defect_in_one_turn_does_not_end_the_duties_of_the_pool(serve, duty, monkeypatch):
    pool, turns = serve(), []

    def fail(_now):
        turns.append(threading.current_thread().name)
        raise ZeroDivisionError

    monkeypatch.setattr(pool.supervisor, duty, fail)
    eventually(lambda: len(turns) > 1, 5, "it is tried again")
    monkeypatch.undo()
