"""A small HTTP server for questions that change nothing: bounded in connections and time, and deaf to other sites' scripts."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs

from scylla_spark.clock import boot_us
from scylla_spark.errors import ArgumentError, UnreachableError
from scylla_spark.io.host.host_names import HostNames, unknown_host

JSON: Final = "application/json"
MOST_CONNECTIONS: Final = 32
LIMIT_S: Final = 10.0
_LOOK_S: Final = 0.25
_QUERY_FIELDS: Final = 16


class Reply(NamedTuple):
    """What a route answers."""

    kind: str
    body: bytes


class Route(NamedTuple):
    """One path.

    Attributes:
        answer: gives the reply; ArgumentError becomes 400, UnreachableError and TimeoutError 503, anything else 500.
        parameters: names of the query, all of them needed, each once.
    """

    answer: Callable[[Mapping[str, str]], Reply]
    parameters: Sequence[str] = ()


class ReadOnlyServer(ThreadingHTTPServer):
    """Serves routes by GET. A connection carries one request, and is closed when its time is over, whatever it waits for.

    Args:
        address: host and port to listen on; port 0 for any free one.
        routes: path → route.
        hosts: further names by which it may be asked, see `HostNames`.
        limit_s: how long a connection may last, in seconds.
        most: connections at once; further ones are closed with 503.
    """

    daemon_threads = True
    request_queue_size = 512  # waiting to be turned away costs nobody a thread

    def __init__(
        self,
        address: tuple[str, int],
        routes: Mapping[str, Route],
        *,
        hosts: Sequence[str] = (),
        limit_s: float = LIMIT_S,
        most: int = MOST_CONNECTIONS,
    ) -> None:
        self.routes = routes
        self.hosts = HostNames(address[0], hosts)
        self._limit_s, self._most = limit_s, most
        self._open: dict[socket.socket, int] = {}
        self._lock = threading.Lock()
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Takes the port; unlike the base class it asks no DNS for our own name, which may take long."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def serve_forever(self, poll_interval: float = _LOOK_S) -> None:
        """Serves until `shutdown`."""
        super().serve_forever(poll_interval)

    def shutdown(self) -> None:
        """Ends `serve_forever` at once: a listener that is shut down wakes who waits for it (on Linux; elsewhere the next look ends it)."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        super().shutdown()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Gives a connection a thread, or turns it away."""
        with self._lock:
            free = len(self._open) < self._most
            if free:
                self._open[request] = boot_us()
        if free:
            super().process_request(request, client_address)
        else:
            with contextlib.suppress(OSError):
                request.setblocking(False)
                request.sendall(b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
            super().shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """A connection is over."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called between connections and several times a second: ends those whose time is over."""
        before = boot_us() - int(self._limit_s * 1e6)
        with self._lock:  # while it is held, no thread closes its socket and nobody else gets its number
            for request, since in self._open.items():
                if since < before:
                    with contextlib.suppress(OSError):
                        request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Silent: whoever asked has gone, or its time was over."""


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: ReadOnlyServer
    server_version = "scylla-spark"
    sys_version = ""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        route = self.server.routes.get(path)
        host = self.headers.get("Host")
        if not self.server.hosts.permits(host):
            self._fail(403, unknown_host(host, "metrics.allowed_hosts"))
        elif route is None:
            self._fail(404, "not found", paths=sorted(self.server.routes))
        else:
            self._answer(route, query)

    def _answer(self, route: Route, query: str) -> None:
        try:
            reply = route.answer(_parameters(query, route.parameters))
        except ArgumentError as error:
            self._fail(400, str(error), parameters=list(route.parameters))
        except UnreachableError as error:
            self._fail(503, error.message)
        except TimeoutError:
            self._fail(503, "the engine did not answer in time")
        except Exception as error:
            self._fail(500, f"no answer ({type(error).__name__})")
        else:
            self._send(200, reply)

    def _fail(self, code: int, message: str, **more: object) -> None:
        self._send(code, Reply(JSON, json.dumps({"error": message} | more).encode()))

    def _send(self, code: int, reply: Reply) -> None:
        self.send_response(code)
        self.send_header("Content-Type", reply.kind)
        self.send_header("Content-Length", str(len(reply.body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        if code == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET")
        self.end_headers()
        self.wfile.write(reply.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class finds wrong with a request, as JSON; its 501 is a method that we do not take."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            code = HTTPStatus.METHOD_NOT_ALLOWED
        self.close_connection = True
        self._fail(code, HTTPStatus(code).phrase)

    def log_message(self, format: str, *args: object) -> None:
        """Silent: requests are not worth a line."""


def _parameters(query: str, wanted: Sequence[str]) -> dict[str, str]:
    """The values of a query.

    Raises:
        ArgumentError: one is missing, unknown, given twice or not UTF-8.
    """
    try:
        given = parse_qs(query, keep_blank_values=True, errors="strict", max_num_fields=_QUERY_FIELDS)
    except ValueError:
        raise ArgumentError("the query cannot be read.") from None
    for name in wanted:
        if name not in given:
            raise ArgumentError(f"missing parameter {name}.")
    for name, values in given.items():
        if name not in wanted:
            raise ArgumentError(f"there is no parameter {name!r}.")
        if len(values) > 1:
            raise ArgumentError(f"parameter {name} is given more than once.")
    return {name: values[0] for name, values in given.items()}
