"""What tests cost in core-seconds, with every process that they start: wall time says more about the machine."""

from __future__ import annotations

import contextlib
import os
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

GROUPS = Path("/sys/fs/cgroup")


class Meter:
    """Counts the CPU time of this process and of all processes that it starts from now on.

    It moves this process to a control group of its own, which also counts processes whose parent was killed. Where no control group
    can be made, only processes that were waited for count.
    """

    def __init__(self) -> None:
        self._parent = _own_group()
        self._group: Path | None = self._parent / f"scylla-spark-tests-{os.getpid()}"
        try:
            self._group.mkdir()
            _move(os.getpid(), self._group)
        except OSError:
            with contextlib.suppress(OSError):
                self._group.rmdir()
            self._group = None

    def used(self) -> float:
        """Returns the core-seconds so far."""
        if self._group is None:
            ended = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
            return sum(usage.ru_utime + usage.ru_stime for usage in ended)
        if (nanoseconds := self._group / "cpuacct.usage").exists():  # version 1 of control groups
            return int(nanoseconds.read_text()) / 1e9
        fields = dict(line.split() for line in (self._group / "cpu.stat").read_text().splitlines())
        return int(fields["usage_usec"]) / 1e6

    def close(self) -> None:
        """Moves what still runs back to the group of before, and removes the own one with those below it."""
        if self._group is None:
            return
        for group in (*self._group.glob("scylla-spark-tests-*"), self._group):
            with contextlib.suppress(OSError):
                for pid in (group / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        _move(int(pid), self._parent)
                group.rmdir()
        self._group = None


class Costs:
    """Adds up what each test file costs; the numbers of xdist's workers come together in the process that started them.

    Args:
        shown: how many files are shown, the dearest first.
    """

    def __init__(self, shown: int) -> None:
        self._shown = shown
        self._files: Counter[str] = Counter()
        self._meter = Meter()
        self._before = 0.0

    def pytest_collection_finish(self) -> None:
        """What it cost to collect the tests is charged to no file."""
        self._before = self._meter.used()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        """Charges a file with what was used since the file before it ended."""
        result = yield
        if nextitem is None or nextitem.path != item.path:
            now = self._meter.used()
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
        """Prints the sum, and the dearest files."""
        terminalreporter.write_line(f"core-seconds: {self._meter.used():.0f}")
        for name, seconds in self._files.most_common(self._shown):
            terminalreporter.write_line(f"{seconds:8.1f}  {name}")

    def pytest_unconfigure(self) -> None:
        """Ends the measurement."""
        self._meter.close()


def _own_group() -> Path:
    """Returns the control group of this process that counts CPU time."""
    unified = GROUPS
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpuacct" in controllers.split(","):
            return GROUPS / "cpuacct" / path.lstrip("/")
        if not controllers:
            unified = GROUPS / path.lstrip("/")
    return unified


def _move(pid: int, group: Path) -> None:
    (group / "cgroup.procs").write_text(str(pid))
