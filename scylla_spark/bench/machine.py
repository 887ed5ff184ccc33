"""What this machine is and what its processes cost; CPU times come from /proc and are empty where there is none."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

_PARTS = (
    ("kafka.Kafka", "broker"),
    ("executors.zygote", "children"),
    ("pyspark.daemon", "spark_python"),
    ("java", "jvm"),
)


class _Process(NamedTuple):
    parent: int
    own_ticks: int
    reaped_ticks: int


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
        "driver", "jvm", "broker", "children" (of the local pool), "spark_python" and "other" → seconds.
    """
    processes = _processes()
    tick = os.sysconf("SC_CLK_TCK")
    seconds: dict[str, float] = {}
    waiting = [(root, "driver")]
    while waiting:
        number, part = waiting.pop()
        process = processes.get(number)
        if process is None or number in leave_out:
            continue
        ticks = process.own_ticks + (process.reaped_ticks if number != root else 0)
        seconds[part] = seconds.get(part, 0.0) + ticks / tick
        for child in (child for child, candidate in processes.items() if candidate.parent == number):
            found = _part(child)
            waiting.append((child, found if found != "other" or part == "driver" else part))
    return seconds


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
            int(fields[1]), int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
        )
    return found


def _part(number: int) -> str:
    try:
        line = Path(f"/proc/{number}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return "other"
    return next((part for mark, part in _PARTS if mark in line), "other")
