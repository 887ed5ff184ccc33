"""Tests on several processes (xdist): each takes a folder as a whole, whose tests share a session, a broker or a deployment."""

from __future__ import annotations

from pathlib import PurePosixPath

from xdist.scheduler import LoadScopeScheduling

_BY_FILE = ("tests/unit/", "tests/api/", "tests/tables/")
"""Folders whose files share nothing."""


class Folders(LoadScopeScheduling):
    """Hands out folders, those of many tests first; of those whose files share nothing, files."""

    def _split_scope(self, nodeid: str) -> str:
        return together(nodeid)


def together(nodeid: str) -> str:
    """What a test runs in one process with."""
    file = nodeid.partition("::")[0]
    return file if file.startswith(_BY_FILE) else str(PurePosixPath(file).parent)
