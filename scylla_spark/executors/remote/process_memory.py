"""The memory that a Spark worker, its children and all their descendants use."""

from __future__ import annotations

import re
import resource
from pathlib import Path
from typing import Final

from scylla_spark.executors.remote.watchdog import below

_SHARE: Final = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)


def used_bytes(pid: int) -> int:
    """Memory of a process and its descendants; a page that several of them share counts once.

    Args:
        pid: of a process of this machine.
    """
    return sum(map(_bytes_of, [pid, *below(pid)]))


def _bytes_of(pid: int) -> int:
    """The proportional share of a process; 0: it has ended.

    The resident size stands for it where the kernel hides the share, as it does of processes that are isolated.
    """
    try:
        share = _SHARE.search(Path(f"/proc/{pid}/smaps_rollup").read_text())
    except OSError:
        share = None
    if share is not None:
        return int(share[1]) * 1024
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0
