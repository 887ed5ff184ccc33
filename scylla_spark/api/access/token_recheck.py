"""Answers that take their time: they are given only to who would still be let in, since a token may be revoked or expire meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scylla_spark.api import problems
from scylla_spark.api.access.token_mirror import OLDEST_S
from scylla_spark.api.http.event_stream import MEDIA_TYPE
from scylla_spark.api.problems import Problem

Judge = Callable[[], Awaitable[None]]
"""Raises a `Problem` if who asks would no longer be let in."""
_SAFE: Final = frozenset({"GET", "HEAD"})
_OVER: Final = b"event: over\ndata: \n\n"
_STILL: Final = b": still here\n\n"
_PAUSE_S: Final = 5.0


class TokenRecheck:
    """Serves one request, and ends its answer once the token no longer holds.

    Of an event stream each piece is judged as a request is, so that none is sent by what was known of tokens more than five seconds ago;
    while nobody can tell who may come in, it waits. One that has nothing to say is looked at now and then, and ends, too. Any other answer
    that only tells something, and that took longer than those five seconds to make, is judged once more before it begins. What changes
    something was asked for by who might: how that went is told.

    Args:
        judge: who asks.
        send: to the client.
    """

    def __init__(self, judge: Judge, send: Send) -> None:
        self._judge = judge
        self._send = send
        self._problem: Problem | None = None
        self._is_stream = self._is_whole = False
        self._watching: asyncio.Task[None] | None = None

    async def serve(self, app: ASGIApp, scope: Scope, receive: Receive) -> None:
        """Serves it.

        Args:
            app: makes the answer.
            scope: of the request.
            receive: of the request.
        """
        self._late_at = asyncio.get_running_loop().time() + OLDEST_S
        self._only_tells = scope["method"] in _SAFE
        try:
            with anyio.CancelScope() as self._until:
                await app(scope, receive, self._judged)
        finally:
            if self._watching is not None:
                self._watching.cancel()
        if self._problem is not None and not self._is_whole:
            await self._end(self._problem, scope, receive)

    async def _judged(self, message: Message) -> None:
        if self._is_stream:
            await self._check_piece()
        elif message["type"] == "http.response.start":
            await self._begin(message)
        self._is_whole = message["type"] == "http.response.body" and not message.get("more_body", False)
        await self._send(message)

    async def _begin(self, start: Message) -> None:
        self._is_stream = _is_event_stream(start)
        if self._is_stream:
            self._watching = asyncio.create_task(self._watch())
        elif self._only_tells and asyncio.get_running_loop().time() > self._late_at:
            await self._check()

    async def _check(self) -> None:
        """Ends the answer, in the midst of this, if who asks would no longer be let in."""
        try:
            await self._judge()
        except Problem as problem:
            await self._give_up(problem)

    async def _check_piece(self) -> None:
        """As `_check`, but waits where nobody can tell: what is left out of a stream would be lost for its reader."""
        while True:
            try:
                return await self._judge()
            except Problem as problem:
                if problem.kind is not problems.UNREACHABLE:
                    await self._give_up(problem)
            await self._send({"type": "http.response.body", "body": _STILL, "more_body": True})
            await asyncio.sleep(_PAUSE_S)

    async def _watch(self) -> None:
        """Ends a stream that is quiet."""
        while True:
            await asyncio.sleep(_PAUSE_S)
            try:
                await self._judge()
            except Problem as problem:
                if problem.kind is not problems.UNREACHABLE:
                    self._problem = problem
                    self._until.cancel()
                    return

    async def _give_up(self, problem: Problem) -> None:
        self._problem = problem
        self._until.cancel()
        await anyio.sleep_forever()  # which the scope ends, and all that makes the answer with it

    async def _end(self, problem: Problem, scope: Scope, receive: Receive) -> None:
        if self._is_stream:
            await self._send({"type": "http.response.body", "body": _OVER, "more_body": False})
        else:
            told = problems.answer(problem.kind, str(problem.detail), problem.headers, **problem.members)
            await told(scope, receive, self._send)


def _is_event_stream(start: Message) -> bool:
    kinds = [value for name, value in start.get("headers", ()) if name.lower() == b"content-type"]
    return any(kind.startswith(MEDIA_TYPE.encode()) for kind in kinds)
