"""Writes attempts that fail to the log of the process: who starts a handler by hand sees there what went wrong."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final, NamedTuple

from scylla_spark.core.tasks.task import ABORTED, FAILED, TIMED_OUT, Invocation, Outcome
from scylla_spark.log import get_logger

log = get_logger("dispatch")

_MOST_PER_PAUSE: Final = 10
_PAUSE_S: Final = 1.0
_MOST_CHARS: Final = 300


class _Failed(NamedTuple):
    handler: str
    task: str
    attempt: int
    error: str


class FailedAttempts:
    """Takes attempts that failed and logs at most ten a second, from a thread of its own: a slow terminal must not stop the engine."""

    def __init__(self) -> None:
        self._waiting: deque[_Failed] = deque()
        self._left_out = 0
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="failed-attempts", daemon=True)

    def start(self) -> None:
        """Begins to write."""
        self._thread.start()

    def stop(self) -> None:
        """Writes what waits, and ends."""
        self._stop.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(_PAUSE_S)

    def report(self, invocation: Invocation, outcome: Outcome) -> None:
        """Takes an attempt that ended; never blocks. Called by the thread of the engine only."""
        if outcome.outcome not in (FAILED, TIMED_OUT, ABORTED):
            return
        if len(self._waiting) >= _MOST_PER_PAUSE:
            self._left_out += 1
            return
        failure = outcome.failure
        said = ": ".join(filter(None, (failure.kind, failure.message))) if failure is not None else outcome.outcome
        error = said.strip().partition("\n")[0][:_MOST_CHARS]
        self._waiting.append(_Failed(invocation.handler, str(invocation.key), invocation.attempt, error))
        self._wake.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            self._wake.clear()
            self._write()
            self._stop.wait(_PAUSE_S)
        self._write()

    def _write(self) -> None:
        while self._waiting:
            log.warning("attempt failed", **self._waiting.popleft()._asdict())
        left_out, self._left_out = self._left_out, 0
        if left_out:
            log.warning("more attempts failed", attempts=left_out)
