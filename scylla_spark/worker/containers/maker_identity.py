"""Which process made a container, such that nobody takes a later process with the same number for it. Linux only."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

_FORM: Final = re.compile(r"(\d{1,10})-(\d{1,20})-([0-9a-f]{8})")


def identity() -> str:
    """This process: its number, when it began, and the boot of this machine."""
    pid = os.getpid()
    return f"{pid}-{_began(pid)}-{_boot()}"


def lives(text: str) -> bool:
    """Returns True if the process of an `identity` still runs; True for what is none: a newer version may write another form."""
    form = _FORM.fullmatch(text)
    return form is None or (form[3] == _boot() and _began(int(form[1])) == form[2])


def _began(pid: int) -> str:
    """Returns when a process began, in ticks since the boot; empty: there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
