"""The desk of a dispatcher: where processes of the API bring the calls of workers, and get their answers.

One connection carries the calls of many workers. A thread of its own reads and writes; the engine sees whole calls, in its mailbox.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import Counter, deque
from collections.abc import Callable
from itertools import count
from typing import Any, Final

from scylla_spark.clock import boot_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.engine.engine import Engine
from scylla_spark.core.leases.messages import DRAIN, OK, STOP, Answer, Call, Scarcity
from scylla_spark.core.records.desk_messages import (
    ANSWER,
    CALL,
    CALLER,
    DRAIN_SPARK_WORKER,
    HELLO,
    HURRY,
    LEAVE,
    LINES,
    MAX_LINE_BYTES,
    ORDER,
    OUTPUT,
    PING,
    PONG,
    QUEUE,
    SPARK_WORKERS,
    TOLD,
    VERSION,
    WELCOME,
    WORKERS,
    Handshake,
    line,
    read_line,
    read_request,
)
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.output import read_link
from scylla_spark.errors import ConfigError
from scylla_spark.executors.interface import OnWorkers
from scylla_spark.io.host.deployment_secret import desk_secret
from scylla_spark.log import get_logger
from scylla_spark.services.dispatch.attempt_lines import AttemptName, LeasedRows
from scylla_spark.services.dispatch.mailbox import Mailbox
from scylla_spark.services.dispatch.note_redaction import NoteRedaction

log = get_logger("desk")

_GREETING_S: Final = 5.0
_MOST_CONNECTIONS: Final = 256
_MOST_STRANGERS: Final = 128  # connections that have not proved anything
_SAID_EVERY_US: Final = 60_000_000  # strangers would fill the log
_MOST_OF_A_STRANGER: Final = 1_000  # bytes of what it says
_CHUNK_BYTES: Final = 64 * 1024
_MOST_UNSENT: Final = 256 * 1024 * 1024  # bytes that a peer may leave unread before it is let go of


class Desk:
    """Takes calls of workers from the API.

    Args:
        settings: where it listens, and the secret.
        mailbox: of the engine.
        engine: that answers.
        certain_until_us: boot clock until which the partitions are certainly ours.
        lines: takes what leased attempts write, in the engine's thread; None: nobody does.
        notes: takes secrets out of what workers say of their progress.
        on_workers: returns the executors whose tasks run in Spark workers.

    Attributes:
        address: host and port, once it has started.
    """

    def __init__(
        self,
        settings: Settings,
        mailbox: Mailbox,
        engine: Engine,
        certain_until_us: Callable[[], int],
        lines: Callable[[AttemptName, LeasedRows], object] | None = None,
        notes: NoteRedaction | None = None,
        on_workers: Callable[[], list[OnWorkers]] = list,
    ) -> None:
        self._lines = lines
        self._notes = notes or NoteRedaction()
        self._certain_until_us = certain_until_us
        self._on_workers = on_workers
        self.address = ""
        self._deployment = settings
        self._settings = settings.desk
        self._secret = ""
        self._mailbox = mailbox
        self._engine = engine
        self._numbers = count(1)
        self._callers: dict[int, tuple[_Peer, int]] = {}  # number of a call here → who called, and its number there
        self._answers: deque[tuple[_Peer, bytes]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._peers: set[_Peer] = set()
        self._unheard: dict[
            int, set[_Peer]
        ] = {}  # number of a question of the engine → who has not said yet that all is handed on
        self._strangers: dict[_Peer, str] = {}  # in the order in which they came → their addresses
        self._said_us = -_SAID_EVERY_US  # boot clock at which something was last said of strangers
        self._started = threading.Event()
        self._failure: OSError | ValueError | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="desk", daemon=True)

    def start(self) -> None:
        """Begins to listen.

        Raises:
            ConfigError: it cannot listen there.
        """
        self._secret = desk_secret(self._deployment)
        self._thread.start()
        self._started.wait(_GREETING_S)
        if self._failure is not None:
            raise ConfigError(
                f"The desk cannot listen at {self._settings.host}, port {self._settings.port}: {self._failure}.",
                hint="Set desk.host to an address of this machine, and desk.port to a free port or to 0.",
            )

    def stop(self) -> None:
        """Ends all connections."""
        loop = self._loop
        if loop is not None and self._thread.is_alive():
            loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(timeout=5)

    async def _run(self) -> None:
        self._stopping = asyncio.Event()
        try:
            server = await asyncio.start_server(
                self._greet, self._settings.host, self._settings.port, limit=_CHUNK_BYTES, backlog=64
            )
        except (OSError, ValueError) as error:  # a ValueError: no name of a machine can look like that
            self._failure = error
            self._started.set()
            return
        host, port = server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"
        self._loop = asyncio.get_running_loop()
        self._started.set()
        await self._stopping.wait()
        server.close()
        for peer in list(self._peers):
            peer.writer.transport.abort()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Lets somebody in who knows the secret, and takes what it says until it goes."""
        peer, lines = _Peer(writer), _Lines(reader)
        try:
            if await self._admitted(lines, peer):
                while text := await lines.next(MAX_LINE_BYTES):
                    self._take(peer, *read_request(text))
        except (TimeoutError, OSError, ValueError, asyncio.IncompleteReadError) as error:
            self._ended(peer, repr(error)[:300])
        finally:
            if peer in self._peers:
                self._peers.discard(peer)
                self._mailbox.post(self._engine.cut_off)
                for number in list(self._unheard):
                    self._heard(peer, number)
            gone = [*peer.calls.values()]
            for number in gone:
                self._callers.pop(number, None)
            if gone:
                self._mailbox.post(lambda now: self._engine.hang_up(gone))
            writer.close()

    async def _admitted(self, lines: _Lines, peer: _Peer) -> bool:
        """Returns True if the other end proves to know the secret, soon and in few words."""
        if len(self._peers) >= _MOST_CONNECTIONS:
            return False
        self._strangers[peer] = _address(peer)
        if len(self._strangers) > _MOST_STRANGERS:
            self._make_way()
        try:
            return await asyncio.wait_for(self._admit(lines, peer), _GREETING_S)
        finally:
            self._strangers.pop(peer, None)

    def _make_way(self) -> None:
        """Of the address that has the most strangers the oldest one goes: who knows the secret proves it at once, or from elsewhere."""
        crowd = Counter(self._strangers.values())
        oldest = max(self._strangers, key=lambda peer: crowd[self._strangers[peer]])
        del self._strangers[oldest]
        oldest.writer.transport.abort()

    def _ended(self, peer: _Peer, why: str) -> None:
        """A connection ended otherwise than it should; of strangers that is said now and then."""
        if peer in self._peers:
            log.warning("a connection of the desk ended", why=why)
        elif boot_us() - self._said_us >= _SAID_EVERY_US:
            self._said_us = boot_us()
            log.warning(
                "somebody who has not proved to know desk.secret was let go of", why=why, waiting=len(self._strangers)
            )

    async def _admit(self, lines: _Lines, peer: _Peer) -> bool:
        nonce = secrets.token_hex(16)
        peer.writer.write(line(HELLO, VERSION, nonce))
        kind, said, theirs = read_line(await lines.next(_MOST_OF_A_STRANGER))
        both = Handshake(self.address, nonce, str(theirs))
        if kind != HELLO or not both.proves(said, self._secret, CALLER):
            return False
        self._strangers.pop(peer, None)
        self._peers.add(peer)  # before it knows: from then on it may be asked
        peer.writer.write(line(WELCOME, both.proof(self._secret, WELCOME)))
        return True

    def _take(self, peer: _Peer, kind: str, values: tuple[Any, ...]) -> None:
        if kind == CALL:
            self._call(peer, *values)
        elif kind == HURRY:
            wanted = [peer.calls[number] for number in values[0] if number in peer.calls]
            self._mailbox.post(lambda now: self._engine.hurry(wanted, now))
        elif kind == LEAVE:
            number, worker, session = values
            self._tell(peer, number, lambda now: self._engine.leave(worker, session, now))
        elif kind == ORDER:
            number, worker, order = values
            self._tell(peer, number, lambda _now: self._engine.order(worker, STOP if order == STOP else DRAIN))
        elif kind == OUTPUT:
            number, token, link = values
            told = None if link is None else read_link(link)
            self._tell(peer, number, lambda now: self._engine.lease_output(token, told, now))
        elif kind == LINES:
            number, token, lines = values
            rows = LeasedRows(lines, len(str(lines)))
            self._tell(peer, number, lambda now: self._take_lines(token, rows, now))
        elif kind == WORKERS:
            self._tell(peer, values[0], lambda now: workers(self._engine, now))
        elif kind == SPARK_WORKERS:
            self._tell(peer, values[0], lambda _now: _spark_workers(self._on_workers()))
        elif kind == DRAIN_SPARK_WORKER:
            number, worker = values
            self._tell(peer, number, lambda _now: any(one.drain(worker) for one in self._on_workers()))
        elif kind == PONG:
            self._heard(peer, values[0])
        elif kind == QUEUE:
            number, queue = values
            self._tell(peer, number, lambda now: _aged(self._engine.scarcity(queue, now), now))

    def _take_lines(self, token: str, rows: LeasedRows, now: int) -> str:
        """Hands on what an attempt has written, if its lease is held; else why it is not."""
        held = self._engine.lease_output(token, None, now)
        if isinstance(held, str):
            return held
        if self._lines is not None:
            self._lines(AttemptName(TaskKey(*held["key"]), held["attempt"], held["epoch"]), rows)
        return OK

    def _call(self, peer: _Peer, call: Call) -> None:
        number = next(self._numbers)
        self._callers[number] = peer, call.number
        peer.calls[call.number] = number
        call = self._notes.call(call)
        self._mailbox.post(lambda now: self._begin(call._replace(number=number, until_us=now + call.until_us), now))

    def _begin(self, call: Call, now: int) -> None:
        self._engine.call(call, now, certain=self._certain_until_us() > boot_us())

    def _tell(self, peer: _Peer, number: int, question: Callable[[int], Any]) -> None:
        def answer(now: int) -> None:
            self._send(peer, line(TOLD, number, question(now)))

        self._mailbox.post(answer)

    def answer(self, answer: Answer, now: int) -> None:
        """The engine answers a call; in its thread."""
        caller = self._callers.pop(answer.number, None)
        if caller is not None:
            peer, number = caller
            peer.calls.pop(number, None)
            leases = tuple(lease._replace(until_us=max(lease.until_us - now, 0)) for lease in answer.leases)
            queues = tuple(_aged(queue, now) for queue in answer.queues)
            self._send(peer, line(ANSWER, answer._replace(number=number, leases=leases, queues=queues)))

    def listen(self, number: int) -> None:
        """Sees to it that all that workers have sent by now is taken; the engine hears `listened` then. Called in its thread."""
        if self._loop is None or self._loop.is_closed():
            self._listened(number)
        else:
            self._loop.call_soon_threadsafe(self._ask_peers, number)

    def _ask_peers(self, number: int) -> None:
        if not self._peers:
            self._listened(number)
            return
        self._unheard[number] = set(self._peers)
        for peer in self._peers:
            peer.writer.write(line(PING, number))

    def _heard(self, peer: _Peer, number: int) -> None:
        """A peer has handed on all that it had; that was posted before this, and so is taken before it."""
        unheard = self._unheard.get(number, set())
        if peer in unheard:
            unheard.discard(peer)
            if not unheard:
                del self._unheard[number]
                self._listened(number)

    def _listened(self, number: int) -> None:
        self._mailbox.post(lambda now: self._engine.listened(number))

    def _send(self, peer: _Peer, text: bytes) -> None:
        self._answers.append((peer, text))
        if len(self._answers) == 1 and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        while self._answers:
            peer, text = self._answers.popleft()
            if peer in self._peers:
                peer.writer.write(text)
                if peer.writer.transport.get_write_buffer_size() > _MOST_UNSENT:
                    peer.writer.transport.abort()


