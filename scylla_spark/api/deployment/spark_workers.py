"""Routes of Spark workers: who they are, and the order to end one."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Path
from pydantic import BaseModel, Field
from starlette.responses import Response

from scylla_spark.api import problems
from scylla_spark.api.context import Asked, Routes, answer
from scylla_spark.errors import NotFoundError

routes = Routes()


class SparkWorkerView(BaseModel):
    """A Spark worker."""

    worker: str
    executor: Annotated[str, Field(description="Id of its Spark executor")]
    host: Annotated[str, Field(description="Name of the machine")]
    state: Annotated[
        Literal["running", "draining", "cut_off"],
        Field(description="draining: it gets no more work; cut_off: its connection is closed, and it may come back"),
    ]
    tasks: Annotated[int, Field(description="Attempts that it has")]
    running: Annotated[int, Field(description="Of these, how many have begun")]
    memory_bytes: Annotated[int | None, Field(description="That its processes use; null: not known")]
    clock_offset_ms: Annotated[
        float | None, Field(description="How far its boot clock is ahead of that of its dispatcher; null: not known")
    ]
    clock_error_ms: Annotated[float | None, Field(description="Bound of the error of that; null: not known")]
    lacks: Annotated[
        list[str],
        Field(
            description="Handlers of which it gets no task: it has another version of them, or lacks them; at most 20"
        ),
    ]
    silent_ms: Annotated[int, Field(description="How long ago its dispatcher heard of it")]


class SparkWorkersView(BaseModel):
    """All Spark workers."""

    workers: list[SparkWorkerView]
    missing: Annotated[list[str], Field(description="Why there is none, of each dispatcher that has none")]


class DrainedView(BaseModel):
    """A Spark worker was told to end."""

    worker: str
    order: Literal["drain"]


@routes.get("/v1/spark-workers", SparkWorkersView)
async def list_spark_workers(api: Asked) -> Response:
    """List the Spark workers of all dispatchers that answer."""
    workers, missing = await api.lease_servers.spark_workers()
    return answer(
        {"workers": sorted(workers, key=lambda one: (one["host"], one["executor"], one["worker"])), "missing": missing}
    )


@routes.post("/v1/spark-workers/{worker}:drain", DrainedView, problems.NOT_FOUND)
async def drain_spark_worker(api: Asked, worker: Annotated[str, Path(max_length=100)]) -> Response:
    """Tell a Spark worker to take no more tasks, to return those that have not started, to finish the others, and to end."""
    if not await api.lease_servers.drain_spark_worker(worker):
        raise NotFoundError(f"There is no Spark worker {worker!r}.", hint="GET /v1/spark-workers lists them.")
    return answer({"worker": worker, "order": "drain"})
