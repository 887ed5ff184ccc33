"""Where the files of a Delta table are stored: in a folder of this machine or in an object store. No snapshot is ever loaded.

Every request to a store has a time limit, and no call keeps the interpreter's lock while it waits: the file system of delta-rs does.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, Protocol, cast

from scylla_spark.defaults import STORE_TIMEOUT
from scylla_spark.duration import duration

if TYPE_CHECKING:
    from datetime import timedelta

    from _typeshed import WriteableBuffer
    from obstore.store import ObjectStore
    from pyarrow import NativeFile

FOLDER: Final = "_delta_log"
STORE_LIMIT: Final = duration(STORE_TIMEOUT)


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

    def data(self, path: str) -> NativeFile:
        """A file of the table for reading, by its path relative to the table.

        Raises:
            FileNotFoundError: it is not there.
        """


class LocalLog:
    """A log in a folder of this machine."""

    def __init__(self, table: str) -> None:
        self._table = table
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

    def data(self, path: str) -> NativeFile:
        """A file of the table for reading, by its path relative to the table."""
        import pyarrow as pa

        return pa.OSFile(f"{self._table}/{path}")


class StoreLog:
    """A log in an object store, with the credentials of the environment.

    Args:
        table: URI in its canonical form.
        limit: time limit of a request, repeats included.
    """

    def __init__(self, table: str, limit: timedelta = STORE_LIMIT) -> None:
        self._table = table
        self._limit = limit

    @cached_property
    def _store(self) -> ObjectStore:
        return _store(self._table, self._limit)

    def stamp(self, name: str) -> Stamp | None:
        """The stamp of a file; None: it is not there."""
        import obstore

        try:
            with _store_errors():
                found = obstore.head(self._store, f"{FOLDER}/{name}")
        except FileNotFoundError:
            return None
        return Stamp(found["size"], int(found["last_modified"].timestamp() * 1_000_000))

    def opened(self, name: str) -> BinaryIO:
        """A file for reading."""
        return self._file(f"{FOLDER}/{name}")

    def data(self, path: str) -> NativeFile:
        """A file of the table for reading, by its path relative to the table."""
        import pyarrow as pa

        return pa.PythonFile(self._file(path), mode="r")

    def _file(self, path: str) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(_StoreFile(self._store, path), _READ_AHEAD))

    def names(self) -> list[str] | None:
        """Names of all files; None: there is no log."""
        import obstore

        with _store_errors():
            found = obstore.list(self._store, FOLDER).collect()
        paths = (one["path"].removeprefix(f"{FOLDER}/") for one in found)
        return [path for path in paths if "/" not in path] or None


_READ_AHEAD: Final = 1024 * 1024


class _StoreFile(io.RawIOBase):
    """A file in an object store; each read is a request."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        import obstore

        self._store, self._path, self._at = store, path, 0
        with _store_errors():
            self._size = obstore.head(store, path)["size"]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        import obstore

        target = memoryview(buffer).cast("B")
        wanted = min(len(target), self._size - self._at)
        if wanted <= 0:
            return 0
        with _store_errors():
            target[:wanted] = obstore.get_range(self._store, self._path, start=self._at, length=wanted)
        self._at += wanted
        return wanted


def is_local(table: str) -> bool:
    """Returns True if a canonical place is a folder of this machine."""
    return "://" not in table


def store_options(table: str, limit: timedelta) -> dict[str, str]:
    """Options of delta-rs that give each request to the store of a table a time limit; none for a folder.

    Args:
        table: canonical place.
        limit: of a request, repeats included.
    """
    text = f"{limit.total_seconds() * 1000:.0f}ms"
    return {} if is_local(table) else {"timeout": text, "connect_timeout": text, "retry_timeout": text}


def log_of(table: str, limit: timedelta = STORE_LIMIT) -> LogFiles:
    """The log of a table.

    Args:
        table: canonical place.
        limit: time limit of a request to a store, repeats included.
    """
    return LocalLog(table) if is_local(table) else StoreLog(table, limit)


def has_log(table: str, limit: timedelta = STORE_LIMIT) -> bool:
    """Returns True if there is a Delta table at a place; see `log_of`.

    Raises:
        OSError: the place cannot be reached.
    """
    return any(name.endswith((".json", ".parquet")) for name in log_of(table, limit).names() or ())


def commit_name(version: int) -> str:
    """The name of the file that holds a commit."""
    return f"{version:020d}.json"


def _store(table: str, limit: timedelta) -> ObjectStore:
    from obstore.store import from_url

    options: dict[str, Any] = {"timeout": limit, "connect_timeout": limit}
    if os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true"):  # given options replace those of the environment
        options["allow_http"] = True
    found: Any = from_url
    with _store_errors():
        return cast(
            "ObjectStore",
            found(
                table,
                client_options=options,
                retry_config={"retry_timeout": limit},
                credential_provider=_profile(table),
            ),
        )


def _profile(table: str) -> Any:
    """Credentials of AWS's configuration files, where boto3 is there to read them; None: those of the environment or the machine."""
    named = any(name in os.environ for name in ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"))
    if named or not table.startswith("s3://") or find_spec("boto3") is None:
        return None
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        return Boto3CredentialProvider()
    except ValueError:  # they hold none
        return None


@contextmanager
def _store_errors() -> Iterator[None]:
    """Errors of the store as OSError."""
    from obstore.exceptions import BaseError

    try:
        yield
    except BaseError as error:
        raise OSError(str(error)) from error
