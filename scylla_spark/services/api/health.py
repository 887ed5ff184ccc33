"""Routes about the server itself: whether it lives, whether it can do its work, and its numbers."""

from __future__ import annotations

from pydantic import BaseModel
from starlette.responses import Response

from scylla_spark.services.api.context import Asked, answer, answers, router

routes = router()


class HealthView(BaseModel):
    """Whether the server is well."""

    status: str


@routes.get("/healthz", operation_id="say_whether_the_server_lives", responses=answers({200: HealthView}))
async def healthz() -> Response:
    """Whether this process answers."""
    return answer({"status": "ok"})


@routes.get("/readyz", operation_id="say_whether_the_server_can_work", responses=answers({200: HealthView}))
def readyz(api: Asked) -> Response:
    """Whether tables and Kafka can be reached."""
    connection = api.scheduler.connection
    connection.readers.marks()
    connection.ends()
    return answer({"status": "ok"})
