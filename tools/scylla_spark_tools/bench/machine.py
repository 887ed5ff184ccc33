"""What this machine is and what its processes cost; CPU times come from /proc and are empty where there is none."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

_PARTS = (
    ("kafka.Kafka", "broker"),
    ("executors.local.forkserver", "children"),
    ("pyspark.daemon", "spark_python"),
    ("scylla_spark.api", "api"),
    ("services.dispatch.log_process", "logs"),
    ("java", "jvm"),
)


class _Process(NamedTuple):
    state: str
    parent: int
    own_ticks: int
    reaped_ticks: int
    resident_pages: int


def facts() -> dict[str, Any]:
    """Python version, usable cores, and the load average of the last minute."""
    return {
        "python": platform.python_version(),
        "cores": _cores(),
        "load": round(os.getloadavg()[0], 2),
    }


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_by_part(root: int, leave_out: Collection[int] = ()) -> dict[str, float]:
    """CPU seconds so far of a process and all that descend from it, per part of the system.

    Args:
        root: the driver. What its own ended children took is not counted: they may be helpers of a benchmark.
        leave_out: processes that are left out, with their descendants.

    Returns:
        "driver", "jvm", "jvm_jit" (its living compiler threads), "broker", "children" (of the local pool), "spark_python", "api",
        "logs" and "other" → seconds.
    """
    tick = os.sysconf("SC_CLK_TCK")
    seconds: dict[str, float] = {}
    for number, part, process in _tree(root, leave_out):
        ticks = process.own_ticks + (process.reaped_ticks if number != root else 0)
        compiling = _compiling_ticks(number) if part == "jvm" else 0
        seconds[part] = seconds.get(part, 0.0) + (ticks - compiling) / tick
        if part == "jvm":
            seconds["jvm_jit"] = seconds.get("jvm_jit", 0.0) + compiling / tick
    return seconds


def memory_mb(root: int, leave_out: Collection[int] = ()) -> dict[str, int]:
    """Resident memory of the same processes, MiB per part; pages that children share with their parent count twice."""
    page = os.sysconf("SC_PAGE_SIZE")
    pages: dict[str, int] = {}
    for _, part, process in _tree(root, leave_out):
        pages[part] = pages.get(part, 0) + process.resident_pages
    return {part: count * page >> 20 for part, count in sorted(pages.items())}


def descendants(root: int) -> list[int]:
    """A process and all that descend from it."""
    return [number for number, _, _ in _tree(root, ())]


def living(numbers: Collection[int]) -> list[int]:
    """Those of some processes that still run; zombies do not."""
    return [number for number, process in _processes().items() if number in numbers and process.state != "Z"]


def _tree(root: int, leave_out: Collection[int]) -> Iterator[tuple[int, str, _Process]]:
    """A process and its descendants, each with the part of the system that it belongs to."""
    processes = _processes()
    waiting = [(root, "driver")]
    while waiting:
        number, part = waiting.pop()
        process = processes.get(number)
        if process is None or number in leave_out:
            continue
        yield number, part, process
        for child in (child for child, candidate in processes.items() if candidate.parent == number):
            found = _part(child)
            waiting.append((child, found if found != "other" or part == "driver" else part))


def used(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """CPU seconds per part between two readings."""
    return {part: round(after[part] - before.get(part, 0.0), 3) for part in sorted(after)}


def _processes() -> dict[int, _Process]:
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        found[int(folder.name)] = _Process(
            fields[0],
            int(fields[1]),
            int(fields[11]) + int(fields[12]),
            int(fields[13]) + int(fields[14]),
            int(fields[21]),
        )
    return found


def _compiling_ticks(number: int) -> int:
    """Returns what the just-in-time compiler's threads of a JVM have used; it ends and starts some of them as it likes."""
    ticks = 0
    for file in Path(f"/proc/{number}/task").glob("*/stat"):
        try:
            name, _, rest = file.read_text().rpartition(")")
        except OSError:
            continue
        if "Compiler" in name:
            fields = rest.split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks


def _part(number: int) -> str:
    try:
        line = Path(f"/proc/{number}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return "other"
    return next((part for mark, part in _PARTS if mark in line), "other")
