"""Routes about the server itself: whether it lives, whether it can do its work, and its numbers."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.responses import Response

from scylla_spark.api.context import Asked, answer, answers, router

routes = router()


class HealthView(BaseModel):
    """Whether the server is well."""

    status: str


_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"description": "Prometheus text format", "content": {"text/plain": {"schema": {"type": "string"}}}}
}


@routes.get("/metrics", operation_id="show_the_metrics_of_the_server", responses=answers({}) | _TEXT)
async def metrics(api: Asked) -> Response:
    """Numbers of this process, for Prometheus; dispatchers, planners and ingest have their own addresses."""
    return Response(generate_latest(api.metrics.registry), media_type=CONTENT_TYPE_LATEST)


@routes.get("/openapi.json", operation_id="describe_the_server", responses=answers({200: dict[str, Any]}))
async def openapi(request: Request) -> Response:
    """This description."""
    return answer(request.app.openapi())


@routes.get("/healthz", operation_id="say_whether_the_server_lives", responses=answers({200: HealthView}))
async def healthz() -> Response:
    """Whether this process answers."""
    return answer({"status": "ok"})


@routes.get("/readyz", operation_id="say_whether_the_server_can_work", responses=answers({200: HealthView}))
async def readyz(api: Asked) -> Response:
    """Whether tables and Kafka can be reached; the answer comes within two seconds."""
    await api.readiness.check()
    return answer({"status": "ok"})
