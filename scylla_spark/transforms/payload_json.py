"""Payloads of frames as JSON text: structs, maps, variants and texts become what `Scheduler.enqueue` would send.

Texts are judged by the very code that will read the record; of other types it is known beforehand what can go wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import arrow_udf

from scylla_spark.core.records.command import payload_text
from scylla_spark.core.tasks.task import MAX_PAYLOAD_BYTES

_SAFE_BYTES: Final = (
    MAX_PAYLOAD_BYTES // 4
)  # texts up to here cannot grow past the limit when numbers are written another way
_MAY_OVERFLOW: Final = re.compile(r"\d[eE]|\d{300}|NaN|Inf")  # numbers that may be infinite when read
JSON_OPTIONS: Final = {"timeZone": "UTC", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}


def payload_column(payload: Column, kind: T.DataType, *, checked: bool) -> Column:
    """JSON text of the payload, or a reason (which never begins with a brace); null for none.

    Args:
        payload: struct, map, variant or JSON text.
        kind: its type.
        checked: whether text that is no JSON object gives a reason; else it travels as a JSON text.
    """
    if isinstance(kind, T.StructType | T.MapType):
        return F.to_json(payload, JSON_OPTIONS | {"ignoreNullFields": "false"})
    if isinstance(kind, T.VariantType):
        payload = F.to_json(payload)
    text = payload.cast("string")
    if kind == T.NullType():
        return text
    readable = F.when(text.isNull() | F.is_valid_utf8(text), text).otherwise(F.lit(""))  # Python raises on other bytes
    judged: Column = arrow_udf(_judge, T.StringType())(readable)  # type: ignore[call-overload]
    if checked:
        return judged
    # what is no object travels as a JSON text, for people to read in `rejected`
    quoted = F.to_json(F.array(F.make_valid_utf8(text)))
    return F.when(text.isNull() | judged.startswith("{"), judged).otherwise(
        F.substring(quoted, F.lit(2), F.length(quoted) - 2)
    )


def _judge(texts: pa.Array) -> pa.Array:
    return pa.array([None if text is None else normal(text) for text in texts.to_pylist()], pa.string())


def normal(text: str) -> str:
    """JSON text as `Scheduler.enqueue` would send its value, or the reason why it would be refused."""
    from pydantic_core import from_json

    try:
        values = from_json(f"[{text}]")  # in brackets: as deep as it will stand in the record, and exactly one value
        if len(values) != 1 or not isinstance(values[0], dict):
            return "payload_not_an_object"
    except ValueError:
        return "payload_not_an_object"
    if len(text) <= _SAFE_BYTES // 4 and not _MAY_OVERFLOW.search(text):
        return text.strip()
    try:
        return payload_text(values[0])
    except ValueError as error:
        return "payload_too_large" if "bytes" in str(error) else "payload_not_finite"


def payload_conditions(kind: T.DataType) -> list[tuple[str, Column]]:
    """Reasons, and when each holds, over the columns `payload` (of that type) and `text` (of `payload_column`)."""
    text = F.col("text")
    if not isinstance(kind, T.StructType | T.MapType):
        codes = ("payload_not_an_object", "payload_not_finite", "payload_too_large")
        return [] if kind == T.NullType() else [(code, text == code) for code in codes]
    size = F.octet_length(text)
    growth = F.regexp_count(text, F.lit(r"\dE-?\d")) * 16  # 1.0E15 is read and written again as 1000000000000000.0
    conditions = []
    if _most_bytes(kind) > _SAFE_BYTES:  # else the check need not write the JSON at all
        conditions.append(("payload_too_large", (size > _SAFE_BYTES) & (size + growth > MAX_PAYLOAD_BYTES)))
    odd = list(_not_finite(F.col("payload"), kind))
    if odd:
        either = odd[0]
        for other in odd[1:]:
            either = either | other
        conditions.append(("payload_not_finite", F.coalesce(either, F.lit(False))))
    return conditions


def _most_bytes(kind: T.DataType) -> float:
    """Returns how long the JSON text of such a value can become."""
    if isinstance(kind, T.StructType):
        return 2 + sum(4 + 6 * len(field.name.encode()) + _most_bytes(field.dataType) for field in kind.fields)
    narrow = isinstance(kind, T.NumericType | T.BooleanType | T.DateType | T.TimestampType | T.TimestampNTZType)
    return 64 if narrow else float("inf")


def _not_finite(value: Column, kind: T.DataType) -> Iterator[Column]:
    """Conditions under which a value of this type holds NaN or an infinity."""
    if isinstance(kind, T.FloatType | T.DoubleType):
        yield F.coalesce(F.isnan(value) | (F.abs(value) == float("inf")), F.lit(False))
    elif isinstance(kind, T.StructType):
        for field in kind.fields:
            yield from _not_finite(value.getField(field.name), field.dataType)
    elif isinstance(kind, T.ArrayType | T.MapType):
        inner = kind.elementType if isinstance(kind, T.ArrayType) else kind.valueType
        values = value if isinstance(kind, T.ArrayType) else F.map_values(value)
        if list(_not_finite(F.lit(None), inner)):
            yield F.coalesce(F.exists(values, lambda item: _any(item, inner)), F.lit(False))


def _any(item: Column, kind: T.DataType) -> Column:
    found = F.lit(False)
    for condition in _not_finite(item, kind):
        found = found | condition
    return found
