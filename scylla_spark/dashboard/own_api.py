"""The dashboard's way to the API: calls of the same operations that every client has, within the process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from pydantic_core import from_json
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

VOUCHED_TOKEN: Final = "scylla_spark.vouched_token"
"""Key of a scope: a `Voucher` of the dashboard, for a browser whose session it checks; no request can bring it."""
Voucher = Callable[[], str]
"""Gives the id of the token in whose name is asked, each time that somebody wants to know; empty: in nobody's, or not any more."""
_JSON: Final = (b"content-type", b"application/json")
_KEPT: Final = frozenset({b"last-event-id"})


class ApiProblem(Exception):
    """The API did not do what was asked.

    Attributes:
        status: of its answer.
        document: the problem document: title, detail, hint.
    """

    def __init__(self, status: int, document: Mapping[str, Any]) -> None:
        super().__init__(f"{status}: {document.get('detail', '')}")
        self.status = status
        self.document = document

    @property
    def sentence(self) -> str:
        """The problem and its hint in one line."""
        words = (self.document.get("detail") or self.document.get("title") or "", self.document.get("hint") or "")
        return " ".join(str(word) for word in words if word)


class OwnApi:
    """Calls the API in the name of one browser.

    Args:
        api: all of it, behind what lets only those in who may.
        scope: of the browser's request, whose address the audit trail is to name.
        token: that the browser has just shown, at its login; empty: none.
        vouch: for the token that its session names, as long as that holds.
    """

    def __init__(self, api: ASGIApp, scope: Scope, token: str = "", vouch: Voucher = str) -> None:
        self._api = api
        self._outer = scope
        self._token = token
        self._vouch = vouch

    async def get(self, path: str, **query: Any) -> Any:
        """Calls an operation and returns its answer. Arguments that are None or empty are omitted.

        Raises:
            ApiProblem: it does not.
        """
        return await self._call("GET", path, query, b"")

    async def read(self, path: str, **query: Any) -> bytes:
        """Calls an operation and returns the bytes of its answer, for a comparison with an earlier one.

        Raises:
            ApiProblem: it does not.
        """
        return (await self._asked("GET", path, query, b"")).text()

    async def post(self, path: str, body: Any = None, **query: Any) -> Any:
        """Calls an operation that changes something and returns its answer.

        Args:
            path: of the operation, encoded.
            body: a JSON value; None: there is none.
            **query: its parameters.

        Raises:
            ApiProblem: it was not done.
        """
        return await self.send("POST", path, body, **query)

    async def send(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """As `post`, with another method.

        Args:
            method: such as PUT, PATCH or DELETE.
            path: of the operation, encoded.
            body: a JSON value; None: there is none.
            **query: its parameters.

        Raises:
            ApiProblem: it was not done.
        """
        return await self._call(method, path, query, b"" if body is None else json.dumps(body).encode())

    async def pass_on(
        self, path: str, query: Mapping[str, Any], answer: Response, receive: Receive, send: Send
    ) -> None:
        """Lets the browser read an event stream of the API as it comes.

        Args:
            path: of the operation, encoded.
            query: its parameters.
            answer: that it stands for, whose cookies the browser is given with it.
            receive: of the browser's request.
            send: to the browser.
        """
        kept = [pair for pair in self._outer["headers"] if pair[0] in _KEPT]
        scope = self._scope("GET", path, query, [(b"accept", b"text/event-stream"), *kept])
        await self._api(scope, receive, _with_cookies_of(answer, send))

    async def _call(self, method: str, path: str, query: Mapping[str, Any], body: bytes) -> Any:
        return _value((await self._asked(method, path, query, body)).text() or b"null")

    async def _asked(self, method: str, path: str, query: Mapping[str, Any], body: bytes) -> _Answer:
        headers = [(b"content-length", b"%d" % len(body)), *([_JSON] if body else [])]
        answer = _Answer(body)
        await self._api(self._scope(method, path, query, headers), answer.receive, answer.send)
        return answer

    def _scope(
        self, method: str, path: str, query: Mapping[str, Any], headers: list[tuple[bytes, bytes]]
    ) -> dict[str, Any]:
        given = [pair for pair in self._outer["headers"] if pair[0] == b"host"]
        if self._token:
            given.append((b"authorization", f"Bearer {self._token}".encode()))
        outer = {name: self._outer[name] for name in ("type", "asgi", "http_version", "scheme", "client", "server")}
        words = urlencode({name: _text(value) for name, value in query.items() if value not in (None, "")})
        return outer | {
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "headers": [*given, *headers],
            "query_string": words.encode(),
            VOUCHED_TOKEN: self._vouch,
        }


class _Answer:
    """Hands a body in, and collects what comes back."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._status = 0
        self._parts: list[bytes] = []

    async def receive(self) -> Message:
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
        else:
            self._parts.append(message.get("body", b""))

    def text(self) -> bytes:
        """Returns the text of the answer: JSON, or nothing.

        Raises:
            ApiProblem: it is a problem document.
        """
        text = b"".join(self._parts)
        if self._status >= 400 or self._status == 0:
            raise ApiProblem(self._status or 500, _problem(text))
        return text


def _value(text: bytes) -> Any:
    """The value of an answer, by the quick parser: a day of lateness is a megabyte. It refuses what is nested deeper than it likes."""
    try:
        return from_json(text)
    except ValueError:  # a payload or a result stands some levels deeper in the answer than in its task
        return json.loads(text)


def _with_cookies_of(answer: Response, send: Send) -> Send:
    cookies = [pair for pair in answer.raw_headers if pair[0] == b"set-cookie"]

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = dict(message) | {"headers": [*message.get("headers", ()), *cookies]}
        await send(message)

    return sent


def _problem(text: bytes) -> Mapping[str, Any]:
    try:
        found = from_json(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"title": "It did not answer."}


def _text(value: Any) -> str:
    return "true" if value is True else "false" if value is False else str(value)
