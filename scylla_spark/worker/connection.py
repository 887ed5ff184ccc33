"""HTTP connections to the API: one request at a time on each, kept open between requests."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import threading
from typing import Any, BinaryIO, Final, NamedTuple
from urllib.parse import quote, urlsplit

from scylla_spark.errors import ArgumentError, ConflictError, SchedulerError, UnreachableError

CONNECT_S: Final = 10.0
_MOST_ANSWER_BYTES: Final = 64 * 1024 * 1024


class Site(NamedTuple):
    """Where the API is, and how to talk to it.

    Attributes:
        host: name or address.
        port: of it.
        prefix: what stands before every path, without a slash at its end.
        tls: how its certificate is judged; None: plain HTTP.
        token: shown with every request; empty: none.
    """

    host: str
    port: int
    prefix: str = ""
    tls: ssl.SSLContext | None = None
    token: str = ""

    @property
    def url(self) -> str:
        """As people write it, without the token."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.tls is None else 'https'}://{host}:{self.port}{self.prefix}"


class Reply(NamedTuple):
    """What a request was answered.

    Attributes:
        status: of HTTP.
        document: the JSON value; None: there was none.
        retry_after_s: when to ask again, as the server says.
    """

    status: int
    document: Any = None
    retry_after_s: float | None = None

    @property
    def problem(self) -> str:
        """Returns what kind of problem it tells of, such as worker-replaced; empty: none."""
        kind = self.document.get("type") if isinstance(self.document, dict) else None
        return kind.rpartition("/")[2] if isinstance(kind, str) else ""

    @property
    def detail(self) -> str:
        """Returns what it says of the problem."""
        told = self.document if isinstance(self.document, dict) else {}
        return str(told.get("detail") or f"HTTP status {self.status}")[:2000]


