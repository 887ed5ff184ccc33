"""Commits of a Delta table, read from the lines of one file of its log: what changed, and how much. Total: no bytes raise anything.

A commit that only puts files together (OPTIMIZE, Z-ORDER), deletes unneeded ones (VACUUM) or changes settings moves no rows, so it does
not count: what a commit does is taken from its files, which the protocol marks, and not from its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from scylla_spark.core.plan.tables.table_metadata import Header, as_header, json_object, physical_name
from scylla_spark.core.plan.triggers.trigger import Operation

MAX_LINE: Final = 16 * 2**20
MAX_PARTITIONS: Final = 100_000
_MOST: Final = 2**63 - 1
_OVERWRITES: Final = ("REPLACE", "CREATE OR REPLACE", "RESTORE", "CLONE")
_NAMED: Final[dict[str, Operation]] = {"DELETE": "delete", "TRUNCATE": "delete", "UPDATE": "update", "MERGE": "merge"}


class Count(NamedTuple):
    """What a commit did to a table, or to one partition of it.

    Attributes:
        rows_added: rows that are new or have new values; None: the log does not say.
        rows_removed: rows that were deleted or overwritten, not those with new values; None: the log does not say.
        bytes_added: size of the new files.
    """

    rows_added: int | None = 0
    rows_removed: int | None = 0
    bytes_added: int = 0


class Commit(NamedTuple):
    """One version of a table, as far as triggers care.

    Attributes:
        version: its number.
        timestamp_us: when it was written, as the table's history has it; microseconds since the epoch.
        operation: what kind of change; "" where it changes no rows.
        total: what it did to the table.
        by: column → value of a partition (None: null) → what it did there; only of columns that were asked for.
        header: the table from here on; None: as before.
        copies: it overwrites a part of the rows, and its files hold rows of before as well.
        uncounted: why it cannot be told which of its rows meet the conditions of a trigger, for people; empty: nobody asked, or it can.
    """

    version: int
    timestamp_us: int
    operation: Operation | str
    total: Count = Count()
    by: Mapping[str, Mapping[str | None, Count]] = {}
    header: Header | None = None
    uncounted: str = ""
    copies: bool = False

    @property
    def changes_data(self) -> bool:
        """Returns True if it changes rows."""
        return bool(self.operation)


class Unreadable(NamedTuple):
    """A file of the log that holds no commit.

    Attributes:
        version: its number.
        why: for people.
    """

    version: int
    why: str


def read_commit(
    version: int, lines: Iterable[bytes], written_us: int, by: Sequence[str] = (), header: Header | None = None
) -> Commit | Unreadable:
    """Reads one file of the log, line by line: memory is bounded by a line and by the partitions that are counted.

    Args:
        version: number of the file.
        lines: its lines.
        written_us: when the file was written (microseconds since the epoch), which is the time of commits that have no
            timestamp in order; 0: the store does not say.
        by: partition columns to count by.
        header: what was known of the table before.
    """
    found = _Found(tuple(by))
    found.learn(header)
    number = 0
    for number, line in enumerate(lines, start=1):
        if why := found.read(line):
            return Unreadable(version, f"Line {number} of version {version} {why}.")
    if number == 0:
        return Unreadable(version, f"Version {version} is empty: it is being written, or its writer has died.")
    return found.commit(version, written_us)


class _Files:
    """Sums over the files of a commit, or over those of one partition."""

    __slots__ = ("adds", "removes", "rows", "rows_gone", "size", "unsaid", "unsaid_gone")

    def __init__(self) -> None:
        self.adds = self.removes = self.rows = self.rows_gone = self.size = self.unsaid = self.unsaid_gone = 0

    def add(self, rows: int | None, size: int) -> None:
        self.adds += 1
        self.size = min(self.size + size, _MOST)
        self.rows = min(self.rows + (rows or 0), _MOST)
        self.unsaid += rows is None

    def remove(self, rows: int | None) -> None:
        self.removes += 1
        self.rows_gone = min(self.rows_gone + (rows or 0), _MOST)
        self.unsaid_gone += rows is None


@dataclass(slots=True)
class _Found:
    """What the lines read so far say."""

    by: tuple[str, ...]
    names: dict[str, str] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    header: Header | None = None
    total: _Files = field(default_factory=_Files)
    parts: dict[str, dict[str | None, _Files]] = field(default_factory=dict)

    def learn(self, header: Header | None) -> None:
        """From here on files name columns as a header says."""
        self.names = {column: physical_name(header, column) if header else column for column in self.by}

    def read(self, line: bytes) -> str:
        """Takes in a line; what is wrong with it, in words, else nothing."""
        if len(line) > MAX_LINE:
            return f"has more than {MAX_LINE} bytes"
        if not line.strip():
            return "is empty"
        value = json_object(line)
        if value is None:
            return "is no JSON object: the file is being written, or damaged"
        for kind, body in value.items():
            if isinstance(body, dict) and (why := self._action(kind, body)):
                return why
        return ""

    def _action(self, kind: str, body: dict[str, Any]) -> str:
        if kind == "commitInfo":
            self.info = body
        elif kind == "metaData":
            self.header = as_header(body) or self.header
            self.learn(self.header)
        elif kind in ("add", "remove") and body.get("dataChange") is not False:
            return self._file(kind, body)
        return ""

    def _file(self, kind: str, body: dict[str, Any]) -> str:
        stood_before = isinstance(body.get("deletionVector"), dict)  # a file with one was written by an earlier commit
        rows, size = _rows(body), 0 if stood_before else _whole(body.get("size")) or 0
        for files in (self.total, *self._partitions(body.get("partitionValues"))):
            if kind == "add":
                files.add(rows, size)
            else:
                files.remove(rows)
        if any(len(part) > MAX_PARTITIONS for part in self.parts.values()):
            return f"is of more than {MAX_PARTITIONS} partitions in one commit; so many are not counted"
        return ""

    def _partitions(self, values: Any) -> Iterable[_Files]:
        if not isinstance(values, dict):
            return
        for column, physical in self.names.items():
            if physical in values:
                value = values[physical]
                key = value if isinstance(value, str) and value else None
                yield self.parts.setdefault(column, {}).setdefault(key, _Files())

    def commit(self, version: int, written_us: int) -> Commit:
        ordered_ms = _whole(self.info.get("inCommitTimestamp"))
        begun_ms = _whole(self.info.get("timestamp")) or 0  # before it was tried, and tried again
        at_us = written_us or begun_ms * 1_000 if ordered_ms is None else ordered_ms * 1_000
        operation = self._operation()
        metrics = _metrics(self.info.get("operationMetrics"))
        by = {
            column: {
                value: _count(operation, files, metrics if len(parts) == 1 else {}) for value, files in parts.items()
            }
            for column, parts in self.parts.items()
        }
        total = _count(operation, self.total, metrics)
        copied = _copied(self.total, metrics) if operation == "overwrite" else 0
        if operation == "overwrite":
            by = {
                column: {value: _no_more(count, total) for value, count in parts.items()}
                for column, parts in by.items()
            }
        at_us = min(at_us, _MOST)
        return Commit(version, at_us, operation, total, by, self.header, copies=copied is None or copied > 0)

    def _operation(self) -> Operation | str:
        if not self.total.adds and not self.total.removes:
            return ""
        name = str(self.info.get("operation") or "").upper()
        parameters = self.info.get("operationParameters")
        said = parameters if isinstance(parameters, dict) else {}
        mode = str(said.get("mode") or said.get("outputMode") or "").upper()
        if name in _NAMED:
            return _NAMED[name]
        if mode in ("OVERWRITE", "COMPLETE") or name.startswith(_OVERWRITES):
            return "overwrite"
        if not self.total.removes:
            return "append"
        return "update" if self.total.adds else "delete"


def _count(operation: str, files: _Files, metrics: Mapping[str, int]) -> Count:
    """Returns what a commit did, by its metrics where files were rewritten, since those hold rows of before as well."""
    by_files = None if files.unsaid else files.rows
    gone = None if files.unsaid_gone else files.rows_gone
    match operation:
        case "append":
            added = metrics.get("numoutputrows", metrics.get("numaddedrows")) if by_files is None else by_files
            return Count(added, 0, files.size)
        case "overwrite":
            return _overwritten(files, metrics)
        case "delete":
            removed = metrics.get("numdeletedrows", gone if not files.adds else None)
            return Count(0, removed, files.size)
        case "update":
            return Count(metrics.get("numupdatedrows"), 0, files.size)
        case "merge":
            inserted, updated = metrics.get("numtargetrowsinserted"), metrics.get("numtargetrowsupdated")
            added = None if inserted is None or updated is None else inserted + updated
            return Count(added, metrics.get("numtargetrowsdeleted"), files.size)
    return Count()


def _overwritten(files: _Files, metrics: Mapping[str, int]) -> Count:
    """Returns what an overwrite did: where a predicate chose its rows, its files hold copies of those that stay."""
    copied = _copied(files, metrics)
    written = metrics.get("numoutputrows") if files.unsaid else files.rows
    added = metrics.get("numaddedrows") if copied is None or written is None else max(written - copied, 0)
    gone = None if files.unsaid_gone or copied is None else max(files.rows_gone - copied, 0)
    return Count(added, metrics.get("numdeletedrows", gone), files.size)


def _copied(files: _Files, metrics: Mapping[str, int]) -> int | None:
    """How many rows of before an overwrite has written once more: Spark says it, delta-rs how many are new; None: nobody can tell."""
    if "numcopiedrows" in metrics or "numaddedrows" not in metrics:
        return metrics.get("numcopiedrows", 0)
    return None if files.unsaid else max(files.rows - metrics["numaddedrows"], 0)


def _no_more(part: Count, total: Count) -> Count:
    """The count of one of several partitions: no more than that of all, whose copies the metrics tell."""
    if part.rows_added is None or total.rows_added is None:
        return part
    return part._replace(rows_added=min(part.rows_added, total.rows_added))


def _rows(body: Mapping[str, Any]) -> int | None:
    """Rows of a file less those that its deletion vector hides; None: the log does not say."""
    stats = body.get("stats")
    said = json_object(stats.encode(errors="replace")) if isinstance(stats, str) and len(stats) <= MAX_LINE else None
    rows = _whole(said.get("numRecords")) if said else None
    vector = body.get("deletionVector")
    if rows is None or not isinstance(vector, dict):
        return rows
    hidden = _whole(vector.get("cardinality"))
    return None if hidden is None else max(rows - hidden, 0)


def _metrics(said: Any) -> dict[str, int]:
    """Metrics by a name that writers agree on: one writes numUpdatedRows as text, another num_updated_rows as a number."""
    pairs = said.items() if isinstance(said, dict) else ()
    whole = ((name.replace("_", "").lower(), _whole(value)) for name, value in pairs)
    return {name: value for name, value in whole if value is not None}


def _whole(value: Any) -> int | None:
    if isinstance(value, str) and len(value) <= 19 and value.isascii() and value.isdigit():
        value = int(value)
    return value if type(value) is int and 0 <= value <= _MOST else None
