"""Requests that still wait when the server stops are answered, so that their callers know to call again."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scylla_spark.api import problems


class Draining:
    """ASGI middleware, outside of all others: whoever is cancelled has waited for longer than the server does when it stops.

    Args:
        app: what is behind.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except asyncio.CancelledError:
            if scope["type"] != "http":
                raise
            if begun:  # a stream: its reader comes back by itself
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            else:
                told = problems.answer(problems.UNREACHABLE, "The server is stopping.", {"Connection": "close"})
                await told(scope, receive, send)
