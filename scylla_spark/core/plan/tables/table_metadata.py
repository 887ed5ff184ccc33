"""What the log of a Delta table says of the table as a whole: who it is, how it is partitioned, how its files name columns. Total."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from scylla_spark.core.records import fast_json


class Header(NamedTuple):
    """What the log says of a table as a whole, from one version on.

    Attributes:
        table_id: identifies the table, wherever it lies.
        partition_columns: in the order in which they were declared.
        schema: JSON text of the columns.
        mapping: mode of column mapping; "none": files use the names that people use.
    """

    table_id: str
    partition_columns: tuple[str, ...] = ()
    schema: str = ""
    mapping: str = "none"


def read_header(lines: Iterable[bytes]) -> Header | None:
    """The last header that a file of the log holds; lines that hold no JSON are passed over."""
    header = None
    for line in lines:
        if b'"metaData"' in line[:1_000]:
            value = json_object(line)
            header = as_header(value.get("metaData") if value else None) or header
    return header


def as_header(meta: Any) -> Header | None:
    """The header in a metaData action; None: it has no id."""
    if not isinstance(meta, dict) or not isinstance(meta.get("id"), str):
        return None
    columns = meta.get("partitionColumns")
    settings = meta.get("configuration")
    return Header(
        meta["id"],
        tuple(map(str, columns)) if isinstance(columns, list) else (),
        str(meta.get("schemaString") or ""),
        str(settings.get("delta.columnMapping.mode", "none")) if isinstance(settings, dict) else "none",
    )


@lru_cache(maxsize=1_024)
def physical_name(header: Header, column: str) -> str:
    """The name that files use for a column."""
    if header.mapping == "none":
        return column
    schema = json_object(header.schema.encode(errors="replace")) or {}
    fields = schema.get("fields")
    for one in fields if isinstance(fields, list) else ():
        if isinstance(one, dict) and one.get("name") == column:
            inner = one.get("metadata")
            physical = inner.get("delta.columnMapping.physicalName") if isinstance(inner, dict) else None
            return physical if isinstance(physical, str) else column
    return column


def json_object(text: bytes) -> dict[str, Any] | None:
    """The JSON object that a text is; None: it is none."""
    try:
        value = fast_json.load(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
