"""Authentication, rate limits of tokens and the audit of all requests."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from starlette.types import ASGIApp, Receive, Scope, Send

from scylla_spark.api import problems
from scylla_spark.api.access.refusals import Refusals
from scylla_spark.api.access.required_scopes import NEEDS, NOT_AUDITED, NOT_IN_TABLE, UNDECLARED
from scylla_spark.api.access.shown_path import shown_path
from scylla_spark.api.access.token_mirror import TokenView
from scylla_spark.api.access.token_recheck import TokenRecheck
from scylla_spark.api.problems import Problem
from scylla_spark.clock import boot_us, now_us
from scylla_spark.config.settings import Api
from scylla_spark.core.access.scopes import EVERYTHING, Rights, read_rights
from scylla_spark.core.access.token_text import TokenText, proves, read_token
from scylla_spark.core.plan.state.audit_entry import MOST_CHARS, AuditEntry
from scylla_spark.core.plan.state.stored_token import StoredToken
from scylla_spark.dashboard.own_api import VOUCHED_TOKEN
from scylla_spark.errors import SchedulerError
from scylla_spark.log import get_logger

audit = get_logger("audit")

ALWAYS: Final = "always"
DRY_RUN: Final = "scylla_spark.dry_run"
"""Key of a scope: whether its route has answered that it only said what it would do; no request can bring it."""
RECHECK_TOKEN: Final = "scylla_spark.still_may"
"""Key of a scope: a `Judge`, which routes ask that wait before they hand something out; no request can bring it."""
_PUBLIC_PATHS: Final = frozenset({"/healthz"})
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_ASKS: Final = {"WWW-Authenticate": "Bearer"}
_SCHEME: Final = b"bearer "


class Caller(NamedTuple):
    """The caller of a request.

    Attributes:
        id: of the token; empty: none was needed.
        name: of the token.
        rights: what it may do.
    """

    id: str
    name: str
    rights: Rights


OPEN: Final = Caller("", "", EVERYTHING)
NOBODY: Final = Caller("", "", Rights())


class Access:
    """ASGI middleware: lets in who shows a token that holds, or everybody where none is needed.

    It says who asks; `authorise` compares that with what an operation needs, once it is known which one is asked for.

    Args:
        app: what is behind.
        settings: whether tokens are always needed, and how often one may ask.
        view: which tokens are stored.
        keep: takes who changed what for the table `audit`.
    """

    def __init__(self, app: ASGIApp, settings: Api, view: TokenView, keep: Callable[[AuditEntry], None]) -> None:
        self._keep = keep
        self._app = app
        self._settings = settings
        self._view = view
        self._buckets: dict[str, _Bucket] = {}
        self._refusals = Refusals()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = _Status(send)
        caller = NOBODY
        try:
            if scope["path"] not in _PUBLIC_PATHS:
                caller = await self._caller(scope)
                self._count(caller)
            scope["caller"] = caller
        except Problem as problem:
            headers = dict(problem.headers or {}) | {"Connection": "close"}
            answer = problems.answer(problem.kind, str(problem.detail), headers, **problem.members)
            await answer(scope, receive, sent)
        else:
            await self._serve(scope, caller, receive, sent)
        finally:
            self._write_down(scope, caller, sent.status)

    async def _serve(self, scope: Scope, caller: Caller, receive: Receive, send: Send) -> None:
        """Lets the routes answer, as long as the caller would be let in."""
        if caller is NOBODY:
            await self._app(scope, receive, send)
            return
        scope[RECHECK_TOKEN] = partial(self._check_again, scope, caller)
        await TokenRecheck(scope[RECHECK_TOKEN], send).serve(self._app, scope, receive)

    async def _check_again(self, scope: Scope, caller: Caller) -> None:
        """Looks whether who was let in would be let in now, with the same rights or where nobody needs any.

        Raises:
            Problem: he would not.
        """
        if await self._caller(scope) not in (caller, OPEN):
            raise Problem(problems.UNAUTHENTICATED, "The token was revoked or changed.", headers=_ASKS)

    async def _caller(self, scope: Scope) -> Caller:
        """The caller of a request.

        Raises:
            Problem: nobody who may.
        """
        token, vouched = shown_token(scope), scope.get(VOUCHED_TOKEN, str)()
        try:
            stored = await self._view.now(token.id if token is not None else vouched)
        except SchedulerError as error:
            raise Problem(problems.UNREACHABLE, error.message, hint=error.hint or "") from None
        if not stored and self._settings.tokens != ALWAYS:
            return OPEN
        id = token.id if token is not None else vouched
        known = stored.get(id)
        if known is None or not known.holds(now_us()) or (token is not None and not proves(token, known.digest)):
            raise Problem(
                problems.UNAUTHENTICATED,
                "The request has no valid token.",
                hint="Send `Authorization: Bearer ss_…`; `scylla-spark token create` makes tokens.",
                headers=_ASKS,
            )
        return Caller(id, known.name, _rights(known))

    def _count(self, caller: Caller) -> None:
        """Takes one request of what a token may ask.

        Raises:
            Problem: it asks too often.
        """
        if not caller.id:
            return
        bucket = self._buckets.setdefault(caller.id, _Bucket(self._settings.token_burst, boot_us()))
        wait_s = bucket.take(self._settings.token_rate, self._settings.token_burst, boot_us())
        if wait_s:
            raise Problem(
                problems.BUSY,
                f"The token asks more than {self._settings.token_rate:g} times a second.",
                headers={"Retry-After": str(math.ceil(wait_s))},
            )

    def _write_down(self, scope: Scope, caller: Caller, status: int) -> None:
        """Keeps who asked for what that changes something, also where it was refused; who only looked what it would do has done nothing."""
        operation = getattr(scope.get("route"), "operation_id", None) or ""
        stranger = status == HTTPStatus.UNAUTHORIZED and not caller.id
        client = scope.get("client")
        address = client[0] if client else ""
        unsaid = self._refusals.counted(address, boot_us()) if stranger else 0
        if unsaid is None:
            return
        refused = status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
        changes = scope["method"] not in _SAFE and not scope.get(DRY_RUN, False)
        entry = AuditEntry(
            now_us(),
            caller.id,
            caller.name,
            operation,
            scope["method"],
            shown_path(scope["path"])[:MOST_CHARS],
            status,
            address,
        )
        more = {"not_written_down": unsaid} if unsaid else {}
        if more or (changes and (operation not in NOT_AUDITED or status >= HTTPStatus.BAD_REQUEST)):
            audit.info("audit", **{name: value for name, value in entry._asdict().items() if name != "at_us"}, **more)
        if refused or (changes and operation and operation not in NOT_IN_TABLE):
            self._keep(entry)


class _Bucket:
    """The token bucket of one API token."""

    def __init__(self, burst: int, now: int) -> None:
        self._left = float(burst)
        self._at = now

    def take(self, rate: float, burst: int, now: int) -> float:
        """Takes one; 0, or seconds until there is one."""
        self._left = min(float(burst), self._left + (now - self._at) * rate / 1e6)
        self._at = now
        if self._left < 1:
            return (1 - self._left) / rate
        self._left -= 1
        return 0.0


class _Status:
    """Sends an answer, and remembers its status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)


