"""A workplace in a child process: what its handler does to its process, it does to its own task alone."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection, wait
from typing import Any, Final

from scylla_spark.clock import boot_us
from scylla_spark.core.tasks.task import CHILD_DIED
from scylla_spark.errors import ArgumentError, SchedulerError, SetupError, UnreachableError
from scylla_spark.handlers import shared_resources
from scylla_spark.handlers.call import PAYLOAD_INVALID
from scylla_spark.handlers.registry import Handler
from scylla_spark.io.host.exit_text import exit_text
from scylla_spark.worker import child
from scylla_spark.worker.attempt_lines import AttemptLines
from scylla_spark.worker.handlers import Source
from scylla_spark.worker.lease import Lease, Output
from scylla_spark.worker.report_memory import ReportMemory
from scylla_spark.worker.run_lease import handler_of

_LOOK_S: Final = 0.1
_END_LOOK_S: Final = 0.005
_GOODBYE_S: Final = 1.0
_START_S: Final = 120.0
_HALF_SAID_S: Final = 30  # without another byte of a message that has begun
_CANCEL_US: Final = 5_000_000  # what a handler may go on for whose lease is lost
_SPAWN: Final = multiprocessing.get_context("spawn")  # a fork of a process with threads may deadlock


class ChildPlace:
    """Runs handlers in a child, and another one when that has died. The thread that opens it must live as long as the child.

    Args:
        source: what the handlers are made of, in the child.
        handlers: the same, here.
        wants_spans: whether each attempt is a span of OpenTelemetry.
        wants_lines: whether what handlers print goes to the logs of their attempts.
    """

    def __init__(
        self, source: Source, handlers: Mapping[str, Handler], *, wants_spans: bool = False, wants_lines: bool = True
    ) -> None:
        self._wants_spans, self._wants_lines = wants_spans, wants_lines
        self._source = source
        self._handlers = handlers
        self._memory = ReportMemory(_SPAWN)
        self._process: Any = None
        self._channel: Connection | None = None
        self._closed = False
        self._lock = threading.Lock()

    def open(self) -> None:
        """Starts the child.

        Raises:
            SetupError: it does not become ready.
        """
        with self._lock:
            if self._closed:
                return
            ours, theirs = _SPAWN.Pipe()
            _limit_pauses(ours)
            self._process = _SPAWN.Process(
                target=child.main,
                args=(theirs, self._memory, os.getpid(), self._source),
                kwargs={"wants_spans": self._wants_spans, "wants_lines": self._wants_lines},
                name="worker-child",
                daemon=True,
            )
            try:
                self._process.start()
            except OSError as error:
                raise SetupError(f"No child process of the worker can be started: {error}.") from None
            theirs.close()
            self._channel = ours
        why = self._not_ready()
        if why:
            self._end()
            if not self._closed:
                raise SetupError(
                    f"A child process of the worker cannot start: {why}",
                    hint='A script that asks for processes needs the line `if __name__ == "__main__":`.',
                )

    def work(self, lease: Lease) -> None:
        """Runs the handler of a lease; if the child dies of it, the task has failed, and the next one gets a new child.

        Raises:
            SetupError: there is no child that could run it.
        """
        if self._process is not None and self._process.exitcode is not None:  # it died with nothing to do
            self._end()
            self.open()
        channel = self._channel
        if channel is None:
            return
        run = _Run(lease, handler_of(self._handlers, lease), channel)
        try:
            try:
                channel.send((child.TASK, lease.view))
            except RecursionError:
                lease.fail(PAYLOAD_INVALID, "The payload is nested too deep to be handed to a child process.")
                return
            while (why := run.too_long()) is None:  # also while it says one thing after the other
                said = self._said(_LOOK_S)
                if said is not None and said[:2] == (child.DONE, lease.token):
                    if said[2]:
                        return
                    break  # the task has left something behind that cannot be restored
                if said is not None:
                    run.take(said)
            if why is not None:
                self._process.kill()
                run.fail(*why)
        except BlockingIOError:  # it has stopped in the middle of a message, or takes none
            self._process.kill()
            self._outlast(run, lease.token)
        except (EOFError, OSError):
            self._outlast(run, lease.token)
        except Exception:  # the child may be at work on it still: the next task gets another one
            self._end()
            self.open()
            raise
        self._end()
        self.open()

    def _outlast(self, run: _Run, token: str) -> None:
        """Waits for the end of a child that says nothing any more: it has died, or closed its descriptors and works on.

        Its sentinel is a descriptor, too, so only the exit code tells which.
        """
        why = None
        while self._process.exitcode is None and (why := run.too_long()) is None:
            time.sleep(_END_LOOK_S)
        if (report := self._memory.of(token)) is not None:
            run.take((child.REPORT, token, report))
        elif why is not None:
            run.fail(*why)
        elif not self._closed:
            run.fail(CHILD_DIED, f"The child process {self._exit()} while it ran this task.")

    def close(self) -> None:
        """Ends the child, whatever it does."""
        with self._lock:
            self._closed = True
        self._end()

    def _not_ready(self) -> str:
        """Waits until the child is ready; why it will not be; empty: it is."""
        try:
            said = self._said(_START_S)
        except (EOFError, OSError):
            return f"It {self._exit()} before it was ready."
        if said is None:
            return f"It was not ready after {_START_S:g} s."
        return "" if said[0] == child.READY else str(said[1])

    def _said(self, within_s: float) -> tuple[Any, ...] | None:
        """Returns what the child says next; None: nothing in that time.

        Raises:
            EOFError: it has died.
        """
        channel, process = self._channel, self._process
        if channel is None:
            raise EOFError
        ready = wait([channel, process.sentinel], within_s)
        if channel in ready:
            told: tuple[Any, ...] = channel.recv()
            return told
        if ready:
            raise EOFError
        return None

    def _exit(self) -> str:
        self._process.join(5)
        status = self._process.exitcode
        return exit_text(status) if status is not None else "closed its channel"

    def _end(self) -> None:
        with self._lock:
            process, channel = self._process, self._channel
            self._channel = None
        if process is not None and process.pid is not None:
            if channel is not None and (self._wants_spans or shared_resources.declared()):
                _say_goodbye(process, channel)
            process.kill()
            process.join(5)
        if channel is not None:
            channel.close()


class _Run:
    """A task that a child works on.

    Args:
        lease: the task.
        handler: its handler; None: there is none.
        channel: to the child.
    """

    def __init__(self, lease: Lease, handler: Handler | None, channel: Connection) -> None:
        self._lease = lease
        self._lines = AttemptLines(lease.tell_lines)
        self._channel = channel
        timeout_ms = handler.info.timeout_ms if handler is not None else None
        self._begun_us = boot_us()
        self._until_us = None if timeout_ms is None else self._begun_us + timeout_ms * 1000
        self._lost_us: int | None = None

    def take(self, said: tuple[Any, ...]) -> None:
        """Passes on what the child says."""
        kind, token, *what = said
        if kind == child.OUTPUT:
            self._channel.send((child.STORED, _sent(self._lease, token, what[0])))
        elif token != self._lease.token:
            return
        elif kind == child.LINE:
            self._lines.add(*what)
        elif kind == child.SIGN:
            self._lease.forward_sign(what[0])
        elif kind == child.EXTEND and self._until_us is not None:
            self._until_us = max(self._until_us, boot_us() + what[0])
        elif kind == child.REPORT:
            self._lines.end()  # what was written before the end stands before it
            self._lease.forward_report(what[0])

    def too_long(self) -> tuple[str, str] | None:
        """Returns why the child is to be ended, as code and words; None: it may go on. A lease that is lost is told of."""
        now = boot_us()
        if self._lost_us is None and self._lease.lost.is_set():
            self._lost_us = now
            with contextlib.suppress(OSError):  # it has closed its descriptors
                self._channel.send((child.LOST, self._lease.token, self._lease.cancelled.is_set()))
        if self._lost_us is not None and now - self._lost_us > _CANCEL_US:
            return child.LOST, "Its lease was lost, and it went on."
        if self._until_us is not None and now > self._until_us:
            allowed_s = (self._until_us - self._begun_us) / 1e6
            return "timed_out", f"It had not ended after {round(allowed_s, 1):g} s and was killed."
        return None

    def fail(self, code: str, why: str) -> None:
        """It has failed, unless it has said already how it ended."""
        self._lines.end()
        if not self._lease.reported:
            self._lease.fail(code, why)


def _limit_pauses(channel: Connection) -> None:
    """Has reads and writes of a message raise BlockingIOError where the other end stops in the middle of it."""
    if sys.platform == "linux":
        limit = struct.pack("ll", _HALF_SAID_S, 0)
        with socket.socket(fileno=os.dup(channel.fileno())) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def _say_goodbye(process: Any, channel: Connection) -> None:
    """Gives a child a moment to tear down what its handlers share."""
    until_us = boot_us() + round(_GOODBYE_S * 1e6)
    with contextlib.suppress(OSError):
        channel.send((child.END,))
        while (
            process.exitcode is None and boot_us() < until_us
        ):  # `join` waits for ever for one that closed its descriptors
            time.sleep(_END_LOOK_S)


def _sent(lease: Lease, token: str, output: Output) -> Exception | None:
    """Sends a file that a handler leaves behind; why it was not, as an exception that travels."""
    try:
        if token != lease.token:
            return ArgumentError("The attempt is over.")
        lease.send_output(output)
    except UnreachableError as error:
        return UnreachableError(str(error))
    except (SchedulerError, OSError) as error:
        return ArgumentError(str(error))
    return None
