"""Handlers that reach for what is ours: the child's socket, its shared memory, its parent."""

from __future__ import annotations

import base64
import json
import os
import signal
import struct
import threading
import time
from pathlib import Path

from scylla_spark.core.tasks.task import Task
from scylla_spark.handlers.registry import handler


def _descriptors(kind: str) -> list[int]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(entry)
        except FileNotFoundError:
            continue
        if target.startswith(kind):
            found.append(int(entry.name))
    return found


@handler("noop")
def noop(task: Task) -> None:
    return None


@handler("hostile.write")
def write(task: Task) -> str:
    """Writes the payload's bytes on the socket to the pool, then sleeps as long as it says."""
    (sock,) = _descriptors("socket:")
    data = memoryview(base64.b64decode(task.payload["bytes"]) * task.payload.get("times", 1))
    while data:
        data = data[os.write(sock, data) :]
    time.sleep(task.payload.get("sleep", 0))
    return "done"


@handler("hostile.remember")
def remember(task: Task) -> None:
    """Writes 64-bit words into the shared memory, again and again, until it is killed."""
    slot, *_ = _descriptors("/memfd:scylla-spark-slot")
    until = time.monotonic() + task.payload["sleep"]
    while time.monotonic() < until:
        for index, value in task.payload["words"].items():
            os.pwrite(slot, struct.pack("q", value), 8 * int(index))
        if outbox := task.payload.get("outbox"):
            os.pwrite(slot, outbox.encode(), 64)
        time.sleep(0.001)


@handler("hostile.leave_thread")
def leave_thread(task: Task) -> int:
    """Leaves a thread behind that writes a word into the shared memory when no call runs."""

    def scribble() -> None:
        time.sleep(task.payload)
        slot, *_ = _descriptors("/memfd:scylla-spark-slot")
        os.pwrite(slot, struct.pack("q", 1 << 62), 8)

    threading.Thread(target=scribble, daemon=True).start()
    return os.getpid()


@handler("hostile.truncate")
def truncate(task: Task) -> str:
    """Tries to take the shared memory away from under the pool."""
    slot, *_ = _descriptors("/memfd:scylla-spark-slot")
    try:
        os.ftruncate(slot, 0)
    except PermissionError:
        return "refused"
    time.sleep(task.payload)
    return "truncated"


@handler("hostile.steal")
def steal(task: Task) -> None:
    """Reads what the pool has sent for the calls behind this one."""
    (sock,) = _descriptors("socket:")
    os.set_blocking(sock, False)
    try:
        while os.read(sock, 1 << 16):
            pass
    except BlockingIOError:
        os.set_blocking(sock, True)


@handler("hostile.slow")
def slow(task: Task) -> None:
    time.sleep(0.02)


@handler("hostile.stop_parent")
def stop_parent(task: Task) -> None:
    """Freezes the process that forks and kills children, then hangs."""
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(300)


@handler("surroundings")
def surroundings(task: Task) -> dict[str, object]:
    """Returns what a handler can see of where it came from."""
    return {
        "environment": dict(os.environ),
        "first_environment": Path("/proc/self/environ").read_bytes().decode(errors="replace"),
        "parent_environment": Path(f"/proc/{os.getppid()}/environ").read_bytes().decode(errors="replace"),
        "arguments": Path("/proc/self/cmdline").read_text(),
        "descriptors": sorted(os.readlink(entry) for entry in map("/proc/self/fd/{}".format, _own())),
        "hash": hash("scylla"),
    }


def _own() -> list[int]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            os.fstat(int(name))
        except OSError:
            continue  # the one that listed
        found.append(int(name))
    return found


@handler("moody")
def moody(task: Task) -> str:
    """Quick, or does on the socket what the payload says."""
    if task.payload:
        write(task)
    return json.dumps(os.getpid())
