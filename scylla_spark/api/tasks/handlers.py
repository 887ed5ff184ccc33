"""Routes of handlers: what tasks can name, as the dispatchers that run say."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel, Field
from starlette.responses import Response

from scylla_spark.api import problems
from scylla_spark.api.context import Api, Asked, Own, Routes, answer
from scylla_spark.api.schedules.definitions import name_of
from scylla_spark.api.schedules.plan_mirror import StoredText
from scylla_spark.client.handlers import Catalogue, KnownHandler, missing_of
from scylla_spark.client.queues.handle import statuses
from scylla_spark.core.access.scopes import QueueBounds
from scylla_spark.errors import NotFoundError

routes = Routes()

Name = Annotated[str, Path(min_length=1, max_length=600, description="Name of the handler, percent-encoded")]


class HolderView(BaseModel):
    """A dispatcher that has a handler."""

    address: str
    since: Annotated[str, Field(description="When it began to have it; empty: it does not say")]


class HandlerView(KnownHandler):
    """A handler."""

    dispatchers: list[HolderView]
    differs: Annotated[
        bool, Field(description="Dispatchers tell different things of it; this is what one of them says")
    ]
    queues: Annotated[list[str], Field(description="Whose tasks it runs where they name none")]


class HandlersView(BaseModel):
    """All handlers that a dispatcher has, by name."""

    handlers: list[HandlerView]
    missing: Annotated[
        dict[str, list[str]],
        Field(
            description="Handlers that schedules run and no dispatcher has, with these schedules; empty if some are silent"
        ),
    ]
    silent: Annotated[list[str], Field(description="Dispatchers that own partitions and did not answer")]


@routes.get("/v1/handlers", HandlersView)
async def list_handlers(api: Asked, own: Own) -> Response:
    """List the handlers that tasks can name, with the JSON schemas of their payloads. The dispatchers that own partitions report them."""
    found, queues = await api.handlers.now(), await api.planned(lambda: _queues(api, own))
    missing = await api.planned(lambda: _missing(api, own, found))
    told = [_view(found, name, queues) for name in found.handlers]
    return answer(
        {"handlers": told, "missing": missing, "silent": [one.removeprefix("http://") for one in found.silent]}
    )


@routes.get("/v1/handlers/{name}", HandlerView, problems.NOT_FOUND)
async def get_handler(api: Asked, own: Own, name: Name) -> Response:
    """Return one handler."""
    plain = name_of(name)
    found = await api.handlers.now()
    if plain not in found.handlers:
        hint = "GET /v1/handlers lists those that are there." if found.asked else "No dispatcher owns a partition."
        raise NotFoundError(f"No dispatcher that answers has a handler {plain!r}.", hint=hint)
    return answer(_view(found, plain, await api.planned(lambda: _queues(api, own))))


def _view(found: Catalogue, name: str, queues: dict[str, list[str]]) -> dict[str, Any]:
    handler, holders = found.handlers[name]
    return handler.model_dump() | {
        "dispatchers": [one._asdict() for one in holders],
        "differs": name in found.differs,
        "queues": queues.get(name, []),
    }


def _missing(api: Api, own: QueueBounds, found: Catalogue) -> dict[str, list[str]]:
    """Handlers that no dispatcher has → the schedules that run them and that the caller may see."""
    stored = api.plan.ask(lambda plan: [(StoredText.of(one), one.handler) for one in plan.entries.values()])
    named = {text.name: text for text, _ in stored}
    missing = missing_of(found, ((text.name, handler) for text, handler in stored))
    seen = {handler: [name for name in names if named[name].is_of(own)] for handler, names in missing.items()}
    return {handler: names for handler, names in seen.items() if names}


def _queues(api: Api, own: QueueBounds) -> dict[str, list[str]]:
    """Handler → the queues that the caller may see and whose tasks it runs where they name none."""
    found: dict[str, list[str]] = {}
    for name, one in api.plan.ask(lambda plan: statuses(plan, api.settings)).items():
        if one.fields["default_handler"] and own.has(name):
            found.setdefault(one.fields["default_handler"], []).append(name)
    return found
