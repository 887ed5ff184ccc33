"""Tests on several processes (xdist): each takes a folder as a whole, whose tests share a session, a broker or a deployment."""

from __future__ import annotations

from pathlib import PurePosixPath

from xdist.scheduler import LoadScopeScheduling

_BY_FILE = tuple(f"tests/{folder}/" for folder in ("unit", "api", "tables", "fuzz", "simulation", "integration"))
"""Folders whose files share nothing, or only what the whole run shares."""


class Folders(LoadScopeScheduling):
    """Gives each test process a folder as a whole, or a file where the files of a folder share nothing."""

    def _split_scope(self, nodeid: str) -> str:
        return together(nodeid)


def together(nodeid: str) -> str:
    """Returns the name of the group whose tests run in one process."""
    file = nodeid.partition("::")[0]
    return file if file.startswith(_BY_FILE) else str(PurePosixPath(file).parent)
