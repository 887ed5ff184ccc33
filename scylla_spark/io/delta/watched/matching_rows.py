"""How many of a commit's rows meet the conditions of a trigger: the one thing for which data are read, and only files of that commit.

Where files were rewritten they hold rows of before as well. Then rows of the new files are set against equal rows of the files that they
replace, by their hashes; what is left over is new or has new values. Overwritten rows are not looked at: what counts is what came,
unless a predicate chose them, so that the new files hold copies of the others.
"""

from __future__ import annotations

import operator
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from scylla_spark.core.plan.tables.changes import narrowed
from scylla_spark.core.plan.tables.commit import Commit, Count
from scylla_spark.core.plan.tables.table_metadata import Header, json_object, physical_name
from scylla_spark.core.plan.triggers.trigger import Condition
from scylla_spark.io.delta.log_place import LogFiles

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds

_COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_DECIMAL: Final = re.compile(r"decimal\((\d+), ?(\d+)\)", re.ASCII)
_TYPES: Final = {
    "string": "string", "long": "int64", "integer": "int32", "short": "int16", "byte": "int8", "double": "double",
    "float": "float", "boolean": "bool", "date": "date32",
}  # fmt: skip


class CannotCountError(Exception):
    """Rows of a table cannot be told apart by conditions; the text says why, for people."""


class UncountableError(Exception):
    """Rows of one commit cannot be told apart by conditions, now or ever; the text says why, for people."""


class _File(NamedTuple):
    """A file that a commit added or removed.

    Attributes:
        path: relative to the table's folder.
        values: of its partition: column → value (None: null).
        added: it was added.
        wrong: why its rows cannot be read, for people; empty: they can, as far as the log says.
    """

    path: str
    values: Mapping[str, str | None]
    added: bool
    wrong: str = ""


