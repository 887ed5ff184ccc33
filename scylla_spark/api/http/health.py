"""Routes about the server itself: whether it lives, whether it can do its work, and its numbers."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.responses import Response

from scylla_spark.api.context import Asked, Routes, answer

routes = Routes()


class HealthView(BaseModel):
    """The health of the server."""

    status: str


_TEXT = {"description": "Prometheus text format", "content": {"text/plain": {"schema": {"type": "string"}}}}


@routes.get("/metrics", None, shown=_TEXT)
async def get_metrics(api: Asked) -> Response:
    """Return the metrics of this process for Prometheus. Dispatchers, planners and ingest have addresses of their own."""
    return Response(generate_latest(api.metrics.registry), media_type=CONTENT_TYPE_LATEST)


@routes.get("/openapi.json", dict[str, Any])
async def get_openapi(request: Request) -> Response:
    """Return this description."""
    return answer(request.app.openapi())


@routes.get("/healthz", HealthView)
async def check_liveness() -> Response:
    """Return 200 while this process answers requests."""
    return answer({"status": "ok"})


@routes.get("/readyz", HealthView)
async def check_readiness(api: Asked) -> Response:
    """Return 200 if tables and Kafka can be reached. The answer comes within two seconds."""
    await api.readiness.check()
    return answer({"status": "ok"})
