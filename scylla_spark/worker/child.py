"""The child process of a workplace: runs one handler at a time, and dies with its parent."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Final

from scylla_spark.core.leases.messages import LeasedLine
from scylla_spark.errors import ArgumentError, SchedulerError
from scylla_spark.handlers import shared_resources
from scylla_spark.handlers.capture import hearing
from scylla_spark.handlers.log_lines import LineWriter
from scylla_spark.handlers.open_spans import opened
from scylla_spark.handlers.restore_process import Surroundings, note_setters
from scylla_spark.handlers.watched_modules import watch_modules
from scylla_spark.io.host.die_with_parent import die_with
from scylla_spark.worker.handlers import Source, resolved
from scylla_spark.worker.lease import Lease, Output
from scylla_spark.worker.line_sender import LINE_BYTES
from scylla_spark.worker.report_memory import ReportMemory
from scylla_spark.worker.run_lease import work

READY: Final = "ready"
BROKEN: Final = "broken"
REPORT: Final = "report"
SIGN: Final = "sign"
EXTEND: Final = "extend"
LINE: Final = "line"
OUTPUT: Final = "output"
STORED: Final = "stored"
DONE: Final = "done"
TASK: Final = "task"
LOST: Final = "lost"
END: Final = "end"
_ORPHANED: Final = 113
_CUT_OFF: Final = 114


class _Channel:
    """The way to the parent; a `Reporter`. A copy of the process, which a handler has forked, says nothing here.

    Args:
        connection: to the parent.
        memory: where reports are left besides.
    """

    def __init__(self, connection: Connection, memory: ReportMemory) -> None:
        self._connection = connection
        self._memory = memory
        self._process = os.getpid()
        self._file = _file(connection)
        self._lock = threading.Lock()
        self._outputs = threading.Lock()  # one at a time, so that each answer is to the last question
        self.stored: SimpleQueue[Exception | None] = SimpleQueue()

    @property
    def whole(self) -> bool:
        """Whether the connection is still the one to the parent: a handler may close descriptors, and open others in their place."""
        return self._file is not None and _file(self._connection) == self._file

    def say(self, *message: Any) -> None:
        if os.getpid() != self._process:
            return
        with self._lock:
            if not self.whole:
                return
            try:
                self._connection.send(message)
            except OSError:
                os._exit(_ORPHANED)

    def report(self, lease: Lease, text: str) -> None:
        if os.getpid() == self._process:
            self._memory.put(lease.token, text)
        self.say(REPORT, lease.token, text)

    def sign(self, lease: Lease, **fields: str) -> None:
        self.say(SIGN, lease.token, fields)

    def output(self, lease: Lease, output: Output) -> None:
        if os.getpid() != self._process or not self.whole:
            raise ArgumentError(
                "This process cannot reach its worker.",
                hint="Leave files behind before descriptors are closed, and not in a fork.",
            )
        with self._outputs:
            self.say(OUTPUT, lease.token, output)
            error = self.stored.get()
        if error is not None:
            raise error

    def lines(self, lease: Lease, lines: Sequence[LeasedLine]) -> None:
        """Nobody tells lines here by themselves: what handlers print is heard, and numbered by the parent."""

    def refuse(self) -> SchedulerError | None:
        return None


def main(
    connection: Connection, memory: ReportMemory, parent: int, source: Source, *, wants_spans: bool, wants_lines: bool
) -> None:
    """Serves until the parent ends.

    Args:
        connection: to the parent.
        memory: shared with it; holds the last report.
        parent: its process id.
        source: what the handlers are made of.
        wants_spans: whether each attempt is a span of OpenTelemetry.
        wants_lines: whether what handlers print goes to the logs of their attempts.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent says when it ends
    if sys.platform == "linux":
        die_with(parent, signal.SIGKILL)
    channel = _Channel(connection, memory)
    note_setters()
    try:
        handlers = resolved(source)
        spans = opened() if wants_spans else None
    except BaseException:
        channel.say(BROKEN, traceback.format_exc())
        return
    orders: SimpleQueue[Lease] = SimpleQueue()
    threading.Thread(target=_listen, args=(connection, channel, orders), daemon=True).start()
    channel.say(READY)
    with hearing(LineWriter(LINE_BYTES), choose_level=True) if wants_lines else nullcontext() as writer:
        watch_modules()
        surroundings = Surroundings()
        while True:
            lease = orders.get()
            told = None if writer is None else writer.by(partial(channel.say, LINE, lease.token))
            work(handlers, lease, spans, told)
            clean = surroundings.restore()
            if not channel.whole:
                os._exit(_CUT_OFF)  # the parent finds the report in the memory
            channel.say(DONE, lease.token, clean)


def _listen(connection: Connection, channel: _Channel, orders: SimpleQueue[Lease]) -> None:
    """Takes what the parent says; without a parent there is nothing left to do. Cut off from it, the task goes on to its end."""
    running: Lease | None = None
    try:
        while channel.whole:
            kind, *values = connection.recv()
            if kind == TASK:
                running = Lease(values[0], channel)
                running.extended = partial(channel.say, EXTEND, running.token)
                orders.put(running)
            elif kind == STORED:
                channel.stored.put(values[0])
            elif kind == END:
                shared_resources.end_all()
                os._exit(0)
            elif kind == LOST and running is not None and running.token == values[0]:
                running.end(cancelled=values[1])
    except (EOFError, OSError):
        if channel.whole:
            os._exit(_ORPHANED)


def _file(connection: Connection) -> tuple[int, int] | None:
    """Returns which file a connection is; None: none any more."""
    try:
        found = os.fstat(connection.fileno())
    except OSError:
        return None
    return found.st_dev, found.st_ino
