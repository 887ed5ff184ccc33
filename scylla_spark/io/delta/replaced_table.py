"""A small table of which every write replaces all rows, such as `progress`: written without Spark, whose jobs cost a second of CPU each."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from scylla_spark.errors import ConflictError
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
        self._name = table.name
        self._written: int | None = None  # the version that was written last; None: not known

    def replace(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replaces all rows, in one version of the table; a column that a row does not name is null.

        The caller's rows may be older than those that another process has written. So another version than the last one of this
        object is an error: a process that was frozen after it had checked that it may write finds out here.

        Raises:
            ConflictError: another process has written the table.
            UnreachableError: the place of the tables does not answer.
        """
        import pyarrow as pa
        from deltalake import write_deltalake

        with self._lock, self._readers.reached():
            table, written = self._open.newest(), self._written
            if written not in (None, self._open.state.version):
                raise ConflictError(
                    f"Another process has written the table {self._name!r}: version {self._open.state.version} follows {written}.",
                    hint="One ingest application at a time. Start this one again; it goes on from where the tables are.",
                )
            schema = pa.schema(table.schema().to_arrow())  # a migrated table has its columns in another order
            self._written = None  # whether a write that fails has landed is not known
            write_deltalake(table, pa.Table.from_pylist(list(rows), schema=schema), mode="overwrite")
            self._written = table.version()

    def vacuum(self) -> None:
        """Deletes files that no version within the table's retention needs.

        Raises:
            UnreachableError: the place of the tables does not answer.
        """
        with self._lock, self._readers.reached():
            self._written = None  # a vacuum writes versions, too
            # a vacuum that is not full leaves files behind that were removed before the last checkpoint
            self._open.newest().vacuum(dry_run=False, full=True)
