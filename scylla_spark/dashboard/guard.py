"""The protection against other sites: headers of every answer, and checks of every form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request

from scylla_spark.dashboard.own_api import ApiProblem
from scylla_spark.dashboard.sessions import Session, Sessions

FORM_TOKEN: Final = "form_token"
MOST_FIELDS: Final = 200
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),  # with no-referrer browsers would hide the origin of our own forms, too
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form; of a name that comes twice, the last.

    Raises:
        ApiProblem: it is no form, or has too many fields.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind != "application/x-www-form-urlencoded":
            raise ValueError("it is no form")
        text = (await request.body()).decode()
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict"))
    except ValueError as error:
        raise ApiProblem(400, {"title": "The form cannot be read", "detail": f"{error}."}) from None


def check_form(request: Request, form: Mapping[str, str], session: Session | None, sessions: Sessions) -> None:
    """Refuses a form that no page of this session has sent.

    Args:
        request: that carries it.
        form: its fields.
        session: that the form is of; None: it is anybody's.
        sessions: know which token its page had.

    Raises:
        ApiProblem: another site may have sent it, or its page is older than the session.
    """
    if not _shows_its_page(request):
        raise ApiProblem(403, {"title": "Another site has sent this form", "detail": "Nothing was done."})
    if not sessions.is_form_token(session, form.get(FORM_TOKEN, "")):
        raise ApiProblem(
            403,
            {
                "title": "The page is too old",
                "detail": "Nothing was done.",
                "hint": "Load the page again, then repeat it.",
            },
        )


def _shows_its_page(request: Request) -> bool:
    """Returns whether the browser names the page that sent a form. All requests are checked for other sites before."""
    return "origin" in request.headers or request.headers.get("sec-fetch-site") == "same-origin"
