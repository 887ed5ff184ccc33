"""The pool's handle of its forkserver: start it, ask it for children, hear what became of them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from scylla_spark.clock import boot_us
from scylla_spark.core.tasks.output import OutputTerms
from scylla_spark.core.tasks.task import Retry
from scylla_spark.errors import ArgumentError, ConfigError
from scylla_spark.executors.environment import handler_environment
from scylla_spark.executors.local import sandbox
from scylla_spark.executors.local.forkserver import MESSAGE_BYTES
from scylla_spark.handlers.description import AUTO, LOCAL, HandlerInfo, heard_form
from scylla_spark.handlers.framing import ProtocolError
from scylla_spark.handlers.isolation import SANDBOX, Isolation
from scylla_spark.handlers.messages import ForkserverOrder
from scylla_spark.handlers.spans import VARIABLES

_log = logging.getLogger(__name__)

FORKED: Final = "forked"
UNFORKED: Final = "unforked"
EXIT: Final = "exit"
_CLOSE_S: Final = 5.0
_SAID_BYTES: Final = 2_000
_STOPPED: Final = "Tt"
_MOST_STOPS: Final = 2
_INTERFERED: Final = (
    "A handler module writes to descriptors that are not its own while it is imported. It must leave them alone.",
)
_COMMAND = (sys.executable, "-P", "-m", "scylla_spark.executors.local.forkserver")


class News(NamedTuple):
    """What became of a child.

    Attributes:
        verb: FORKED, UNFORKED or EXIT.
        child: its number.
        value: process id, 1, or exit status (negative: a signal).
    """

    verb: str
    child: int
    value: int


class ForkserverHandle:
    """A running forkserver. Make it in a thread that lives as long as the pool: its end is the forkserver's death signal.

    Args:
        modules: what it imports (see `registry.load`).
        sessions: module whose `session_of` makes sessions of Spark Connect; empty: there are none.
        pass_environment: further variables that handlers get (see `handler_environment`).
        variables: further variables of the process.
        import_timeout_s: how long the imports may take.
        apart: the handler that it is for, where that asks for children of its own kind; None: it is for all.
        children: of such a handler: how many children there will be at most.
        outputs: where files are kept that attempts leave behind; None: nowhere in reach.
        spans: whether children make a span of each call; never in a sandbox, out of which nothing could send them.
        auto: the executor of handlers that name none.

    Attributes:
        handlers: what it has imported, by every name that tasks may use.
        boxed: it and its children are in a sandbox, where process ids mean something else than here.

    Raises:
        ArgumentError: the modules' handlers contradict each other, or a module file is missing.
        ConfigError: a module cannot be imported (the message holds the stack), or there can be no sandbox.
    """

    def __init__(
        self,
        modules: Sequence[str],
        *,
        sessions: str = "",
        pass_environment: Sequence[str] = (),
        variables: Mapping[str, str] = MappingProxyType({}),
        import_timeout_s: float = 300,
        apart: sandbox.Sandboxed | None = None,
        children: int = 0,
        outputs: OutputTerms | None = None,
        spans: bool = False,
        auto: str = LOCAL,
    ) -> None:
        self._babbles = False
        self._auto = auto
        self.boxed = apart is not None and apart.isolation.level == SANDBOX
        spans = spans and not self.boxed
        passed = (*pass_environment, VARIABLES) if spans else pass_environment
        environment = handler_environment(os.environ, passed) | dict(variables)
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            cage = sandbox.Cage([], ())
            if apart is not None:  # its descriptors are closed by `_started`, so nothing may fail in between
                environment, cage = _set_apart(environment, apart)
            self._process = _started(cage, theirs, environment | {"PYTHONPATH": path})
        config = {
            "modules": list(modules),
            "parent": 1 if self.boxed else os.getpid(),
            "isolation": None if apart is None else apart.isolation.told(),
            "children": children,
            "sessions": sessions,
            "outputs": outputs,
            "spans": spans,
            "pythonpath": environment.get("PYTHONPATH"),
        }
        until_us = boot_us() + round(import_timeout_s * 1e6)
        try:
            self.control.send(json.dumps(config).encode())
            self.handlers = self._introduction(until_us)
        except ConnectionError:  # it has ended before it read anything, as a sandbox does that cannot be
            error = self._ended(until_us)
            self.close()
            raise error from None
        except BaseException:
            self.close()
            raise
        self.control.setblocking(False)
        self._pids = _descendants(self._process.pid) if self.boxed else [self._process.pid]
        self._stops = 0  # how many looks in a row have found it stopped

    def keep_running(self) -> bool:
        """Continues it where a handler has stopped it.

        Returns:
            Whether it runs, or does as far as we know; False: it was stopped again and again, and should be replaced.
        """
        stopped = [pid for pid in self._pids if _state(pid) in _STOPPED]
        self._stops = self._stops + 1 if stopped else 0
        for pid in stopped:
            _log.warning("process %d, which starts the children, was stopped by a signal; it is continued", pid)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGCONT)
        return self._stops < _MOST_STOPS

    def fork(
        self,
        child: int,
        sock: socket.socket,
        slot_fd: int,
        log_fd: int | None = None,
        way: socket.socket | None = None,
        *,
        on_loop: bool = False,
    ) -> None:
        """Asks for a child; it will be reported as forked or unforked.

        Args:
            child: its number in answers.
            sock: the child's end of its socket; it is duplicated.
            slot_fd: descriptor of the memory shared with it.
            log_fd: descriptor of the memory for its lines; None: they are not kept.
            way: the child's end of what it hands files over on; None: it does not.
            on_loop: whether its calls run on an event loop.

        Raises:
            OSError: the forkserver is gone.
        """
        order = ForkserverOrder("fork", child, logs=log_fd is not None, hands_over=way is not None, on_loop=on_loop)
        fds = [sock.fileno(), slot_fd]
        fds += [log_fd] if log_fd is not None else []
        fds += [way.fileno()] if way is not None else []
        socket.send_fds(self.control, [json.dumps(order).encode()], fds)

    def kill(self, child: int, grace_ms: int) -> None:
        """Asks for the end of a child and its group; it will be reported as exit."""
        with contextlib.suppress(OSError):  # then its death is reported by the end of the control socket
            self.control.send(json.dumps(ForkserverOrder("kill", child, grace_ms)).encode())

    def messages(self) -> list[News] | None:
        """Returns what it has said since the last call, without waiting; None when it is dead, or says what no forkserver does."""
        found: list[News] = []
        while not self._babbles:
            try:
                data = self.control.recv(MESSAGE_BYTES)
            except BlockingIOError:
                return found
            except OSError:
                return found or None
            if not data:
                return found or None
            try:
                found.append(parse_news(data))
            except ProtocolError:
                self._babbles = True  # a module that it imported has got hold of its socket
        return found or None

    def close(self, *, patiently: bool = True) -> None:
        """Ends it and all children, by force if it takes long or `patiently` is false; returns when it is gone."""
        self.control.close()
        if self._process.stderr is not None:
            self._process.stderr.close()
        try:
            self._process.wait(_CLOSE_S if patiently else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ended(self, until_us: int) -> ConfigError:
        try:
            code = self._process.wait(max(0, until_us - boot_us()) / 1e6)
        except subprocess.TimeoutExpired:  # a module has closed the socket, and is imported still
            return _too_slow()
        if self.boxed:
            said = self._process.stderr.read(_SAID_BYTES) if self._process.stderr is not None else b""
            text = said.decode(errors="replace").strip()
            return ConfigError(f"The sandbox ended with code {code}: {text}", hint="See docs/isolation.md.")
        return ConfigError(
            f"The process that imports the handlers ended with code {code}.",
            hint="Import the modules by hand to see why.",
        )

    def _introduction(self, until_us: int) -> dict[str, HandlerInfo]:
        handlers: dict[str, HandlerInfo] = {}
        while wait([self.control], max(0, until_us - boot_us()) / 1e6):
            data = self.control.recv(MESSAGE_BYTES)
            if not data:
                raise self._ended(until_us)
            message = _texts(data)
            if message[0] == "ready":
                return handlers
            if message[0] == "broken":
                raise _broken(*map(str, message[1:4]))
            name, info = parse_handler(message)
            handlers[name] = replace(info, runs_on=self._auto) if info.runs_on == AUTO else info
        raise _too_slow()


def _descendants(pid: int) -> list[int]:
    """A process and its descendants: in a sandbox the forkserver is the last of them, before it has forked any child."""
    found = [pid]
    for parent in found:
        found += [
            int(one) for each in Path(f"/proc/{parent}/task").glob("*/children") for one in each.read_text().split()
        ]
    return found


def _state(pid: int) -> str:
    """The state of a process as the kernel names it; "X": it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _set_apart(environment: dict[str, str], apart: sandbox.Sandboxed) -> tuple[dict[str, str], sandbox.Cage]:
    """The variables of a handler with children of its own kind, and the sandbox that it asks for, if any."""
    asked: Isolation = apart.isolation
    if asked.memory is not None:
        environment = environment | {"MALLOC_ARENA_MAX": "2"}  # each costs 64 MiB of address space, used or not
    if asked.level == SANDBOX:
        return sandbox.environment(environment, asked), sandbox.cage(apart)
    return environment | dict(asked.environment), sandbox.Cage([], ())


