"""The life of a process in which user code runs, from the fork to its end."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
from typing import NoReturn

from scylla_spark.executors.local.child_link import ChildLink, ChildSetup
from scylla_spark.executors.local.in_turn import InTurn
from scylla_spark.executors.local.on_loop import OnLoop
from scylla_spark.handlers import shared_resources
from scylla_spark.handlers.log_ring import LogMemory
from scylla_spark.handlers.log_writer import LogWriter
from scylla_spark.handlers.shared_memory import SharedMemory
from scylla_spark.io.host.die_with_parent import die_with


def run(
    sock: socket.socket, slot_fd: int, setup: ChildSetup, *, forkserver: int, log_fd: int, on_loop: bool
) -> NoReturn:
    """Everything a freshly forked child does.

    Args:
        sock: stream socket to the pool.
        slot_fd: see `SharedMemory.create_fd`.
        setup: what it has.
        forkserver: process id of the parent.
        log_fd: see `LogMemory.create_fd`; -1: lines are not kept.
        on_loop: whether its calls run at once, on an event loop.
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
            setup.output.keep_lines(logs)
        link = ChildLink(sock, SharedMemory(slot_fd), setup, logs)
        (OnLoop if on_loop else InTurn)(link).serve()
        shared_resources.end_all()
        code = 0
    except (BrokenPipeError, ConnectionResetError):
        code = 0  # the pool is gone
    finally:
        os._exit(code)
