"""Handlers in a sandbox that leave files behind, and some that try to reach more with that."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import time
from pathlib import Path

from scylla_spark.core.tasks.task import Task, TaskContext
from scylla_spark.errors import ArgumentError
from scylla_spark.handlers.registry import handler


@handler("boxed.leave", isolation="sandbox")
def leave(task: Task, ctx: TaskContext) -> list[str]:
    """Leaves files behind as the payload says, [name, size or text]; what became of each."""
    return [_left(ctx, name, data) for name, data in task.payload]


def _left(ctx: TaskContext, name: str, data: str | int) -> str:
    try:
        ctx.output(name, bytes(data) if isinstance(data, int) else data)
    except (ArgumentError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return "stored"


@handler("boxed.file", isolation="sandbox")
def file(task: Task, ctx: TaskContext) -> list[str]:
    """Leaves a file of its own and one of the machine behind, and says what it sees of folders of outputs."""
    Path("/tmp/own").write_text("own")
    ctx.output("own", Path("/tmp/own"))
    ctx.output("seen", str(Path(task.payload["folder"]).exists()))
    return []


@handler("boxed.forge", isolation="sandbox")
def forge(task: Task, ctx: TaskContext) -> list[str]:
    """Speaks on the socket that leads out, and says what it is answered."""
    os.mkfifo("/tmp/pipe")
    pipe, plain = os.open("/tmp/pipe", os.O_RDWR), os.open("/tmp/plain", os.O_RDWR | os.O_CREAT)
    folder, path_only = os.open("/tmp", os.O_RDONLY), os.open("/tmp/plain", os.O_PATH)
    with socket.socket(fileno=_way_out()) as way:
        asked = [
            (json.dumps([task.payload["foreign"], "x", None]).encode(), plain),
            (json.dumps([task.payload["own"], "../x", None]).encode(), plain),
            (json.dumps([task.payload["own"], "x", "text/html\r\nx: y"]).encode(), plain),
            *((json.dumps([task.payload["own"], "x", None]).encode(), one) for one in (pipe, folder, path_only)),
            (b"[" * 4000, plain), (b"nonsense", plain), (b"[1]", plain), (b'[null,null,null]', plain),
        ]  # fmt: skip
        return [_answer(way, message, one) for message, one in asked]


@handler("boxed.flood", isolation="sandbox")
def flood(task: Task, ctx: TaskContext) -> None:
    """Leaves what it can in the process outside, without waiting for an answer; then leaves a file behind."""
    plain = os.open("/tmp/plain", os.O_RDWR | os.O_CREAT)
    with socket.socket(fileno=_way_out()) as way:
        for _ in range(task.payload["times"]):
            for message in (b"[1]", b""):
                _pushed(way, message, plain)
    time.sleep(0.2)
    ctx.output("after", "x")


def _pushed(way: socket.socket, message: bytes, plain: int) -> None:
    """Sends a message as soon as the kernel lets one with descriptors pass: so many may be on their way as a process may have open."""
    while True:
        try:
            socket.send_fds(way, [message], [plain, plain])
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                raise
            time.sleep(0.01)
        else:
            return


def _answer(way: socket.socket, message: bytes, descriptor: int) -> str:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            socket.send_fds(way, [message], [descriptor, theirs.fileno()])
        return str(json.loads(ours.recv(4096))[0])


def _way_out() -> int:
    for name in map(int, os.listdir("/proc/self/fd")):
        try:
            if not stat.S_ISSOCK(os.fstat(name).st_mode):
                continue
        except OSError:
            continue
        with socket.socket(fileno=os.dup(name)) as one:
            if one.type == socket.SOCK_SEQPACKET:
                return os.dup(name)
    raise AssertionError("there is none")
