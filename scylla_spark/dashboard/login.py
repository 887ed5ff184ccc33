"""Logging in with a token, or with a code that the command line was given for one; and logging out."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from scylla_spark.dashboard.own_api import ApiProblem, OwnApi
from scylla_spark.dashboard.page_request import Page, acts, shows
from scylla_spark.dashboard.sessions import SESSION

_FIRST: Final = "/ui/now"


async def ask(page: Page) -> Response:
    """The form that takes a token; or, for a code in the query, the button that uses it up.

    A link alone logs nobody in: another site, or a message, could lead somebody into a session that is not his own.
    """
    return _shown(page, _place(page.asked("next")), code=page.asked("code"))


async def enter(page: Page) -> Response:
    """Begins a session of a token, or of the one that a code stands for, if the API lets it in."""
    try:
        return await _begun(page, await _token_id(page))
    except ApiProblem as problem:
        if problem.status != 401:
            raise
        return _shown(page, _place(page.form.get("next", "")), status=401, why=problem.sentence)


def _shown(page: Page, following: str, *, status: int = 200, code: str = "", why: str = "") -> Response:
    """The form; whoever sends it may have a session by then, or none any more."""
    return page.shown(
        "login.html", status, place="", next=following, code=code, why=why, anybodys=page.site.sessions.form_token(None)
    )


async def _token_id(page: Page) -> str:
    """The id of the token that a form has, or its code stands for; empty: none is needed.

    Raises:
        ApiProblem: the API does not let it in, or the code is worth nothing.
    """
    code = page.form.get("code", "")
    if not code:
        return await _let_in(page, page.form.get("token", "").strip())
    token_id = page.site.redeem(code)
    if not token_id:
        why = "The code is worth nothing any more: each logs in once, within a minute."
        raise ApiProblem(401, {"detail": why, "hint": "`scylla-spark ui` makes another."})
    return token_id


async def _let_in(page: Page, token: str) -> str:
    if not token.isascii() or not token.isprintable() or not token:
        raise ApiProblem(401, {"detail": "That is no token.", "hint": "It begins with ss_."})
    return str((await OwnApi(page.site.api, page.request.scope, token).get("/v1/me"))["id"])


async def leave(page: Page) -> Response:
    """Ends the session."""
    if page.session is not None:
        page.site.sessions.end(page.session)
    answer = page.goes("/ui/login", "You are logged out.")
    page.take_cookie(answer, SESSION)
    return answer


async def _begun(page: Page, token_id: str) -> Response:
    answer = page.goes(_place(page.form.get("next", "")))
    if token_id:
        await OwnApi(page.site.api, page.request.scope, vouch=lambda: token_id).get("/v1/me")
        if page.session is not None:
            page.site.sessions.end(page.session)
        page.remember(answer, page.site.sessions.begun(token_id, page.now))
    return answer


def _place(text: str) -> str:
    """Returns the page after the login. It is always a page of the dashboard."""
    inside = text.startswith("/ui/") and "\\" not in text and text.isprintable()
    return text if inside else _FIRST


ROUTES: Final = (shows("/ui/login", ask), acts("/ui/login", enter, is_anybodys=True), acts("/ui/logout", leave))
