"""Commands of ours as processes of their own, for benchmarks that kill them or measure their start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import IO, Any, Final, Self

from scylla_spark.clock import now_us
from scylla_spark.config.assignments import written
from scylla_spark.config.settings import Settings
from scylla_spark.errors import SchedulerError, WaitTimeoutError
from scylla_spark.io.host import die_with_parent
from scylla_spark.processes.ready_line import read_ready_line
from scylla_spark_tools.bench import machine
from scylla_spark_tools.bench.deployment_under_test import await_value
from scylla_spark_tools.bench.handlers import MODULE

_END_S: Final = 60


class Child:
    """A process that says on stdout, as JSON, when it is ready; a context manager that stops it if it still runs.

    Args:
        words: what follows `python -m` on its command line.

    Attributes:
        begun_us: when the process was started, microseconds since the epoch.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        command = die_with_parent.command([sys.executable, "-P", "-m", *words])
        self.begun_us = now_us()
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._listen, args=(self._process.stdout,), name="child", daemon=True).start()

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

    def told(self, timeout_s: float = 240.0) -> dict[str, Any]:
        """Waits until it is ready; what it says then.

        Raises:
            SchedulerError: it ended.
            WaitTimeoutError: it was not ready in time.
        """
        try:
            line = self._lines.get(timeout=timeout_s)
        except Empty:
            raise WaitTimeoutError(f"A process was not ready within {timeout_s:g} s.", hint="See stderr.") from None
        if line is None:
            raise SchedulerError("A process ended before it was ready.", hint="See stderr.")
        return dict(read_ready_line(line) or {})

    def ready(self, timeout_s: float = 240.0) -> Settings:
        """Waits until it accepts and runs tasks, where it is one of ours; errors as `told`.

        Returns:
            Settings to reach it with.
        """
        facts = self.told(timeout_s)
        return Settings(_env_file=None, data_dir=facts["data"], kafka={"bootstrap_servers": facts["kafka"]})

    def cpu_seconds(self) -> float:
        """CPU time so far of the process and all that descend from it."""
        return sum(machine.cpu_by_part(self._process.pid).values())

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


def up(data: Path, changes: dict[str, Any] | None) -> Child:
    """`scylla-spark up` on a data directory, with settings to change, nested."""
    return Child(_ours(data, changes, "up"))


def dispatcher(data: Path, changes: dict[str, Any] | None) -> Child:
    """`scylla-spark run dispatch` on a data directory whose broker runs, with settings to change, nested."""
    return Child(_ours(data, changes, "run", "dispatch"))


def planner(data: Path, changes: dict[str, Any] | None) -> Child:
    """`scylla-spark run plan` on a data directory whose broker runs, with settings to change, nested."""
    return Child(_ours(data, changes, "run", "plan"))


def _ours(data: Path, changes: dict[str, Any] | None, *command: str) -> list[str]:
    sets = [word for text in written(changes or {}) for word in ("--set", text)]
    options = ["--data", str(data), "--set", "log.level=warning", *sets]
    return ["scylla_spark.cli", *options, *command, "--handlers", MODULE, "-o", "json"]