def _started(cage: sandbox.Cage, theirs: socket.socket, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [*cage.command, *_COMMAND],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE if cage.command else None,
            start_new_session=True,
            env=environment,
            pass_fds=cage.descriptors,
        )
    finally:
        for descriptor in cage.descriptors:
            os.close(descriptor)


def _texts(data: bytes) -> list[Any]:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        message = None
    if type(message) is not list or not message:
        raise ConfigError(*_INTERFERED)
    return message


def _too_slow() -> ConfigError:
    return ConfigError("The handler modules take too long to import.", hint="Move slow work out of module level.")


def _broken(kind: str = "", text: str = "", stack: str = "") -> ArgumentError | ConfigError:
    if kind == "argument":
        return ArgumentError(text)
    return ConfigError(
        f"A handler module cannot be imported: {text}\n{stack}\n",
        hint="Check the setting `handlers`: paths of .py files, and modules of the current folder or of installed packages.",
    )


def parse_news(data: bytes) -> News:
    """A message about a child (see `forkserver`).

    Raises:
        ProtocolError: it is none.
    """
    try:
        verb, child, value = json.loads(data)
    except (ValueError, TypeError, RecursionError):
        raise ProtocolError("a message that is no list of three") from None
    if verb == UNFORKED and type(child) is int:
        return News(verb, child, 1)
    if verb not in (FORKED, EXIT) or type(child) is not int or type(value) is not int or (verb == FORKED and value < 2):
        raise ProtocolError("a message about no child")
    return News(verb, child, value)


def parse_handler(message: list[Any]) -> tuple[str, HandlerInfo]:
    """The inverse of `forkserver.describe_handler`, with the name that tasks use.

    Raises:
        ConfigError: something else than a forkserver has sent it.
    """
    try:
        _, name, own, runs_on, max_batch, timeout_ms, retry, concurrency, apart, form, rate_keys = message
        policy = None if retry is None else Retry.from_ms(*retry)
        isolation = None if apart is None else Isolation.heard(apart)
        return name, HandlerInfo(
            own, runs_on, max_batch, timeout_ms, policy, concurrency, isolation, heard_form(form), tuple(rate_keys)
        )
    except (TypeError, ValueError):
        raise ConfigError(*_INTERFERED) from None
