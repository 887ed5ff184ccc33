"""What was written to the tables lately: commits with their rows, files and times by phase, read from the logs of the tables alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.schemas import TABLES, Table

_ROWS: Final = ("numSourceRows", "numOutputRows", "numDeletedRows", "num_added_rows")
_ADDED: Final = ("numTargetFilesAdded", "numFiles", "numAddedFiles", "num_added_files")
_REMOVED: Final = ("numTargetFilesRemoved", "numRemovedFiles", "num_removed_files")
_LASTED: Final = ("executionTimeMs", "execution_time_ms")
_PHASES: Final = {"materialize": "materializeSourceTimeMs", "scan": "scanTimeMs", "rewrite": "rewriteTimeMs"}


def newest_commits(readers: TableReader, limit: int) -> list[dict[str, Any]]:
    """The newest commits of all tables, the newest first.

    Args:
        readers: of the deployment.
        limit: most commits of one table, and of all together.

    Returns:
        Rows with `table`, `version`, `at_us`, `operation`, `rows`, `files_added`, `files_removed`, `ms` and `phases` (name → ms); what a
        writer did not say is None. Of a MERGE the rows are those that came.
    """
    rows = [
        _commit(table, found) for table in TABLES if readers.exists(table) for found in readers.history(table, limit)
    ]
    return sorted(rows, key=lambda row: (row["at_us"], row["table"], row["version"]), reverse=True)[:limit]


def _commit(table: Table, found: Mapping[str, Any]) -> dict[str, Any]:
    said = found.get("operationMetrics")
    metrics = said if isinstance(said, dict) else {}
    phases = {phase: _number(metrics.get(name)) for phase, name in _PHASES.items()}
    return {
        "table": table.name, "version": found.get("version") or 0, "at_us": (_number(found.get("timestamp")) or 0) * 1000,
        "operation": str(found.get("operation") or "unknown")[:100], "rows": _first(metrics, _ROWS),
        "files_added": _first(metrics, _ADDED), "files_removed": _first(metrics, _REMOVED), "ms": _first(metrics, _LASTED),
        "phases": {phase: ms for phase, ms in phases.items() if ms is not None},
    }  # fmt: skip


def _first(metrics: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    return next((number for name in names if (number := _number(metrics.get(name))) is not None), None)


def _number(value: Any) -> int | None:
    """A whole number; Spark writes them as texts."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return None
