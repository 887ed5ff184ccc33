"""Routes about who asks: what a token allows, and a code by which a browser logs in with it."""

from __future__ import annotations

from typing import Annotated

from fastapi import Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from scylla_spark.api import problems
from scylla_spark.api.access.access import OPEN, Caller
from scylla_spark.api.access.login_codes import CODE_S
from scylla_spark.api.context import Asked, answer, answers, router
from scylla_spark.api.problems import Problem
from scylla_spark.clock import now_us

routes = router()


class IdentityView(BaseModel):
    """Who asks."""

    id: Annotated[str, Field(description="Of the token; empty: none is needed")]
    name: str
    scopes: list[str]
    namespaces: list[str]


class LoginCodeView(BaseModel):
    """A code that logs a browser in, once."""

    code: str
    seconds: Annotated[int, Field(description="How long it holds")]


@routes.get("/v1/me", operation_id="say_who_asks", responses=answers({200: IdentityView}))
async def me(request: Request) -> Response:
    """Who the token that is shown belongs to, and what it allows."""
    caller: Caller = request.scope["caller"]
    return answer(
        {
            "id": caller.id, "name": caller.name, "scopes": sorted({*caller.rights.everywhere, *_of_queues(caller)}),
            "namespaces": list(caller.rights.namespaces),
        }
    )  # fmt: skip


@routes.post(
    "/v1/login_codes", operation_id="make_a_login_code", status_code=201, responses=answers({201: LoginCodeView}, problems.CONFLICT)
)  # fmt: skip
async def login_code(api: Asked, request: Request) -> Response:
    """A code with which a browser logs in to the dashboard as the owner of the token that is shown: `/ui/login?code=…`, once."""
    caller: Caller = request.scope["caller"]
    if caller is OPEN:
        raise Problem(problems.CONFLICT, "No token is needed.", hint="Open /ui/ without logging in.")
    return answer({"code": api.login_codes.made(caller.id, now_us()), "seconds": CODE_S}, 201)


def _of_queues(caller: Caller) -> list[str]:
    return [f"{scope}:{'queue=' if scope.endswith('write') else ''}{queue}" for scope, queue in caller.rights.of_queues]
