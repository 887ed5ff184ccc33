"""A whole deployment as a process of its own, for benchmarks that kill it: `scylla-spark up`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import IO, Any, Final, Self

from scylla_spark.bench import machine
from scylla_spark.bench.handlers import MODULE
from scylla_spark.bench.site import await_value
from scylla_spark.clock import now_us
from scylla_spark.config.assignments import written
from scylla_spark.config.settings import Settings
from scylla_spark.errors import SchedulerError, WaitTimeoutError
from scylla_spark.io.host import die_with_parent
from scylla_spark.services.ready_line import read_ready_line

_END_S: Final = 60


class Up:
    """`scylla-spark up` on a data directory; a context manager that stops it if it still runs.

    Args:
        data: the directory.
        changes: settings to change, nested.

    Attributes:
        begun_us: when the process was started, microseconds since the epoch.
    """

    def __init__(self, data: Path, changes: dict[str, Any] | None) -> None:
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        sets = [word for text in written(changes or {}) for word in ("--set", text)]
        words = ["--data", str(data), "--set", "log.level=warning", *sets, "up", "--handlers", MODULE, "-o", "json"]
        command = die_with_parent.command([sys.executable, "-P", "-m", "scylla_spark.cli", *words])
        self.begun_us = now_us()
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._listen, args=(self._process.stdout,), name="up", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def ready(self, timeout_s: float = 240.0) -> Settings:
        """Waits until it accepts and runs tasks.

        Returns:
            Settings to reach it with.

        Raises:
            SchedulerError: it ended.
            WaitTimeoutError: it was not ready in time.
        """
        try:
            line = self._lines.get(timeout=timeout_s)
        except Empty:
            raise WaitTimeoutError(f"`up` was not ready within {timeout_s:g} s.", hint="See stderr.") from None
        if line is None:
            raise SchedulerError("`up` ended before it was ready.", hint="See stderr.")
        facts = read_ready_line(line) or {}
        return Settings(_env_file=None, data_dir=facts["data"], kafka={"bootstrap_servers": facts["kafka"]})

    def memory_mb(self) -> dict[str, int]:
        """Resident memory per part of the system."""
        return machine.memory_mb(self._process.pid)

    def kill(self) -> None:
        """Kill -9 of the process and of everything that it started; returns when all of it is gone."""
        doomed = machine.descendants(self._process.pid)
        for number in doomed:
            try:
                os.kill(number, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it died with its parent
        self._process.wait()
        await_value("the end of the killed", lambda: not machine.living(doomed) or None, limit_s=_END_S)

    def _listen(self, lines: IO[str]) -> None:
        for line in lines:
            if read_ready_line(line) is not None:
                self._lines.put(line)
        self._lines.put(None)
