"""A pool of workers on other machines: the shell around `RemoteSupervisor`, with the sockets, the clock and the thread that it needs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from scylla_spark.clock import boot_us, both_us
from scylla_spark.core.records import fast_json
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.task import Invocation
from scylla_spark.errors import ConfigError
from scylla_spark.executors.interface import HearsLines, Sink
from scylla_spark.executors.local.outcomes import Moment
from scylla_spark.executors.remote.handshake import (
    MAX_HELLO_BYTES,
    MAX_INTRODUCTION_BYTES,
    VERSION,
    Ticket,
    is_equal,
    nonce,
    proof_of_dispatcher,
    proof_of_worker,
    read_greeting,
    read_introduction,
)
from scylla_spark.executors.remote.supervisor import RemoteSupervisor, RemoteTerms
from scylla_spark.handlers.description import HandlerInfo
from scylla_spark.handlers.framing import MAX_FRAME_BYTES, FrameReader, ProtocolError, pack

_log = logging.getLogger(__name__)
_POLL_S: Final = 0.02
_LAST_TURNS: Final = 5  # of the loop, in which it closes sockets
_MOST_UNPROVEN: Final = 64
_PROOF_WITHIN_S: Final = 5.0
_MOST_UNWRITTEN: Final = 8 * 1024 * 1024


class RemotePool:
    """Listens for Spark workers and gives them work. One thread reads, writes and keeps time; it never waits for a worker.

    Args:
        terms: of leases.
        handlers: by every name that tasks may use.
        host: address to listen on.
        advertise: host name or address that workers connect to.
        port: to listen on; 0: any.
        tls: with the certificate of this process; None: connections are not encrypted.
        certificate: SHA-256 of that certificate.
    """

    def __init__(
        self,
        terms: RemoteTerms,
        handlers: Mapping[str, HandlerInfo],
        *,
        host: str,
        advertise: str,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        certificate: bytes = b"",
    ) -> None:
        self.supervisor = RemoteSupervisor(terms, handlers)
        self.keeper: HearsLines | None = None
        self.lock = threading.Lock()
        self._terms = terms
        self._host, self._port, self._advertise = host, port, advertise
        self._tls, self._certificate = tls, certificate
        self._keys: dict[str, bytes] = {}
        self._connections: dict[str, _Connection] = {}
        self._unproven: dict[_Connection, None] = {}  # the oldest first
        self._handshakes: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._main, name="spark-workers", daemon=True)
        self._ready = threading.Event()
        self._flush_asked = False
        self._watch_timer: asyncio.TimerHandle | None = None
        self._sink: Sink

    def start(self, sink: Sink) -> None:
        """Begins to listen.

        Raises:
            ConfigError: the address cannot be listened on.
        """
        self._sink = sink
        self._listener = listen(self._host, self._port)
        self._loop = asyncio.new_event_loop()
        self._port = self._listener.getsockname()[1]
        self._thread.start()
        self._ready.wait()

    def ticket(self) -> Ticket:
        """Returns what a new job needs to connect."""
        worker_id, key = secrets.token_hex(8), secrets.token_bytes(32)
        self._keys[worker_id] = key
        return Ticket(worker_id, key, self._advertise, self._port, self._certificate, self._terms.lease_us)

    def forget(self, worker_id: str, why: str = "") -> None:
        """The job of a worker has ended: nobody connects for it any more.

        Args:
            worker_id: of the job.
            why: as a sentence for the attempts that are lost with it; empty: not known.
        """
        self._keys.pop(worker_id, None)
        with self.lock:
            self.supervisor.forget(worker_id, why)

    def submit(self, batch: Sequence[Invocation]) -> None:
        """Takes attempts and gives them to workers with room, without waiting for anything."""
        with self.lock:
            self.supervisor.submit(batch, Moment(*both_us()))
        self._ask_to_flush()

    def kill(self, ids: Sequence[int], *, grace_ms: int = 0) -> None:
        """Ends attempts."""
        with self.lock:
            self.supervisor.kill(ids, grace_ms)
        self._ask_to_flush()

    def room(self, name: str) -> int:
        """Returns how many more attempts of an executor name would start soon."""
        with self.lock:
            return self.supervisor.room(name)

    def running(self) -> dict[int, int]:
        """Id → wall clock of the start, of each attempt whose start was reported."""
        with self.lock:
            return self.supervisor.running(Moment(*both_us()))

    def notes(self) -> dict[int, WorkNote]:
        """Returns what attempts say of their work, of those that have said something since the last call."""
        with self.lock:
            return self.supervisor.notes(boot_us())

    def stop(self, *, drain_s: float) -> None:
        """Hands back what has not started, lets the rest run for `drain_s` seconds, then gives all workers up."""
        if not self._thread.is_alive():
            return
        until = boot_us() + round(drain_s * 1e6)
        with self.lock:
            self.supervisor.stop(until)
        self._ask_to_flush()
        pause = threading.Event()
        while boot_us() < until and not self._has_ended():
            pause.wait(_POLL_S)
        with self.lock:
            self.supervisor.end()
        self._ask_to_flush()
        while boot_us() < until + self._terms.kill_us and self._awaits_ends():
            pause.wait(_POLL_S)
        last_us = until + self._terms.lease_us + self._terms.kill_us + self._terms.beat_us
        while boot_us() < last_us and not self._has_ended():  # handlers of a silent worker run until its lease ends
            pause.wait(_POLL_S)
        with self.lock:
            self.supervisor.give_up(Moment(*both_us()))
        with contextlib.suppress(RuntimeError):  # another thread has stopped it
            self._loop.call_soon_threadsafe(self.flush)
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _awaits_ends(self) -> bool:
        """Returns True if a worker will still report its end, or has attempts."""
        with self.lock:
            return any(worker.connected or worker.held for worker in self.supervisor.workers.values())

    def _has_ended(self) -> bool:
        with self.lock:
            return self.supervisor.finished

    # ---- the pool's thread ----

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.create_server(lambda: _Connection(self), sock=self._listener)
        self._server = self._loop.run_until_complete(
            server
        )  # here: a loop may run in the thread of the caller, as in notebooks
        self._loop.call_soon(self._ready.set)
        self._loop.call_soon(self._lease)
        self._loop.call_soon(self._watch)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._end_connections())
            self._loop.close()

    async def _end_connections(self) -> None:
        """Ends every connection, also one that was accepted a moment ago, and waits until the loop has closed its socket."""
        self._server.close()
        for connection in [*self._connections.values(), *self._unproven]:
            connection.abort()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _ in range(_LAST_TURNS):
            await asyncio.sleep(0)

    def _ask_to_flush(self) -> None:
        if not self._flush_asked:
            self._flush_asked = True
            with contextlib.suppress(RuntimeError):  # the pool was stopped
                self._loop.call_soon_threadsafe(self.flush)

    def flush(self) -> None:
        """Writes what waits to be written, and hands outcomes on."""
        self._flush_asked = False
        frames: list[tuple[_Connection, list[list[Any]]]] = []
        with self.lock:
            done, self.supervisor.done = self.supervisor.done, []
            lines, self.supervisor.lines = self.supervisor.lines, []
            for worker_id, connection in self._connections.items():
                worker = self.supervisor.workers.get(worker_id)
                if worker is not None and worker.connected and connection.unwritten < _MOST_UNWRITTEN:
                    frames.append((connection, worker.take()))
        for connection, out in frames:  # outside the lock, which `submit` waits for
            connection.write(out)
        if lines and self.keeper is not None:
            try:
                self.keeper.hear(lines)
            except Exception:
                _log.exception("lines of attempts cannot be read")
        if done:
            try:
                self._sink(done)
            except Exception:
                _log.exception("the sink of the pool failed")

    def _lease(self) -> None:
        self._loop.call_later(
            self._terms.beat_us / 1e6, self._lease
        )  # first, so that a defect ends one turn and not all
        with self.lock:
            leases = list(self.supervisor.leases(boot_us()))
        for worker_id, frame in leases:
            if (connection := self._connections.get(worker_id)) is not None:
                connection.write([frame])

    def _watch(self) -> None:
        pause_us = self._terms.recall_us // 2
        now = Moment(*both_us())
        try:
            with self.lock:
                again_us = self.supervisor.watch(now)
                gone = [worker_id for worker_id in self._connections if worker_id not in self.supervisor.workers]
            for worker_id in gone:
                self._connections.pop(worker_id).close()
            self.flush()
            pause_us = min(pause_us, max(1000, again_us - now.boot_us))
        finally:  # a defect ends one turn and not all
            self._loop.call_later(pause_us / 1e6, self._watch)

    # ---- what connections ask ----

    def begins(self, connection: _Connection) -> None:
        """A connection that has proven nothing; where there are too many, the oldest of those that name no job of ours is closed."""
        if len(self._unproven) >= _MOST_UNPROVEN:
            oldest = next((one for one in self._unproven if not one.names_a_job), next(iter(self._unproven)))
            oldest.abort()
            self._unproven.pop(oldest)
        self._unproven[connection] = None
        self._loop.call_later(_PROOF_WITHIN_S, self._impatient, connection)

    def abort_later(self, connection: _Connection) -> None:
        """A connection was closed: its other end may not read, and so keep it and what was written."""
        self._loop.call_later(_PROOF_WITHIN_S, connection.abort)

    def _impatient(self, connection: _Connection) -> None:
        if connection in self._unproven:
            connection.abort()

    def encrypt(self, connection: _Connection, transport: asyncio.Transport) -> bool:
        """Begins the handshake of TLS, if there is one; it counts as a connection that has proven nothing."""
        if self._tls is None:
            return False
        task = self._loop.create_task(self._handshake(connection, transport, self._tls))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)
        return True

    async def _handshake(self, connection: _Connection, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        secure = None
        with contextlib.suppress(OSError):
            secure = await self._loop.start_tls(
                transport, connection, tls, server_side=True, ssl_handshake_timeout=_PROOF_WITHIN_S
            )
        if secure is None:
            transport.abort()
            self.ended(connection, None)
        else:
            connection.encrypted(secure)

    def key_of(self, worker_id: str) -> bytes | None:
        """The key of a job that may connect."""
        return self._keys.get(worker_id)

    def proven(self, connection: _Connection, worker_id: str, received: int | None, hello: Any) -> int | None:
        """A worker has proven who it is.

        Args:
            connection: from which it speaks.
            worker_id: which one.
            received: number of the last frame that it has taken; None: it connects for the first time.
            hello: what it says of itself.

        Returns:
            Number of the last frame that was taken from it; None: it is not wanted.
        """
        self._unproven.pop(connection, None)
        now = boot_us()
        with self.lock:
            if received is None:
                if not self.supervisor.joined(worker_id, hello, now):
                    return None
            else:
                if (old := self._connections.pop(worker_id, None)) is not None:
                    old.abort()
                self.supervisor.cut(worker_id)
                if not self.supervisor.rejoined(worker_id, received, now):
                    return None
            self._connections[worker_id] = connection
            worker = self.supervisor.workers[worker_id]
        if received is None and worker.lacks:
            _log.warning(
                "the Spark worker %s on %s gets no task of handlers that it has in another version, or lacks: %s",
                worker_id, hello.host, ", ".join(worker.lacks),
            )  # fmt: skip
        return worker.link.received

    def greet(self, worker_id: str) -> None:
        """A worker is connected: it is given a lease and work."""
        with self.lock:
            leases = [frame for name, frame in self.supervisor.leases(boot_us()) if name == worker_id]
        self._connections[worker_id].write(leases)
        self.flush()

    def heard(self, worker_id: str) -> None:
        """A part of a frame came in: on a slow network a long one may take longer than half a lease."""
        with self.lock:
            self.supervisor.heard(worker_id, boot_us())

    def frames(self, worker_id: str, frames: Sequence[Any]) -> bool:
        """Frames of a worker; False if its connection must be closed."""
        now = Moment(*both_us())
        try:
            with self.lock:
                alive = all(self.supervisor.receive(worker_id, frame, now) for frame in frames)
        except Exception:
            _log.exception("what the Spark worker %s sent cannot be read", worker_id)
            self.expel(worker_id)
            alive = False
        self.flush()
        return alive

    def expel(self, worker_id: str) -> None:
        """A worker has sent what none of ours sends."""
        with self.lock:
            self.supervisor.expel(worker_id)

    def ended(self, connection: _Connection, worker_id: str | None) -> None:
        """A connection is closed."""
        self._unproven.pop(connection, None)
        if worker_id is not None and self._connections.get(worker_id) is connection:
            del self._connections[worker_id]
            with self.lock:
                self.supervisor.cut(worker_id)


def listen(host: str, port: int) -> socket.socket:
    """A socket that Spark workers can connect to.

    Args:
        host: address of this machine.
        port: 0: any free one.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigError(
            f"Spark workers cannot be served at {host}, port {port}: {error.strerror or error}.",
            hint="Set spark_workers.port to a free port (0: any), and spark.driver.bindAddress to an address of this machine.",
        ) from error


