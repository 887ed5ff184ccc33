"""What the planner holds of one token for the HTTP API, and how a change of it stands in the planner's log. No secrets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple, Required

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from scylla_spark.core.access.scopes import read_rights
from scylla_spark.core.access.token_text import DIGEST_PATTERN, ID_PATTERN
from scylla_spark.core.plan.state.plan_log import Change
from scylla_spark.core.tasks.key import LATEST_US
from scylla_spark.errors import ArgumentError

TOKEN: Final = "token"
"""Kind of the change by which a token is put, or deleted."""
TOKEN_ENTRY: Final = "token_entry"
"""Kind of the part of a snapshot that repeats a token."""
MOST_SCOPES: Final = 100


class StoredToken(NamedTuple):
    """A token that was put.

    Attributes:
        digest: of its secret; see `digest_of`.
        name: for people.
        scopes: what it allows.
        namespaces: beginnings of the names of the queues that exist for it; empty: all do.
        expires_us: from when on it is worth nothing, microseconds since the epoch; None: never.
        revoked: it is worth nothing any more.
        author: who changed it last.
        changed_us: when.
    """

    digest: str
    name: str
    scopes: tuple[str, ...]
    namespaces: tuple[str, ...]
    expires_us: int | None
    revoked: bool
    author: str
    changed_us: int

    def holds(self, now: int) -> bool:
        """Returns True if it is worth something at a time, microseconds since the epoch."""
        return not self.revoked and (self.expires_us is None or now < self.expires_us)


_Text = Annotated[str, Field(min_length=1, max_length=300)]


@with_config(ConfigDict(strict=True, extra="forbid"))
class _Fields(TypedDict, total=False):
    id: Required[Annotated[str, Field(pattern=f"^{ID_PATTERN}$")]]
    digest: Required[Annotated[str, Field(pattern=f"^{DIGEST_PATTERN}$")]]
    name: Required[_Text]
    scopes: Required[Annotated[list[_Text], Field(min_length=1, max_length=MOST_SCOPES)]]
    namespaces: Annotated[list[_Text], Field(max_length=MOST_SCOPES)]
    expires: Annotated[int, Field(ge=0, lt=LATEST_US)] | None
    revoked: bool


_read: Final = TypeAdapter(_Fields)


def read_stored_token(value: Mapping[str, Any], author: str, now: int) -> tuple[str, StoredToken]:
    """Id and content of a token that somebody wants to put.

    Args:
        value: as `json.loads` gives it.
        author: who puts it.
        now: microseconds since the epoch.

    Raises:
        ArgumentError: it is none; the message names the field.
    """
    try:
        found = _read.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the token"
        raise ArgumentError(f"{where[:200]}: {first['msg']}.", hint="`scylla-spark token create` makes them.") from None
    scopes, namespaces = tuple(found["scopes"]), tuple(found.get("namespaces", ()))
    read_rights(scopes, namespaces)
    return found["id"], StoredToken(
        found["digest"], found["name"], scopes, namespaces, found.get("expires"), found.get("revoked", False), author, now
    )  # fmt: skip


def token_change(id: str, stored: StoredToken | None, author: str, now: int, request: str = "") -> Change:
    """The change as it stands in the log.

    Args:
        id: of the token.
        stored: what is stored now; None: nothing any more.
        author: who asked for it.
        now: when it was decided, microseconds since the epoch.
        request: id of the request; empty: it had none.
    """
    fields = stored._asdict() if stored is not None else None
    return [TOKEN, id, {"token": fields, "author": author, "changed_us": now, "request": request}]


def read_token_change(change: Change) -> tuple[str, StoredToken | None]:
    """Id of the token that a change of kind `TOKEN` or `TOKEN_ENTRY` is about, and what is stored now.

    Raises:
        KeyError: a field is missing: no planner wrote it. TypeError, IndexError: likewise.
    """
    id, found = change[1], change[2]["token"]
    if found is None:
        return id, None
    known = {name: found[name] for name in StoredToken._fields}
    if not isinstance(known["digest"], str) or type(known["revoked"]) is not bool:
        raise TypeError("a token has a digest, and is revoked or not")
    known |= {name: tuple(known[name]) for name in ("scopes", "namespaces")}
    return id, StoredToken(**known)
