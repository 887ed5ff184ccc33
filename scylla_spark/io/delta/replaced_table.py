"""A small table of which every write replaces all rows, such as `progress`: written without Spark, whose jobs cost a second of CPU each."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from scylla_spark.io.delta.open_table import OpenTable
from scylla_spark.schemas import LOG_PROGRESS, PROGRESS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from scylla_spark.io.delta.table_reader import TableReader
    from scylla_spark.schemas import Table

REPLACED: Final = (PROGRESS, LOG_PROGRESS)
"""The tables of this kind."""


class ReplacedTable:
    """Writes one table; thread safe. Spark must not write it: two libraries that commit to one log lose commits on some file systems.

    Args:
        readers: of the deployment.
        table: which one.
    """

    def __init__(self, readers: TableReader, table: Table) -> None:
        self._readers = readers
        self._lock = threading.Lock()
        self._open = OpenTable(f"{readers.path}/{table.name}", readers.limit)

    def replace(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replaces all rows, in one version of the table; a column that a row does not name is null.

        Raises:
            UnreachableError: the place of the tables does not answer.
        """
        import pyarrow as pa
        from deltalake import write_deltalake

        with self._lock, self._readers.reached():
            table = self._open.newest()
            schema = pa.schema(table.schema().to_arrow())  # a migrated table has its columns in another order
            write_deltalake(table, pa.Table.from_pylist(list(rows), schema=schema), mode="overwrite")

    def vacuum(self) -> None:
        """Deletes files that no version within the table's retention needs.

        Raises:
            UnreachableError: the place of the tables does not answer.
        """
        with self._lock, self._readers.reached():
            self._open.newest().vacuum(dry_run=False)
