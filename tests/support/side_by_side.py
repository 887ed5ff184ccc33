"""Tests on several processes (xdist): each takes a folder as a whole, whose tests share a session, a broker or a deployment."""

from __future__ import annotations

from pathlib import PurePosixPath

from xdist.scheduler import LoadScopeScheduling


class Folders(LoadScopeScheduling):
    """Hands out folders, those of many tests first; of unit tests, files."""

    def _split_scope(self, nodeid: str) -> str:
        return together(nodeid)


def together(nodeid: str) -> str:
    """What a test runs in one process with."""
    file = nodeid.partition("::")[0]
    return file if file.startswith("tests/unit/") else str(PurePosixPath(file).parent)
