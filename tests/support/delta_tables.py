"""Small Delta tables of our schemas, written without a JVM."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from datetime import UTC, date, datetime
from functools import cache
from typing import Any, TypeVar

import pyarrow as pa
from deltalake import write_deltalake

from scylla_spark.clock import from_us
from scylla_spark.core.tasks.key import TaskKey, partition_of
from scylla_spark.schemas import DEPLOYMENT, TABLES, Table
from scylla_spark.transforms.bounded_arrow import arrow_schema

PARTITIONS = 4
T = TypeVar("T")


def append(path, table: Table, rows: list[dict]) -> None:
    """Appends rows; missing columns are null."""
    schema = arrow_schema(table.columns)
    filled = [{name: row.get(name) for name in table.names} for row in rows]
    data = pa.Table.from_pylist(filled, schema=schema)
    write_deltalake(f"{path}/{table.name}", data, mode="append", partition_by=list(table.partitioned_by) or None)


def make(path, partitions: int = PARTITIONS) -> None:
    """All tables, empty but for the deployment's rules."""
    _made(partitions).link(path)


def make_filled(path: str, fill: Callable[..., T], *words: Any) -> T:
    """All tables as a function fills them, which it does once per process.

    Args:
        path: of the tables.
        fill: is given a folder of empty tables, and `words`.
        *words: what else it needs.

    Returns:
        What it has returned.
    """
    template, found = _filled(fill, *words)
    template.link(path)
    return found


class _Template:
    """A folder that others are made of by links, at a twentieth of what it costs to fill them: nobody ever changes a file of a Delta table.

    Args:
        path: of the folder, complete.
    """

    def __init__(self, path: str) -> None:
        walk = [(os.path.relpath(folder, path), names) for folder, _, names in os.walk(path)]
        self._path = path
        self._folders = [folder for folder, _ in walk if folder != "."]
        self._files = [f"{folder}/{name}" for folder, names in walk for name in names]

    def link(self, path: object) -> None:
        """Makes a folder with the same content."""
        os.makedirs(str(path), exist_ok=True)
        for folder in self._folders:
            os.mkdir(f"{path}/{folder}")
        for file in self._files:
            os.link(f"{self._path}/{file}", f"{path}/{file}")


@cache
def _made(partitions: int) -> _Template:
    path = _folder()
    for table in TABLES:
        append(path, table, [])
    values = {
        "partitions": partitions,
        "grace_ms": 10_000,
        "retention_ms": 86_400_000,
        "default_handler": "null",
        "topic_ids": "{}",
    }
    append(path, DEPLOYMENT, [{"name": name, "value": str(value)} for name, value in values.items()])
    return _Template(path)


@cache
def _filled(fill: Callable[..., T], *words: Any) -> tuple[_Template, T]:
    path = _folder()
    make(path)
    found = fill(path, *words)
    return _Template(path), found


def _folder() -> str:
    path = tempfile.mkdtemp(prefix="scyllaspark-tables-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def key_columns(key: TaskKey, partitions: int = PARTITIONS) -> dict:
    return {
        "partition_id": partition_of(key.ordering_id, partitions), "hour": key.hour, "scheduled_time": key.scheduled_time,
        "ordering_id": key.ordering_id, "uniqueness_key": key.uniqueness_key,
    }  # fmt: skip


def task(key: TaskKey, offset: int = 0, **more) -> dict:
    known = {
        "handler": "h",
        "queue": "default",
        "priority": 0,
        "payload": "{}",
        "enqueued_at": from_us(key.time_us - 1000),
    }
    return key_columns(key) | known | {"data_offset": offset} | more


def fact(key: TaskKey, attempt: int, outcome: str, offset: int = 0, **more) -> dict:
    times = {"started_at": key.scheduled_time, "finished_at": None if outcome == "started" else key.scheduled_time}
    return (
        key_columns(key)
        | {"attempt": attempt, "outcome": outcome, "epoch": 1, "used": attempt, "fact_offset": offset}
        | times
        | more
    )


def rejected(offset: int, reason: str, value: bytes, when: datetime) -> dict:
    return {
        "day": date(when.year, when.month, when.day), "topic": "tasks", "partition_id": 0, "offset": offset, "appended_at": when,
        "reason": reason, "detail": f"because {reason}", "key": b"k", "value": value, "value_bytes": len(value),
    }  # fmt: skip


def at(hour: int, minute: int = 0, second: int = 0, us: int = 0) -> int:
    """Microseconds of a time on one day in the future."""
    return int(datetime(2099, 1, 2, hour, minute, second, tzinfo=UTC).timestamp()) * 1_000_000 + us
