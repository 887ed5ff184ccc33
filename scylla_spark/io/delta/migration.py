"""Tables of an older version brought to that of `schemas`: columns are added, properties set; no row is touched.

Each step can be repeated, and readers of either version go on meanwhile. Columns are only ever added: what is dropped or
changes its meaning gets a new name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scylla_spark.io.delta.deployment_record import stored_version
from scylla_spark.io.delta.new_tables import PROPERTIES
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.log import get_logger
from scylla_spark.schemas import TABLES, VERSION, Column, Table

if TYPE_CHECKING:
    from scylla_spark.io.delta.spark_tables import Tables

log = get_logger("ingest")


def missing(readers: TableReader, table: Table) -> list[Column]:
    """Columns of `schemas` that a table does not have."""
    there = readers.columns(table)
    return [column for column in table.columns if column.name not in there]


def migrate(tables: Tables) -> None:
    """Brings tables to the version of `schemas`; does nothing where they have it.

    Args:
        tables: of the deployment; the caller is the one that writes them.
    """
    readers = TableReader(tables.path)
    stored = readers.stored()
    if stored_version(stored) >= VERSION and not any(missing(readers, table) for table in TABLES):
        return
    for table in TABLES:
        _migrate(tables, table, missing(readers, table))
    tables.store(stored | {"schema_version": VERSION})


def _migrate(tables: Tables, table: Table, columns: list[Column]) -> None:
    """Adds columns to one table, and sets its properties."""
    place = tables.sql_name(table)
    if columns:
        added = ", ".join(f"`{column.name}` {column.type} COMMENT {_text(column.comment)}" for column in columns)
        tables.spark.sql(f"ALTER TABLE {place} ADD COLUMNS ({added})")
    properties = ", ".join(f"{_text(name)} = {_text(value)}" for name, value in PROPERTIES.items())
    tables.spark.sql(f"ALTER TABLE {place} SET TBLPROPERTIES ({properties})")
    log.info("table is migrated", table=table.name, added=[column.name for column in columns])


def _text(value: str) -> str:
    """A literal of Spark SQL; all that comes here stands in our own code."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
