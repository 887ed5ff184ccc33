"""The end of long work when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect, Request

_T = TypeVar("_T")
_LOOK_S: Final = 0.25


async def until_disconnect(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of work that is given up as soon as the caller hangs up.

    Args:
        request: whose body has been read.
        work: that is cancelled then.

    Raises:
        ClientDisconnect: the caller has hung up.
    """
    working = asyncio.create_task(work)
    try:
        while True:
            done, _ = await asyncio.wait([working], timeout=_LOOK_S)
            if done:
                return working.result()
            if await request.is_disconnected():
                raise ClientDisconnect
    finally:
        working.cancel()
