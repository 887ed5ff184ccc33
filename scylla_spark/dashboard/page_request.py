"""The request of a browser with its access to the API, and the templates of answers."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlencode, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from scylla_spark.clock import now_us
from scylla_spark.dashboard import charts, value_texts
from scylla_spark.dashboard.assets import Assets
from scylla_spark.dashboard.guard import check_form, read_form
from scylla_spark.dashboard.now_live import Parts
from scylla_spark.dashboard.own_api import ApiProblem, OwnApi
from scylla_spark.dashboard.presses import Presses, press_of
from scylla_spark.dashboard.sessions import RENEWED_US, SESSION, Session, Sessions
from scylla_spark.log import get_logger
from scylla_spark.visible import visible

log = get_logger("dashboard")

NAVIGATION: Final = (
    ("now", "Now"),
    ("tasks", "Tasks"),
    ("lanes", "Lane"),
    ("schedules", "Schedules"),
    ("time", "Time machine"),
    ("system", "System"),
)
"""The six screens: their path below `/ui/`, and their name."""
_SAID: Final = "said"
_WARNED: Final = "warned"
_MOST_SAID: Final = 500
_SENT_BEFORE: Final = "This form had been sent before, so it was done once. Load its page again to do it again."


def within(path: str, **query: Any) -> str:
    """A page of ours as the dashboard calls it: without the prefix; what is None or empty is left out of its query.

    Args:
        path: such as /ui/tasks, encoded.
        **query: its parameters.
    """
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return path + (f"?{urlencode(given)}" if given else "")


@dataclass
class Site:
    """The parts that all pages share.

    Attributes:
        api: the whole API, behind what lets only those in who may.
        public_url: where people reach it; empty: at its own address. Its path is the prefix of all links.
        redeem: gives the id of the token of a login code; empty: the code is worth nothing.
        sessions: who is logged in.
        grammar: fields of the filter by the kind of their values: "name", "instant", "duration", "number".
        assets: styles and scripts.
        now_parts: what of Now changes, made for all who look.
        presses: what came of forms that make something.
    """

    api: ASGIApp
    public_url: str
    redeem: Callable[[str], str]
    sessions: Sessions
    grammar: Mapping[str, Sequence[str]]
    assets: Assets = field(default_factory=Assets)
    now_parts: Parts = field(default_factory=Parts)
    presses: Presses = field(default_factory=Presses)

    def __post_init__(self) -> None:
        self.prefix = urlsplit(self.public_url).path.rstrip("/")
        self.templates = _templates(self.prefix)

    def url(self, path: str, **query: Any) -> str:
        """A link to a page of ours, as browsers need it: with the prefix.

        Args:
            path: such as /ui/tasks, encoded.
            **query: its parameters.
        """
        return f"{self.prefix}{within(path, **query)}"


@lru_cache(maxsize=8)
def _templates(prefix: str) -> Environment:
    """The templates whose links begin with a prefix. Each is compiled once per process, which takes tens of milliseconds."""
    assets = Assets()
    found = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.filters |= {
        "count": value_texts.count_text,
        "span": value_texts.span_text,
        "ms": value_texts.ms_text,
        "name": value_texts.name_markup,
        "segment": value_texts.segment,
        "json": value_texts.json_text,
        "seen": visible,
        "lines": value_texts.lines_text,
    }
    found.globals |= {
        "navigation": NAVIGATION,
        "url": lambda path, **query: prefix + within(path, **query),
        "static": lambda name: prefix + assets.path(name),
        "sparkline": charts.sparkline,
        "filter_term": value_texts.filter_term,
    }
    return found


class Page:
    """One request of one browser.

    Args:
        request: as it came.
        site: what all pages share.

    Attributes:
        request: as given.
        site: as given.
        now: microseconds since the epoch.
        session: of this browser; None: it has not logged in.
        own: the API, in the name of this browser.
        form: the fields of the form that was sent, and of its address; empty for what is only looked at.
    """

    def __init__(self, request: Request, site: Site) -> None:
        self.request = request
        self.site = site
        self.now = now_us()
        self.session = site.sessions.read(request.cookies.get(site.sessions.cookie(SESSION), ""), self.now)
        self.own = OwnApi(site.api, request.scope, vouch=self._vouched)
        self.form: Mapping[str, str] = {}

    def _vouched(self) -> str:
        """The token in whose name this browser asks: while a page is made or a stream is read, its session may end."""
        session = self.session
        return session.token_id if session is not None and self.site.sessions.holds(session, now_us()) else ""

    @property
    def author(self) -> str:
        """The author of changes that the dashboard makes."""
        return "dashboard"

    def asked(self, name: str, default: str = "") -> str:
        """A parameter of the query."""
        return self.request.query_params.get(name, default)

    def part(self, name: str) -> str:
        """A part of the path, decoded.

        Raises:
            ApiProblem: it is not UTF-8.
        """
        try:
            return unquote(self.request.path_params[name], errors="strict")
        except UnicodeDecodeError:
            raise ApiProblem(404, {"title": "There is no such page", "detail": "The path is not UTF-8."}) from None

    def shown(self, template: str, status: int = 200, **values: Any) -> Response:
        """A page made of a template.

        Args:
            template: its file.
            status: of the answer.
            **values: what it shows.
        """
        said, warned = (self._told(name) for name in (_SAID, _WARNED))
        text = self.site.templates.get_template(template).render(
            page=self,
            now=self.now,
            said=said,
            warned=warned,
            form_token=self.site.sessions.form_token(self.session),
            form_id=secrets.token_hex(8),
            moment=lambda text: value_texts.moment_markup(text, self.now),
            **values,
        )
        answer = HTMLResponse(text, status)
        for name in [name for name, text in ((_SAID, said), (_WARNED, warned)) if text]:
            self.take_cookie(answer, name)
        return answer

    def _told(self, name: str) -> str:
        """Returns the message that the previous page left for this one."""
        return unquote(self.request.cookies.get(self.site.sessions.cookie(name), ""))[:_MOST_SAID]

    def goes(self, path: str, said: str = "", warned: str | None = None) -> Response:
        """Sends the browser to another page, which says what was done.

        Args:
            path: of ours, without the prefix; `within` makes one with a query.
            said: a sentence.
            warned: a sentence about what may be wrong with it.
        """
        answer = RedirectResponse(f"{self.site.prefix}{path}", 303)
        for name, text in ((_SAID, said), (_WARNED, warned)):
            if text:
                self.set_cookie(answer, name, quote(text[:_MOST_SAID]), seconds=60)
        return answer

    def goes_again(self, before: Response) -> Response:
        """Sends the browser where the same form has led it before, and says so; what led nowhere is answered as it was."""
        if "location" not in before.headers:
            return before
        answer = RedirectResponse(before.headers["location"], 303)
        self.set_cookie(answer, _SAID, quote(_SENT_BEFORE), seconds=60)
        return answer

    def set_cookie(self, answer: Response, name: str, value: str, seconds: int | None = None) -> None:
        """Gives the browser a cookie that scripts do not see, and that comes from other sites only with a link that is followed.

        Args:
            answer: that carries it.
            name: what it holds.
            value: of the cookie.
            seconds: how long it stays; None: until the browser is closed.
        """
        secure = self.site.public_url.startswith("https:") or self.request.url.scheme == "https"
        answer.set_cookie(
            self.site.sessions.cookie(name),
            value,
            max_age=seconds,
            path=self.site.prefix or "/",
            secure=secure,
            httponly=True,
            samesite="lax",
        )

    def take_cookie(self, answer: Response, name: str) -> None:
        """Takes away from the browser what `set_cookie` has given."""
        answer.delete_cookie(self.site.sessions.cookie(name), path=self.site.prefix or "/")

    def remember(self, answer: Response, session: Session) -> None:
        """Lets the browser show a session from now on."""
        self.set_cookie(answer, SESSION, self.site.sessions.text(session, self.now))

    def renew(self, answer: Response) -> None:
        """Gives the browser a new text of its session where the one that it has shown is no longer new, unless it has ended since."""
        session = self.session
        if session is None or self.now - session.seen_us <= RENEWED_US or not self._vouched():
            return
        self.remember(answer, session)
        self.session = session._replace(seen_us=self.now)

    def refused(self, problem: ApiProblem) -> Response:
        """The page of what the API has refused; who must show a token is sent to the login."""
        if problem.status == 401:
            asked = self.request.url.path + (f"?{self.request.url.query}" if self.request.url.query else "")
            return self.goes(within("/ui/login", next=asked if self.request.method == "GET" else None))
        told = {"title": "It did not work", "detail": "", "hint": ""} | dict(problem.document)
        return self.shown("problem.html", problem.status, problem=told, place="")


View = Callable[[Page], Awaitable[Response]]


class Screen(NamedTuple):
    """A path of the dashboard, and what answers there.

    Attributes:
        path: with parameters as Starlette writes them.
        view: answers.
        acts: whether it takes forms, and changes something.
        is_anybodys: whether these need no session; that which a browser has does not matter then.
    """

    path: str
    view: View
    acts: bool
    is_anybodys: bool = False

    def route(self, site: Site) -> Route:
        """The route of a site."""

        async def endpoint(request: Request) -> Response:
            page = Page(request, site)
            try:
                if self.acts:
                    page.form = dict(request.query_params) | await read_form(request)
                    check_form(request, page.form, None if self.is_anybodys else page.session, site.sessions)
                answer = await self._answered(page)
                page.renew(answer)
                return answer
            except ApiProblem as problem:
                return page.refused(problem)
            except Exception as error:
                log.error("a page met a defect", path=request.url.path, exc_info=error)
                detail = f"{type(error).__name__}; the log of the API says more."
                return page.refused(ApiProblem(500, {"title": "A defect of the dashboard", "detail": detail}))

        return Route(self.path, endpoint, methods=["POST"] if self.acts else ["GET"])

    async def _answered(self, page: Page) -> Response:
        """Returns the answer of the view. A form that was sent before gets its first answer again."""
        press = press_of(page.request.url.path, page.form)
        if not press:
            return await self.view(page)
        answer, had_been_sent = await page.site.presses.once(press, page.now, lambda: self.view(page))
        return page.goes_again(answer) if had_been_sent else answer


def shows(path: str, view: View) -> Screen:
    """A page that is looked at."""
    return Screen(path, view, acts=False)


def acts(path: str, view: View, *, is_anybodys: bool = False) -> Screen:
    """A route for a form. Its fields are in `page.form`, and its token was checked.

    Args:
        path: with parameters as Starlette writes them.
        view: does it.
        is_anybodys: whether it needs no session.
    """
    return Screen(path, view, acts=True, is_anybodys=is_anybodys)
