"""Handlers of the benchmarks of executors alone; apart from the others, whose deployments would start pools for them."""

from __future__ import annotations

import asyncio
import os

from scylla_spark.clock import now_us
from scylla_spark.core.tasks.task import Task
from scylla_spark.handlers.registry import handler

MODULE = __name__
NAP = "bench.nap"
BEGUN = "bench.begun"
END = "bench.end"
AT_ONCE = 10_000


@handler(NAP, concurrency=AT_ONCE)
async def nap(task: Task) -> int:
    """Sleeps as many seconds as the payload says; the process in which it did."""
    await asyncio.sleep(task.payload["seconds"])
    return os.getpid()


@handler(BEGUN)
def begun(task: Task) -> int:
    """Returns when it began, microseconds since the epoch."""
    return now_us()


@handler(END)
def end(task: Task) -> None:
    """Takes its child along, so that the next task needs a new one."""
    os._exit(0)
