"""The check for unknown parameters and unread bodies. They are refused, because a client that sends `dryRun=true` expects an effect."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, Final, get_args, get_origin

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from scylla_spark.api import problems
from scylla_spark.api.problems import Problem
from scylla_spark.errors import shown

_MOST_CHARS: Final = 100


class Declared:
    """The parameters and the body that a route declares.

    Args:
        route: that FastAPI has made.
    """

    def __init__(self, route: APIRoute) -> None:
        self._several = {alias: _is_list(kind) for alias, kind in _parameters(route.dependant)}
        self._reads_body = route.body_field is not None or "requestBody" in (route.openapi_extra or {})

    async def check(self, request: Request) -> None:
        """Refuses what the route would ignore.

        Args:
            request: whose body is read only where the route reads none.

        Raises:
            Problem: it has a parameter that the route does not know, one twice that has one value, or a body that nobody reads.
        """
        seen: set[str] = set()
        for name, _value in request.query_params.multi_items():
            if name not in self._several:
                raise _refused(name, "there is no such parameter", self._nearest(name))
            if name in seen and not self._several[name]:
                raise _refused(name, "it is given twice, but takes one value", "Give it once.")
            seen.add(name)
        if not self._reads_body and _has_body(request) and await request.body():
            hint = f"Parameters belong in the query: {', '.join(self._several)}." if self._several else "Send none."
            raise Problem(problems.INVALID, "The request has a body, but this operation reads none.", hint=hint)

    def _nearest(self, name: str) -> str:
        plain = name[:_MOST_CHARS].lower().replace("-", "_")
        near = difflib.get_close_matches(plain, self._several, 1)
        if near:
            return f"Did you mean {near[0]}?"
        return f"Parameters: {', '.join(self._several)}." if self._several else "This operation has no parameters."


def _parameters(dependant: Dependant) -> Iterator[tuple[str, Any]]:
    """Names of the parameters in the query, with their types."""
    for field in dependant.query_params:
        yield field.alias, field.field_info.annotation
    for inner in dependant.dependencies:
        yield from _parameters(inner)


def _is_list(kind: Any) -> bool:
    return get_origin(kind) is list or any(_is_list(part) for part in get_args(kind))


def _has_body(request: Request) -> bool:
    return request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers


def _refused(name: str, why: str, hint: str) -> Problem:
    text = shown(name)
    return Problem(problems.INVALID, f"{text}: {why}.", hint=hint, errors=[{"place": f"query.{text}", "message": why}])