@dataclass(frozen=True, slots=True)
class RowFilter:
    """The conditions of a trigger on one table.

    Attributes:
        log: of the table.
        header: what is true of the table at the commit.
        where: conditions, which hold all together.
        by: partition columns to count by.
    """

    log: LogFiles
    header: Header
    where: Sequence[Condition]
    by: Sequence[str] = ()

    def narrowed(self, commit: Commit, lines: Iterable[bytes]) -> Commit:
        """The commit with counts of rows that meet the conditions only.

        Args:
            commit: as the log tells of it; it changes rows.
            lines: of its file.

        Returns:
            The commit. Where files have deletion vectors, lie elsewhere, or are deleted already, the rows are unknown, and it says why.

        Raises:
            CannotCountError: a column does not exist, or cannot be compared with its value.
            OSError: data cannot be read.
        """
        from pyarrow import ArrowException

        types = self._types()
        try:
            kept = [file for file in _files(lines) if self._may_match(file, types)]
        except UncountableError as error:
            return uncounted(commit, str(error))
        parts: dict[tuple[str | None, ...], list[_File]] = defaultdict(list)
        for file in kept:
            parts[tuple(file.values.get(self._stored(column)) for column in self.header.partition_columns)].append(file)
        counts, why = dict[tuple[str | None, ...], Count](), ""
        for values, files in parts.items():
            try:
                counts[values] = _at_most(
                    commit.total, self._count("merge" if commit.copies else commit.operation, files)
                )
            except UncountableError as error:
                counts[values], why = _unknown(commit.operation), str(error)
            except (ArrowException, ArithmeticError, TypeError, ValueError) as error:
                raise CannotCountError(f"the conditions do not fit the columns: {error}") from error
        total = _at_most(commit.total, _sum(counts.values(), commit.total.bytes_added))
        return narrowed(commit, total, self._by(counts, commit))._replace(uncounted=why)

    def _types(self) -> dict[str, Any]:
        """Types of the columns, as the schema has them; all that the conditions name are there."""
        known = self._columns()
        for condition in self.where:
            if condition.column not in known:
                raise CannotCountError(f"it has no column {condition.column!r}")
        return known

    def _stored(self, column: str) -> str:
        """The name of a column in files and partition values, which column mapping makes another than people use."""
        return physical_name(self.header, column)

    def _columns(self) -> dict[str, Any]:
        schema = json_object(self.header.schema.encode(errors="replace")) or {}
        return {str(one.get("name")): one.get("type") for one in schema.get("fields", []) if isinstance(one, dict)}

    def _may_match(self, file: _File, types: Mapping[str, Any]) -> bool:
        partitions = self.header.partition_columns
        return all(
            _holds(one, file.values.get(self._stored(one.column)), types[one.column]) for one in self.where if one.column in partitions
        )  # fmt: skip

    def _count(self, operation: str, files: Sequence[_File]) -> Count:
        """Rows of one partition.

        Raises:
            UncountableError: they cannot be read.
        """
        if why := next((one.wrong for one in files if one.wrong), ""):
            raise UncountableError(why)
        try:
            return self._counted(operation, files)
        except FileNotFoundError as error:
            raise UncountableError("data were deleted before they were counted") from error

    def _counted(self, operation: str, files: Sequence[_File]) -> Count:
        came, went = [one for one in files if one.added], [one for one in files if not one.added]
        if operation == "overwrite" or not went:
            return Count(sum(map(self._rows, came)), 0)
        new, old = Counter[int](), Counter[int]()
        schema = self._schema([*came, *went])
        for sums, rewritten in ((new, came), (old, went)):
            for file in rewritten:
                sums.update(self._hashes(file, schema))
        if operation == "delete":
            return Count(0, (old - new).total())
        return Count((new - old).total(), 0)

    def _by(self, counts: Mapping[tuple[str | None, ...], Count], commit: Commit) -> dict[str, dict[str | None, Count]]:
        found: dict[str, dict[str | None, Count]] = {}
        for column in self.by:
            at = self.header.partition_columns.index(column)
            groups: dict[str | None, list[Count]] = defaultdict(list)
            for values, count in counts.items():
                groups[values[at]].append(count)
            sizes = {value: count.bytes_added for value, count in commit.by.get(column, {}).items()}
            found[column] = {value: _sum(group, sizes.get(value, 0)) for value, group in groups.items()}
        return found

    # -- data -----------------------------------------------------------------------------------------------------------

    def _rows(self, file: _File) -> int:
        scanner = self._scanner(file, self._schema([file]))
        return scanner.count_rows() if scanner else 0

    def _hashes(self, file: _File, schema: pa.Schema) -> Iterator[int]:
        import polars as pl

        scanner = self._scanner(file, schema)
        for batch in scanner.to_batches() if scanner else ():
            frame = pl.from_arrow(batch)
            assert isinstance(frame, pl.DataFrame)
            yield from frame.hash_rows()

    def _fragment(self, file: _File) -> ds.Fragment:
        import pyarrow.dataset as ds

        return ds.ParquetFileFormat(coerce_int96_timestamp_unit="us").make_fragment(self.log.data(file.path))

    def _schema(self, files: Sequence[_File]) -> pa.Schema:
        """The columns by which rows of some files are compared: those of the table, in order of their names, as the first file has them.

        A file that is older than a column has it as null, as whoever reads the table sees it: else a row that was only copied into
        a newer file would seem to be another.

        Args:
            files: newer ones first; what is known of one is let go of before the next is opened.
        """
        import pyarrow as pa

        columns, found = {self._stored(column) for column in self._columns()}, dict[str, pa.Field]()
        for file in files:
            for field in _plain(self._fragment(file).physical_schema):
                if field.name in columns:
                    found.setdefault(field.name, field)
        return pa.schema([found[name] for name in sorted(found)])

    def _scanner(self, file: _File, schema: pa.Schema) -> ds.Scanner | None:
        """Reads the rows of a file that meet the conditions, with the columns of a schema; None: there are none."""
        condition = self._condition(schema)
        if condition is False:
            return None
        return self._fragment(file).scanner(schema=schema, filter=condition)

    def _condition(self, schema: pa.Schema) -> Any:
        """The conditions on columns of files, as an expression; None: there are none; False: no row can meet them."""
        import pyarrow.dataset as ds

        found = None
        for one in self.where:
            if one.column in self.header.partition_columns:
                continue
            name = self._stored(one.column)
            if name not in schema.names:  # the file is older than the column, so it is null in all its rows
                return False
            part = _COMPARE[one.comparison](ds.field(name), _literal(one.value, schema.field(name).type))
            found = part if found is None else found & part
        return found


def uncounted(commit: Commit, why: str) -> Commit:
    """A commit of whose rows nobody can tell how many meet conditions.

    Args:
        commit: as the log tells of it.
        why: for people.
    """
    by = {
        column: {key: _unknown(commit.operation)._replace(bytes_added=one.bytes_added) for key, one in parts.items()}
        for column, parts in commit.by.items()
    }
    total = _unknown(commit.operation)._replace(bytes_added=commit.total.bytes_added)
    return commit._replace(total=total, by=by, uncounted=why)


