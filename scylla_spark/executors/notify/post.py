"""One POST to an address that was judged: no redirects, no proxies, a total time, and no more of the answer than is looked at."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from scylla_spark.config.notify import URL_RULE, is_sendable
from scylla_spark.errors import ConfigError
from scylla_spark.executors.notify.address import Place, places

MAX_ANSWER_BYTES: Final = 64 * 1024
TOTAL_S: Final = 10.0


class Target(NamedTuple):
    """What a URL says.

    Attributes:
        host: name or address.
        port: of TCP.
        path: with the query.
        tls: it is https.
    """

    host: str
    port: int
    path: str
    tls: bool


class Answer(NamedTuple):
    """What the receiver said.

    Attributes:
        status: of HTTP.
        retry_after: that header, if there is one.
        body: its beginning.
    """

    status: int
    retry_after: str | None
    body: bytes


def target_of(url: str) -> Target:
    """Reads the URL of a webhook.

    Raises:
        ConfigError: it is none of http or https, or holds a user, or what no request can hold; the message does not repeat it,
            since it may be secret.
    """
    if not is_sendable(url):
        raise ConfigError("The url of a webhook is not usable.", hint=f"It {URL_RULE}.")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or parts.scheme not in ("http", "https") or parts.username is not None:
        raise ConfigError(
            "The url of a webhook is not usable.",
            hint="It is https://HOST/PATH, without a user; a receiver knows us by the signature.",
        )
    tls = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(host, port or (443 if tls else 80), path, tls)


def post(target: Target, headers: Mapping[str, str], body: bytes, *, private: bool, total_s: float = TOTAL_S) -> Answer:
    """Sends a body.

    Args:
        target: where.
        headers: besides those that HTTP needs.
        body: what.
        private: whether private addresses are allowed.
        total_s: longest that resolving, connecting, sending and reading may take, seconds.

    Raises:
        AddressRefusedError: the host is where webhooks are not sent.
        TimeoutError: it took too long.
        OSError: it cannot be reached. ssl.SSLError: its certificate is not right.
        HTTPException: it does not speak HTTP.
    """
    deadline = time.monotonic() + total_s
    found = places(target.host, target.port, private=private, within_s=total_s)
    with _connected(found, deadline) as sock, _ended_at(sock, deadline):
        failure: Exception | None = None
        try:
            answer = _exchange(sock, target, headers, body)
        except (OSError, HTTPException) as error:
            failure = error
        if time.monotonic() >= deadline:  # also of what was read, for a connection that is cut off looks like an end
            raise TimeoutError(f"it took longer than {total_s:g} s") from failure
        if failure is not None:
            raise failure
        return answer


def _exchange(sock: socket.socket, target: Target, headers: Mapping[str, str], body: bytes) -> Answer:
    if target.tls:
        sock = ssl.create_default_context().wrap_socket(sock, server_hostname=target.host)
    connection = HTTPConnection(target.host, target.port)
    connection.sock = sock
    with contextlib.closing(connection):
        connection.request("POST", target.path, body, {**headers, "Connection": "close"})
        answer = connection.getresponse()
        return Answer(answer.status, answer.getheader("Retry-After"), answer.read(MAX_ANSWER_BYTES))


def _connected(found: Sequence[Place], deadline: float) -> socket.socket:
    failure: OSError | None = None
    for place in found:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            break
        sock = socket.socket(place.family, socket.SOCK_STREAM)
        sock.settimeout(left_s)
        try:
            sock.connect(place.address)
            return sock
        except OSError as error:
            sock.close()
            failure = error
    raise failure or TimeoutError("it was not reached in time")


@contextlib.contextmanager
def _ended_at(sock: socket.socket, deadline: float) -> Iterator[None]:
    """Cuts the connection off at a moment, whatever trickles through it; it outlives that TLS takes the socket over."""
    twin = socket.socket(fileno=os.dup(sock.fileno()))

    def cut() -> None:
        with contextlib.suppress(OSError):
            twin.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(deadline - time.monotonic(), 0), cut)
    timer.daemon = True
    with twin:
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
