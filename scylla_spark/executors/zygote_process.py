"""The pool's handle of its zygote: start it, ask it for children, hear what became of them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scylla_spark.clock import boot_us
from scylla_spark.core.task import Retry
from scylla_spark.errors import ArgumentError, ConfigError
from scylla_spark.executors.interface import HandlerInfo
from scylla_spark.executors.zygote import MESSAGE_BYTES

_COMMAND = (sys.executable, "-P", "-m", "scylla_spark.executors.zygote")


class ZygoteProcess:
    """A running zygote. Make it in a thread that lives as long as the pool: its end is the zygote's death signal.

    Args:
        modules: what it imports (see `registry.load`).
        wants_output: whether its children send along what handlers print.
        import_timeout_s: how long the imports may take.

    Raises:
        ArgumentError: the modules' handlers contradict each other, or a module file is missing.
        ConfigError: a module cannot be imported; the message holds the stack.
    """

    def __init__(self, modules: Sequence[str], *, wants_output: bool, import_timeout_s: float = 300) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        with theirs:
            self._process = subprocess.Popen(
                _COMMAND,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": path},
            )
        config = {
            "modules": list(modules),
            "parent": os.getpid(),
            "output": wants_output,
            "pythonpath": os.environ.get("PYTHONPATH"),
        }
        try:
            self.control.send(json.dumps(config).encode())
            self.handlers = self._introduction(boot_us() + round(import_timeout_s * 1e6))
        except BaseException:
            self.close()
            raise
        self.control.setblocking(False)

    def fork(self, child: int, sock: socket.socket, slot_fd: int) -> None:
        """Asks for a child; it will be reported as forked or unforked.

        Raises:
            OSError: the zygote is gone.
        """
        socket.send_fds(self.control, [json.dumps(["fork", child]).encode()], [sock.fileno(), slot_fd])

    def kill(self, child: int, grace_ms: int) -> None:
        """Asks for the end of a child and its group; it will be reported as exit."""
        with contextlib.suppress(OSError):  # then its death is reported by the end of the control socket
            self.control.send(json.dumps(["kill", child, grace_ms]).encode())

    def messages(self) -> list[list[Any]] | None:
        """What it has said since the last call, without waiting; None when it is dead."""
        found: list[list[Any]] = []
        while True:
            try:
                data = self.control.recv(MESSAGE_BYTES)
            except BlockingIOError:
                return found
            except OSError:
                return found or None
            if not data:
                return found or None
            found.append(json.loads(data))

    def close(self) -> None:
        """Ends it and all children; returns when it is gone."""
        self.control.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _introduction(self, until_us: int) -> dict[str, HandlerInfo]:
        handlers: dict[str, HandlerInfo] = {}
        while select.select([self.control], [], [], max(0, until_us - boot_us()) / 1e6)[0]:
            data = self.control.recv(MESSAGE_BYTES)
            if not data:
                code = self._process.wait()
                raise ConfigError(
                    f"The process that imports the handlers ended with code {code}.",
                    hint="Import the modules by hand to see why.",
                )
            message = json.loads(data)
            if message[0] == "ready":
                return handlers
            if message[0] == "broken":
                _, kind, text, stack = message
                if kind == "argument":
                    raise ArgumentError(text)
                raise ConfigError(
                    f"A handler module cannot be imported: {text}\n{stack}\n", hint="Check the setting `handlers`."
                )
            handlers[message[1]] = parse_handler(message)
        raise ConfigError("The handler modules take too long to import.", hint="Move slow work out of module level.")


def parse_handler(message: list[Any]) -> HandlerInfo:
    """The inverse of `zygote.describe_handler`."""
    _, _, name, runs_on, max_batch, timeout_ms, retry = message
    return HandlerInfo(name, runs_on, max_batch, timeout_ms, None if retry is None else Retry.from_ms(*retry))