def _at_most(said: Count, counted: Count) -> Count:
    """A count that is no more than the log says of the commit, where it says that."""
    pairs = zip(counted[:2], said[:2], strict=True)
    added, removed = (rows if rows is None or most is None else min(rows, most) for rows, most in pairs)
    return Count(added, removed, counted.bytes_added)


def _unknown(operation: str) -> Count:
    return Count(0, None) if operation == "delete" else Count(None, 0)


def _files(lines: Iterable[bytes]) -> Iterator[_File]:
    """Files that change rows.

    Raises:
        UncountableError: it does not stand there of which partition one of them is.
    """
    for line in lines:
        for kind, body in (json_object(line) or {}).items():
            if kind not in ("add", "remove") or not isinstance(body, dict) or body.get("dataChange") is False:
                continue
            path, values, wrong = unquote(str(body.get("path"))), body.get("partitionValues"), ""
            if isinstance(body.get("deletionVector"), dict):
                wrong = "rows are deleted by deletion vectors"
            elif "://" in path or path.startswith("/") or ".." in path.split("/"):
                wrong = "files lie outside of the table's folder"
            if not isinstance(values, dict):
                raise UncountableError("the log does not say of which partition a removed file was")
            yield _File(path, {name: value or None for name, value in values.items()}, kind == "add", wrong)


def _holds(condition: Condition, text: str | None, type_name: Any) -> bool:
    """Returns True if a partition meets a condition."""
    import pyarrow as pa

    if text is None:
        return False
    try:
        kind = _arrow_type(type_name)
        value = _partition_value(text, kind)
        is_plain = not isinstance(condition.value, str) and not pa.types.is_decimal(kind)
        wanted = condition.value if is_plain else _literal(condition.value, kind).as_py()
        return bool(_COMPARE[condition.comparison](value, wanted))
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError) as error:
        raise CannotCountError(f"the partition column {condition.column!r} cannot be compared: {error}") from error


def _arrow_type(name: Any) -> pa.DataType:
    import pyarrow as pa

    if isinstance(name, str) and name in _TYPES:
        return pa.type_for_alias(_TYPES[name])
    if name in ("timestamp", "timestamp_ntz"):
        return pa.timestamp("us", "UTC" if name == "timestamp" else None)
    if isinstance(name, str) and (found := _DECIMAL.fullmatch(name)):
        return pa.decimal128(int(found[1]), int(found[2]))
    raise CannotCountError(f"a partition column of type {name!r} cannot be compared")


def _partition_value(text: str, kind: pa.DataType) -> Any:
    """The value of a partition, whose text the Delta protocol defines; instants without a zone are in UTC.

    Raises:
        ValueError: it is none of that type.
        ArithmeticError: likewise.
    """
    import pyarrow as pa

    if pa.types.is_decimal(kind):
        return Decimal(text)
    if pa.types.is_timestamp(kind):
        moment = datetime.fromisoformat(text)
        zone = UTC if kind.tz is not None else None
        return moment.replace(tzinfo=zone) if moment.tzinfo is None or zone is None else moment
    return pa.scalar(text).cast(kind).as_py()


def _plain(schema: pa.Schema) -> pa.Schema:
    """The same columns without views, in which delta-rs writes texts and by which pyarrow cannot filter."""
    import pyarrow as pa

    return pa.schema([field.with_type(_without_views(field.type)) for field in schema])


def _without_views(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_views(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_without_views(kind.key_type), _without_views(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_views(field.type)) for field in kind])
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind, kind)


def _literal(value: Any, kind: pa.DataType) -> pa.Scalar:
    """A value to compare with: texts as what the column holds, such as dates; numbers as they are."""
    import pyarrow as pa

    if pa.types.is_decimal(kind) and not isinstance(value, bool):
        return pa.scalar(Decimal(str(value)))  # of its own scale, which comparing widens
    return pa.scalar(value).cast(kind) if isinstance(value, str) else pa.scalar(value)


def _sum(counts: Iterable[Count], size: int) -> Count:
    found = list(counts)
    return Count(_total(one.rows_added for one in found), _total(one.rows_removed for one in found), size)


def _total(rows: Iterable[int | None]) -> int | None:
    """The sum; None: one of them is unknown."""
    total = 0
    for one in rows:
        if one is None:
            return None
        total += one
    return total
