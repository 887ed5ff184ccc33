"""The part of Now that changes, as a stream: made once for all who are told the same, and sent to them whole when it has become another."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from scylla_spark.clock import boot_us
from scylla_spark.dashboard.own_api import ApiProblem, OwnApi

_PRICE: Final = 100
"""Between two that are made, so many times as long as one took: all of them together cost a hundredth of a core …"""
_MOST_US: Final = 5_000_000
"""… but one that took long on a busy machine keeps nobody waiting for a minute."""
_DATA: Final = b"\ndata: "
_STILL: Final = b": still here\n\n"
_REFUSED: Final = (401, 403)


@dataclass
class _Viewers:
    """Those who may see the same.

    Attributes:
        count: of their streams.
        told: what their newest text follows from.
        text: the newest.
        made_us: when it was, by the clock of the machine's start.
        rest_us: how long to wait then, were there no others.
    """

    count: int = 0
    told: tuple[bytes, bytes] | None = None
    text: str = ""
    made_us: int = 0
    rest_us: int = 0


class Parts:
    """Texts that follow from what the API told; its user is one event loop.

    What may be spent on them is divided among those who may see different things, so that each is brought something, whoever asks first.
    """

    def __init__(self) -> None:
        self._viewers: dict[bytes, _Viewers] = {}

    @contextmanager
    def watched(self, rights: bytes) -> Iterator[None]:
        """As long as somebody with these rights looks, a share is his."""
        mine = self._viewers.setdefault(rights, _Viewers())
        mine.count += 1
        try:
            yield
        finally:
            mine.count -= 1
            if not mine.count:
                del self._viewers[rights]

    def made(self, rights: bytes, told: tuple[bytes, bytes], make: Callable[[], str]) -> str | None:
        """The text of what was told; None: it is not made yet, and it is too early to make another.

        Args:
            rights: of who was told it, and looks.
            told: what it follows from, and nothing else.
            make: makes it.
        """
        known = next((one.text for one in self._viewers.values() if one.told == told), None)
        if known is not None:
            return known
        mine, begun = self._viewers[rights], boot_us()
        if begun < mine.made_us + mine.rest_us * len(self._viewers):
            return None
        mine.told, mine.text, mine.made_us = told, make(), boot_us()
        mine.rest_us = min(_PRICE * (mine.made_us - begun), _MOST_US)
        return mine.text


class NowStream(Response):
    """Events of type `part`, whose data is the markup as a JSON text.

    Each browser's own token asks for what its part shows, so what one may not see is not told to it, and the stream ends with the token.

    Args:
        own: the API, in the name of one browser.
        parts: of all browsers.
        make: the markup, of the overview and of the queues.
        after: of which page of queues it is; others see other pages.
    """

    def __init__(
        self, own: OwnApi, parts: Parts, make: Callable[[dict[str, Any], list[dict[str, Any]]], str], after: str = ""
    ) -> None:
        super().__init__()
        self._own = own
        self._parts = parts
        self._rights = b""
        self._make = make
        self._after = after
        self._newest = b""
        self._shown = ""
        self._is_over = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Streams it."""

        async def passed_on(message: Message) -> None:
            if self._is_over:
                return
            if message["type"] == "http.response.body" and message.get("body"):
                message = dict(message) | await self._turned(message["body"])
            await send(message)

        self._rights = await self._read_rights()
        with self._parts.watched(self._rights):
            await self._own.pass_on("/v1/overview", {}, self, receive, passed_on)

    async def _read_rights(self) -> bytes:
        """Returns the rights of this browser; empty if the API refuses to report them."""
        try:
            me = await self._own.get("/v1/me")
        except ApiProblem:
            return b""
        return json.dumps([me["scopes"], me["namespaces"], self._after]).encode()

    async def _turned(self, event: bytes) -> dict[str, Any]:
        """Converts an event of the API for the browser. Events that are not overviews pass unchanged."""
        if event.startswith(b"event: overview"):
            self._newest = event.partition(_DATA)[2].strip()
        if not self._newest:
            return {"body": event}
        try:
            text = await self._text()
        except ApiProblem as problem:
            if problem.status not in _REFUSED:
                return {"body": _STILL}
            self._is_over = True
            return {"body": b"event: over\ndata: \n\n", "more_body": False}
        if text is None or text == self._shown:
            return {"body": _STILL}
        self._shown = text
        return {"body": b"event: part\ndata: " + json.dumps(text).encode() + b"\n\n"}

    async def _text(self) -> str | None:
        queues = await self._own.read("/v1/queues")
        told = (self._newest.partition(b",")[2], queues + self._after.encode())  # without the moment of the overview
        return self._parts.made(
            self._rights, told, lambda: self._make(json.loads(self._newest), json.loads(queues)["queues"])
        )
