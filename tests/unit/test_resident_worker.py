"""The process of a Spark worker without Spark: its lease and its connection, against a dispatcher that misbehaves."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import ssl
import struct
import threading
from dataclasses import replace

import pytest

from scylla_spark.clock import boot_us
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import Invocation
from scylla_spark.executors.remote import resident
from scylla_spark.executors.remote.certificate import server_context
from scylla_spark.executors.remote.frames import BEAT, DRAIN, TASKS
from scylla_spark.executors.remote.handshake import Ticket, nonce, proof_of_dispatcher
from scylla_spark.executors.remote.resident import GONE, UNWATCHED, Resident
from scylla_spark.executors.remote.worker_end import DRAINED, LEASE_ENDED
from scylla_spark.executors.spark import worker
from scylla_spark.handlers.description import HandlerInfo
from scylla_spark.handlers.framing import FrameReader, pack
from tests.support.waiting import eventually

TASK = Invocation(7, TaskKey(5, "lane", "u"), 1, 1, "h", "q", "{}", 0, 0, 1000)


class FakePool:
    """A pool without children, whose attempts say much."""

    def __init__(self, chars=0):
        self.chars = chars
        self.stopped = False
        self.asked = 0

    def start(self, sink):
        self.sink = sink

    def stop(self, *, drain_s):
        self.stopped = True

    def handlers(self):
        return {"h": HandlerInfo("h")}

    def rooms(self):
        return {"spark": 1}

    def running(self):
        return {}

    def notes(self):
        self.asked += 1
        return (
            {} if self.asked > 3 else {n: WorkNote(checkpoint="x" * 50_000) for n in range(1, self.chars // 50_000 + 1)}
        )

    def submit(self, batch):
        """Nothing runs here."""

    def be_lean(self, lean):
        self.lean = lean

    def recall(self, ids):
        """Nothing waits here."""


class FakeWatchdog:
    """A watchdog that never kills: the workers here are in the process of the tests."""

    alive = True

    def __init__(self, until_us):
        """Nothing to start."""

    def renew(self, until_us):
        return self.alive

    def close(self):
        """Nothing to end."""


class DeadWatchdog(FakeWatchdog):
    alive = False


class FakeDispatcher:
    """Takes connections, proves its key, and then does what a test wants."""

    def __init__(self, lease_us, tls=None, certificate=b""):
        self.tls = tls
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.listener.settimeout(30)
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen()
        self.ticket = Ticket("w", secrets.token_bytes(32), *self.listener.getsockname(), certificate, lease_us)
        self.introductions = []

    def accept(self):
        """A connection after the handshake, and its reader."""
        sock, _ = self.listener.accept()
        if self.tls is not None:
            sock = self.tls.wrap_socket(sock, server_side=True)
        reader = FrameReader()
        _, worker_id, theirs = self.message(sock, reader)
        ours = nonce()
        say(sock, [ours, proof_of_dispatcher(self.ticket.key, worker_id, theirs, ours)])
        self.introductions.append(self.message(sock, reader))
        say(sock, [0])
        return sock, reader

    def message(self, sock, reader):
        found = []
        while not found:
            received = sock.recv(65536)
            assert received, "the worker has closed the connection"
            found = reader.feed(received)
        return found[0]


def say(sock, *messages):
    sock.sendall(b"".join(pack(json.dumps(message).encode()) for message in messages))


def lease(for_us):
    return [0, 0, [BEAT, boot_us() + for_us, boot_us()]]


@pytest.fixture
def started():
    """Starts a worker; the call returns its thread, and the list that gets its reason."""
    threads, listeners = [], []

    def start(pool, dispatcher, watchdog=FakeWatchdog, most_bytes=None):
        reasons = []
        worker = dispatcher.worker = Resident(
            dispatcher.ticket, pool, executor_id="1", watchdog=watchdog, most_bytes=most_bytes
        )
        thread = threading.Thread(target=lambda: reasons.append(worker.run()), daemon=True)
        thread.start()
        threads.append(thread)
        listeners.append(dispatcher.listener)
        return thread, reasons

    yield start
    for listener in listeners:
        listener.close()
    for thread in threads:
        thread.join(10)


def own_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("spark-worker-")]


@pytest.mark.promise
@pytest.mark.slow
def test_the_lease_ends_also_where_the_dispatcher_reads_nothing(started):
    dispatcher, pool = FakeDispatcher(600_000_000), FakePool(chars=8_000_000)
    thread, reasons = started(pool, dispatcher)
    sock, _ = dispatcher.accept()
    with contextlib.closing(sock):
        eventually(lambda: pool.asked > 5, 30, "the worker has begun to write what nobody reads")
        dispatcher.worker._end.leased_until_us = boot_us()
        with contextlib.suppress(ConnectionError):  # it may have ended already
            say(sock, *[[0, 0, [BEAT, 0, boot_us()]]] * 200)  # asks for its clock, and is no lease
        thread.join(30)
        assert (reasons, pool.stopped) == ([LEASE_ENDED], True)


def test_no_thread_of_a_worker_is_left_after_it(started):
    dispatcher = FakeDispatcher(60_000_000)
    thread, reasons = started(FakePool(), dispatcher)
    sock, _ = dispatcher.accept()
    dispatcher.listener.close()
    sock.close()
    thread.join(30)
    assert (reasons, own_threads()) == ([GONE], [])


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.slow
def test_heartbeats_are_not_written_into_the_midst_of_other_frames(started, encrypted):
    tls, certificate = server_context() if encrypted else (None, b"")
    dispatcher = FakeDispatcher(600_000_000, tls, certificate)
    started(FakePool(chars=4_000_000), dispatcher)
    sock, reader = dispatcher.accept()
    pause = threading.Event()
    with contextlib.closing(sock):
        for _ in range(12):
            say(sock, lease(600_000_000))
            pause.wait(0.1)
        frames = []
        while sum(frame[2][0] == BEAT for frame in frames) < 2:
            received = sock.recv(65536)
            assert received, "the worker has closed the connection"
            frames += reader.feed(received)
            assert reader.fault == ""
        assert all(len(frame) == 3 for frame in frames)


def test_a_connection_that_breaks_before_it_is_encrypted_is_closed(monkeypatch):
    made = []
    wrap = ssl.SSLContext.wrap_socket
    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", lambda *given: made.append(wrap(*given)) or made[-1])
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # so that its end is a reset
        theirs.close()
        ours.settimeout(10)
        with pytest.raises(ConnectionResetError):
            ours.recv(1)
        with pytest.raises(OSError, match="not connected"):
            resident._encrypted(ours, bytes(32))
    assert [one.fileno() for one in made] == [-1]


@pytest.mark.slow
def test_a_worker_that_hears_nothing_connects_again_within_its_lease(started):
    dispatcher = FakeDispatcher(2_000_000)
    _, reasons = started(FakePool(), dispatcher)
    dispatcher.listener.settimeout(30)
    with contextlib.closing(dispatcher.accept()[0]):
        again, _ = dispatcher.accept()
        with contextlib.closing(again):
            assert ([received for _, received, *_ in dispatcher.introductions], reasons) == ([None, 0], [])


def test_a_defect_in_a_thread_of_a_worker_ends_it_and_its_handlers(started):
    dispatcher, pool = FakeDispatcher(60_000_000), FakePool()
    pool.notes = lambda: 1 / 0
    thread, reasons = started(pool, dispatcher)
    with contextlib.closing(dispatcher.accept()[0]):
        thread.join(30)
    assert pool.stopped
    assert "ZeroDivisionError" in reasons[0]


@pytest.mark.slow
def test_a_drained_worker_ends(started):
    dispatcher = FakeDispatcher(60_000_000)
    thread, reasons = started(FakePool(), dispatcher)
    sock, _ = dispatcher.accept()
    with contextlib.closing(sock):
        say(sock, [1, 0, [DRAIN]])
        thread.join(30)
    assert reasons == [DRAINED]


@pytest.mark.parametrize(("most_bytes", "lean"), [(1, True), (1 << 50, False)])
def test_a_worker_reports_its_memory_and_starts_no_child_beside_another_beyond_its_bound(started, most_bytes, lean):
    dispatcher, pool = FakeDispatcher(60_000_000), FakePool()
    started(pool, dispatcher, most_bytes=most_bytes)
    sock, reader = dispatcher.accept()
    with contextlib.closing(sock):
        say(sock, lease(120_000_000))
        eventually(lambda: hasattr(pool, "lean"), 10, "its memory was measured")
        assert pool.lean == lean
        say(sock, lease(120_000_000))
        memory = 0
        while not memory:
            _, _, body = dispatcher.message(sock, reader)
            memory = body[5] if body[0] == BEAT else 0
        assert memory > 10_000_000
        say(sock, [1, 0, [DRAIN]])


@pytest.mark.slow
def test_a_worker_without_a_watchdog_ends(started):
    dispatcher = FakeDispatcher(60_000_000)
    thread, reasons = started(FakePool(), dispatcher, DeadWatchdog)
    sock, _ = dispatcher.accept()
    with contextlib.closing(sock):
        say(sock, lease(120_000_000))
        thread.join(30)
    assert reasons == [UNWATCHED]


def test_what_came_in_while_a_worker_was_stopped_does_not_start_after_its_lease(started):
    pool, dispatcher = FakePool(), FakeDispatcher(60_000_000)
    worker = Resident(dispatcher.ticket, pool, executor_id="1", watchdog=FakeWatchdog)
    worker._end.leased_until_us = boot_us() - 1
    started_items = []
    pool.submit = started_items.extend
    worker._take([lease(60_000_000), [1, 0, [TASKS, "local", 0, [list(TASK.fields)]]]])
    dispatcher.listener.close()
    assert (worker._over, started_items) == (LEASE_ENDED, [])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may lower a niceness")
def test_a_worker_on_this_machine_runs_at_the_niceness_of_its_dispatcher_and_not_of_the_jvm(monkeypatch):
    seen = []

    class Nice:
        def __init__(self, *_, **__):
            """Nothing is needed."""

        def run(self):
            seen.append(os.getpriority(os.PRIO_PROCESS, 0))
            return "drained"

    def as_spark_task():
        os.setpriority(os.PRIO_PROCESS, 0, 5)  # of this thread alone
        ticket = Ticket("w", b"k" * 32, "127.0.0.1", 1, b"", 1_000_000)
        for niceness in (0, None):
            ((reason,),) = [
                batch.column(0).to_pylist() for batch in worker.host([], replace(config, niceness=niceness), ticket)
            ]
            seen.append(reason)
        seen.append(os.getpriority(os.PRIO_PROCESS, 0))

    config = worker.WorkerConfig(("tests.handlers",), 1, 1.0)
    monkeypatch.setattr(worker, "Resident", Nice)
    task = threading.Thread(target=as_spark_task)
    task.start()
    task.join()
    assert seen == [0, "drained", 5, "drained", 5]
