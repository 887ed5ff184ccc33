"""Routes that make tokens, and that make them worthless; for administrators of all queues."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from scylla_spark.api import problems
from scylla_spark.api.access.access import Caller
from scylla_spark.api.context import Asked, Body, Instant, Routes, answer
from scylla_spark.api.schedules.definitions import Author
from scylla_spark.client import tokens
from scylla_spark.clock import iso_of

routes = Routes()

_MOST = 100
_Text = Annotated[str, Field(min_length=1, max_length=300)]
Id = Annotated[str, Path(min_length=1, max_length=100, description="Of the token, as `GET /v1/tokens` names it")]


class NewTokenBody(Body):
    """A token that is to be made."""

    name: Annotated[_Text, Field(description="For people: whose it is, or what for")]
    scopes: Annotated[
        list[_Text],
        Field(
            min_length=1, max_length=_MOST, description="What it allows", examples=[["read", "tasks:write:queue=mail"]]
        ),
    ]
    namespaces: Annotated[
        list[_Text],
        Field(
            default_factory=list,
            max_length=_MOST,
            description="Beginnings of the names of the queues that exist for it; empty: all",
        ),
    ]
    expires_at: Annotated[Instant | None, Field(description="From when on it is worth nothing; null: never")] = None


class NewTokenView(BaseModel):
    """A token that was made."""

    id: str
    name: str
    token: Annotated[str, Field(description="Its text with the secret: nobody can show it again")]
    expires_at: str | None


class RevokedView(BaseModel):
    """A token that is worth nothing any more."""

    id: str
    done: Literal["revoked"]


@routes.post("/v1/tokens", {201: NewTokenView}, problems.NOT_JSON, problems.TIMED_OUT)
async def create_token(api: Asked, request: Request, wanted: NewTokenBody, author: Author = "") -> Response:
    """Create a token, and return its text once. It is valid at once. After the first token, every request needs one."""
    plan, who = api.scheduler.connection.plan, author or _name_of(request)
    text = await api.planned(
        lambda: tokens.create(plan, wanted.name, wanted.scopes, wanted.namespaces, wanted.expires_at, who)
    )
    told: dict[str, Any] = {"id": text.split("_")[1], "name": wanted.name, "token": text}
    return answer(told | {"expires_at": iso_of(wanted.expires_at)}, 201)


@routes.delete("/v1/tokens/{id}", RevokedView, problems.NOT_FOUND, problems.TIMED_OUT)
async def revoke_token(api: Asked, request: Request, id: Id, author: Author = "") -> Response:
    """Revoke a token for ever, even the one of this request. It stays listed. All processes obey within five seconds."""
    plan, who = api.scheduler.connection.plan, author or _name_of(request)
    await api.planned(lambda: tokens.revoke(plan, [id], who))
    return answer({"id": id, "done": "revoked"})


def _name_of(request: Request) -> str:
    """The name of the token that asks, for who looks at the list later."""
    caller: Caller = request.scope["caller"]
    return caller.name
