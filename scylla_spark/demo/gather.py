"""Collects what the checks look at: the plan, the receiver's log and the tables (read without a JVM), as plain rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from scylla_spark.core.key import TaskKey
from scylla_spark.demo import handlers
from scylla_spark.demo.bad import BadRecord
from scylla_spark.demo.evidence import Completion, History, Reject, Wait, Want, visits
from scylla_spark.demo.load import Plan
from scylla_spark.demo.receiver import Receiver
from scylla_spark.io.delta.rows import in_us
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, REJECTED, TASKS, Table

if TYPE_CHECKING:
    import polars as pl

_KEY = ("scheduled_time", "ordering_id", "uniqueness_key")


def wanted(plan: Plan, acked: Mapping[str, int]) -> dict[TaskKey, Want]:
    """What must become of every accepted key.

    Args:
        plan: what was sent.
        acked: means → when Kafka had acknowledged all that was first sent by it.
    """
    return {
        key: Want(
            acked[task.via],
            task.outcome,
            task.attempts,
            task.value,
            reported=task.reported,
            timed=task.row.handler != handlers.ON_SPARK,
            extra=task.row.extra if task.trouble == "unknown fields" else None,
        )
        for key, task in plan.tasks.items()
    }


def history(
    plan: Plan,
    acked: Mapping[str, int],
    refused: Mapping[tuple[int, int], BadRecord],
    receiver: Receiver,
    readers: TableReader,
) -> History:
    """Everything that was planned and seen.

    Args:
        plan: what was to happen.
        acked: means → when Kafka had acknowledged all that was first sent by it, microseconds since the epoch.
        refused: (partition, offset) → the bad record that stands there.
        receiver: what the handlers delivered.
        readers: of the tables.
    """
    ended = _rows(readers, COMPLETIONS, *_KEY, "outcome", "attempt", "finished_at")
    waits = _rows(readers, ATTEMPTS, *_KEY, "attempt", "next_at")
    stored = _rows(readers, TASKS, *_KEY, "extra")
    return History(
        wanted=wanted(plan, acked),
        visits=visits(receiver.events()),
        completions=[Completion(TaskKey(*row[:3]), *row[3:]) for row in ended],
        waits=[Wait(TaskKey(*row[:3]), *row[3:]) for row in waits if row[4] is not None],
        refused={place: (record.reason, record.what) for place, record in refused.items()},
        rejects=[Reject(*row) for row in _rows(readers, REJECTED, "partition_id", "offset", "reason")],
        stored=[(TaskKey(*row[:3]), json.loads(row[3] or "{}")) for row in stored],
    )


def written(readers: TableReader) -> tuple[int, int]:
    """Rows of `completions` and of `rejected`."""
    import polars as pl

    ended, refused = (readers.frame(table).select(pl.len()).collect().item() for table in (COMPLETIONS, REJECTED))
    return ended, refused


def _rows(readers: TableReader, table: Table, *columns: str) -> Iterator[tuple[Any, ...]]:
    frame: pl.LazyFrame = readers.frame(table).select(*columns)
    return in_us(frame).collect().iter_rows()
