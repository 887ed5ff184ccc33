"""The limits of a child whose handler asks for some: set when it begins, told apart from other failures when one is reached.

They are the kernel's (`setrlimit`), so they hold for whatever the handler does and for what it starts. They hold for one process
each, but for the number of processes, which is counted by user.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from scylla_spark.core.tasks.task import FAILED
from scylla_spark.handlers.isolation import (
    DISK_EXCEEDED,
    MEMORY_EXCEEDED,
    OPEN_FILES_EXCEEDED,
    PROCESSES_EXCEEDED,
    SANDBOX,
    Isolation,
)
from scylla_spark.handlers.messages import BATCH, Verdict

_PR_SET_DUMPABLE: Final = 4
_OURS: Final = 2  # processes of a sandbox beside children: the one that forks them, and the first of its namespace
_FIRST_OF_A_SANDBOX: Final = "bwrap"
_WRITABLE: Final = ("/tmp", "/dev/shm")
_WORDS: Final = {
    MEMORY_EXCEEDED: "It reached its limit of memory.",
    OPEN_FILES_EXCEEDED: "It reached its limit of open files.",
    PROCESSES_EXCEEDED: "It reached its limit of processes and threads.",
    DISK_EXCEEDED: "It filled the space that its sandbox has for files.",
}


class Judged(NamedTuple):
    """What became of a call.

    Attributes:
        verdict: of its only task, or BATCH.
        spoilt: a limit was reached, so the child should end: what used it up may still be there.
    """

    verdict: Verdict
    spoilt: bool


class Confinement:
    """The limits of the children of one handler.

    Args:
        isolation: what the handler asks for.
        children: how many there may be at most.
    """

    def __init__(self, isolation: Isolation, children: int) -> None:
        self._isolation = isolation
        self._children = children

    @property
    def boxed(self) -> bool:
        """Returns True if the processes are in a sandbox."""
        return self._isolation.level == SANDBOX

    def close_in(self) -> None:
        """In a new child, before it does anything else: sets all limits that stay the same.

        Raises:
            OSError: the kernel refuses one.
            ValueError: one is above what this process may ask for.
        """
        asked = self._isolation
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if asked.open_files is not None:
            _lower(resource.RLIMIT_NOFILE, asked.open_files)
        if asked.memory is not None:
            _lower(resource.RLIMIT_AS, _address_space() + asked.memory)
        if asked.processes is not None:
            _lower(resource.RLIMIT_NPROC, asked.processes + self._children + _OURS)

    def begin(self) -> None:
        """A call begins: from now on it has its seconds of CPU. Beyond them the kernel ends the child by SIGXCPU."""
        seconds = self._isolation.cpu_s
        if seconds is not None:
            used = resource.getrusage(resource.RUSAGE_SELF)
            _, most = resource.getrlimit(resource.RLIMIT_CPU)
            signal.signal(signal.SIGXCPU, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1 + seconds, most))

    def judged(self, verdict: Sequence[Any]) -> Judged:
        """The verdict on a call, with a kind that names the limit which it has reached.

        Args:
            verdict: as `Verdict`; that of a batch holds a list of them.
        """
        one = Verdict(*verdict)
        if one.outcome == BATCH:
            found = [self.judged(row) for row in one.result or ()]
            rows: Any = [row.verdict for row in found]
            return Judged(one._replace(result=rows), any(row.spoilt for row in found))
        if one.outcome != FAILED or one.failure is None:
            return Judged(one, False)
        kind, message, stack = one.failure
        reached = self._reached(kind, message)
        if not reached:
            return Judged(one, False)
        text = f"{_WORDS[reached]} {kind}: {message}"
        return Judged(one._replace(failure=(reached, text, stack)), True)

    def _reached(self, kind: str, message: str) -> str:
        """The limit that an exception tells of, or nothing; what C code makes of a refusal is beyond us."""
        asked = self._isolation
        if asked.memory is not None and (kind.endswith("MemoryError") or _is(message, errno.ENOMEM)):
            return MEMORY_EXCEEDED
        if asked.open_files is not None and _is(message, errno.EMFILE):
            return OPEN_FILES_EXCEEDED
        no_thread = kind == "RuntimeError" and "start new thread" in message
        if asked.processes is not None and (no_thread or (kind == "BlockingIOError" and _is(message, errno.EAGAIN))):
            return PROCESSES_EXCEEDED
        return DISK_EXCEEDED if self.boxed and _is(message, errno.ENOSPC) else ""


def _is(message: str, number: int) -> bool:
    return message.startswith(f"[Errno {number}]")


def _lower(limit: int, wanted: int) -> None:
    """Sets both bounds of a limit; never above the one that is in force."""
    _, most = resource.getrlimit(limit)
    value = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(limit, (value, value))


def _address_space() -> int:
    """Bytes of address space of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def keep_to_itself() -> None:
    """Has the kernel keep the memory and descriptors of this process, and of those it forks, from others of its user."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def tidy() -> None:
    """In a sandbox without children: ends what they have left running, and removes the files that they have left.

    Does nothing outside a sandbox, whatever the caller believes: there it would end processes of others.
    """
    me = os.getpid()
    if Path("/proc/1/comm").read_text().strip() != _FIRST_OF_A_SANDBOX or os.getppid() != 1:
        return
    for entry in Path("/proc").glob("[0-9]*"):
        if (pid := int(entry.name)) not in (1, me):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    for folder in map(Path, _WRITABLE):
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    entry.unlink()