def site(url: str, *, token: str | None = None, tls: ssl.SSLContext | None = None, ca: str | None = None) -> Site:
    """Returns where the API is.

    Args:
        url: such as https://sched:8080 or https://host/base/path.
        token: shown with every request.
        tls: how its certificate is judged; default: as Python does, by the certificates of this machine.
        ca: file of certificates that are trusted instead of those.

    Raises:
        ArgumentError: the URL or the file cannot be used.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ArgumentError(f"{url!r} is no URL: {error}.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise ArgumentError(f"{url!r} is no URL of an API.", hint="Write http://host:8080 or https://host/path.")
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise ArgumentError("The token has characters that no header can carry.", hint="Is it a token, on one line?")
    secure = parts.scheme == "https"
    if secure and tls is None:
        try:
            tls = ssl.create_default_context(cafile=ca)
        except OSError as error:
            raise ArgumentError(f"The certificates in {ca} cannot be read: {error}.") from None
    default = http.client.HTTPS_PORT if secure else http.client.HTTP_PORT
    return Site(
        parts.hostname, default if port is None else port, parts.path.rstrip("/"), tls if secure else None, token or ""
    )


def asked(site: Site, method: str, path: str, body: bytes | None = None, within_s: float = 30.0) -> Reply:
    """The answer to one request over a connection of its own.

    Args:
        site: where to.
        method: of HTTP.
        path: after the prefix.
        body: JSON; None: none.
        within_s: for everything together, however slowly an answer comes.

    Raises:
        UnreachableError: there was no answer in time.
    """
    connection, late = Connection(site), threading.Event()

    def end() -> None:
        late.set()
        connection.close()

    limit = threading.Timer(within_s, end)
    limit.daemon = True
    limit.start()
    try:
        return connection.request(method, path, body, within_s)
    except UnreachableError:
        if not late.is_set():
            raise
        raise UnreachableError(f"{site.url} gives no whole answer within {within_s:g} s.") from None
    finally:
        limit.cancel()
        connection.close()


def segment(name: str) -> str:
    """A name as a part of a path."""
    return quote(name, safe="")


class Connection:
    """A connection, opened when it is needed.

    Args:
        site: where to.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._http: http.client.HTTPConnection | None = None
        self._closed = False
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if site.token:
            self._headers["Authorization"] = f"Bearer {site.token}"

    def request(self, method: str, path: str, body: bytes | None, patience_s: float) -> Reply:
        """One request and its answer.

        A connection that the server has closed meanwhile is opened anew, once: requests are such that they may come twice.

        Args:
            method: of HTTP.
            path: after the prefix.
            body: JSON; None: none.
            patience_s: how long the answer may take.

        Raises:
            UnreachableError: there was no answer.
        """
        used = self._http is not None
        try:
            return self._request(method, path, body, patience_s)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            if not used:
                raise self._unreachable("closed the connection") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._unreachable(f"gives no answer: {type(error).__name__}: {error}") from None
        try:
            return self._request(method, path, body, patience_s)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._unreachable(f"gives no answer: {type(error).__name__}: {error}") from None

    def send_file(self, path: str, file: BinaryIO, media_type: str, patience_s: float) -> Reply:
        """Sends a file by PUT, and waits for the answer.

        Args:
            path: after the prefix.
            file: at its beginning.
            media_type: of it.
            patience_s: how long each step may take.

        Raises:
            UnreachableError: there was no answer.
        """
        headers = {"Content-Type": media_type, "Content-Length": str(os.fstat(file.fileno()).st_size)}
        try:
            connection = self._http = self._http or self._open()
            connection.timeout = patience_s
            with contextlib.suppress(
                BrokenPipeError, ConnectionResetError
            ):  # who refuses it answers before all has come
                connection.request("PUT", self._site.prefix + path, file, self._headers | headers)
            return _reply(connection.getresponse())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._unreachable(f"gives no answer: {type(error).__name__}: {error}") from None
        finally:
            self._forget()

    def close(self) -> None:
        """Ends it; a request that waits for its answer fails."""
        self._closed = True
        self.interrupt()

    def interrupt(self) -> None:
        """Has the request that waits for its answer fail, from any thread."""
        opened = self._http
        if opened is not None and opened.sock is not None:
            with contextlib.suppress(OSError):
                opened.sock.shutdown(socket.SHUT_RDWR)

    def _request(self, method: str, path: str, body: bytes | None, patience_s: float) -> Reply:
        done = False
        try:
            connection = self._http = self._http or self._open()
            if connection.sock is not None:
                connection.sock.settimeout(CONNECT_S)
            connection.request(method, self._site.prefix + path, body, self._headers)
            connection.sock.settimeout(patience_s)
            answer = connection.getresponse()
            reply = _reply(answer)
            done = not answer.will_close
            return reply
        finally:
            if not done:
                self._forget()

    def _open(self) -> http.client.HTTPConnection:
        if self._closed:
            raise ConnectionError("the worker has stopped")
        host, port, tls = self._site.host, self._site.port, self._site.tls
        if tls is None:
            return http.client.HTTPConnection(host, port, timeout=CONNECT_S)
        return http.client.HTTPSConnection(host, port, timeout=CONNECT_S, context=tls)

    def _forget(self) -> None:
        opened, self._http = self._http, None
        if opened is not None:
            opened.close()

    def _unreachable(self, what: str) -> UnreachableError:
        return UnreachableError(f"{self._site.url} {what}.")


def _reply(answer: http.client.HTTPResponse) -> Reply:
    """Returns what was answered, to its end.

    Raises:
        IncompleteRead: it was cut off, or has more bytes than are taken: that is no answer.
        ValueError: so was the JSON of a success, by somebody who passed on what had come.
    """
    text = answer.read(_MOST_ANSWER_BYTES)
    if answer.length:  # a read of so many bytes ends without a word where fewer come
        raise http.client.IncompleteRead(text, answer.length)
    document = _json(text)
    said_json = "json" in answer.headers.get("Content-Type", "")
    if document is None and text and said_json and answer.status in range(200, 300):
        raise ValueError("its JSON is cut off")
    return Reply(answer.status, document, _seconds(answer.headers.get("Retry-After")))


def _json(text: bytes) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isdecimal() and len(text) < 9 else None


def refusal(reply: Reply, site: Site) -> SchedulerError:
    """The error that says why the server does not do what it was asked for."""
    if reply.status in (400, 413, 422):
        return ArgumentError(f"The server refuses the call: {reply.detail}")
    if reply.status in (401, 403):
        return ConflictError(
            f"The server at {site.url} does not let this worker in: {reply.detail}",
            hint="Pass a token that may lease from its queues.",
        )
    if reply.problem and reply.status != 404:
        return UnreachableError(f"The server at {site.url} cannot do it: {reply.detail}", hint="Try again in a moment.")
    return UnreachableError(
        f"What answers at {site.url} is no API of ours: {reply.status}, {reply.detail}",
        hint="Is it the right address, with the path before /v1?",
    )
