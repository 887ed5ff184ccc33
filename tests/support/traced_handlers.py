"""Handlers that tell of the span in which they run, or make their own."""

from __future__ import annotations

import asyncio
import os
import sys
import time

import pyarrow as pa

from scylla_spark.core.tasks.task import Task, TaskContext
from scylla_spark.core.tasks.trace_context import current_trace
from scylla_spark.errors import Abort, Yield
from scylla_spark.handlers.registry import handler


@handler("t.seen")
def seen(task: Task) -> str | None:
    return current_trace()


@handler("t.end")
def end(task: Task) -> None:
    raise {"fail": ValueError("no such order"), "abort": Abort("no_address"), "yield": Yield(after="1m")}[task.payload]


@handler("t.hang")
def hang(task: Task) -> None:
    time.sleep(300)


@handler("t.asks")
def asks(task: Task, ctx: TaskContext) -> str | None:
    ctx.enqueue("t.seen", {}, name="next")
    return current_trace()


@handler("t.own")
def own(task: Task) -> str | None:
    from opentelemetry import trace

    with trace.get_tracer("shop").start_as_current_span("pick"):
        return current_trace()


@handler("t.environment")
def environment(task: Task) -> list[str]:
    """Returns what of OpenTelemetry is here."""
    return sorted(
        name for name in (*sys.modules, *os.environ) if name.lower().startswith(("opentelemetry.sdk", "otel"))
    )


@handler("t.limited", open_files=64)
def limited(task: Task) -> list[str]:
    return environment(task)


@handler("t.sandboxed", isolation="sandbox")
def sandboxed(task: Task) -> list[str]:
    return environment(task)


@handler("t.batch", max_batch=10)
def batch(tasks: pa.Table) -> pa.Table:
    wrong = [payload != "{}" for payload in tasks["payload"].to_pylist()]
    return pa.table({
        "outcome": ["failed" if one else "succeeded" for one in wrong],
        "error": ["as asked" if one else None for one in wrong],
    })  # fmt: skip


@handler("t.async")
async def asynchronous(task: Task) -> list[str | None]:
    """The span before, and in a part, after others had their turn."""
    before = current_trace()
    await asyncio.sleep(task.payload)
    return [before, await asyncio.create_task(_part())]


async def _part() -> str | None:
    await asyncio.sleep(0)
    return current_trace()
