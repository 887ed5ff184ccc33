"""The server below the application: bounded connections with time limits."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import socket
from collections.abc import Callable
from typing import Any, Final

import h11
from starlette.types import ASGIApp
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from scylla_spark.api import problems
from scylla_spark.api.app import create_app
from scylla_spark.api.http.connection_limit import ConnectionLimit
from scylla_spark.api.http.draining import Draining
from scylla_spark.api.http.forwarded import Network, is_trusted
from scylla_spark.api.problems import Kind
from scylla_spark.config.settings import Api, Settings

MAX_HEADER_BYTES: Final = 32 * 1024
HEADERS_S: Final = 10.0  # from the first byte of a request, or from the connection, to the end of its headers
IDLE_S: Final = 15.0  # between two requests
SEND_S: Final = 30.0  # until a client has taken a piece of its answer
_DRAIN_S: Final = 3
_OTHER_FILES: Final = 512  # of tables, brokers, desks, and of connections that are being accepted or closed
_ACCEPTED_AT_ONCE: Final = 64  # all of a flood that were accepted at once would be more files than a process may have
_UNACCEPTED: Final = 2048  # connections that the system keeps until they are accepted


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 with time limits. The connection that has been idle for longest is closed for a new one."""

    limit: ConnectionLimit
    proxies: tuple[Network, ...] = ()

    def connection_made(self, transport: Any) -> None:
        """Admits the connection, or answers 429."""
        super().connection_made(transport)
        self._deadline: asyncio.TimerHandle | None = None
        self._taken_by: asyncio.TimerHandle | None = None
        host, port = self.client or ("", 0)
        place = f"{host} {port}" if is_trusted(host, self.proxies) else host  # `Limits` counts who is behind a proxy
        if self.limit.admit(self, place):
            self._await_headers()
        else:
            transport.write(_raw(problems.BUSY, "Too many connections are open."))
            transport.close()

    def data_received(self, data: bytes) -> None:
        """Reads data; the headers of a request must be complete in time."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._forget_deadline()
        elif self._deadline is None and not self.transport.is_closing():
            self._await_headers()

    def handle_events(self) -> None:
        """Handles parsed data; a request is under way from the end of its headers on."""
        super().handle_events()
        if self._is_at_work():
            self.limit.mark_busy(self)

    def on_response_complete(self) -> None:
        """Marks the connection as idle, unless the next request has arrived already."""
        super().on_response_complete()
        if not self._is_at_work():
            self.limit.mark_idle(self)

    def close_for_newcomer(self) -> None:
        """Closes the connection at once. A client without any answer yet gets the reason; others expect that idle connections close."""
        if self.cycle is None and not self.transport.is_closing():
            self.transport.write(_raw(problems.BUSY, "Too many connections are open."))
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        """Starts the time limit of a client that does not read its answer."""
        super().pause_writing()
        self._taken_by = self._taken_by or self.loop.call_later(SEND_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Ends that time limit."""
        super().resume_writing()
        if self._taken_by is not None:
            self._taken_by.cancel()
            self._taken_by = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Removes the connection."""
        self.limit.remove(self)
        self._forget_deadline()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override] # asyncio allows it
        """Keeps the connection of a client that sends no more data until its request is answered."""
        asked = self._is_at_work()
        if asked:
            self.cycle.keep_alive = False
        return asked

    def timeout_keep_alive_handler(self) -> None:
        """Closes an idle connection, even if its client does not read."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(IDLE_S, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Answers data that is not a request."""
        large = self.conn.their_state is h11.ERROR and len(self.conn.trailing_data[0]) >= MAX_HEADER_BYTES
        kind = problems.HEADERS_TOO_LARGE if large else problems.BAD_REQUEST
        self.transport.write(_raw(kind, msg))
        self.transport.close()

    def _is_at_work(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_headers(self) -> None:
        self._deadline = self.loop.call_later(HEADERS_S, self._end_late)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end_late(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(_raw(problems.TOO_SLOW, "No request arrived in time."))
            self.transport.close()
            self.loop.call_later(HEADERS_S, self.transport.abort)


def _raw(kind: Kind, detail: str) -> bytes:
    """Makes a complete answer for a connection that never reaches the application."""
    body = json.dumps(problems.document(kind, detail)).encode()
    head = (
        f"HTTP/1.1 {kind.status} {kind.title}\r\nContent-Type: {problems.MEDIA_TYPE}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\nRetry-After: 1\r\n\r\n"
    )
    return head.encode() + body


class _Server(Server):
    """A server that reports when it serves, and accepts connections in portions."""

    def __init__(self, config: Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_UNACCEPTED)  # asyncio has told the system to keep no more than it accepts at once
        if self.started:
            self._ready()


def serve(settings: Settings, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serves the API until SIGTERM.

    Args:
        settings: of the deployment, with the broker's address.
        listener: a socket that listens.
        ready: called once it serves.
    """
    _allow_files(settings.api.max_connections + _OTHER_FILES)
    _Server(bounded(create_app(settings), settings.api), ready).run(sockets=[listener])


def _allow_files(wanted: int) -> None:
    """Raises the limit of open files of this process, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def bounded(app: ASGIApp, settings: Api) -> Config:
    """Makes the configuration of a server that no client can block.

    Args:
        app: the application.
        settings: its bounds.
    """
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    protocol = type(
        "Protocol",
        (BoundedProtocol,),
        {
            "limit": ConnectionLimit(settings.max_connections, settings.max_per_address),
            "proxies": settings.trusted_proxies,
        },
    )
    return Config(
        Draining(app),
        http=protocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=_ACCEPTED_AT_ONCE,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_keep_alive=int(IDLE_S),
        timeout_graceful_shutdown=_DRAIN_S,
    )
