"""A Spark worker: a local pool inside one long Spark task, which its dispatcher gives work over a connection that it makes itself."""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from scylla_spark.clock import boot_us, both_us
from scylla_spark.core.records import fast_json
from scylla_spark.core.tasks.task import Invocation, Outcome
from scylla_spark.executors.local.local_executors import LocalExecutors
from scylla_spark.executors.remote.frame_socket import RECV_BYTES, FrameSocket
from scylla_spark.executors.remote.handshake import (
    VERSION,
    Ticket,
    introduction,
    is_equal,
    nonce,
    proof_of_dispatcher,
    proof_of_worker,
)
from scylla_spark.executors.remote.process_memory import used_bytes
from scylla_spark.executors.remote.remote_worker import Hello
from scylla_spark.executors.remote.watchdog import Watchdog
from scylla_spark.executors.remote.worker_end import DRAINED, LEASE_ENDED, SLICE_CHARS, End, Recall, WorkerEnd, notes_of
from scylla_spark.executors.remote.worker_lines import MOST_BYTES, WorkerLines
from scylla_spark.handlers.framing import FrameReader, ProtocolError, pack

_log = logging.getLogger(__name__)
_TICK_S: Final = 0.05
_LAST_TICKS: Final = 20  # that the dispatcher has to acknowledge the last frames
_BEAT_US: Final = 1_000_000
_MEASURE_US: Final = 2_000_000
_CONNECT_S: Final = 5.0
STOPPED: Final = "its dispatcher has stopped"
GONE: Final = "its dispatcher has ended"
REFUSED: Final = "its dispatcher does not want it any more"
ORPHANED: Final = "the process that started it has ended"
UNWATCHED: Final = "its watchdog has ended, or could not be started"


