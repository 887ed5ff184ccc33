"""The handlers of the benchmarks; they run in the pool's children."""

from __future__ import annotations

from scylla_spark.clock import now_us
from scylla_spark.core.task import Task
from scylla_spark.executors.registry import handler

MODULE = __name__
NOOP = "bench.noop"
STAMP = "bench.stamp"


@handler(NOOP)
def noop(task: Task) -> None:
    """Nothing, so that only the scheduler costs."""


@handler(STAMP)
def stamp(task: Task) -> list[int]:
    """When this handler began, and the client's stamp that the task carries (0 without), both microseconds since the epoch."""
    return [now_us(), task.payload.get("sent", 0)]
