"""Folders and files that only their owner may read: data of other people's tasks, and secrets."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from scylla_spark.errors import ConfigError

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_SECRET_BYTES = 32


def make_folder(path: Path) -> bool:
    """Makes a folder (and those above it) that only its owner may enter; an existing one is left as it is.

    Returns:
        Whether others may enter it, because it was there before and allows it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    return bool(path.stat().st_mode & _OTHERS)


def close_folder(path: Path) -> None:
    """Makes a folder that only its owner may enter, or takes the others' rights from an existing one.

    Raises:
        ConfigError: it belongs to somebody else.
    """
    if make_folder(path):
        try:
            path.chmod(path.stat().st_mode & ~_OTHERS)
        except PermissionError:
            raise ConfigError(
                f"{path} can be entered by other users, and is not ours to close.", hint=f"chmod 700 '{path}'"
            ) from None


def write(path: Path, text: str) -> None:
    """Replaces a file by one that only its owner may read; whole, whatever happens meanwhile."""
    scratch = path.with_name(path.name + ".new")
    with contextlib.suppress(FileNotFoundError):
        scratch.unlink()  # it may be somebody's, open to all
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    scratch.replace(path)


def kept_secret(path: Path) -> str:
    """The secret in a file that only its owner may read; made at the first call, and the same for all who ask at once.

    Raises:
        ConfigError: the file is empty.
    """
    found = _told(path)
    if not found:
        _offer(path, secrets.token_urlsafe(_SECRET_BYTES) + "\n")
        found = _told(path)
    if not found:
        raise ConfigError(f"{path} is empty.", hint="Delete it: a new secret is made at the next start.")
    if path.stat().st_mode & _OTHERS:
        path.chmod(0o600)
    return found


def _told(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


def _offer(path: Path, text: str) -> None:
    """Makes a file that only its owner may read, unless another process was first: then that one's counts for both."""
    mine = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    write(mine, text)
    try:
        os.link(mine, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        mine.replace(path)
    finally:
        mine.unlink(missing_ok=True)
