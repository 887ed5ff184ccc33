"""What all tests share: hypothesis waits, and at the end the core-seconds are told that they and their processes have cost."""

import contextlib
import os
import resource
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile(
    "busy", deadline=None
)  # machines are slow for seconds at a time; what hangs is seen by the time of the run
settings.load_profile("busy")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Wall time says more about the machine than about the tests."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    ended = sum(usage.ru_utime + usage.ru_stime for usage in used)
    terminalreporter.write_line(f"core-seconds: {ended + _of_living_descendants():.0f}")


def _of_living_descendants() -> float:
    """What processes have cost that still run, such as Spark's JVM, with those that they have waited for."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = entry.read_text().rpartition(")")[2].split()
            pid = int(entry.parent.name)
            parents[pid] = int(fields[1])
            ticks[pid] = sum(map(int, fields[11:15]))
    mine, found = {os.getpid()}, set()
    while mine:
        mine = {pid for pid, parent in parents.items() if parent in mine}
        found |= mine
    return sum(ticks[pid] for pid in found) / os.sysconf("SC_CLK_TCK")
