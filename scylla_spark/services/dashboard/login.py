"""Logging in with a token, or with a code that the command line was given for one; and logging out."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from scylla_spark.clock import boot_us
from scylla_spark.services.dashboard.guard import COOKIE
from scylla_spark.services.dashboard.own_api import ApiProblem, OwnApi
from scylla_spark.services.dashboard.page import Page, acts, shows

_FIRST: Final = "/ui/now"


async def ask(page: Page) -> Response:
    """The form that takes a token; a code in the query is used up at once."""
    if code := page.asked("code"):
        token = page.site.redeem(code)
        if token:
            return await _begun(page, token)
        why = "The code is worth nothing any more: each logs in once, within a minute."
        return page.shown("login.html", 401, place="", next=_FIRST, why=why)
    return page.shown("login.html", place="", next=_place(page.asked("next")), why="")


async def enter(page: Page) -> Response:
    """Begins a session, if the API lets the token in."""
    try:
        return await _begun(page, page.form.get("token", "").strip())
    except ApiProblem as problem:
        if problem.status != 401:
            raise
        return page.shown("login.html", 401, place="", next=_place(page.form.get("next", "")), why=problem.sentence)


async def leave(page: Page) -> Response:
    """Ends the session."""
    page.site.sessions.end(page.session)
    answer = page.goes("/ui/login", "You are logged out.")
    answer.delete_cookie(COOKIE, path=page.site.prefix or "/")
    return answer


async def _begun(page: Page, token: str) -> Response:
    if not token.isascii() or not token.isprintable() or not token:
        raise ApiProblem(401, {"detail": "That is no token.", "hint": "It begins with ss_."})
    await OwnApi(page.site.api, page.request.scope, token).get("/v1/me")
    page.site.sessions.end(page.session)
    answer = page.goes(_place(page.form.get("next", "")))
    page.set_cookie(answer, COOKIE, page.site.sessions.begin(token, boot_us()))
    return answer


def _place(text: str) -> str:
    """Where to go afterwards: a page of ours, whatever a link says."""
    inside = text.startswith("/ui/") and "\\" not in text and text.isprintable()
    return text if inside else _FIRST


ROUTES: Final = (shows("/ui/login", ask), acts("/ui/login", enter), acts("/ui/logout", leave))
