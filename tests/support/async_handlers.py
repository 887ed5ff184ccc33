"""`async def` handlers of all characters, run by the tests of event loops in child processes."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import struct
import time
from pathlib import Path

from pydantic import BaseModel

from scylla_spark.core.tasks.task import Task, TaskContext
from scylla_spark.errors import Abort, Yield
from scylla_spark.handlers.registry import handler
from scylla_spark.handlers.shared_resources import setup


class Order(BaseModel):
    """A payload."""

    item: str


@handler("a.pid", concurrency=10_000)
async def pid(task: Task) -> int:
    await asyncio.sleep(task.payload or 0)
    return os.getpid()


@handler("a.nap", concurrency=10_000)
async def nap(task: Task) -> None:
    await asyncio.sleep(task.payload)


@handler("a.few", concurrency=3)
async def few(task: Task) -> float:
    began = time.monotonic()
    await asyncio.sleep(task.payload)
    return began


@handler("a.typed")
async def typed(p: Order, ctx: TaskContext) -> Order:
    await asyncio.sleep(0)
    return Order(item=f"{p.item} {ctx.attempt}")


@handler("a.raise")
async def raise_named(task: Task) -> None:
    await asyncio.sleep(0)
    raise {
        "ValueError": ValueError("as asked"),
        "SystemExit": SystemExit(3),
        "KeyboardInterrupt": KeyboardInterrupt(),
        "CancelledError": asyncio.CancelledError(),
        "Abort": Abort("card_declined"),
        "Yield": Yield(after="90s"),
    }[task.payload]


@handler("a.part_raises")
async def part_raises(task: Task) -> str:
    """A task that it has started raises what ends programs."""

    async def part() -> None:
        raise SystemExit(3)

    asyncio.create_task(part())  # noqa: RUF006 - is the point
    await asyncio.sleep(0.05)
    return "unharmed"


@handler("a.mixed", concurrency=50)
async def mixed(task: Task) -> str:
    """Does what the payload says."""
    if task.payload == "stubborn":
        while True:
            try:
                await asyncio.sleep(300)
            except asyncio.CancelledError:
                continue
    if task.payload == "late":
        try:
            await asyncio.sleep(300)
        except asyncio.CancelledError:
            return "swallowed"
    if task.payload == "late and wrong":
        try:
            await asyncio.sleep(300)
        finally:
            raise ValueError("wrong")
    if task.payload == "block":
        time.sleep(300)
    if isinstance(task.payload, dict):
        while not os.path.exists(task.payload["block_until"]):
            time.sleep(0.01)
    if task.payload == "segfault":
        await asyncio.sleep(0.2)
        ctypes.string_at(0)
    if task.payload == "stop":
        asyncio.get_running_loop().stop()
    if task.payload == "sleep":
        await asyncio.sleep(300)
    if isinstance(task.payload, float):
        await asyncio.sleep(task.payload)
    return "done"


@handler("a.leave", concurrency=5)
async def leave(task: Task) -> str:
    """Leaves a task behind that writes into the file named by the payload as long as it lives."""

    async def part() -> None:
        while True:
            with Path(task.payload).open("a") as file:
                file.write("x")
            await asyncio.sleep(0.005)

    asyncio.create_task(part())  # noqa: RUF006 - is the point
    await asyncio.sleep(0.05)
    return "left"


@handler("a.append", concurrency=100)
async def append(task: Task) -> None:
    """Appends a line to a file when it has begun, and another when it ends."""
    with Path(task.payload["file"]).open("a") as file:
        file.write(f"{task.payload['line']}\n")
    await asyncio.sleep(0.01)
    if task.payload.get("fail"):
        raise ValueError("as asked")


@handler("a.go_on")
async def go_on(task: Task, ctx: TaskContext) -> object:
    ctx.progress(0.5)
    ctx.checkpoint({"row": task.payload})
    await asyncio.sleep(0.3 if task.payload == 1 else 300)
    return ctx.checkpointed


@handler("a.last_error")
async def last_error(task: Task, ctx: TaskContext) -> object:
    return ctx.last_error


@setup
def shared():
    """How many calls of this process have used it; told in the folder that the last of them names, when it is torn down."""
    state = {"calls": 0, "folder": None}
    yield state
    if state["folder"]:
        (Path(state["folder"]) / str(os.getpid())).write_text(str(state["calls"]))


@handler("a.share")
async def share(task: Task) -> list[int]:
    state = shared()
    state["calls"] += 1
    state["folder"] = task.payload["folder"]
    return [os.getpid(), state["calls"]]


@handler("a.asks", concurrency=100)
async def asks(task: Task, ctx: TaskContext) -> None:
    ctx.enqueue("noop", {"n": task.payload}, name="next")
    await asyncio.sleep(0.01)
    ctx.emit("stock", {"n": task.payload})


@handler("a.extends", concurrency=100)
async def extends(task: Task, ctx: TaskContext) -> None:
    await asyncio.to_thread(ctx.extend, task.payload)
    await asyncio.sleep(1.5)


@handler("a.wait_for_file", concurrency=100)
async def wait_for_file(task: Task) -> int:
    while not Path(task.payload).exists():
        await asyncio.sleep(0.01)
    return os.getpid()


@handler("a.junk", concurrency=5)
async def junk(task: Task) -> None:
    """Writes what the payload says on the socket to the pool, or into the memory that it shares with it."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        try:
            target = os.readlink(entry)
        except FileNotFoundError:
            continue
        fd = int(entry.name)
        if (
            target.startswith("socket:")
            and "bytes" in task.payload
            and socket.socket(fileno=os.dup(fd)).family == socket.AF_UNIX
        ):
            with contextlib.suppress(OSError):
                os.write(fd, bytes.fromhex(task.payload["bytes"]))
        if target.startswith("/memfd:scylla-spark-slot") and "words" in task.payload:
            for index, value in task.payload["words"].items():
                os.pwrite(fd, struct.pack("q", value), 8 * int(index))
    await asyncio.sleep(5)