def shown_token(scope: Scope) -> TokenText | None:
    """The token of a request; None: there is none that can be read."""
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(given) != 1 or given[0][: len(_SCHEME)].lower() != _SCHEME:
        return None
    return read_token(given[0][len(_SCHEME) :].strip(b" ").decode("latin-1"))


def _rights(token: StoredToken) -> Rights:
    """Returns the rights of a token. It has none if its scopes are of a newer version."""
    try:
        return read_rights(token.scopes, token.namespaces)
    except SchedulerError:
        return Rights()


def may(scope: Scope, operation: str) -> Rights | None:
    """Returns the rights of the caller for an operation. None: the operation is allowed for all queues.

    Raises:
        Problem: he may not.
    """
    need = NEEDS.get(operation, UNDECLARED)
    caller = scope.get("caller", NOBODY)
    if need.scope is None or caller is OPEN:
        return None
    rights: Rights = caller.rights
    if caller is NOBODY:
        raise Problem(problems.UNAUTHENTICATED, "The request has no valid token.", headers=_ASKS)
    if need.scope and not rights.has_some(need.scope):
        raise Problem(problems.FORBIDDEN, f"The token has no scope {need.scope!r}.")
    return None if not rights.bounded and (not need.scope or rights.has(need.scope)) else rights
