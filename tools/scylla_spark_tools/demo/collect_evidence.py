"""Collects what the checks look at: the plan, the receiver's log and the tables (read without a JVM), as plain rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from scylla_spark.clock import to_us
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.io.delta.rows import in_us
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, REJECTED, TASKS, Table
from scylla_spark_tools.demo import handlers, schedules
from scylla_spark_tools.demo.evidence import Completion, History, Intended, Reject, ScheduledRun, Wait, Want, visits
from scylla_spark_tools.demo.planned_tasks import Plan
from scylla_spark_tools.demo.send import Sender
from scylla_spark_tools.demo.witness import Receiver

if TYPE_CHECKING:
    import polars as pl

_KEY = ("scheduled_time", "ordering_id", "uniqueness_key")


def wanted(plan: Plan, acked: Mapping[str, int]) -> dict[TaskKey, Want]:
    """Returns what must become of every accepted key.

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
            on_spark=task.row.handler == handlers.ON_SPARK,
            extra=task.row.extra if task.trouble == "unknown fields" else None,
        )
        for key, task in plan.tasks.items()
    }


def history(
    plan: Plan,
    intended: Intended,
    sender: Sender,
    receiver: Receiver,
    readers: TableReader,
) -> History:
    """Everything that was planned and seen.

    Args:
        plan: what was to happen.
        intended: what the schedules were to run.
        sender: what was acknowledged, and when, and where the bad records stand.
        receiver: what the handlers delivered.
        readers: of the tables.
    """
    ended = _rows(_enqueued(readers, COMPLETIONS), *_KEY, "outcome", "attempt", "finished_at")
    waits = _rows(_enqueued(readers, ATTEMPTS), *_KEY, "attempt", "next_at")
    stored = _rows(_enqueued(readers, TASKS), *_KEY, "extra")
    rejects = _rows(readers.frame(REJECTED), "partition_id", "offset", "reason")
    return History(
        wanted=wanted(plan, sender.acked),
        intended=intended,
        visits=visits(receiver.events()),
        completions=[Completion(TaskKey(*row[:3]), *row[3:]) for row in ended],
        waits=[Wait(TaskKey(*row[:3]), *row[3:]) for row in waits if row[4] is not None],
        refused={place: (record.reason, record.what) for place, record in sender.refused.items()},
        rejects=[Reject(*row) for row in rejects],
        stored=[(TaskKey(*row[:3]), json.loads(row[3] or "{}")) for row in stored],
        runs=scheduled(readers),
    )


def scheduled(readers: TableReader) -> list[ScheduledRun]:
    """Returns what the schedules have run, as the completions of their tasks tell.

    Args:
        readers: of the tables.
    """
    frame = readers.frame(COMPLETIONS).filter(_is_scheduled())
    return [_run(*row) for row in _rows(frame, "uniqueness_key", "outcome", "result")]


def _run(unique: str, outcome: str, result: str | None) -> ScheduledRun:
    name, planned, _ = unique.split("/")
    told = json.loads(result or "{}")
    return ScheduledRun(name, to_us(datetime.fromisoformat(planned)), outcome, schedules.versions(told))


def written(readers: TableReader) -> tuple[int, int]:
    """Rows of `completions`, without those of schedules, and of `rejected`."""
    import polars as pl

    frames = (_enqueued(readers, COMPLETIONS), readers.frame(REJECTED))
    ended, refused = (frame.select(pl.len()).collect().item() for frame in frames)
    return ended, refused


def _enqueued(readers: TableReader, table: Table) -> pl.LazyFrame:
    """Rows of the tasks that somebody has enqueued: all but those of schedules."""
    frame: pl.LazyFrame = readers.frame(table)
    return frame.filter(~_is_scheduled())


def _is_scheduled() -> pl.Expr:
    import polars as pl

    return pl.col("uniqueness_key").str.split("/").list.first().is_in(schedules.NAMES)


def _rows(frame: pl.LazyFrame, *columns: str) -> Iterator[tuple[Any, ...]]:
    return in_us(frame.select(*columns)).collect().iter_rows()
