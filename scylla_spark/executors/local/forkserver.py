"""The process that imports the handlers once and forks children from itself, so that a new child takes a millisecond.

It speaks with the pool over a SOCK_SEQPACKET pair (one JSON array a message) whose end is its standard input:

* at first it gets one configuration message, and answers `["handler", name, …]` for each handler, then `["ready"]`
  or `["broken", kind, text]`;
* `["fork", child]` with two descriptors (the child's socket and slot), or three where its lines are kept, is answered by
  `["forked", child, pid]` or `["unforked", child, text]`;
* `["kill", child, grace_ms]` sends SIGTERM to the child's process group and SIGKILL after the grace;
* `["exit", child, status]` tells that a child is gone, and its group with it; status is negative for a signal.

Only this process signals and reaps children, so a process id can never mean somebody else. When the pool ends (end
of file, or the death signal of the thread that owns the pool) every child group is killed, and what they left behind
elsewhere.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from scylla_spark.clock import boot_us
from scylla_spark.core.tasks.output import OutputTerms
from scylla_spark.errors import SchedulerError
from scylla_spark.executors.local.child import run
from scylla_spark.executors.local.child_link import ChildSetup
from scylla_spark.executors.local.output_desk import HandedOutputs
from scylla_spark.executors.local.resource_limits import Confinement, keep_to_itself, tidy
from scylla_spark.handlers import shared_resources
from scylla_spark.handlers.batch import to_table
from scylla_spark.handlers.call import describe, stack_of
from scylla_spark.handlers.capture import Output
from scylla_spark.handlers.description import form_of
from scylla_spark.handlers.isolation import Isolation
from scylla_spark.handlers.messages import ForkserverOrder
from scylla_spark.handlers.open_spans import opened
from scylla_spark.handlers.outputs import AttemptOutputs
from scylla_spark.handlers.registry import Handler, load
from scylla_spark.handlers.restore_process import note_setters
from scylla_spark.handlers.watched_modules import watch_modules
from scylla_spark.io.host.die_with_parent import die_with

MESSAGE_BYTES: Final = 64 * 1024
_TEXT_CHARS: Final = 8 * 1024
_GOODBYE_US: Final = 1_000_000
_PR_SET_CHILD_SUBREAPER: Final = 36


class Forkserver:
    """Forks, signals and reaps children on request.

    Args:
        control: the pool.
        setup: what its children have.
    """

    def __init__(self, control: socket.socket, setup: ChildSetup) -> None:
        self._control = control
        self._setup = setup
        self._pids: dict[int, int] = {}  # child → pid
        self._kill_at: dict[int, int] = {}  # child → boot_us of its SIGKILL
        self._wake, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        self._woken = _poll(self._wake)
        self._ready = _poll(self._wake, control.fileno())

    def serve(self) -> None:
        """The main loop; returns when the pool is gone."""
        while True:
            now = boot_us()
            timeout_ms = max(0, min(self._kill_at.values()) - now) / 1000 if self._kill_at else None
            ready = dict(self._ready.poll(timeout_ms))
            if self._wake in ready:
                os.read(self._wake, 4096)
            self._reap()
            self._kill_overdue()
            if self._control.fileno() in ready:
                data, fds, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 4, socket.MSG_CMSG_CLOEXEC)
                if not data:
                    return
                self._obey(ForkserverOrder(*json.loads(data)), fds)

    def end(self) -> None:
        """Kills every child group, then whatever descended from them and was left to us."""
        for pid in self._pids.values():
            _kill_group(pid, signal.SIGKILL)
        lists = Path("/proc/self/task")  # by thread
        for _ in range(100):
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            pids = [int(pid) for children in lists.glob("*/children") for pid in children.read_text().split()]
            if not pids:
                return
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            select.select([], [], [], 0.01)

    def say_goodbye(self) -> None:
        """Gives children a moment to tear down what their handlers share, where these share anything; `end` follows."""
        if not shared_resources.declared():
            return
        until = boot_us() + _GOODBYE_US
        while self._pids and boot_us() < until:
            for (
                pid
            ) in self._pids.values():  # again and again: a new child has no group yet, and one that obeys ignores it
                _kill_group(pid, signal.SIGTERM)
            if self._woken.poll(20):
                os.read(self._wake, 4096)
            self._reap()

    def _obey(self, order: ForkserverOrder, fds: list[int]) -> None:
        number = order.number
        if order.verb == "fork":
            log_fd, way_fd = fds[2] if order.logs else -1, fds[-1] if order.hands_over else -1
            self._fork(number, fds[0], fds[1], log_fd, way_fd, on_loop=order.on_loop)
        elif order.verb == "kill" and number in self._pids and number not in self._kill_at:
            _kill_group(self._pids[number], signal.SIGTERM)
            self._kill_at[number] = boot_us() + order.grace_ms * 1000

    def _fork(self, number: int, sock_fd: int, slot_fd: int, log_fd: int, way_fd: int, *, on_loop: bool) -> None:
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._say("unforked", number, str(error))
        else:
            if pid == 0:
                self._forget()
                self._close_in()
                setup = self._setup
                if way_fd >= 0:
                    setup = replace(setup, outputs=partial(HandedOutputs, way_fd))
                run(socket.socket(fileno=sock_fd), slot_fd, setup, forkserver=parent, log_fd=log_fd, on_loop=on_loop)
            self._pids[number] = pid
            self._say("forked", number, pid)
        finally:
            for fd in (sock_fd, slot_fd, log_fd, way_fd):
                if fd >= 0:
                    os.close(fd)

    def _forget(self) -> None:
        """In a new child: lets go of what belongs to the forkserver alone."""
        signal.set_wakeup_fd(-1)
        self._control.close()
        os.close(self._wake)
        os.close(self._wake_writer)

    def _close_in(self) -> None:
        """In a new child: sets its limits, or ends it."""
        try:
            if self._setup.confinement is not None:
                self._setup.confinement.close_in()
        except BaseException:
            os._exit(1)

    def _reap(self) -> None:
        """Reports children that ended. While one is unreaped its id is taken, so its group can be killed safely."""
        numbers = {pid: number for number, pid in self._pids.items()}
        with contextlib.suppress(ChildProcessError):
            while info := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                number = numbers.get(info.si_pid)
                if number is not None:
                    _kill_group(info.si_pid, signal.SIGKILL)
                    del self._pids[number]
                    self._kill_at.pop(number, None)
                    self._say("exit", number, info.si_status if info.si_code == os.CLD_EXITED else -info.si_status)
                os.waitpid(info.si_pid, 0)
        if numbers and not self._pids and self._setup.confinement is not None and self._setup.confinement.boxed:
            tidy()

    def _kill_overdue(self) -> None:
        now = boot_us()
        for number, due in list(self._kill_at.items()):
            if due <= now:
                _kill_group(self._pids[number], signal.SIGKILL)
                self._kill_at[number] = now + 3_600_000_000

    def _say(self, *message: object) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._control.send(json.dumps(message).encode())


def _poll(*descriptors: int) -> select.poll:
    """Waits for input. `select.select` refuses numbers from 1,024, which descriptors have where handler modules open many files."""
    found = select.poll()
    for descriptor in descriptors:
        found.register(descriptor, select.POLLIN)
    return found


def describe_handler(name: str, entry: Handler) -> list[Any]:
    """A handler as message; `forkserver_handle.parse_handler` is its inverse."""
    info = entry.info
    retry = None if info.retry is None else [*info.retry.terms]
    return [
        "handler", name, info.name, info.runs_on, info.max_batch, info.timeout_ms, retry, info.concurrency,
        None if info.isolation is None else info.isolation.told(), list(form_of(entry.function, entry.signature)),
        list(info.rate_keys),
    ]  # fmt: skip


def main() -> NoReturn:
    """Entry point of the process."""
    control = socket.socket(fileno=os.dup(0))
    config = json.loads(control.recv(MESSAGE_BYTES))
    die_with(config["parent"], signal.SIGKILL)
    os.environ.pop("PYTHONPATH")  # was for our own start; grandchildren get what the driver had
    if config["pythonpath"] is not None:
        os.environ["PYTHONPATH"] = config["pythonpath"]
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    output = Output()
    output.put_in_place()
    try:
        isolation, kept = config["isolation"], config["outputs"]
        confinement = None if isolation is None else Confinement(Isolation.heard(isolation), config["children"])
        session_of = importlib.import_module(config["sessions"]).session_of if config["sessions"] else None
        note_setters()
        handlers = load(config["modules"])
        setup = ChildSetup(
            handlers,
            output,
            confinement,
            session_of,
            outputs=None if kept is None else partial(AttemptOutputs, OutputTerms(*kept)),
            spans=opened() if config["spans"] else None,
        )
        _prepare_batches(handlers)
    except BaseException as error:
        kind = "argument" if isinstance(error, SchedulerError) else "import"
        control.send(
            json.dumps(["broken", kind, describe(error)[:_TEXT_CHARS], stack_of(error)[-_TEXT_CHARS:]]).encode()
        )
        os._exit(1)
    for name, entry in handlers.items():
        control.send(json.dumps(describe_handler(name, entry)).encode())
    control.send(b'["ready"]')
    watch_modules()
    gc.collect()
    gc.freeze()
    # a module that started threads at import makes fork unsafe in theory; Python ≥ 3.12 warns, and nobody would see it
    warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork")
    _adopt_orphans()
    if confinement is not None and confinement.boxed:
        keep_to_itself()
    forkserver = Forkserver(control, setup)
    me = os.getpid()

    def die(*_: object) -> None:
        if os.getpid() == me:  # a child that was forked a moment ago still has this signal handler
            forkserver.end()
        os._exit(0)

    signal.signal(signal.SIGTERM, die)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with(config["parent"], signal.SIGTERM)
    try:
        forkserver.serve()
        forkserver.say_goodbye()
    finally:
        die()
    raise AssertionError("unreachable")


def _prepare_batches(handlers: Mapping[str, Handler]) -> None:
    """Imports here, once, what every child would need for its first batch."""
    batches = [entry for entry in handlers.values() if entry.info.max_batch is not None]
    if batches:
        to_table([])  # with its first array pyarrow imports pandas, which takes a second or more
    if any(entry.signature.pandas for entry in batches):
        importlib.import_module("pandas")


def _adopt_orphans() -> None:
    """Descendants of dead children become ours, so that `Forkserver.end` finds them even in other sessions."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _kill_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


if __name__ == "__main__":
    main()
