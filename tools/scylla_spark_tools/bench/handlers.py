"""The handlers of the benchmarks; they run in the pool's children."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from scylla_spark.clock import now_us
from scylla_spark.core.tasks.task import Retry, Task
from scylla_spark.handlers.registry import handler

if TYPE_CHECKING:
    import pyarrow as pa

MODULE = __name__
NOOP = "bench.noop"
STAMP = "bench.stamp"
NOOP_ON_SPARK = "bench.noop_on_spark"
STAMP_ON_SPARK = "bench.stamp_on_spark"
BATCH = "bench.batch"
HANG = "bench.hang"
FAIL = "bench.fail"
BLOCK = "bench.block"
MAX_BATCH = 100


@handler(NOOP)
def noop(task: Task) -> None:
    """Nothing, so that only the scheduler costs."""


@handler(STAMP)
def stamp(task: Task) -> list[int]:
    """Returns when this handler began, and the client's stamp that the task carries (0 without), both microseconds since the epoch.

    It prints as many `lines` as the task asks for.
    """
    begun = now_us()
    for number in range(task.payload.get("lines", 0)):
        print(f"line {number} of a handler that tells what it does, as many do: 0123456789")  # noqa: T201 - that is what is measured
    return [begun, task.payload.get("sent", 0)]


@handler(NOOP_ON_SPARK, runs_on="spark")
def noop_on_spark(task: Task) -> None:
    """Nothing, on an executor."""


@handler(STAMP_ON_SPARK, runs_on="spark")
def stamp_on_spark(task: Task) -> list[int]:
    """Returns when this handler began on an executor, as `stamp`."""
    return stamp(task)


@handler(BATCH, max_batch=MAX_BATCH)
def batch(tasks: pa.Table) -> None:
    """Nothing, for many tasks at once."""


@handler(HANG, timeout="1h")
def hang(task: Task) -> None:
    """Never comes back."""
    threading.Event().wait()


@handler(FAIL, retry=Retry(None, "1s", "1s"))
def fail(task: Task) -> None:
    """Fails about once a second, for ever."""
    raise ValueError("as always")


@handler(BLOCK, retry=Retry(None, "1h", "1h"))
def block(task: Task) -> None:
    """Fails once, and blocks its lane until long after the benchmark."""
    raise ValueError("once")
