"""A Spark worker: a local pool inside one long Spark task, which its dispatcher gives work over a connection that it makes itself."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from scylla_spark.clock import boot_us, both_us
from scylla_spark.core.records import fast_json
from scylla_spark.core.tasks.task import Invocation, Outcome
from scylla_spark.executors.local.pool import LocalPool
from scylla_spark.executors.remote.handshake import (
    VERSION,
    Ticket,
    introduction,
    is_equal,
    nonce,
    proof_of_dispatcher,
    proof_of_worker,
)
from scylla_spark.executors.remote.remote_worker import Hello
from scylla_spark.executors.remote.worker_end import DRAINED, LEASE_ENDED, End, Recall, WorkerEnd, notes_of
from scylla_spark.executors.remote.worker_lines import WorkerLines
from scylla_spark.handlers.framing import FrameReader, ProtocolError, pack

_log = logging.getLogger(__name__)
_TICK_S: Final = 0.05
_LAST_TICKS: Final = 20  # that the dispatcher has to acknowledge the last frames
_BEAT_US: Final = 1_000_000
_CONNECT_S: Final = 5.0
_RECV_BYTES: Final = 256 * 1024
STOPPED: Final = "its dispatcher has stopped"
GONE: Final = "its dispatcher has ended"
REFUSED: Final = "its dispatcher does not want it any more"


class Resident:
    """One Spark worker. It runs until it is drained, given up, or its lease ends.

    Args:
        ticket: of its job.
        pool: that runs the handlers; not started.
        executor_id: of Spark.
        alive: whether its Spark task is still wanted; asked every 50 ms.
        lines: the keeper of what the handlers of the pool write; None: that is not kept.
    """

    def __init__(
        self,
        ticket: Ticket,
        pool: LocalPool,
        *,
        executor_id: str,
        alive: Callable[[], bool],
        lines: WorkerLines | None = None,
    ) -> None:
        self._ticket = ticket
        self._pool = pool
        self._executor_id = executor_id
        self._alive = alive
        self._lines = lines
        self._lock = threading.Lock()
        self._end = WorkerEnd(boot_us(), ticket.lease_us)
        self._socket: socket.socket | None = None
        self._joined = False
        self._wake = threading.Event()
        self._over = ""

    def run(self) -> str:
        """Runs, and returns why it has ended; its handlers are dead then.

        Raises:
            SchedulerError: the handlers cannot be loaded here.
        """
        self._pool.start(self._sink)
        self._end = WorkerEnd(boot_us(), self._ticket.lease_us)
        threading.Thread(target=self._write, name="spark-worker-writer", daemon=True).start()
        threading.Thread(target=self._read, name="spark-worker-reader", daemon=True).start()
        beat_us = 0
        pause = threading.Event()
        while not self._over:
            now = boot_us()
            with self._lock:
                if not self._end.may_run(now):
                    self._over = LEASE_ENDED
                elif self._end.drained:
                    self._over = DRAINED
                self._tell()
            if not self._alive():
                self._over = "its Spark task was cancelled"
            if now - beat_us >= _BEAT_US:
                beat_us = now
                self._beat()
            pause.wait(_TICK_S)
        self._pool.stop(drain_s=0)
        with self._lock:
            self._end.dead(self._over)
        self._wake.set()
        for _ in range(_LAST_TICKS):
            if self._socket is None or not self._end.link.waiting:
                break
            pause.wait(_TICK_S)
        self._close()
        return self._over

    def _tell(self) -> None:
        """Reports starts and notes of attempts that run."""
        wall, boot = both_us()
        ahead = wall - boot
        self._end.begun({number: at - ahead for number, at in self._pool.running().items()})
        self._end.says([record for number, note in self._pool.notes().items() for record in notes_of(number, note)])
        if self._lines is not None:
            self._end.wrote(self._lines.take())
        if self._end.link.waiting:
            self._wake.set()

    def _beat(self) -> None:
        rooms = self._pool.rooms()
        with self._lock:
            frame = self._end.beat(rooms, 0, boot_us())
            connection = self._socket
        if connection is not None:
            self._send(connection, [frame])

    def _sink(self, outcomes: Sequence[Outcome]) -> None:
        wall, boot = both_us()
        rooms = self._pool.rooms()
        lines = [] if self._lines is None else self._lines.take()
        with self._lock:
            self._end.wrote(lines)
            self._end.ended(outcomes, rooms, wall - boot)
        self._wake.set()

    # ---- the connection ----

    def _write(self) -> None:
        while not self._over or self._end.link.waiting:
            self._wake.wait(1.0)
            self._wake.clear()
            with self._lock:
                connection = self._socket
                frames = self._end.link.take() if connection is not None else []
            if connection is not None and frames:
                self._send(connection, frames)

    def _send(self, connection: socket.socket, frames: Sequence[Any]) -> None:
        data = b"".join(pack(fast_json.dump(frame)) for frame in frames)
        try:
            connection.sendall(data)
        except OSError:
            self._cut(connection)

    def _read(self) -> None:
        pause = threading.Event()
        while not self._over:
            try:
                connection, reader, rest = self._connect()
            except ConnectionRefusedError:
                self._over = GONE  # its machine answers, and the process is not there
                return
            except (OSError, ProtocolError) as error:
                _log.warning("no connection to the dispatcher: %s", error)
                pause.wait(0.2)
                continue
            self._take(rest)
            try:
                while data := connection.recv(_RECV_BYTES):
                    self._take(reader.feed(data))
                    if reader.fault:
                        break
            except (OSError, ProtocolError) as error:
                _log.warning("the connection to the dispatcher broke: %s", error)
            self._cut(connection)

    def _take(self, frames: Sequence[Any]) -> None:
        batch: list[Invocation] = []
        for frame in frames:
            with self._lock:
                orders = self._end.receive(frame, boot_us())
                asked = self._end.asked
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
            if asked:
                self._beat()
        self._pool.submit(batch)

    def _connect(self) -> tuple[socket.socket, FrameReader, list[Any]]:
        ticket = self._ticket
        connection = socket.create_connection((ticket.host, ticket.port), timeout=_CONNECT_S)
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
            hello = Hello(self._executor_id, socket.gethostname(), frozenset(self._pool.handlers()))
            mine = proof_of_worker(ticket.key, ticket.worker_id, theirs, ours)
            with self._lock:
                received = self._end.link.received if self._joined else None
            connection.sendall(pack(fast_json.dump(introduction(mine, received, hello))))
            ((taken,), *rest) = _messages(connection, reader)
            if taken is None:
                self._over = REFUSED
                raise ProtocolError(REFUSED)
            connection.settimeout(None)
            with self._lock:
                if self._joined:
                    self._end.link.reconnected(taken)
                self._joined = True
                self._socket = connection
            self._wake.set()
        except BaseException:
            connection.close()
            raise
        return connection, reader, rest

    def _cut(self, connection: socket.socket) -> None:
        with self._lock:
            if self._socket is connection:
                self._socket = None
        connection.close()

    def _close(self) -> None:
        if (connection := self._socket) is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            self._cut(connection)


def _messages(connection: socket.socket, reader: FrameReader) -> list[Any]:
    while data := connection.recv(_RECV_BYTES):
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
    shown = wrapped.getpeercert(binary_form=True)
    if shown is None or not is_equal(hashlib.sha256(shown).hexdigest(), certificate.hex()):
        wrapped.close()
        raise ProtocolError("another certificate than that of this job's dispatcher")
    return wrapped
