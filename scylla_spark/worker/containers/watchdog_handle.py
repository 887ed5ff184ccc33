"""The runner's hold on its watchdog: a process that removes its containers when it has died."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from typing import Final

from scylla_spark.errors import SetupError
from scylla_spark.worker.containers import watchdog
from scylla_spark.worker.containers.options import RUNNER_LABEL
from scylla_spark.worker.containers.podman import Podman

_GOODBYE_S: Final = 30.0


class Guard:
    """Keeps a watchdog running.

    Args:
        podman: that it calls.
        runner: `identity` of this process.
        folder: removed with the containers.
    """

    def __init__(self, podman: Podman, runner: str, folder: str) -> None:
        self._podman = podman
        self._label = f"{RUNNER_LABEL}={runner}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def check(self) -> None:
        """Has a watchdog running: no container is started without.

        Raises:
            SetupError: none can be started.
        """
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return
            script = [sys.executable, "-I", "-S", os.path.abspath(watchdog.__file__)]
            try:
                self._process = subprocess.Popen(
                    [*script, self._folder, self._label, *self._podman.command],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=dict(self._podman.environment),
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as error:
                raise SetupError(f"The watchdog over containers cannot be started: {error}") from None

    def close(self) -> None:
        """Has it remove what is left, and end."""
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            process.communicate(watchdog.DONE, timeout=_GOODBYE_S)
