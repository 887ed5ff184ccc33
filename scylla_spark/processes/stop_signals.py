"""SIGTERM and Ctrl-C: the first drains the process, a second one ends it, whatever its main thread is doing."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Final

from scylla_spark.clock import boot_us
from scylla_spark.errors import ExitCode

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
LISTENING: Final = "SCYLLASPARK_LISTENING"
"""Variable with a file to be made as soon as signals are heard; `spark-submit.sh` passes none on before."""
_SECOND_US: Final = 500_000  # what comes sooner is the same request: `timeout` signals a process and then its group
_LEAVE_S: Final = 5.0  # that Python may take to end once all services have stopped


class StopSignals:
    """Hears signals in a thread of its own: the main one may be in a call that does not return.

    Args:
        stop: is set at the first signal.
    """

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._asked_us = 0
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        self._writer = writer  # kept open for as long as signals come
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._hear, args=(reader,), name="stop-signals", daemon=True).start()
        if LISTENING in os.environ:
            Path(os.environ[LISTENING]).touch()

    def leave(self, code: int) -> None:
        """Has this process end with that exit code within some seconds, whatever threads and libraries still wait for."""
        timer = threading.Timer(_LEAVE_S, end_at_once, (code,))
        timer.daemon = True
        timer.start()

    def _hear(self, reader: socket.socket) -> None:
        while numbers := reader.recv(16):
            if not set(numbers).intersection(SIGNALS):
                continue
            now = boot_us()
            if self._asked_us and now - self._asked_us > _SECOND_US:
                os.write(2, b"error: ended by a second signal before everything was drained; the next start goes on.\n")
                end_at_once(ExitCode.INTERRUPTED)
            self._asked_us = self._asked_us or now
            self._stop.set()


def end_at_once(code: int) -> None:
    """Ends this process; its children, broker and JVM end with it."""
    sys.stdout.flush()
    os._exit(code)
