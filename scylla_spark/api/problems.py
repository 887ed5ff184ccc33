"""Problem documents (RFC 9457): what every answer is that is not what was asked for. Types are stable, texts are for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match

from scylla_spark import errors
from scylla_spark.log import get_logger

log = get_logger("api")

MEDIA_TYPE: Final = "application/problem+json"
_MOST_FAULTS: Final = 20
_MOST_CHARS: Final = 500


class Kind(NamedTuple):
    """A type of problem: its name in `/problems/NAME`, the status it comes with, and its title."""

    name: str
    status: int
    title: str

    @property
    def type(self) -> str:
        """The URI reference that programs compare."""
        return f"/problems/{self.name}"


NOT_JSON: Final = Kind("not-json", 400, "The body is not JSON")
BAD_REQUEST: Final = Kind("bad-request", 400, "The request cannot be read")
UNAUTHENTICATED: Final = Kind("unauthenticated", 401, "A token is needed")
FORBIDDEN: Final = Kind("forbidden", 403, "The token does not allow this")
FOREIGN_SITE: Final = Kind("foreign-site", 403, "Request from another site")
NOT_FOUND: Final = Kind("not-found", 404, "Not found")
NO_SUCH_PATH: Final = Kind("no-such-path", 404, "Unknown path")
NO_SUCH_METHOD: Final = Kind("no-such-method", 405, "Method not allowed")
TOO_SLOW: Final = Kind("too-slow", 408, "The request took too long")
NOT_READY: Final = Kind("not-ready", 409, "The task cannot be leased now")
REPLACED: Final = Kind("worker-replaced", 409, "Another session has the name of this worker")
OUT_OF_ORDER: Final = Kind("sequence-out-of-order", 409, "A later call was accepted")
SUPERSEDED: Final = Kind("superseded", 409, "Replaced by a later call")
CONFLICT: Final = Kind("conflict", 409, "The state does not allow this")
CHANGED: Final = Kind("changed", 412, "The stored version has changed")
TOO_LARGE: Final = Kind("too-large", 413, "The request is too large")
WRONG_MEDIA_TYPE: Final = Kind("wrong-media-type", 415, "The body has another media type")
WRONG_HOST: Final = Kind("wrong-host", 421, "Unknown host name")
INVALID: Final = Kind("invalid", 422, "The request is not valid")
KEY_REUSED: Final = Kind("idempotency-key-reused", 422, "The key was used for another task")
IF_MATCH_NEEDED: Final = Kind("if-match-needed", 428, "If-Match is required")
BUSY: Final = Kind("busy", 429, "Too many requests")
HEADERS_TOO_LARGE: Final = Kind("headers-too-large", 431, "The headers are too large")
DEFECT: Final = Kind("defect", 500, "Internal error")
UNREACHABLE: Final = Kind("unreachable", 503, "A required server does not answer")
TIMED_OUT: Final = Kind("timed-out", 504, "Timed out")

KINDS: Final = (
    NOT_JSON,
    NOT_READY,
    REPLACED,
    OUT_OF_ORDER,
    SUPERSEDED,
    BAD_REQUEST,
    UNAUTHENTICATED,
    FORBIDDEN,
    FOREIGN_SITE,
    NOT_FOUND,
    NO_SUCH_PATH,
    NO_SUCH_METHOD,
    TOO_SLOW,
    CONFLICT,
    CHANGED,
    TOO_LARGE,
    WRONG_MEDIA_TYPE,
    WRONG_HOST,
    INVALID,
    KEY_REUSED,
    IF_MATCH_NEEDED,
    BUSY,
    HEADERS_TOO_LARGE,
    DEFECT,
    UNREACHABLE,
    TIMED_OUT,
)

_OF_ERRORS: Final[tuple[tuple[type[errors.SchedulerError], Kind], ...]] = (
    (errors.ArgumentError, INVALID),
    (errors.NotFoundError, NOT_FOUND),
    (errors.ConflictError, CONFLICT),
    (errors.UnreachableError, UNREACHABLE),
    (errors.WaitTimeoutError, TIMED_OUT),
)
_OF_STATUS: Final = {404: NO_SUCH_PATH, 405: NO_SUCH_METHOD, 400: BAD_REQUEST, 415: WRONG_MEDIA_TYPE}
_TOLD: Final = ("reason", "state", "tasks")  # fields of our errors that programs compare
_AGAIN_S: Final = {BUSY: "1", UNREACHABLE: "2"}


class Problem(HTTPException):
    """Ends a request with a problem document.

    Args:
        kind: of the problem.
        detail: what is wrong with this request.
        hint: what to do next.
        headers: further headers.
        **more: further members of the document.
    """

    def __init__(
        self, kind: Kind, detail: str, *, hint: str = "", headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(kind.status, detail, dict(headers or {}))
        self.kind = kind
        self.members = ({"hint": hint} if hint else {}) | more


def document(kind: Kind, detail: str, **more: Any) -> dict[str, Any]:
    """The members of a problem document."""
    return {"type": kind.type, "title": kind.title, "status": kind.status, "detail": detail} | more


def answer(
    kind: Kind,
    detail: str,
    headers: Mapping[str, str] | None = None,
    spliced: Mapping[str, bytes] | None = None,
    **more: Any,
) -> Response:
    """A problem document as an answer.

    Args:
        kind: of the problem.
        detail: what is wrong with this request.
        headers: further headers.
        spliced: further members whose values are JSON text already: large ones are not read again to be written.
        **more: further members.
    """
    told = {"Retry-After": _AGAIN_S[kind]} if kind in _AGAIN_S else {}
    body = json.dumps(document(kind, detail, **more), default=str).encode()
    for name, text in (spliced or {}).items():
        body = b"".join((body[:-1], b", ", json.dumps(name).encode(), b": ", text, b"}"))
    return Response(body, kind.status, told | dict(headers or {}), media_type=MEDIA_TYPE)


def register(app: FastAPI) -> None:
    """Makes every error of an app a problem document."""
    app.add_exception_handler(errors.SchedulerError, _of_ours)
    app.add_exception_handler(RequestValidationError, _of_validation)
    app.add_exception_handler(HTTPException, _of_http)
    app.add_exception_handler(ClientDisconnect, lambda _request, _error: Response(status_code=499))  # nobody hears it
    app.add_exception_handler(OSError, _of_storage)
    app.add_exception_handler(Exception, _of_defect)


def problem_of(error: errors.SchedulerError) -> dict[str, Any] | None:
    """The document of an error of ours; None if it is no fault of who asks."""
    for family, kind in _OF_ERRORS:
        if isinstance(error, family):
            more: dict[str, Any] = {"hint": error.hint} if error.hint else {}
            more |= {name: value for name in _TOLD if isinstance(value := error.fields.get(name), str | list)}
            return document(kind, error.message, **more)
    return None


def _of_ours(_request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.SchedulerError)
    told = problem_of(error)
    if told is None:
        log.error("a request failed", error=type(error).__name__, why=str(error))
        return answer(DEFECT, error.message, hint=error.hint)
    kind = next(kind for kind in KINDS if kind.type == told["type"])
    more = {name: value for name, value in told.items() if name in ("hint", *_TOLD)}
    return answer(kind, error.message, **more)


def _of_validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    media_type = request.headers.get("content-type", "")
    if any(one["loc"] == ("body",) for one in error.errors()) and "json" not in media_type.lower():
        said_type = f"has the Content-Type {media_type[:100]}" if media_type else "has no Content-Type"
        hint = "Send the header Content-Type: application/json (curl: -H, or --json)."
        return answer(INVALID, f"The body {said_type}, and only application/json is read.", hint=hint)
    faults = [fault(one) for one in error.errors()[:_MOST_FAULTS]]
    if faults and error.errors()[0]["type"] == "json_invalid":
        return answer(NOT_JSON, faults[0]["message"])
    return answer(INVALID, said(faults), errors=faults)


def said(faults: Sequence[Mapping[str, str]]) -> str:
    """The first fault as a sentence."""
    return "; ".join(f"{fault['place']}: {fault['message']}" for fault in faults[:3])


def fault(one: Mapping[str, Any]) -> dict[str, str]:
    """Returns the place and the message of an error of pydantic."""
    place = ".".join(str(part) for part in one["loc"])
    context = one.get("ctx") or {}
    text = str(context.get("error") or one["msg"])
    return {"place": place[:_MOST_CHARS], "message": text[:_MOST_CHARS]}


def _of_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, Problem):
        return answer(error.kind, str(error.detail), error.headers, **error.members)
    kind = _OF_STATUS.get(error.status_code, BAD_REQUEST)
    if kind is NO_SUCH_METHOD:  # the framework names the methods of one route only
        return answer(kind, f"The path takes {(allowed := _methods(request))}.", {"Allow": allowed})
    return answer(kind, str(error.detail), error.headers)


def _methods(request: Request) -> str:
    """The methods that a path takes."""
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return ", ".join(sorted({method for route in routes for method in getattr(route, "methods", None) or ()}))


def _of_storage(_request: Request, error: Exception) -> Response:
    """An error of the system: mostly a store of tables that did not answer in its time limit."""
    log.error("a request failed", error=type(error).__name__, why=str(error)[:500])
    why = f"The tables, or a file, cannot be read now ({type(error).__name__})."
    return answer(UNREACHABLE, why, hint="Try again in a moment; the log of the API says more.")


def _of_defect(_request: Request, error: Exception) -> Response:
    log.error("a request met a defect", exc_info=error)
    return answer(DEFECT, f"{type(error).__name__}; the log of the API says more.")
