"""Server-sent events as an answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

MEDIA_TYPE: Final = "text/event-stream"
STREAM: Final = {MEDIA_TYPE: {"schema": {"type": "string"}}}
"""The content of a stream, for the description of the API."""
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class EventStream(StreamingResponse):
    """Sends events until there are no more, or until the reader has gone.

    Args:
        events: their text.
        end: called once the answer is over, whether or not any of it was sent: an iterator that nobody has begun ends nothing itself.
    """

    def __init__(self, events: AsyncIterator[bytes], end: Callable[[], None]) -> None:
        super().__init__(events, media_type=MEDIA_TYPE, headers=_HEADERS)
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._end()
