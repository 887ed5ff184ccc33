"""The life of a process in which user code runs, from the fork to its end."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping

from scylla_spark.executors.local.child_link import ChildLink
from scylla_spark.executors.local.in_turn import InTurn, SessionOf
from scylla_spark.executors.local.on_loop import OnLoop
from scylla_spark.executors.local.resource_limits import Confinement
from scylla_spark.handlers import shared_resources
from scylla_spark.handlers.capture import Output
from scylla_spark.handlers.log_ring import LogMemory
from scylla_spark.handlers.log_writer import LogWriter
from scylla_spark.handlers.messages import TaskRow
from scylla_spark.handlers.outputs import WritesOutputs
from scylla_spark.handlers.registry import Handler
from scylla_spark.handlers.shared_memory import SharedMemory
from scylla_spark.handlers.spans import Spans
from scylla_spark.io.host.die_with_parent import die_with


def run(
    sock: socket.socket,
    slot_fd: int,
    handlers: Mapping[str, Handler],
    output: Output,
    *,
    forkserver: int,
    wants_output: bool,
    log_fd: int,
    on_loop: bool = False,
    confinement: Confinement | None = None,
    session_of: SessionOf | None = None,
    outputs: Callable[[TaskRow], WritesOutputs] | None = None,
    spans: Spans | None = None,
) -> None:
    """Everything a freshly forked child does; never returns.

    Args:
        sock: stream socket to the pool.
        slot_fd: see `SharedMemory.create_fd`.
        handlers: what tasks may name.
        output: takes what the handlers print.
        forkserver: process id of the parent.
        wants_output: whether output is sent along.
        log_fd: see `LogMemory.create_fd`; -1: lines are not kept.
        on_loop: whether its calls run at once, on an event loop.
        confinement: its limits; None: it has none.
        session_of: see `InTurn`.
        outputs: see `ChildLink`.
        spans: see `ChildLink`.
    """
    code = 1
    try:
        os.setsid()
        die_with(forkserver, signal.SIGKILL)
        for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        shared_resources.end_at_sigterm()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        faulthandler.enable(slot_fd, all_threads=False)
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed()  # else all children draw the same numbers
        logs = LogWriter(LogMemory(log_fd)) if log_fd >= 0 else None
        if logs is not None:
            output.keep_lines(logs)
        link = ChildLink(sock, SharedMemory(slot_fd), handlers, output, logs, outputs, spans)
        if on_loop:
            OnLoop(link).serve()
        else:
            InTurn(link, wants_output=wants_output, confinement=confinement, session_of=session_of).serve()
        shared_resources.end_all()
        code = 0
    except (BrokenPipeError, ConnectionResetError):
        code = 0  # the pool is gone
    finally:
        os._exit(code)
