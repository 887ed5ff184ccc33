"""Bounds of what one client may use: host names, bytes, time and concurrent requests. They are checked before everything else."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scylla_spark.api import problems
from scylla_spark.api.http.forwarded import client_address
from scylla_spark.api.http.metrics import ApiMetrics
from scylla_spark.api.http.origins import SAFE_METHODS, is_foreign
from scylla_spark.api.http.request_slots import RequestSlots
from scylla_spark.api.leases.pending_calls import PendingCall, PendingCalls
from scylla_spark.api.problems import Kind, Problem
from scylla_spark.config.settings import Api
from scylla_spark.io.host.host_names import HostNames, unknown_host

BODY_S: Final = 20.0  # for a whole request …
BULK_S: Final = 600.0  # … or a whole bulk,
PIECE_S: Final = 10.0  # and for a piece of either
_DRAIN_S: Final = 30.0  # after an answer that came before the end of the body, the rest is read for so long …
_DRAIN_PIECE_S: Final = 2.0  # … and a piece of it
MOST_LEVELS: Final = 200  # of a JSON body; pydantic's parser refuses deeper ones
_BULK: Final = "/v1/tasks:bulk"
_LEASES: Final = "/v1/leases:"
_WORKER: Final = re.compile("/v1/workers/[^/]+(/sync)?")
_OUTPUT: Final = re.compile("/v1/leases/[^/]+/outputs/.*", re.DOTALL)
_HEADERS: Final = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))


class Limits:
    """ASGI middleware that refuses requests that are too large, too slow, too many, or for another host.

    Paths reach the application as they stand in the request line, so that an encoded slash is a part of a name.

    Args:
        app: what is behind.
        settings: bounds, and names by which the server may be asked.
        metrics: count requests.
        max_output: most bytes of a file that a leased worker leaves behind.
        calls: of workers, which are on their way from here.
    """

    def __init__(
        self, app: ASGIApp, settings: Api, metrics: ApiMetrics, max_output: int = 0, calls: PendingCalls | None = None
    ) -> None:
        self._app = app
        self._calls = calls or PendingCalls()
        self._max_output = max_output
        self._settings = settings
        self._metrics = metrics
        self._hosts = HostNames(settings.host, settings.allowed_hosts)
        public = urlsplit(settings.public_url or "")
        self._names, self._prefix = (*settings.allowed_hosts, public.netloc), public.path.rstrip("/")
        self._slots = RequestSlots(settings.max_requests)
        self._clients = _Clients(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        raw = scope.get("raw_path") or scope["path"].encode()
        scope["path"] = raw.partition(b"?")[0].decode("latin-1")
        path = scope["path"].removeprefix(self._prefix)
        self._metrics.begun()
        begun, sent, body = asyncio.get_running_loop().time(), _Sent(send), _Body(receive, *self._bounds(path))
        try:
            await self._serve(scope, path, body, sent)
        finally:
            operation = getattr(scope.get("route"), "operation_id", None) or ""
            self._metrics.ended(operation, sent.status, asyncio.get_running_loop().time() - begun)
        if sent.ends_late:
            if not body.whole:
                await _drain(receive, scope)
            await send({"type": "http.response.body", "body": b""})

    async def _serve(self, scope: Scope, path: str, body: _Body, sent: _Sent) -> None:
        urgent = _is_urgent(path)
        refusal = self._refusal(scope, body, urgent=urgent)
        if refusal is not None:
            await _refuse(*refusal, scope, body, sent)
            return
        try:
            with self._clients.taken(scope), self._taken(path) as taken:
                body.call = taken if isinstance(taken, PendingCall) else body.call
                await self._app(scope, body, sent)
        except Problem as problem:
            if sent.status == 0:
                await _refuse(problem.kind, str(problem.detail), scope, body, sent)

    def _taken(self, path: str) -> AbstractContextManager[object]:
        """Reserves a request slot while the request is served. Lease calls and health checks need none."""
        if _is_lease_call(path):
            return self._calls.begun()
        return nullcontext() if _is_urgent(path) else self._slots.taken()

    def _bounds(self, path: str) -> tuple[int, float]:
        """Most bytes of the body of a request, and the seconds in which it must come."""
        if path == _BULK:
            return self._settings.max_bulk, BULK_S
        if self._max_output and _OUTPUT.fullmatch(path):
            return self._max_output, BULK_S
        return self._settings.max_body, BODY_S

    def _refusal(self, scope: Scope, body: _Body, *, urgent: bool) -> tuple[Kind, str] | None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._hosts.permits(host):
            return problems.WRONG_HOST, unknown_host(host, "api.allowed_hosts")
        if scope["method"] not in SAFE_METHODS and is_foreign(
            host, _header(headers, b"origin"), _header(headers, b"sec-fetch-site"), self._names
        ):
            return problems.FOREIGN_SITE, "A page of another site sent this request. Nothing was done."
        if not urgent and not self._slots.has_free_slot():
            return problems.BUSY, f"{self._settings.max_requests} requests are in progress."
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > body.most:
            return problems.TOO_LARGE, f"The body has more than {body.most} bytes."
        return None


class _Body:
    """Receives a body within its bounds.

    Attributes:
        most: bytes of it.
        call: that it belongs to.
        whole: it was read to its end.
    """

    def __init__(self, receive: Receive, most: int, seconds: float) -> None:
        self.most = most
        self._receive = receive
        self._left_s = seconds
        self._size = 0
        self.whole = False
        self.call = PendingCall()  # replaced by the call of a worker

    async def __call__(self) -> Message:
        if self.whole:  # a later call waits until the client disconnects
            return await self._receive()
        begun = asyncio.get_running_loop().time()
        self.call.waits_for_body = True
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, min(PIECE_S, self._left_s)))
        except TimeoutError:
            raise Problem(
                problems.TOO_SLOW, "The body did not arrive in time.", headers={"Connection": "close"}
            ) from None
        finally:
            self.call.waits_for_body = False
        self._left_s -= (
            asyncio.get_running_loop().time() - begun
        )  # our own work between pieces is not the client's delay
        self._size += len(message.get("body", b""))
        if self._size > self.most:
            raise Problem(
                problems.TOO_LARGE, f"The body has more than {self.most} bytes.", headers={"Connection": "close"}
            )
        self.whole = not message.get("more_body", False)
        return message


class _Sent:
    """Sends an answer. After one that closes the connection, its end waits until the body of the request was read or given up.

    Attributes:
        status: of the answer; 0: it has not begun.
        ends_late: all of the answer was sent but its end, which closes the connection.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        self.ends_late = False
        self._closes = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            known = {name.lower(): value for name, value in message.get("headers", ())}
            more = [pair for pair in _HEADERS if pair[0] not in known]
            message = dict(message) | {"headers": [*message.get("headers", ()), *more]}
            closes = known.get(b"connection", b"").lower() == b"close"
            self._closes = closes and self.status != HTTPStatus.UNAUTHORIZED  # nothing is read for strangers
        elif self._closes and not message.get("more_body", False):
            message = dict(message) | {"more_body": True}
            self.ends_late = True
        await self._send(message)


