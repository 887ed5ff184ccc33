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
    """Works until a file exists, if its payload names one."""
    executor = executor_above(os.getpid())
    write("start", task, ctx, driver=executor)
    while "until" in task.payload and not os.path.exists(task.payload["until"]):
        time.sleep(0.02)
    write("end", task, ctx, ok=True, driver=executor)


def executor_above(pid: int) -> int:
    """The JVM of the executor of Spark that a process was started by; 0: there is none."""
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if EXECUTOR in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    return 0
