"""Spark workers without Spark: frames, proofs, clocks, limits, and what hostile ones can do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import threading

import pytest

from scylla_spark.clock import boot_us
from scylla_spark.config.spark_workers import SparkWorkers
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import Invocation, LastError
from scylla_spark.executors.local.outcomes import Moment
from scylla_spark.executors.remote.boot_offset import BootOffset, Offset
from scylla_spark.executors.remote.certificate import server_context
from scylla_spark.executors.remote.frames import BEAT, BEGUN, DEAD, ENDS, LINES, SAYS, read_task
from scylla_spark.executors.remote.handshake import (
    VERSION,
    introduction,
    nonce,
    proof_of_dispatcher,
    proof_of_worker,
)
from scylla_spark.executors.remote.link import Link
from scylla_spark.executors.remote.pool import RemotePool
from scylla_spark.executors.remote.remote_worker import Hello, RemoteWorker
from scylla_spark.executors.remote.resident import _encrypted
from scylla_spark.executors.remote.supervisor import RemoteSupervisor, RemoteTerms
from scylla_spark.executors.spark.elastic import Change, Present, change, most_workers
from scylla_spark.handlers.description import HandlerInfo
from scylla_spark.handlers.framing import FrameReader, ProtocolError, pack

TERMS = RemoteTerms(lease_us=5_000_000)
HANDLERS = {"h": HandlerInfo("h")}
HELLO = Hello("1", "host", {"h": ""})
TASK = Invocation(
    7, TaskKey(5, "lane", "u"), 2, 3, "h", "q", "{}", 0, 9, 1000, 60_000_000, '{"a":1}', LastError("X", "y"), 1 << 62,
    ("red",), "00-trace",
)  # fmt: skip


def wire(frames):
    return json.loads(json.dumps(frames))


class TestLink:
    def test_frames_that_were_lost_with_a_connection_are_sent_again_and_taken_once(self):
        here, there = Link(), Link()
        for body in ("a", "b", "c"):
            here.send([body])
        first, *_ = wire(here.take())
        assert there.receive(first) == ["a"]
        here.reconnected(there.received)
        again = wire(here.take())
        assert [there.receive(frame) for frame in again] == [["b"], ["c"]]
        assert there.receive(again[0]) is None
        here.receive(wire(there.unnumbered(["beat"])))
        assert here.waiting == 0

    @pytest.mark.parametrize(
        "frame",
        [None, [], [1], [1, 0, None], [2, 0, ["gap"]], [1, 9, ["unsent"]], ["1", 0, []], [-1, 0, []], [True, 0, []]],
    )
    def test_what_is_no_frame_is_a_protocol_error(self, frame):
        with pytest.raises(ProtocolError):
            Link().receive(frame)


class TestClocks:
    def test_the_least_round_trip_bounds_the_error(self):
        offset = BootOffset()
        offset.note(1_000, 501_100, 501_100, 1_400)
        offset.note(2_000, 502_010, 502_010, 2_020)
        assert offset.best(2_020) == Offset(500_000, 11)

    def test_the_time_that_an_answer_waits_at_the_worker_is_no_error(self):
        offset = BootOffset()
        offset.note(0, 100, 900_100, 900_200)
        assert offset.best(900_200) == Offset(0, 101)

    def test_measurements_of_more_than_a_minute_ago_count_no_more(self):
        offset = BootOffset()
        offset.note(0, 0, 0, 10)
        assert offset.best(60_000_020) is None

    def test_a_clock_that_was_set_makes_older_measurements_void(self):
        offset = BootOffset()
        offset.note(0, 5_000_000, 5_000_000, 10)
        offset.note(1_000, 1_000, 1_000, 1_010)
        assert abs(offset.best(1_010).us) <= 6

    @pytest.mark.promise
    def test_a_limit_to_start_is_one_of_the_workers_clock_and_never_later(self):
        worker = RemoteWorker(HELLO, 0, TERMS.lease_us, HELLO.handlers)
        clock = Offset(1_000_000_000, 40_000)
        worker.give([TASK], "local", clock, 0)
        ((_, _, (_, _, ahead_us, (fields,))),) = wire(worker.link.take())
        assert read_task(fields, ahead_us).start_by_us == TASK.start_by_us + 1_000_000_000 - 40_000


def test_an_attempt_arrives_as_it_was_sent():
    assert read_task(wire(TASK.fields), 0) == TASK
    usual = TASK._replace(checkpoint=None, last_error=None, tags=(), traceparent=None)
    assert read_task(wire(usual.fields), 0) == usual
    assert len(usual.fields) < len(TASK.fields)


def test_tasks_of_a_handler_that_every_worker_lacks_start_no_further_worker():
    handlers = {name: HandlerInfo(name, max_batch=size) for name, size in (("h", None), ("new", None), ("many", 3))}
    supervisor = RemoteSupervisor(TERMS, handlers)
    items = [
        Invocation(number, TaskKey(5, f"lane{number}", "u"), 1, 1, handler, "q", "{}", 0, 9, 1000)
        for number, handler in enumerate(("h", "new", "new", "many"))
    ]
    name = handlers["h"].executor
    supervisor.submit(items, Moment(0, 0))
    assert (supervisor.waiting(name), supervisor.wanting(name)) == (4, 4), "the first worker may have all of them"
    assert supervisor.lacked == frozenset()
    supervisor.joined("w", HELLO, 0)
    assert (supervisor.waiting(name), supervisor.wanting(name)) == (4, 1)
    assert supervisor.lacked == {"new", "many"}
    supervisor.joined("v", Hello("2", "host", {"h": "", "new": ""}), 0)
    assert supervisor.wanting(name) == 3
    assert supervisor.lacked == {"many"}


class TestHowManyWorkers:
    LIMITS = SparkWorkers(min=0, max=8, idle="1s", reserve=2)

    def test_waiting_tasks_start_workers_up_to_the_slots_that_are_not_reserved(self):
        assert most_workers(self.LIMITS, 6) == 4
        assert change(self.LIMITS, 6, [], 0, 0, 1, 0) == Change(1)
        busy = [Present(str(n), "1", 2, 0) for n in range(3)]
        assert change(self.LIMITS, 6, busy, 0, 0, 50, 0) == Change(1)
        assert change(self.LIMITS, 6, busy, 1, 0, 50, 0) == Change(0)

    def test_idle_workers_end_and_those_of_the_emptiest_executor_first(self):
        limits = SparkWorkers(min=1, max=8, idle="1s", reserve=0)
        there = [Present("a", "1", 0, 0), Present("b", "1", 4, 0), Present("c", "2", 0, 0)]
        assert change(limits, 8, there, 0, 0, 0, 999_999) == Change()
        assert change(limits, 8, there, 0, 0, 0, 1_000_000).drain == ("c", "a")

    def test_workers_beyond_what_a_smaller_cluster_has_room_for_end(self):
        there = [Present("a", "1", 3, 0), Present("b", "2", 1, 0), Present("c", "3", 2, 0)]
        assert change(self.LIMITS, 3, there, 0, 0, 9, 0).drain == ("b", "c")


class Peer:
    """A client of the port of workers that says what it likes."""

    def __init__(self, ticket):
        self.sock = socket.create_connection((ticket.host, ticket.port), timeout=10)
        self.reader = FrameReader()
        self.heard = []

    def __del__(self):
        self.sock.close()

    def say(self, *messages):
        self.sock.sendall(b"".join(pack(json.dumps(message).encode()) for message in messages))

    def hear(self):
        """The next message; None: the connection is closed."""
        while not self.heard:
            try:
                data = self.sock.recv(65536)
            except ConnectionError:
                data = b""
            if not data:
                return None
            self.heard += self.reader.feed(data)
        return self.heard.pop(0)

    def introduce(self, ticket, *, received=None, proof=None):
        mine = nonce()
        self.say([VERSION, ticket.worker_id, mine])
        theirs, shown = self.hear()
        assert shown == proof_of_dispatcher(ticket.key, ticket.worker_id, mine, theirs)
        right = proof_of_worker(ticket.key, ticket.worker_id, theirs, mine)
        self.say(introduction(proof or right, received, HELLO))
        return self.hear()


@pytest.fixture
def pool():
    outcomes = []
    made = RemotePool(TERMS, HANDLERS, host="127.0.0.1", advertise="127.0.0.1")
    made.outcomes = outcomes
    made.start(outcomes.extend)
    yield made
    made.stop(drain_s=0)


def test_a_pool_starts_where_an_event_loop_runs_as_in_notebooks():
    async def cell():
        made = RemotePool(TERMS, HANDLERS, host="127.0.0.1", advertise="127.0.0.1")
        made.start(lambda outcomes: None)
        try:
            ticket = made.ticket()
            return Peer(ticket).introduce(ticket)
        finally:
            made.stop(drain_s=0)

    assert asyncio.run(cell()) == [0]


class TestConnections:
    def test_a_worker_that_proves_its_key_is_greeted_with_a_lease(self, pool):
        ticket = pool.ticket()
        peer = Peer(ticket)
        assert peer.introduce(ticket) == [0]
        number, _, body = peer.hear()
        assert (number, body[0]) == (0, BEAT)

    def test_a_wrong_proof_closes_the_connection(self, pool):
        ticket = pool.ticket()
        assert Peer(ticket).introduce(ticket, proof="0" * 64) is None
        assert pool.supervisor.workers == {}

    def test_an_id_that_no_job_has_learns_nothing(self, pool):
        peer = Peer(pool.ticket())
        peer.say([VERSION, "stranger", nonce()])
        assert peer.hear() is None

    def test_a_second_worker_of_one_job_is_refused(self, pool):
        ticket = pool.ticket()
        first, second = Peer(ticket), Peer(ticket)
        assert first.introduce(ticket) == [0]
        assert second.introduce(ticket) == [None]

    @pytest.mark.parametrize(
        "data",
        [b"GET / HTTP/1.1\r\n\r\n", pack(b"[" * 400), pack(b"{}"), pack(b"[1,2,3]"), b"\xff" * 8, pack(b"x" * 4096)],
    )
    def test_garbage_closes_the_connection_and_nothing_else(self, pool, data):
        ticket = pool.ticket()
        peer = Peer(ticket)
        peer.sock.sendall(data)
        assert peer.hear() is None
        assert Peer(ticket).introduce(ticket) == [0]

    def test_after_a_break_the_worker_connects_again_and_goes_on_with_its_numbers(self, pool):
        ticket = pool.ticket()
        peer = Peer(ticket)
        peer.introduce(ticket)
        peer.say([1, 0, [BEGUN, []]], [2, 0, [BEGUN, []]])
        peer.sock.close()
        again = Peer(ticket)
        assert again.introduce(ticket, received=0)[0] in (0, 1, 2)

    def test_the_key_is_in_no_text(self, pool):
        ticket = pool.ticket()
        assert repr(ticket.key)[2:-1] not in repr(ticket)
        assert ticket.key.hex() not in f"{ticket} {[ticket]}"

    @pytest.mark.parametrize("ours", [True, False])
    def test_the_certificate_is_pinned(self, ours):
        context, digest = server_context()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=_accept, args=(listener, context), daemon=True)
            thread.start()
            connection = socket.create_connection(listener.getsockname(), timeout=10)
            if ours:
                with _encrypted(connection, digest) as encrypted:
                    assert encrypted.version() == "TLSv1.3"
            else:
                with pytest.raises(ProtocolError, match="another certificate"):
                    _encrypted(connection, b"?" * 32)
            thread.join(10)


def _accept(listener, context):
    connection, _ = listener.accept()
    with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as encrypted:
        encrypted.recv(1)


@pytest.mark.slow
def test_whatever_a_worker_says_costs_at_most_its_connection():
    rng = random.Random(7)
    scraps = [
        None,
        True,
        -1,
        0,
        1,
        7,
        1 << 63,
        0.5,
        "",
        "x",
        [],
        [1],
        {},
        {"local": [1, 1]},
        {"local": [-1, "x"]},
        [[7, 5]],
    ]
    ends = (
        [[7, "succeeded", 0, 0, None, None, 0]],
        [[7, "timed_out", 0, 1, None, ["a", "b", "c"], 0]],
        [[7, "returned"]],
    )
    for _ in range(3_000):
        supervisor = RemoteSupervisor(TERMS, HANDLERS)
        supervisor.joined("w", HELLO, 0)
        supervisor.workers["w"].offset.note(0, 0, 0, 1)
        supervisor.receive("w", [0, 0, [BEAT, 0, 0, 0, {"local": [5, 0]}, 1]], Moment(1, 1))
        supervisor.submit([TASK], Moment(1, 1))
        for number in range(1, 4):
            kind = rng.choice([BEAT, BEGUN, DEAD, ENDS, LINES, SAYS, "other", None])
            body = [kind, *(rng.choice([*scraps, *ends]) for _ in range(rng.randrange(6)))]
            alive = supervisor.receive("w", [rng.choice([0, number]), 0, body], Moment(number, number))
            assert alive in (True, False)
        supervisor.watch(Moment(boot_us(), boot_us()))
        assert len({outcome.id for outcome in supervisor.done}) == len(supervisor.done) <= 1
