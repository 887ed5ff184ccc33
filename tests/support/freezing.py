"""Stops a process for some time, as a debugger or a paused virtual machine does."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import eventually


def freeze(pid: int) -> None:
    """SIGSTOP; returns when all threads of the process stand still, which takes a moment on a busy machine."""
    os.kill(pid, signal.SIGSTOP)
    eventually(
        lambda: _states(pid) <= {"T", "Z", "X"}, 30, "all threads are stopped", lambda: _states(pid), every=0.002
    )


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """The process stands still until the block ends."""
    freeze(pid)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _states(pid: int) -> set[str]:
    """States of the threads of a process, as the kernel shows them."""
    return {
        (thread / "stat").read_text().rpartition(")")[2].split()[0] for thread in Path(f"/proc/{pid}/task").iterdir()
    }
