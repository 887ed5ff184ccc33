"""Where the log of a Delta table lies: in a folder of this machine or in an object store. No snapshot is ever loaded."""

from __future__ import annotations

import io
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple, Protocol, cast
from urllib.parse import unquote

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

FOLDER: Final = "_delta_log"


class Stamp(NamedTuple):
    """What tells a file from another of the same name.

    Attributes:
        size: bytes.
        written_us: microseconds since the epoch; 0: the store does not say.
        number: of the file in its file system; 0: there is none.
    """

    size: int
    written_us: int
    number: int = 0


class LogFiles(Protocol):
    """What is asked of a place where a log lies. Errors of the place are OSError."""

    def stamp(self, name: str) -> Stamp | None:
        """The stamp of a file; None: it is not there."""

    def opened(self, name: str) -> BinaryIO:
        """A file for reading.

        Raises:
            FileNotFoundError: it is not there.
        """

    def names(self) -> list[str] | None:
        """Names of all files; None: there is no log."""


class LocalLog:
    """A log in a folder of this machine."""

    def __init__(self, table: str) -> None:
        self._folder = f"{table}/{FOLDER}"

    def stamp(self, name: str) -> Stamp | None:
        """The stamp of a file; None: it is not there."""
        try:
            found = os.stat(f"{self._folder}/{name}")  # a Path would cost as much as the call
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Stamp(found.st_size, found.st_mtime_ns // 1_000, found.st_ino)

    def opened(self, name: str) -> BinaryIO:
        """A file for reading."""
        return Path(self._folder, name).open("rb")

    def names(self) -> list[str] | None:
        """Names of all files; None: there is no log."""
        try:
            return os.listdir(self._folder)
        except (FileNotFoundError, NotADirectoryError):
            return None


class StoreLog:
    """A log in an object store, as delta-rs reaches it, with the credentials that it finds."""

    def __init__(self, table: str) -> None:
        self._table = table

    @cached_property
    def _files(self) -> FileSystem:
        return store(self._table)

    def stamp(self, name: str) -> Stamp | None:
        """The stamp of a file; None: it is not there."""
        found = self._files.get_file_info(f"{FOLDER}/{name}")
        if not found.is_file:
            return None
        return Stamp(found.size or 0, (found.mtime_ns or 0) // 1_000)

    def opened(self, name: str) -> BinaryIO:
        """A file for reading."""
        return cast(BinaryIO, io.BufferedReader(self._files.open_input_file(f"{FOLDER}/{name}")))

    def names(self) -> list[str] | None:
        """Names of all files; None: there is no log."""
        from pyarrow.fs import FileSelector

        found = self._files.get_file_info(FileSelector(FOLDER, allow_not_found=True))
        return [Path(file.path).name for file in found if file.is_file] or None


def is_local(table: str) -> bool:
    """Whether a path or URI names a folder of this machine."""
    return "://" not in table and not table.startswith("file:")


def as_path(table: str) -> str:
    """A path for what lies on this machine; other URIs stay as they are."""
    path = "/" + unquote(table.removeprefix("file:")).lstrip("/") if table.startswith("file:") else table
    return path.rstrip("/") or "/"


def store(table: str) -> FileSystem:
    """The files of a table as delta-rs reaches them, by names relative to it.

    Raises:
        OSError: nothing can be reached there.
    """
    from deltalake.exceptions import DeltaError
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import PyFileSystem

    try:
        return PyFileSystem(DeltaStorageHandler(table))
    except DeltaError as error:
        raise OSError(str(error)) from error


def log_of(table: str) -> LogFiles:
    """The log of a table that a path or URI names."""
    return LocalLog(table) if is_local(table) else StoreLog(table)


def commit_name(version: int) -> str:
    """The name of the file that holds a commit."""
    return f"{version:020d}.json"
