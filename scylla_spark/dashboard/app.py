"""The dashboard in front of the API: paths below `/ui/` are its own, everything else is the API's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scylla_spark.dashboard import lane, live, login, now, schedules, system, task, tasks, time_machine
from scylla_spark.dashboard.guard import HEADERS
from scylla_spark.dashboard.own_api import ApiProblem
from scylla_spark.dashboard.page_request import Page, Site
from scylla_spark.dashboard.sessions import Sessions

SCREENS: Final = (login, live, now, tasks, task, lane, schedules, time_machine, system)


class Dashboard:
    """ASGI application: pages, and the API behind them.

    Args:
        api: the whole API, behind what lets only those in who may.
        public_url: where people reach it; its path is taken off requests where a proxy has left it, and stands in all links.
        secret: that all processes of the deployment share; by it sessions hold at each of them.
        redeem: gives the id of the token of a login code; empty: the code is worth nothing.
        grammar: fields of the filter by the kind of their values, which the help of Tasks tells of.
    """

    def __init__(
        self,
        api: ASGIApp,
        public_url: str | None,
        secret: str,
        redeem: Callable[[str], str],
        grammar: Mapping[str, Sequence[str]],
    ) -> None:
        self._api = api
        self._site = Site(api, public_url or "", redeem, Sessions(secret), grammar)
        self._pages = _pages(self._site)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._api(scope, receive, send)
            return
        scope["path"] = self._within(scope["path"])
        if _is_ours(scope["path"]):
            await self._pages(scope, receive, _with_headers(send))
        else:
            await self._api(scope, receive, send)

    def _within(self, path: str) -> str:
        """A path as the dashboard calls it: without the prefix, unless a proxy has taken that off and a page of ours has such a name."""
        prefix = self._site.prefix
        if not prefix or not f"{path}/".startswith(f"{prefix}/") or (_is_ours(path) and self._has(path)):
            return path
        return path[len(prefix) :] or "/"

    def _has(self, path: str) -> bool:
        asked = {"type": "http", "method": "GET", "path": path}
        return any(route.matches(asked)[0] is not Match.NONE for route in self._pages.routes)


def _is_ours(path: str) -> bool:
    return path in ("/", "/ui", "/ui/") or path.startswith("/ui/")


def _pages(site: Site) -> Starlette:
    async def home(request: Request) -> Response:
        return Page(request, site).goes("/ui/now")

    async def nothing(request: Request, _error: Exception) -> Response:
        problem = {"title": "There is no such page", "detail": "The address is wrong, or what it showed has gone."}
        return Page(request, site).refused(ApiProblem(404, problem))

    async def file(request: Request) -> Response:
        return site.assets.answer(request)

    routes = [screen.route(site) for module in SCREENS for screen in module.ROUTES]
    homes = [Route(path, home) for path in ("/", "/ui", "/ui/")]
    return Starlette(
        routes=[*homes, Route("/ui/static/{path:path}", file), *routes], exception_handlers={404: nothing, 405: nothing}
    )


def _with_headers(send: Send) -> Send:
    """Sends answers with what keeps other sites away."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = dict(message) | {"headers": [*message.get("headers", ()), *HEADERS]}
        await send(message)

    return sent
