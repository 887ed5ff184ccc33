"""The one connection by which an open page hears that something has happened."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from scylla_spark.dashboard.page_request import Page, shows

OVERVIEW: Final = "/v1/overview"


class PassedOn(Response):
    """An event stream of the API, as it comes.

    Args:
        page: in whose name it is read.
        path: of the operation.
        **query: its parameters.
    """

    def __init__(self, page: Page, path: str, **query: Any) -> None:
        super().__init__()
        self._page = page
        self._path = path
        self._query = query

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Streams it."""
        await self._page.own.pass_on(self._path, self._query, self, receive, send)


async def follow(page: Page) -> Response:
    """Tells of each new overview, which is made for all pages together."""
    return PassedOn(page, OVERVIEW)


ROUTES: Final = (shows("/ui/live", follow),)