class Resident:
    """One Spark worker. It runs until it is drained, given up, or its lease ends.

    Args:
        ticket: of its job.
        pool: runs the handlers; not started.
        executor_id: of Spark.
        watchdog: makes its watchdog, given the boot clock at which its lease ends.
        lines: the keeper of what the handlers of the pool write; None: that is not kept.
        most_bytes: of memory; while its processes use more, it starts no child beside another one. None: there is no bound.
    """

    def __init__(
        self,
        ticket: Ticket,
        pool: LocalExecutors,
        *,
        executor_id: str,
        watchdog: Callable[[int], Watchdog],
        lines: WorkerLines | None = None,
        most_bytes: int | None = None,
    ) -> None:
        self._ticket = ticket
        self._pool = pool
        self._executor_id = executor_id
        self._make_watchdog = watchdog
        self._watchdog: Watchdog | None = None
        self._parent = os.getppid()
        self._lines = lines
        self._most_bytes = most_bytes
        self._used_bytes = 0
        self._measured_us = 0
        self._lean = False
        self._lock = threading.Lock()
        self._end = WorkerEnd(boot_us(), ticket.lease_us)
        self._socket: FrameSocket | None = None
        self._joined = False
        self._wake = threading.Event()
        self._pause = threading.Event()
        self._closed = False
        self._over = ""
        self._silence_s = ticket.lease_us / 2e6  # after this a connection is made again

    def run(self) -> str:
        """Runs, and returns why it has ended; its handlers are dead then.

        Raises:
            SchedulerError: the handlers cannot be loaded here.
        """
        self._pool.start(self._sink)
        self._end = WorkerEnd(boot_us(), self._ticket.lease_us)
        try:
            self._watchdog = self._make_watchdog(self._end.leased_until_us)
        except OSError as error:
            self._over = f"{UNWATCHED}: {error}"
        threads = [
            threading.Thread(target=self._guard, args=(work,), name=f"spark-worker-{name}", daemon=True)
            for name, work in (("writer", self._write), ("reader", self._read))
        ]
        for thread in threads:
            thread.start()
        self._guard(self._keep_lease)
        self._pool.stop(drain_s=0)
        with self._lock:
            watchdog, self._watchdog = self._watchdog, None
            self._pass_lines(2 * MOST_BYTES)
            self._end.dead(self._over)
        if watchdog is not None:
            watchdog.close()
        self._wake.set()
        for _ in range(_LAST_TICKS):
            if self._socket is None or not self._end.link.waiting:
                break
            self._pause.wait(_TICK_S)
        self._closed = True
        self._wake.set()
        if (connection := self._socket) is not None:
            connection.shut()
        for thread in threads:
            thread.join(_CONNECT_S)
        return self._over

    def _guard(self, work: Callable[[], None]) -> None:
        """Does the work of a thread; a defect there ends the worker, so that its handlers are ended, too."""
        try:
            work()
        except Exception as error:
            _log.exception("a thread of a Spark worker failed")
            self._over = self._over or f"a thread of it failed: {error!r}"

    def _keep_lease(self) -> None:
        """Returns once the worker must end. It waits for no connection: the lease ends also where nobody reads what is sent."""
        while not self._over:
            now = boot_us()
            with self._lock:
                if not self._end.may_run(now):
                    self._over = LEASE_ENDED
                elif self._end.drained:
                    self._over = DRAINED
                self._tell()
            if os.getppid() != self._parent:
                self._over = ORPHANED
            if now - self._measured_us >= _MEASURE_US:
                self._measured_us = now
                self._measure()
            self._pause.wait(_TICK_S)

    def _measure(self) -> None:
        """Measures the memory of its processes, and stops or resumes the start of children."""
        self._used_bytes = used_bytes(os.getpid())
        if self._most_bytes is None:
            return
        lean = self._used_bytes > self._most_bytes
        if lean and not self._lean:
            _log.warning(
                "a Spark worker starts no more children: its processes use %d MB, and %d MB of memory overhead are its share",
                self._used_bytes >> 20, self._most_bytes >> 20,
            )  # fmt: skip
        self._lean = lean
        self._pool.be_lean(lean)

    def _tell(self) -> None:
        """Reports starts and notes of attempts that run."""
        wall, boot = both_us()
        ahead = wall - boot
        self._end.begun({number: at - ahead for number, at in self._pool.running().items()})
        self._end.says([record for number, note in self._pool.notes().items() for record in notes_of(number, note)])
        self._pass_lines()
        if self._end.link.waiting:
            self._wake.set()

    def _pass_lines(self, most: int = SLICE_CHARS) -> None:
        """Sends lines, a few at a time: the others wait where their number is bounded, and delay no outcome."""
        if self._lines is None:
            return
        if self._end.has_way_for_lines or most > SLICE_CHARS:
            self._end.wrote(self._lines.take(most))
        else:
            self._lines.gather()

    def _sink(self, outcomes: Sequence[Outcome]) -> None:
        wall, boot = both_us()
        rooms = self._pool.rooms()
        with self._lock:
            self._pass_lines()  # they are read in it, too, so that what was read first is sent first
            self._end.ended(outcomes, rooms, wall - boot)
        self._wake.set()

    # ---- the connection ----

    def _write(self) -> None:
        """The only thread that writes: frames of several would be mixed."""
        beat_us = min(_BEAT_US, self._ticket.lease_us // 4)
        next_us = 0
        while not self._closed:
            self._wake.wait(max(0, next_us - boot_us()) / 1e6)
            self._wake.clear()
            frames = []
            with self._lock:
                connection, now = self._socket, boot_us()
                if now >= next_us or self._end.asked:
                    next_us = now + beat_us
                    if connection is not None:
                        frames.append(self._end.beat(self._pool.rooms(), self._used_bytes, now))
                if connection is not None:
                    frames += self._end.link.take()
            if connection is None or not frames:
                continue
            try:
                connection.send(b"".join(pack(fast_json.dump(frame)) for frame in frames))
            except OSError:
                self._cut(connection)

    def _read(self) -> None:
        while not self._over:
            try:
                connection, reader, rest = self._connect()
            except ConnectionRefusedError:
                self._over = GONE  # its machine answers, and the process is not there
                return
            except (OSError, ProtocolError) as error:
                _log.warning("no connection to the dispatcher: %s", error)
                self._pause.wait(0.2)
                continue
            try:
                self._take(rest)
                while data := connection.receive(self._silence_s):
                    self._take(reader.feed(data))
                    if reader.fault:
                        break
            except (OSError, ProtocolError) as error:
                _log.warning("the connection to the dispatcher broke: %s", error)
            finally:
                self._cut(connection)
                connection.close()

    def _take(self, frames: Sequence[Any]) -> None:
        batch: list[Invocation] = []
        for frame in frames:
            with self._lock:
                now = boot_us()
                if not self._end.may_run(now):  # it was stopped, and what came in meanwhile must not start
                    self._over = self._over or LEASE_ENDED
                    return
                before_us = self._end.leased_until_us
                orders = self._end.receive(frame, now)
                lease_us = self._end.leased_until_us
                if lease_us > before_us and self._watchdog is not None and not self._watchdog.renew(lease_us):
                    self._over = self._over or UNWATCHED
            for order in orders:
                if isinstance(order, Invocation):
                    batch.append(order)
                    continue
                self._pool.submit(batch)
                batch = []
                if isinstance(order, End):
                    self._over = STOPPED
                elif isinstance(order, Recall):
                    self._pool.recall(order.ids)
                else:
                    self._pool.kill(order.ids, grace_ms=order.grace_ms)
        self._pool.submit(batch)
        with self._lock:
            if lines_were_read := self._end.lines_were_read:
                self._pass_lines()
        if lines_were_read or self._end.asked:
            self._wake.set()

    def _connect(self) -> tuple[FrameSocket, FrameReader, list[Any]]:
        ticket = self._ticket
        connection = socket.create_connection((ticket.host, ticket.port), timeout=min(_CONNECT_S, self._silence_s))
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if ticket.certificate:
                connection = _encrypted(connection, ticket.certificate)
            reader = FrameReader(fast_json.load)
            ours = nonce()
            connection.sendall(pack(fast_json.dump([VERSION, ticket.worker_id, ours])))
            theirs, proof = _message(connection, reader)
            if not is_equal(proof, proof_of_dispatcher(ticket.key, ticket.worker_id, ours, theirs)):
                raise ProtocolError("what answers is not the dispatcher of this job")
            digests = {name: info.digest for name, info in self._pool.handlers().items()}
            hello = Hello(self._executor_id, socket.gethostname(), digests)
            mine = proof_of_worker(ticket.key, ticket.worker_id, theirs, ours)
            with self._lock:
                received = self._end.link.received if self._joined else None
            connection.sendall(pack(fast_json.dump(introduction(mine, received, hello))))
            ((taken,), *rest) = _messages(connection, reader)
            if taken is None:
                self._over = REFUSED
                raise ProtocolError(REFUSED)
            framed = FrameSocket(connection)
            with self._lock:
                if self._joined:
                    self._end.link.reconnected(taken)
                self._joined = True
                self._socket = framed
                if self._closed:
                    framed.shut()
            self._wake.set()
        except BaseException:
            connection.close()
            raise
        return framed, reader, rest

    def _cut(self, connection: FrameSocket) -> None:
        with self._lock:
            if self._socket is connection:
                self._socket = None
        connection.shut()


def _messages(connection: socket.socket, reader: FrameReader) -> list[Any]:
    while data := connection.recv(RECV_BYTES):
        found = reader.feed(data)
        if reader.fault:
            raise ProtocolError(reader.fault)
        if found:
            return found
    raise ProtocolError("the dispatcher closed the connection")


def _message(connection: socket.socket, reader: FrameReader) -> Any:
    (message,) = _messages(connection, reader)
    return message


def _encrypted(connection: socket.socket, certificate: bytes) -> socket.socket:
    """A TLS connection to the process whose certificate has this SHA-256."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the certificate is known, whoever signed it
    wrapped = context.wrap_socket(connection)
    try:
        shown = wrapped.getpeercert(binary_form=True)  # fails where the connection had broken before the handshake
        if shown is None or not is_equal(hashlib.sha256(shown).hexdigest(), certificate.hex()):
            raise ProtocolError("another certificate than that of this job's dispatcher")
    except BaseException:
        wrapped.close()
        raise
    return wrapped
