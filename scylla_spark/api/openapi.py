"""The description of the API for programs (OpenAPI 3.1), as the code says it."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from scylla_spark.api import problems
from scylla_spark.api.follow.stream import EventView
from scylla_spark.api.tasks.bulk_enqueue import BulkItemView

_OF_LINES: Final = (BulkItemView, EventView)  # of answers that are no single JSON value
_PLACE: Final = "#/components/schemas/{model}"
_PROBLEM: Final = {
    "title": "Problem",
    "description": "A problem document of RFC 9457. `type` is stable, all else is for people; relative to the address of the API.",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "enum": [kind.type for kind in problems.KINDS]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "hint": {"type": "string", "description": "What to do next"},
        "state": {"type": "string", "description": "How the task stands that does not allow it"},
        "reason": {"type": "string", "description": "Why it is refused: a code of the wire format, or of ours"},
        "tasks": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Ids of the tasks that have a name: the newest ones",
        },
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["place", "message"],
                "properties": {"place": {"type": "string"}, "message": {"type": "string"}},
            },
        },
    },
}

_TOKEN: Final = {
    "type": "http",
    "scheme": "bearer",
    "bearerFormat": "ss_<id>_<secret>",
    "description": "Needed by all but /healthz, unless no token is stored and the API listens on loopback.",
}


def described(app: FastAPI) -> dict[str, Any]:
    """The description of an app; made once."""
    if app.openapi_schema is None:
        found = get_openapi(
            title=app.title,
            version=app.version,
            openapi_version="3.1.0",
            description=app.description,
            routes=app.routes,
        )
        schemas = found.setdefault("components", {}).setdefault("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        _, more = models_json_schema([(model, "serialization") for model in _OF_LINES], ref_template=_PLACE)
        schemas |= more["$defs"]
        schemas["Problem"] = _PROBLEM
        found["components"]["securitySchemes"] = {"token": _TOKEN}
        found["security"] = [{"token": []}, {}]
        for operations in found["paths"].values():
            for operation in operations.values():
                operation["summary"] = operation["operationId"].replace("_", " ").capitalize()
        app.openapi_schema = found
    return app.openapi_schema
