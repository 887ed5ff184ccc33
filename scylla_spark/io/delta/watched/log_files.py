"""What of a Delta table's log is still there, and what it says of the table. No snapshot is ever loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final, NamedTuple

from scylla_spark.core.plan.tables.commit import MAX_LINE
from scylla_spark.core.plan.tables.table_metadata import Header, as_header, read_header
from scylla_spark.io.delta.log_place import LogFiles, commit_name

_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.(?:[^/]+\.)?(?:parquet|json)")


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
    """Returns what of a log is still there; None: there is no table."""
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
    """Returns what was true of a table at a version, or at the first version after it of which the log still tells; None: it does not.

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
