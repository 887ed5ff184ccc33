"""The handlers of the demo. All do real work: an HTTP POST to the receiver, over a connection that their process keeps.

A payload says where to (`to`), what to tell (`value`), and how to misbehave.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from scylla_spark.clock import now_us, to_us
from scylla_spark.core.tasks.task import Retry, Task, TaskContext
from scylla_spark.errors import Abort
from scylla_spark.handlers.registry import handler

POST: Final = "demo.post"
FLAKY: Final = "demo.flaky"
HANG: Final = "demo.hang"
CRASH: Final = "demo.crash"
DOOMED: Final = "demo.doomed"
ABORT: Final = "demo.abort"
ON_SPARK: Final = "demo.on_spark"
BATCH: Final = "demo.batch"
SCHEDULED: Final = "demo.scheduled"

FLAKY_FAILURES: Final = 2
DOOMED_RETRIES: Final = 2
HANG_RETRIES: Final = 1
_SOON: Final = Retry(5, base="250ms", cap="1s")
_BEAT_S: Final = 0.1

_connection: http.client.HTTPConnection | None = None


@handler(POST, retry=_SOON, timeout="20s")
def post(task: Task, ctx: TaskContext) -> dict[str, int]:
    """Delivers the value."""
    return _deliver(task, ctx, now_us())


@handler(FLAKY, retry=_SOON, timeout="20s")
def flaky(task: Task, ctx: TaskContext) -> dict[str, int]:
    """Fails a few times, then delivers."""
    started = now_us()
    if ctx.attempt <= FLAKY_FAILURES:
        _tell(task, ctx, started, "failed")
        raise ConnectionError(f"attempt {ctx.attempt} is meant to fail")
    return _deliver(task, ctx, started)


@handler(HANG, retry=Retry(HANG_RETRIES, base="250ms", cap="1s"), timeout="1500ms")
def hang(task: Task, ctx: TaskContext) -> dict[str, int]:
    """Hangs until its timeout kills it, telling the receiver that it still lives; after `hang` attempts it delivers."""
    started = now_us()
    while ctx.attempt <= task.payload["hang"]:
        _tell(task, ctx, started, "alive")
        time.sleep(_BEAT_S)
    return _deliver(task, ctx, started)


@handler(CRASH, retry=_SOON, timeout="20s")
def crash(task: Task, ctx: TaskContext) -> dict[str, int]:
    """Kills its own process once, then delivers."""
    started = now_us()
    _die_once(task, ctx, started)
    return _deliver(task, ctx, started)


@handler(DOOMED, retry=Retry(DOOMED_RETRIES, base="250ms", cap="1s"), timeout="20s")
def doomed(task: Task, ctx: TaskContext) -> None:
    """Fails for ever: its retries are exhausted, then the lane goes on."""
    _tell(task, ctx, now_us(), "failed")
    raise ValueError("this task can never succeed")


@handler(ABORT, timeout="20s")
def abort(task: Task, ctx: TaskContext) -> None:
    """Gives up at once."""
    _tell(task, ctx, now_us(), "failed")
    raise Abort("not wanted any more")


@handler(ON_SPARK, runs_on="spark", retry=_SOON, timeout="30s")
def on_spark(task: Task, ctx: TaskContext) -> dict[str, int]:
    """Delivers from a Spark executor."""
    started = now_us()
    if task.payload.get("crash"):
        _die_once(task, ctx, started)
    return _deliver(task, ctx, started)


@handler(BATCH, max_batch=500, retry=_SOON, timeout="20s")
def batch(tasks: pa.Table) -> pa.Table:
    """Delivers a whole table of tasks with one POST."""
    started = now_us()
    events = list(_batch_events(tasks, started))
    if events:
        _send(json.loads(tasks.column("payload")[0].as_py())["to"], events)
    return pa.table({"result": pa.array([len(events)] * len(events), pa.int64())})


@handler(SCHEDULED, retry=_SOON, timeout="60s")
def scheduled(task: Task, ctx: TaskContext) -> dict[str, Any]:
    """Returns what its schedule has told it; the only handler that works for nobody."""
    return dict(task.payload)


def _batch_events(tasks: pa.Table, started_us: int) -> Iterator[dict[str, Any]]:
    for row in tasks.to_pylist():
        key = (to_us(row["scheduled_time"]), row["ordering_id"], row["uniqueness_key"])
        yield _event(key, row["attempt"], started_us, "done", json.loads(row["payload"])["value"])


def _deliver(task: Task, ctx: TaskContext, started_us: int) -> dict[str, int]:
    _tell(task, ctx, started_us, "done")
    return {"delivered_by": os.getpid()}


def _die_once(task: Task, ctx: TaskContext, started_us: int) -> None:
    if ctx.attempt == 1:
        _tell(task, ctx, started_us, "dying")
        os._exit(7)


def _tell(task: Task, ctx: TaskContext, started_us: int, state: str) -> None:
    _send(task.payload["to"], [_event(task.key, ctx.attempt, started_us, state, task.payload["value"])])


def _event(key: Sequence[Any], attempt: int, started_us: int, state: str, value: object) -> dict[str, Any]:
    return {
        "key": list(key),
        "attempt": attempt,
        "started_us": started_us,
        "state": state,
        "value": value,
        "pid": os.getpid(),
    }


def _send(to: str, events: list[dict[str, Any]]) -> None:
    """POSTs once more, over a new connection, if the kept one has gone stale."""
    global _connection
    body = json.dumps(events, separators=(",", ":"))
    for again in (True, False):
        try:
            if _connection is None:
                _connection = http.client.HTTPConnection(to, timeout=10)
            _connection.request("POST", "/", body, {"Content-Type": "application/json"})
            answer = _connection.getresponse()
            answer.read()
            if answer.status != http.client.OK:
                raise ConnectionError(f"{to} answered {answer.status}")
        except (OSError, http.client.HTTPException):
            if _connection is not None:
                _connection.close()
            _connection = None
            if not again:
                raise
        else:
            return
