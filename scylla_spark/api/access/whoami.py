"""Routes about who asks: what a token allows, and a code by which a browser logs in with it."""

from __future__ import annotations

from typing import Annotated

from fastapi import Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from scylla_spark.api import problems
from scylla_spark.api.access.access import OPEN, Caller
from scylla_spark.api.access.login_codes import CODE_S
from scylla_spark.api.context import Asked, Routes, answer
from scylla_spark.api.problems import Problem
from scylla_spark.clock import now_us

routes = Routes()


class IdentityView(BaseModel):
    """The caller of a request."""

    id: Annotated[str, Field(description="Of the token; empty: none is needed")]
    name: str
    scopes: list[str]
    namespaces: list[str]


class LoginCodeView(BaseModel):
    """A code that logs a browser in, once."""

    code: str
    seconds: Annotated[int, Field(description="How long it holds")]


@routes.get("/v1/me", IdentityView)
async def whoami(request: Request) -> Response:
    """Return the owner of the token and what the token allows."""
    caller: Caller = request.scope["caller"]
    return answer(
        {
            "id": caller.id,
            "name": caller.name,
            "scopes": sorted({*caller.rights.everywhere, *_of_queues(caller)}),
            "namespaces": list(caller.rights.namespaces),
        }
    )


@routes.post("/v1/login_codes", {201: LoginCodeView}, problems.CONFLICT)
async def create_login_code(api: Asked, request: Request) -> Response:
    """Create a one-time code that logs a browser in to the dashboard as the owner of the token: `/ui/login?code=…`."""
    caller: Caller = request.scope["caller"]
    if caller is OPEN:
        raise Problem(problems.CONFLICT, "No token is needed.", hint="Open /ui/ without a login.")
    return answer({"code": api.login_codes.made(caller.id, now_us()), "seconds": CODE_S}, 201)


def _of_queues(caller: Caller) -> list[str]:
    return [f"{scope}:{'queue=' if scope.endswith('write') else ''}{queue}" for scope, queue in caller.rights.of_queues]
