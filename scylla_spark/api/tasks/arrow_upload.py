"""The rows of an Arrow stream, read so that a small body can never become much memory.

An Arrow stream may say a lot in few bytes: compressed buffers, values that rows share, rows without any bytes. So it is read message by
message, only types whose rows own their values are taken, and what rows would take as Python values is reckoned before they are made.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import datetime
from typing import IO, Any, Final

from pydantic_core import from_json

from scylla_spark.api import problems
from scylla_spark.api.problems import Problem
from scylla_spark.clock import iso, to_us
from scylla_spark.errors import SchedulerError

Row = dict[str, Any]
_AT_ONCE: Final = 1_000
_MOST_METADATA: Final = 1024 * 1024  # bytes of what one message says of itself
_MOST_FIELDS: Final = 1_000
_MOST_WEIGHT: Final = 4 * 1024 * 1024  # bytes of the Python values of some rows
_VALUE_BYTES: Final = 64  # of a Python value, its text apart
_RECORD_BATCH: Final = 3  # MessageHeader of Arrow's format/Message.fbs …
_HEADER_TYPE, _HEADER, _COMPRESSION = 1, 2, 3  # … and numbers of fields of its tables Message and RecordBatch
_PLAIN: Final = (
    "null",
    "boolean",
    "integer",
    "floating",
    "decimal",
    "string",
    "large_string",
    "string_view",
    "binary",
    "large_binary",
    "binary_view",
    "fixed_size_binary",
    "date",
    "time",
    "timestamp",
    "duration",
)


def rows_of(file: IO[bytes]) -> Iterator[list[Row | Exception]]:
    """The rows of an Arrow stream, some at a time; an exception in place of a row that cannot be read.

    Args:
        file: the stream.

    Raises:
        Problem: it is none, or has what is not taken.
    """
    import pyarrow as pa

    try:
        reader = pa.ipc.MessageReader.open_stream(file)
        schema = pa.ipc.read_schema(_taken(next(reader), "schema"))
        _check(schema)
        for message in reader:
            batch = pa.ipc.read_record_batch(_taken(message, "record batch"), schema)
            batch.validate(full=True)
            for start in range(0, batch.num_rows, _AT_ONCE):
                yield from _parts(batch.slice(start, _AT_ONCE))
    except (pa.ArrowException, ValueError, OSError, StopIteration, struct.error) as error:
        raise _refused(f"it cannot be read: {str(error)[:300]}") from None


def _refused(why: str) -> Problem:
    return Problem(problems.INVALID, f"The Arrow stream is not accepted: {why}")


def _taken(message: Any, kind: str) -> Any:
    """A message that is what it must be here, and says how large it is by its bytes.

    Raises:
        Problem: it is another.
    """
    if message.type != kind:
        raise _refused(f"it has a {message.type} where a {kind} was expected. Columns must not be dictionaries.")
    if message.metadata.size > _MOST_METADATA:
        raise _refused(f"a message says more than {_MOST_METADATA} bytes of itself.")
    if kind == "record batch" and _is_compressed(message.metadata.to_pybytes()):
        raise _refused("its buffers are compressed. Write it without compression.")
    return message


def _is_compressed(metadata: bytes) -> bool:
    """Returns whether a record batch is compressed. pyarrow reports that only after it has unpacked the batch."""
    message = struct.unpack_from("<I", metadata)[0]
    if metadata[_field(metadata, message, _HEADER_TYPE)] != _RECORD_BATCH:
        return True
    header = _field(metadata, message, _HEADER)
    header += struct.unpack_from("<I", metadata, header)[0]
    return _field(metadata, header, _COMPRESSION) != 0


def _field(buffer: bytes, table: int, number: int) -> int:
    """Returns the position of a field of a FlatBuffers table; 0: the field is missing."""
    vtable = table - struct.unpack_from("<i", buffer, table)[0]
    place = 4 + 2 * number
    if place >= struct.unpack_from("<H", buffer, vtable)[0]:
        return 0
    offset = int(struct.unpack_from("<H", buffer, vtable + place)[0])
    return table + offset if offset else 0


def _check(schema: Any) -> None:
    """Refuses columns whose rows need not own their values, and what nobody could read.

    Raises:
        Problem: there is one.
    """
    if len(set(schema.names)) < len(schema.names):
        raise _refused("two columns have the same name.")
    left = [(field.name, field.type) for field in schema]
    seen = 0
    while left:
        seen += 1
        if seen > _MOST_FIELDS:
            raise _refused(f"it has more than {_MOST_FIELDS} columns and fields.")
        name, kind = left.pop()
        left += [(name, kind.field(number).type) for number in range(kind.num_fields)]
        if not _is_taken(kind):
            raise _refused(f"column {name[:100]!r} has the type {str(kind)[:100]}. Use plain values, lists or structs.")


def _is_taken(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_timestamp(kind) and kind.tz is not None:
        try:
            pa.scalar(0, kind).as_py()
        except Exception:  # whatever looks zones up, of a name that may be anything
            return False
    is_nested = pa.types.is_struct(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return is_nested or any(getattr(pa.types, f"is_{name}")(kind) for name in _PLAIN)


def _parts(some: Any) -> Iterator[list[Row | Exception]]:
    """Rows of a batch, as many at a time as may be in memory; of some that cannot be read, each for itself.

    Args:
        some: a record batch.
    """
    if sum(_weight(column) for column in some.columns) <= _MOST_WEIGHT:
        try:
            yield some.to_pylist()
            return
        except Exception as error:  # a value that Python cannot hold, such as a year beyond 9999
            found: Exception = ValueError(f"a value cannot be read ({type(error).__name__}: {str(error)[:200]})")
    else:
        found = ValueError(f"it is larger than {_MOST_WEIGHT} bytes")
    if some.num_rows == 1:
        yield [found]
        return
    half = some.num_rows // 2
    yield from _parts(some.slice(0, half))
    yield from _parts(some.slice(half))


def _weight(array: Any) -> int:
    """About how many bytes the values of an array take in Python, without making them."""
    import pyarrow as pa

    own, kind = len(array) * _VALUE_BYTES, array.type
    if not len(array):
        return 0
    if pa.types.is_struct(kind):
        return own + sum(_weight(array.field(number)) for number in range(kind.num_fields))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return own + _weight(array.values.slice(first, last - first))
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):  # 16 bytes each, of which four are the length
        lengths = memoryview(array.buffers()[1]).cast("i")[4 * array.offset : 4 * (array.offset + len(array)) : 4]
        return own + sum(lengths)
    if pa.types.is_fixed_size_binary(kind):
        return own + len(array) * int(kind.byte_width)
    return own + _text_bytes(array)


def _text_bytes(array: Any) -> int:
    """Bytes of the texts of an array; 0: it has none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    if not any(is_text(array.type) for is_text in texts):
        return 0
    return int(pc.sum(pc.binary_length(array)).as_py() or 0)


def task_of(row: Row) -> Row | Exception:
    """A row as the JSON object of a task: what is null is left out."""
    found = {name: value for name, value in row.items() if value is not None}
    try:
        if isinstance(found.get("scheduled_time"), datetime):
            found["scheduled_time"] = iso(to_us(found["scheduled_time"]))
        if isinstance(found.get("payload"), str):
            found["payload"] = from_json(found["payload"], allow_inf_nan=False)
    except (ValueError, OverflowError, SchedulerError) as error:
        return error
    return found