class _Clients:
    """Bounds the requests at once of each client behind trusted proxies, whose connections say nothing of who they are for."""

    def __init__(self, settings: Api) -> None:
        self._proxies = settings.trusted_proxies
        self._most = settings.max_per_address
        self._requests: Counter[str] = Counter()

    @contextlib.contextmanager
    def taken(self, scope: Scope) -> Iterator[None]:
        """Makes the address of a request that of the client, and counts the request while this lasts.

        Raises:
            Problem: the client has too many requests under way.
        """
        address = client_address(scope, self._proxies)
        if address is None:
            yield
            return
        scope["client"] = (address, 0)
        if self._requests[address] >= self._most:
            raise Problem(problems.BUSY, f"{self._most} requests of {address} are in progress.")
        self._requests[address] += 1
        try:
            yield
        finally:
            self._requests[address] -= 1
            if not self._requests[address]:
                del self._requests[address]


def _is_urgent(path: str) -> bool:
    """Returns whether a request needs no slot: it keeps or ends leases, or checks liveness."""
    return path == "/healthz" or _is_lease_call(path)


def _is_lease_call(path: str) -> bool:
    """Returns whether a request keeps or ends leases."""
    return path.startswith(_LEASES) or _WORKER.fullmatch(path) is not None


def _header(headers: dict[bytes, bytes], name: bytes) -> str | None:
    return headers[name].decode("latin-1") if name in headers else None


async def _drain(receive: Receive, scope: Scope) -> None:
    """Reads and drops the rest of a body, within a time limit.

    A client that is still sending when its connection is closed sees a broken connection instead of the answer.
    """
    if any(name == b"expect" for name, _ in scope["headers"]):
        return  # the client sends no body before it is told to go on
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_S):
            while True:
                message: Any = await asyncio.wait_for(receive(), _DRAIN_PIECE_S)
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return


async def _refuse(kind: Kind, detail: str, scope: Scope, receive: Receive, send: Send) -> None:
    answer = problems.answer(kind, detail, {"Connection": "close"})
    await answer(scope, receive, send)
