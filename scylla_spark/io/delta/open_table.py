"""A table that stays open: brought up to date at each look, and opened anew where another history lies in its place.

delta-rs goes on from the version that it knows. Where tables were restored from a copy, the log comes to that version again by other
commits, and to go on would mix both. So what the newest commit was that was read is remembered, and looked at again.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, NamedTuple

from scylla_spark.clock import boot_us
from scylla_spark.errors import SetupError
from scylla_spark.io.delta.log_place import Stamp, commit_name, is_local, log_of, store_options

if TYPE_CHECKING:
    from datetime import timedelta

    from deltalake import DeltaTable

_STORE_PAUSE_US: Final = 5_000_000  # between two looks at a quiet table's commit in an object store: each is a request


@cache
def require_table_packages() -> None:
    """Checks that what reads tables can be imported.

    Raises:
        SetupError: a package is not installed.
    """
    for name in ("deltalake", "obstore", "polars", "pyarrow"):
        if find_spec(name) is None:
            raise SetupError(f"{name} is not installed.", hint="pip install 'scylla-spark[tables]'")


class State(NamedTuple):
    """What of a table was read last; as long as it is the same, so are the files.

    Attributes:
        opened: how often the table was opened.
        version: of the table.
    """

    opened: int
    version: int


UNKNOWN: Final = State(0, -1)
"""Nothing was read yet."""


class _Commit(NamedTuple):
    """A commit of the log, and what its file was; None: it is not there."""

    version: int
    stamp: Stamp | None


class OpenTable:
    """One table; not thread safe.

    Args:
        path: canonical place.
        limit: time limit of a request to a store, repeats included.

    Attributes:
        state: what was read last.
    """

    def __init__(self, path: str, limit: timedelta) -> None:
        self.state = UNKNOWN
        self._path = path
        self._limit = limit
        self._log = log_of(path, limit)
        self._pause_us = 0 if is_local(path) else _STORE_PAUSE_US
        self._table: DeltaTable | None = None
        self._seen = _Commit(-1, None)
        self._next_look_us = 0

    def newest(self) -> DeltaTable:
        """The table as it is now.

        Raises:
            deltalake.exceptions.TableNotFoundError: there is none.
            OSError: its place cannot be reached.
        """
        if self._table is not None and not self._goes_on(self._table):
            self._table = None
        if self._table is None:
            self._table = self._opened()
        self.state = State(self.state.opened, _version(self._table))
        return self._table

    def _opened(self) -> DeltaTable:
        from deltalake import DeltaTable

        found = DeltaTable(self._path, storage_options=store_options(self._path, self._limit))
        self._saw(self._commit(_version(found)))
        self.state = State(self.state.opened + 1, _version(found))
        return found

    def _goes_on(self, known: DeltaTable) -> bool:
        """Brings the table up to date; returns whether it has the history that was read before."""
        from deltalake.exceptions import DeltaError

        try:
            known.update_incremental()
        except DeltaError:
            return False  # replaced or cleaned up behind our back
        version = _version(known)
        if version == self._seen.version and boot_us() < self._next_look_us:
            return True
        newest = self._commit(
            version
        )  # first, as the look at the one that was seen shows a log that is replaced meanwhile
        if newest != self._seen and self._commit(self._seen.version) != self._seen:
            return False
        self._saw(newest)
        return True

    def _saw(self, newest: _Commit) -> None:
        self._seen, self._next_look_us = newest, boot_us() + self._pause_us

    def _commit(self, version: int) -> _Commit:
        return _Commit(version, self._log.stamp(commit_name(version)))


def _version(table: DeltaTable) -> int:
    found: int = table.version() if callable(table.version) else table.version
    return found