class _Connection(asyncio.Protocol):
    """One connection: first the proofs, then frames.

    Args:
        pool: that it belongs to.
    """

    def __init__(self, pool: RemotePool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport
        self._reader = FrameReader(fast_json.load, longest=MAX_HELLO_BYTES)
        self._greeted: tuple[str, bytes, str, str] | None = None  # id, key, their nonce, ours
        self._worker_id: str | None = None
        self._early: bytearray | None = None  # what came in before the handshake of TLS was known to be over
        self._lost = False

    @property
    def names_a_job(self) -> bool:
        """Returns True if it has named a job that may connect."""
        return self._greeted is not None

    @property
    def unwritten(self) -> int:
        """Bytes that the other end has not taken."""
        return self._transport.get_write_buffer_size()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._pool.begins(self)
        if self._pool.encrypt(self, transport):
            transport.pause_reading()
            self._early = bytearray()

    def encrypted(self, transport: asyncio.Transport) -> None:
        """The handshake of TLS is over."""
        early, self._early = self._early, None
        self._transport = transport
        if early and not self._lost:
            self.data_received(bytes(early))

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._lost = True
        self._pool.ended(self, self._worker_id)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._early is not None:
            self._early += data
            return
        try:
            frames = self._reader.feed(data)
            if self._worker_id is None:
                frames = self._prove(frames)
            if self._reader.fault:
                raise ProtocolError(self._reader.fault)
        except ProtocolError as error:
            _log.warning("a connection to the port of Spark workers was closed: %s", error)
            if self._worker_id is not None:
                self._pool.expel(self._worker_id)
            self.close()
            return
        if not frames and self._worker_id is not None:
            self._pool.heard(self._worker_id)
        elif frames and self._worker_id is not None and not self._pool.frames(self._worker_id, frames):
            self.close()

    def _prove(self, messages: list[Any]) -> list[Any]:
        """Takes the messages of the handshake; what is left are frames."""
        while messages and self._worker_id is None:
            message = messages.pop(0)
            if self._greeted is None:
                self._greet(message)
            else:
                self._introduced(message)
        return messages

    def _greet(self, message: Any) -> None:
        version, worker_id, theirs = read_greeting(message)
        key = self._pool.key_of(worker_id)
        if version != VERSION:
            raise ProtocolError(
                f"a Spark worker of protocol version {version}, and this dispatcher has {VERSION}; give executors its own archive"
            )
        if key is None:
            raise ProtocolError("an id that no job has")
        ours = nonce()
        self._greeted = (worker_id, key, theirs, ours)
        self._say([ours, proof_of_dispatcher(key, worker_id, theirs, ours)])
        self._reader.longest = MAX_INTRODUCTION_BYTES

    def _introduced(self, message: Any) -> None:
        assert self._greeted is not None
        worker_id, key, theirs, ours = self._greeted
        said = read_introduction(message)
        if not is_equal(said.proof, proof_of_worker(key, worker_id, ours, theirs)):
            raise ProtocolError("a wrong proof")
        received = self._pool.proven(self, worker_id, said.received, said.hello)
        self._say([received])
        if received is None:
            raise ProtocolError("a worker that is not wanted any more, or connects twice")
        self._worker_id, self._reader.longest = worker_id, MAX_FRAME_BYTES
        self._pool.greet(worker_id)

    def write(self, frames: Sequence[Any]) -> None:
        """Writes frames without waiting."""
        if frames and not self._transport.is_closing():
            self._transport.write(b"".join(pack(fast_json.dump(frame)) for frame in frames))

    def close(self) -> None:
        """Ends the connection; what was written is written out, unless that takes too long."""
        self._transport.close()
        self._pool.abort_later(self)

    def abort(self) -> None:
        """Ends the connection at once."""
        self._transport.abort()

    def _say(self, message: Any) -> None:
        self._transport.write(pack(fast_json.dump(message)))
