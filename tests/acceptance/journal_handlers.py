"""Handlers for the acceptance tests: they write down when they begin and end, and misbehave as their payload asks."""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import signal
import sys
import threading
import time

from pydantic import BaseModel

from scylla_spark import Task, TaskContext, handler

JOURNAL = "ACCEPTANCE_JOURNAL"


@handler("work")
def work(task: Task, ctx: TaskContext) -> dict:
    """Works for `ms` or, from attempt `until_from` on, until a file exists; fails in the first `failures` attempts."""
    ok = ctx.attempt > task.payload.get("failures", 0)
    write("start", task, ctx)
    time.sleep(task.payload.get("ms", 0) / 1000)
    if "until" in task.payload and ctx.attempt >= task.payload.get("until_from", 1):
        while not os.path.exists(task.payload["until"]):
            time.sleep(0.02)
    write("end", task, ctx, ok=ok)
    if not ok:
        raise RuntimeError(f"attempt {ctx.attempt} fails as asked")
    return {"mark": task.payload.get("mark")}


@handler("says")
def says(task: Task, ctx: TaskContext) -> object:
    """Returns what its payload says of this attempt."""
    write("start", task, ctx)
    write("end", task, ctx, ok=True)
    return task.payload["says"][ctx.attempt - 1]


@handler("is_quiet")
def is_quiet(task: Task) -> object:
    """Answers for a schedule: it hangs, raises, asks for patience, and is satisfied in the end."""
    number = task.payload["number"]
    if number == 1:
        threading.Event().wait()
    if number == 2:
        raise ValueError("the sensor is away")
    return {"wait": "100ms"} if number == 3 else "satisfied"


class Sum(BaseModel):
    """What `add` is given."""

    numbers: list[int]


class Total(BaseModel):
    """What `add` returns."""

    total: int


@handler("add", schedules=[{"name": "brought", "trigger": {"kind": "manual"}, "payload": {"numbers": []}}])
def add(p: Sum) -> Total:
    """Declares its types."""
    return Total(total=sum(p.numbers))


@handler("missing")
def missing(task: Task, ctx: TaskContext) -> list[str]:
    """Returns the conditions without which a schedule has launched it."""
    return list(ctx.missing)


@handler("nap", concurrency=500)
async def nap(task: Task, ctx: TaskContext) -> int:
    """Sleeps for `ms` on an event loop; its process."""
    print("asleep", task.key.uniqueness_key)
    await asyncio.sleep(task.payload["ms"] / 1000)
    await asyncio.gather(asyncio.to_thread(ctx.log.warning, "awake %s", task.key.uniqueness_key))
    return os.getpid()


@handler("resume")
def resume(task: Task, ctx: TaskContext) -> object:
    """Leaves something behind and dies in its first attempt; what it finds in the next one."""
    if ctx.checkpointed is None:
        ctx.progress(0.5)
        ctx.checkpoint({"row": 7})
        _exit()
    return ctx.checkpointed


@handler("until_cancelled")
def until_cancelled(task: Task, ctx: TaskContext) -> None:
    """Goes on until it is asked to end; or until it is killed, if it is `deaf`."""
    write("start", task, ctx)
    if task.payload.get("deaf"):
        time.sleep(600)
    ctx.cancelled.wait(600)
    raise InterruptedError("asked to end")


@handler("spawn")
def spawn(task: Task, ctx: TaskContext) -> None:
    """Asks for another task, and ends as the payload says in each of its first attempts."""
    ctx.enqueue("work", {"of": ctx.attempt}, name="child", ordering_id=task.payload["child"])
    how = dict(enumerate(task.payload["ends"], 1)).get(ctx.attempt)
    if how == "raise":
        raise ValueError("after it has asked")
    if how == "die":
        _exit()


@handler("errand")
def errand(task: Task, ctx: TaskContext) -> dict:
    """The same under another name, for what looks at all runs of a handler."""
    return work(task, ctx)


@handler("work-on-spark", runs_on="spark")
def work_on_spark(task: Task, ctx: TaskContext) -> None:
    """What these deployments, which have no Spark pool, must never run."""
    write("start", task, ctx)


@handler("tell")
def tell(task: Task, ctx: TaskContext) -> None:
    """Says on every way what can be said; waits for a file in the midst of it, and dies at the end, if asked."""
    print("printed password=hunter2")
    print("printed as an error", file=sys.stderr)
    logging.getLogger("shop").warning("%d left", 3, extra={"sku": "a-1", "api_key": "hunter2"})
    ctx.log.info("told")
    threads = [threading.Thread(target=lambda: [print("threaded") for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while "file" in task.payload and not os.path.exists(task.payload["file"]):
        time.sleep(0.01)
    for number in range(task.payload.get("lines", 0)):
        print(f"{number:08} " + "x" * 90)
    print("the last words")
    if task.payload.get("die"):
        os._exit(9)
    print("without an end", end="")


@handler("misbehave")
def misbehave(task: Task, ctx: TaskContext) -> object:
    """Returns what no handler should do."""
    write("start", task, ctx)
    return _DEEDS[task.payload["how"]]()


def _exit() -> None:
    os._exit(7)


def _segfault() -> None:
    ctypes.string_at(0)


def _ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(0.05)


def _print_much() -> str:
    line = "x" * 1023 + "\n"
    for _ in range(20 * 1024):
        sys.stdout.write(line)
    sys.stdout.flush()
    return "printed"


def _raise_base_exception() -> None:
    raise BaseException("not even an Exception")


def _return_object() -> object:
    return {"object": object()}


_DEEDS = {
    "exit": _exit,
    "segfault": _segfault,
    "ignore SIGTERM": _ignore_sigterm,
    "print 20 MB": _print_much,
    "raise BaseException": _raise_base_exception,
    "return an object": _return_object,
}


def write(event: str, task: Task, ctx: TaskContext, *, ok: bool | None = None, driver: int = 0) -> None:
    """One line in one write: lines of many processes do not mix."""
    line = {
        "event": event, "key": list(task.key), "attempt": ctx.attempt, "epoch": ctx.epoch, "pid": os.getpid(), "pool": os.getppid(),
        "at": time.time_ns() // 1000, "ok": ok, "mark": task.payload.get("mark", ""), "driver": driver,
    }  # fmt: skip
    file = os.open(os.environ[JOURNAL], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, (json.dumps(line) + "\n").encode())
    os.close(file)


@handler("leave")
def leave(task: Task, ctx: TaskContext) -> None:
    """Leaves files behind, and dies in its first attempt."""
    ctx.output("Übersicht.txt", f"of attempt {ctx.attempt}")
    ctx.output("large.bin", bytes(3_000_000))
    if ctx.attempt == 1:
        _exit()
