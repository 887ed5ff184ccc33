"""The lease of a Spark worker, enforced from outside: a process that kills the worker and its handlers if nothing renews the lease in time.

A worker that is stopped (SIGSTOP, a debugger) cannot kill anything, and its children run on. So it has a second process beside it, in
a session of its own. Each lease goes through a pipe to it; at the end of that pipe it ends, so that it never outlives the worker.
Its program is the source of this module (`python -S -c`), which therefore imports nothing that takes long.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

_LOOK_MS = 100  # poll(2) does not count time in which the machine was suspended; the boot clock does
_LEASE_BYTES = 8
_LEASES_READ = 4096
_ASKED_MS = 200
_NEEDED = ("LD_LIBRARY_PATH", "PYTHONHOME")
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Watchdog:
    """The process that watches this one.

    Args:
        until_us: boot clock, microseconds, at which the lease ends unless `renew` is called.
        grace_us: how long after that this process may live, so that it can end its handlers by itself.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, until_us: int, grace_us: int) -> None:
        import subprocess

        source = __spec__.loader.get_source(__name__)  # type: ignore[union-attr]
        reader, self._pipe = os.pipe2(os.O_CLOEXEC)
        try:
            os.set_blocking(self._pipe, False)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-s", "-S", "-c", source, *map(str, (os.getpid(), until_us, grace_us))],
                stdin=reader,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={name: os.environ[name] for name in _NEEDED if name in os.environ},
                start_new_session=True,  # a signal to the group of this process must not stop both
            )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(reader)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def renew(self, until_us: int) -> bool:
        """Passes a lease on; False if the watchdog has ended, or reads nothing.

        Args:
            until_us: boot clock, microseconds.
        """
        try:
            return os.write(self._pipe, until_us.to_bytes(_LEASE_BYTES, "little")) == _LEASE_BYTES
        except OSError:
            return False

    def close(self) -> None:
        """Ends it, and waits for that: nothing of it is left."""
        os.close(self._pipe)
        self._process.kill()
        self._process.wait()


def _main(worker: int, until_us: int, grace_us: int) -> None:
    poll = select.poll()
    poll.register(0, select.POLLIN)
    while (left_us := until_us + grace_us - time.clock_gettime_ns(_CLOCK) // 1000) > 0:
        if poll.poll(min(left_us / 1000 + 1, _LOOK_MS)):
            data = os.read(0, _LEASE_BYTES * _LEASES_READ)
            if not data:
                return
            until_us = max(until_us, int.from_bytes(data[-_LEASE_BYTES:], "little"))
    if os.getppid() == worker:
        _kill(worker)


def _kill(worker: int) -> None:
    """Kills the worker, which takes the processes that start its children along, and then whatever is left of its descendants."""
    left = []
    for pid in below(worker):
        try:
            left.append(os.pidfd_open(pid))
        except OSError:
            continue
    os.kill(worker, signal.SIGKILL)
    for number in (signal.SIGCONT, signal.SIGKILL):  # one that is stopped ends its children only if it is continued
        for fd in left:
            try:
                signal.pidfd_send_signal(fd, number)
            except OSError:
                continue
        if number == signal.SIGCONT:
            select.select([], [], [], _ASKED_MS / 1000)


def below(pid: int) -> list[int]:
    """The descendants of a process, without this one."""
    found = [pid]
    for parent in found:
        try:
            threads = os.listdir(f"/proc/{parent}/task")
        except OSError:
            continue
        for thread in threads:
            try:
                with open(f"/proc/{parent}/task/{thread}/children") as file:
                    found += [child for child in map(int, file.read().split()) if child != os.getpid()]
            except OSError:
                continue
    return found[1:]


if __name__ == "__main__":
    _main(*map(int, sys.argv[1:]))
