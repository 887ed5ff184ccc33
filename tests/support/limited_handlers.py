"""Handlers with limits of their own, outside of any sandbox; run by tests in children of their kind."""

from __future__ import annotations

import ctypes
import os
import time

from scylla_spark.core.tasks.task import Task
from scylla_spark.handlers.registry import handler

_kept: list[bytearray] = []


@handler("limited.memory", memory="100MB")
def takes_memory(task: Task) -> int:
    """Takes so many megabytes, and keeps them if it is told to."""
    taken = bytearray(task.payload["mb"] * 1_000_000)
    if task.payload.get("keep"):
        _kept.append(taken)
    return os.getpid()


@handler("limited.cpu", cpu="1s", timeout="60s")
def takes_cpu(task: Task) -> float:
    """Computes for so many seconds of CPU."""
    begun = time.process_time()
    while time.process_time() - begun < task.payload:
        sum(range(10_000))
    return time.process_time()


@handler("limited.files", open_files=40)
def opens_files(task: Task) -> str:
    """Opens so many files at once."""
    files: list[int] = []
    try:
        files.extend(os.open("/dev/null", os.O_RDONLY) for _ in range(task.payload))
    finally:
        for file in files:
            os.close(file)
    return "opened"


@handler("limited.environment", environment={"REGION": "eu", "LANG": "xx"})
def sees(task: Task) -> list[str | None]:
    """Its variables of these names."""
    return [os.environ.get(name) for name in task.payload]


@handler("limited.batch", memory="100MB", max_batch=10)
def batch(rows) -> None:
    """Takes more than it may."""
    bytearray(200_000_000)


@handler("limited.crash", memory="100MB")
def crashes(task: Task) -> None:
    """Dies by a signal that is no limit's."""
    ctypes.string_at(0)


@handler("unlimited")
def unlimited(task: Task) -> list[object]:
    """Takes what the others may not."""
    return [len(bytearray(300_000_000)), os.environ.get("REGION"), os.getpid()]
