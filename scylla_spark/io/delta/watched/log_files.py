"""The files of a Delta table's log, as they lie in a folder of this machine or in an object store. No snapshot is ever loaded."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, Protocol, cast
from urllib.parse import unquote

from scylla_spark.core.plan.tables.commit import MAX_LINE
from scylla_spark.core.plan.tables.table_metadata import Header, as_header, read_header

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

FOLDER: Final = "_delta_log"
_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.(?:[^/]+\.)?(?:parquet|json)")


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


@contextmanager
def lines(log: LogFiles, name: str) -> Iterator[Iterator[bytes]]:
    """The lines of a file, one at a time; of one that is too long only so much that this can be seen.

    Raises:
        FileNotFoundError: it is not there.
    """
    with closing(log.opened(name)) as file:
        yield iter(lambda: file.readline(MAX_LINE + 2), b"")


class Listing(NamedTuple):
    """What of a log is still there.

    Attributes:
        commits: versions whose commits can be read, in order.
        checkpoints: version → files of its checkpoint.
    """

    commits: list[int]
    checkpoints: dict[int, list[str]]

    @property
    def newest(self) -> int:
        """The newest version; -1: there is none."""
        return max([*self.commits[-1:], *self.checkpoints], default=-1)

    @property
    def earliest(self) -> int:
        """The first version whose commit can be read; one more than the newest: none can."""
        return self.commits[0] if self.commits else self.newest + 1


def listing(log: LogFiles) -> Listing | None:
    """What of a log is still there; None: there is no table."""
    names = log.names()
    if names is None:
        return None
    checkpoints: dict[int, list[str]] = {}
    for name in sorted(names):
        if found := _CHECKPOINT.fullmatch(name):
            checkpoints.setdefault(int(found[1]), []).append(name)
    commits = sorted(int(found[1]) for found in map(_COMMIT.fullmatch, names) if found)
    return Listing(commits, checkpoints) if commits or checkpoints else None


def header_at(log: LogFiles, found: Listing, version: int) -> Header | None:
    """What was true of a table at a version, or at the first version after it of which the log still tells; None: it does not.

    Args:
        log: of the table.
        found: what is in it.
        version: of the table.
    """
    before = [one for one in found.commits if one <= version]
    after = [one for one in found.commits if one > version]
    for one in sorted({*before, *(point for point in found.checkpoints if point <= version)}, reverse=True):
        if header := _header_in(log, found, one):
            return header
    for one in sorted({*after, *(point for point in found.checkpoints if point > version)}):
        if header := _header_in(log, found, one):
            return header
    return None


def ids_in(log: LogFiles, found: Listing) -> Iterator[str]:
    """All ids that the log has for its table, the newest first: one that is replaced in place goes on in the same log under another.

    Args:
        log: of the table.
        found: what is in it.
    """
    for version in sorted({*found.commits, *found.checkpoints}, reverse=True):
        if header := _header_in(log, found, version):
            yield header.table_id


def _header_in(log: LogFiles, found: Listing, version: int) -> Header | None:
    for name in [*found.checkpoints.get(version, []), commit_name(version)]:
        try:
            header = _of_parquet(log, name) if name.endswith(".parquet") else _of_lines(log, name)
        except FileNotFoundError:
            continue
        if header:
            return header
    return None


def _of_lines(log: LogFiles, name: str) -> Header | None:
    with lines(log, name) as found:
        return read_header(found)


def _of_parquet(log: LogFiles, name: str) -> Header | None:
    """The header in a checkpoint; of its columns only that one is read."""
    from pyarrow import ArrowException, parquet

    try:
        with closing(log.opened(name)) as file:
            for batch in parquet.ParquetFile(file).iter_batches(columns=["metaData"]):
                for meta in batch.column(0).drop_null().to_pylist():
                    return as_header(_plain(meta))
    except (ArrowException, IndexError):  # half a file, or a part that holds no header
        return None
    return None


def _plain(meta: dict[str, Any]) -> dict[str, Any]:
    return {**meta, "configuration": dict(meta.get("configuration") or ())}
