"""Until when a task may start, told to a process that may be on another machine.

A start limit is a time of the boot clock, which means something on its own machine only. A worker that has the same clock
compares with it as it is. Elsewhere the limit is carried over by wall time, so it is as good as the agreement of the two
machines' clocks; the dispatcher keeps seconds in reserve for that (see `dispatch.session_timeout`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

NO_LIMIT: Final = 1 << 62


class StartLimit(NamedTuple):
    """When work was sent off, by the sender's clocks.

    Attributes:
        clock: which machine's boot clock it is.
        wall_us: microseconds since the epoch.
        boot_us: the same moment on the boot clock.
    """

    clock: str
    wall_us: int
    boot_us: int

    def limit_here(self, start_by_us: int, here: StartLimit) -> int:
        """The boot clock, here, that stands for the sender's `start_by_us`."""
        if start_by_us >= NO_LIMIT or self.clock == here.clock:
            return start_by_us
        left = start_by_us - self.boot_us
        return here.boot_us + self.wall_us + left - here.wall_us


def this_clock() -> str:
    """A name of this machine's boot clock: equal for processes that can compare its readings."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    space = Path("/proc/self/ns/time")  # a container may have a boot clock of its own
    try:
        return f"{boot.read_text().strip()} {os.readlink(space) if space.is_symlink() else ''}"
    except OSError:
        return f"unknown {os.urandom(8).hex()}"