class _Peer:
    """A connection; compared by identity. `calls`: number of a call there → its number here, until it is answered."""

    __slots__ = ("calls", "writer")

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.calls: dict[int, int] = {}
        self.writer = writer


class _Lines:
    """The lines of a connection, each no longer than whoever reads allows.

    Args:
        reader: of the connection.
    """

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._buffer = bytearray()
        self._whole: deque[bytes] = deque()

    async def next(self, most: int) -> bytes:
        """The next line; nothing at the end of all.

        Args:
            most: bytes.

        Raises:
            ValueError: it is longer.
        """
        while not self._whole:
            if len(self._buffer) > most:
                raise ValueError(f"a line is longer than {most} bytes")
            chunk = await self._reader.read(_CHUNK_BYTES)
            if not chunk:
                return b""
            *ends, rest = chunk.split(b"\n")
            for end in ends:
                self._whole.append(bytes(self._buffer + end))
                self._buffer.clear()
            self._buffer += rest
        if len(self._whole[0]) > most:
            raise ValueError(f"a line is longer than {most} bytes")
        return self._whole.popleft()


def _aged(queue: Scarcity, now: int) -> Scarcity:
    return queue._replace(oldest_us=None if queue.oldest_us is None else max(now - queue.oldest_us, 0))


def workers(engine: Engine, now: int) -> list[dict[str, Any]]:
    """The workers that this dispatcher knows, with what each holds of it.

    Args:
        engine: of the dispatcher, asked in its thread.
        now: microseconds since the epoch.
    """
    return [
        {
            "worker": session.worker,
            "session": session.name,
            "leases": len(session.held),
            "waits": session.call is not None,
            "silent_ms": (now - session.seen_us) // 1000,
            "about": session.about,
            "order": session.order,
        }
        for session in engine.sessions
    ]


def _address(peer: _Peer) -> str:
    """Returns where a connection comes from."""
    return str((peer.writer.get_extra_info("peername") or ("",))[0])


def _spark_workers(executors: list[OnWorkers]) -> dict[str, Any]:
    """Spark workers, and why there is none where one is missing."""
    shortages = [shortage.why for one in executors if (shortage := one.shortage()) is not None]
    return {"workers": [row for one in executors for row in one.workers()], "missing": shortages}
