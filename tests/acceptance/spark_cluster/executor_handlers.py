"""Handlers that run on the executors of a cluster, and write down on which."""

from __future__ import annotations

import os
import time
from pathlib import Path

from scylla_spark import Task, TaskContext, handler
from tests.acceptance.journal_handlers import write

EXECUTOR = b"CoarseGrainedExecutorBackend"


@handler("on-executor", runs_on="spark")
def on_executor(task: Task, ctx: TaskContext) -> None:
    """Works until a file exists, if its payload names one. Meanwhile the time of `sign_of_life` shows that it runs."""
    executor = executor_above(os.getpid())
    write("start", task, ctx, driver=executor)
    if "until" in task.payload:
        gate = Path(task.payload["until"])
        sign = sign_of_life(gate, os.getppid())
        while not gate.exists():
            sign.touch()
            time.sleep(0.02)
    write("end", task, ctx, ok=True, driver=executor)


def sign_of_life(gate: Path, pool: int) -> Path:
    """The file that a handler touches while it waits for its gate.

    Args:
        gate: the file that it waits for.
        pool: process id of its pool.
    """
    return gate.with_name(f"{gate.name} {pool}")


def executor_above(pid: int) -> int:
    """The JVM of the executor of Spark that a process was started by; 0: there is none."""
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if EXECUTOR in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    return 0
