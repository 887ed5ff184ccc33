"""Asks all dispatchers of the deployment one question over HTTP."""

from __future__ import annotations

import json
from typing import Any, Final

from scylla_spark.config.settings import Settings
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.host.http_get import AnswerError, fetch
from scylla_spark.io.kafka.records_reader import LogReader

_TIMEOUT_S: Final = 5.0
_LARGEST: Final = 4 * 1024 * 1024


def owners(settings: Settings) -> list[str]:
    """Returns where the owner of each partition serves its state; "" for a partition without one.

    Raises:
        UnreachableError: the broker does not answer.
    """
    tables = TableReader(settings.tables_path)
    logs = LogReader(settings, tables.rules(), tables.marks)
    try:
        return [logs.owner(number) for number in range(settings.partitions)]
    finally:
        logs.close()


def asked(address: str, route: str) -> Any:
    """Returns the JSON value that a dispatcher answers with; None if it gives none. Any program may answer there."""
    try:
        return json.loads(fetch(f"{address}{route}", timeout_s=_TIMEOUT_S, largest=_LARGEST))
    except (AnswerError, ValueError, RecursionError):
        return None
