"""The handler of the campaign: writes down when it begins and ends, for whom it works, and when it is cut off."""

from __future__ import annotations

import functools
import json
import os
import signal
import time
from pathlib import Path
from typing import NoReturn

from scylla_spark import Task, TaskContext, handler

JOURNAL = "FAULTS_JOURNAL"


@handler("faults-work")
def work(task: Task, ctx: TaskContext) -> dict:
    """Works for `ms`; fails in the first `failures` attempts."""
    signal.signal(signal.SIGTERM, _cut_off)
    _write("start", task, ctx)
    ok = None
    try:
        time.sleep(task.payload.get("ms", 0) / 1000)
        ok = ctx.attempt > task.payload.get("failures", 0)
    finally:
        _write("end", task, ctx, ok=ok)
    if not ok:
        raise RuntimeError(f"attempt {ctx.attempt} fails as asked")
    return {"attempt": ctx.attempt}


def _cut_off(*_: object) -> NoReturn:
    raise SystemExit("cut off")


@functools.cache
def _driver(pool: int) -> int:
    """The dispatcher that a pool of children belongs to."""
    return int(Path(f"/proc/{pool}/stat").read_text().rpartition(")")[2].split()[1])


def _write(event: str, task: Task, ctx: TaskContext, *, ok: bool | None = None) -> None:
    """One line in one write: lines of many processes do not mix."""
    pool = os.getppid()
    line = {
        "event": event, "key": list(task.key), "attempt": ctx.attempt, "epoch": ctx.epoch, "pid": os.getpid(), "pool": pool,
        "driver": _driver(pool), "at": time.time_ns() // 1000, "ok": ok,
    }  # fmt: skip
    file = os.open(os.environ[JOURNAL], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, (json.dumps(line) + "\n").encode())
    os.close(file)
