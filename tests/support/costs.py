"""What tests cost in core-seconds, of their own and of every process that they start: wall time says more about the machine."""

from __future__ import annotations

import contextlib
import os
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest


class Costs:
    """Adds up what each test file costs; the numbers of xdist's workers come together in the process that started them.

    Args:
        shown: how many files are told of, the dearest first.
    """

    def __init__(self, shown: int) -> None:
        self._shown = shown
        self._files: Counter[str] = Counter()
        self._before = 0.0

    def pytest_collection_finish(self) -> None:
        """What it cost to collect the tests is nobody's."""
        self._before = used() if self._shown else 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        """Measures between files only: a look at all processes takes some milliseconds."""
        result = yield
        if self._shown and (nextitem is None or nextitem.path != item.path):
            now = used()
            self._files[str(item.path.relative_to(item.config.rootpath))] += now - self._before
            self._before = now
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hands what a worker has measured to the process that started it."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["costs"] = dict(self._files)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Takes what a worker has measured."""
        self._files.update(getattr(node, "workeroutput", {}).get("costs", {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Tells the sum, and the dearest files."""
        terminalreporter.write_line(f"core-seconds: {used():.0f}")
        for name, seconds in self._files.most_common(self._shown):
            terminalreporter.write_line(f"{seconds:8.1f}  {name}")


def used() -> float:
    """Core-seconds of this process and of all that it has started, ended or not."""
    ended = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in ended) + _of_living_descendants()


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
