"""Tokens for the HTTP API: made here, so that nobody else ever sees a secret; the planner keeps a digest of each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from scylla_spark.clock import from_us, now_us
from scylla_spark.core.access.scopes import read_rights
from scylla_spark.core.access.token_text import digest_of, new_token
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.state.stored_token import StoredToken
from scylla_spark.core.tasks.key import instant_us
from scylla_spark.errors import ArgumentError, NotFoundError

if TYPE_CHECKING:
    from scylla_spark.io.kafka.plan_requests import PlanRequests


class TokenStatus(NamedTuple):
    """What is stored of a token; nothing of its secret.

    Attributes:
        id: of the token, the part between its underscores.
        name: for people.
        state: "active", "expired" or "revoked".
        scopes: what it allows.
        namespaces: beginnings of the names of the queues that exist for it; empty: all do.
        expires_at: from when on it is worth nothing; None: never.
        author: who changed it last.
        changed_at: when.
    """

    id: str
    name: str
    state: str
    scopes: tuple[str, ...]
    namespaces: tuple[str, ...]
    expires_at: datetime | None
    author: str
    changed_at: datetime


def create(
    plan: PlanRequests, name: str, scopes: Sequence[str], namespaces: Sequence[str], expires_at: datetime | None, author: str
) -> str:  # fmt: skip
    """Makes a token; its text, which nobody can show again.

    Args:
        plan: asks the planner.
        name: for people.
        scopes: what it allows, such as "read", "tasks:write:queue=mail", "lease:gpu".
        namespaces: beginnings of the names of the queues that exist for it; empty: all do.
        expires_at: from when on it is worth nothing (aware); None: never.
        author: who makes it.

    Raises:
        ArgumentError: a scope or a namespace is none, or it would have expired.
        UnreachableError: no planner answers.
    """
    if isinstance(scopes, str) or isinstance(namespaces, str):
        raise ArgumentError("Scopes and namespaces are lists of texts.", hint='Such as ["read"].')
    if not scopes:
        raise ArgumentError("A token without scopes allows nothing.", hint='Such as ["read"].')
    read_rights(scopes, namespaces)
    expires = instant_us(expires_at) if expires_at is not None else None
    if expires is not None and expires <= now_us():
        raise ArgumentError("The token would have expired already.", hint="Choose a later instant.")
    token = new_token()
    fields: dict[str, Any] = {
        "id": token.id, "digest": digest_of(token), "name": name, "scopes": list(scopes), "namespaces": list(namespaces),
        "expires": expires,
    }  # fmt: skip
    plan.ask("put_token", tokens=[fields], author=author or None)
    return token.text


def revoke(plan: PlanRequests, ids: Sequence[str], author: str) -> None:
    """Makes tokens worthless for ever; every process of the API obeys within five seconds.

    Args:
        plan: asks the planner.
        ids: of the tokens.
        author: who asks.

    Raises:
        NotFoundError: one of them is not stored; nothing is changed.
        UnreachableError: no planner answers.
    """
    stored = plan.state().tokens
    for id in ids:
        if id not in stored:
            raise NotFoundError(f"No token {id!r} is stored.", hint="`scylla-spark token list` shows them.")
    changed = [_fields(id, stored[id]) | {"revoked": True} for id in ids]
    plan.ask("put_token", tokens=changed, author=author or None)


def statuses(state: PlanState, now: int) -> list[TokenStatus]:
    """All tokens that are stored, by name.

    Args:
        state: of the planner.
        now: microseconds since the epoch.
    """
    found = [_status(id, token, now) for id, token in state.tokens.items()]
    return sorted(found, key=lambda status: (status.name, status.id))


def _fields(id: str, token: StoredToken) -> dict[str, Any]:
    return {
        "id": id, "digest": token.digest, "name": token.name, "scopes": list(token.scopes), "namespaces": list(token.namespaces),
        "expires": token.expires_us, "revoked": token.revoked,
    }  # fmt: skip


def _status(id: str, token: StoredToken, now: int) -> TokenStatus:
    state = "revoked" if token.revoked else "active" if token.holds(now) else "expired"
    expires = from_us(token.expires_us) if token.expires_us is not None else None
    return TokenStatus(
        id, token.name, state, token.scopes, token.namespaces, expires, token.author, from_us(token.changed_us)
    )
