"""Rows to Arrow batches that are bounded by rows and by bytes, and from which only what cannot be converted is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from scylla_spark.schemas import Column

if TYPE_CHECKING:
    import pyarrow as pa

MAX_ROWS: Final = 20_000
MAX_BYTES: Final = 16 * 1024 * 1024  # of a batch, unless one row has more
FIXED_BYTES: Final = 256  # of a row's numbers and short names

T = TypeVar("T")


def built(
    items: list[T],
    build: Callable[[list[T]], pa.RecordBatch],
    aside: Callable[[T, Exception], list[dict[str, Any]]],
    columns: tuple[Column, ...],
) -> Iterator[pa.RecordBatch]:
    """A batch of all items; where they cannot be built together, batches of fewer, until the item at fault is alone.

    Args:
        items: at least one.
        build: makes a batch of some of them.
        aside: the rows that stand for an item that cannot be built, as cells by column name.
        columns: of the batches.
    """
    try:
        batch = build(items)
    except MemoryError:
        raise
    except Exception as error:
        if len(items) == 1:
            yield row_batch(aside(items[0], error), columns)
            return
        middle = len(items) // 2
        for part in (items[:middle], items[middle:]):
            yield from built(part, build, aside, columns)
        return
    yield batch


def chunks(items: Iterator[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Items in lists that bound the rows and the bytes of a batch."""
    chunk: list[T] = []
    size = 0
    for item in items:
        more = size_of(item)
        if chunk and (size + more > MAX_BYTES or len(chunk) >= MAX_ROWS):
            yield chunk
            chunk, size = [], 0
        chunk.append(item)
        size += more
    if chunk:
        yield chunk


def most_bytes(*texts: str | None) -> int:
    """Returns how large texts are together as UTF-8, at most."""
    return sum([len(text) if text.isascii() else 4 * len(text) for text in texts if text])


def row_batch(rows: list[dict[str, Any]], columns: tuple[Column, ...]) -> pa.RecordBatch:
    """A batch of rows given as cells by column name; what a row does not name is null."""
    names = {name for row in rows for name in row} or {columns[0].name}
    return column_batch({name: [row.get(name) for row in rows] for name in names}, columns)


def column_batch(values: Mapping[str, list[Any]], columns: tuple[Column, ...]) -> pa.RecordBatch:
    """A batch of all columns, null where there are no values; instants as datetimes or microseconds since the epoch."""
    import pyarrow as pa

    schema, count = arrow_schema(columns), len(next(iter(values.values())))
    arrays = [
        pa.array(values[field.name], field.type) if field.name in values else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Arrow schema of some columns of `schemas`."""
    import pyarrow as pa

    plain = {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "boolean": pa.bool_(),
        "date": pa.date32(),
        "binary": pa.binary(),
        "double": pa.float64(),
        "array<int>": pa.list_(pa.int32()),
        "array<string>": pa.list_(pa.string()),
        "timestamp": pa.timestamp("us", "UTC"),
    }

    def type_of(sql: str) -> pa.DataType:
        if not sql.startswith("struct<"):
            return plain[sql]
        fields = (field.split(":") for field in sql[len("struct<") : -1].split(","))
        return pa.struct([(name.strip(), type_of(kind.strip())) for name, kind in fields])

    return pa.schema([(column.name, type_of(column.type)) for column in columns])
