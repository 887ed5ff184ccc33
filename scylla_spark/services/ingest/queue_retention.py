"""Queues whose history is kept for a shorter time than that of others: what their tasks carried and left behind goes earlier.

What stays until the history of all goes is that a key has ended, and how: it is what keeps it from running again.
"""

from __future__ import annotations

import json
import operator
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from scylla_spark import failpoint
from scylla_spark.core.queues.in_force import QueuesInForce
from scylla_spark.core.tasks.attempt_note import COLUMNS
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.output import outputs_place
from scylla_spark.defaults import DEFAULT_QUEUE
from scylla_spark.definitions.queue import Queue
from scylla_spark.duration import duration_us
from scylla_spark.io.delta.spark_tables import HourBucket, in_places
from scylla_spark.io.host.output_files import OutputFiles
from scylla_spark.log import get_logger
from scylla_spark.schemas import ATTEMPT_LOGS, ATTEMPTS, COMPLETIONS, KEY_NAMES, TASKS, Table
from scylla_spark.services.ingest.locked_tables import LockedTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = get_logger("ingest")

_KEPT: Final = "isolation"  # no data of the task
_CARRIED: Final = (
    "result", "error_class", "error_message", "error_stack", "work", *(name for name in COLUMNS if name != _KEPT),
)  # fmt: skip
"""What is cleared of a completion."""


class QueueRetention:
    """Deletes what single queues keep no longer.

    Args:
        kept: the tables.
        start: definitions of the settings, in force for queues of which nothing was put.
        outputs: files that attempts left behind.
        partitions: of the deployment.
    """

    def __init__(self, kept: LockedTables, start: Mapping[str, Queue], outputs: OutputFiles, partitions: int) -> None:
        self._kept = kept
        self._start = start
        self._outputs = outputs
        self._partitions = partitions
        self._seen: dict[
            str, Counter[HourBucket]
        ] = {}  # queue → rows of the hours that were looked through, as these were left

    def purge(self, most_us: int, is_past: Callable[[HourBucket, int], bool]) -> None:
        """Deletes what is older than the retention of its queue.

        Args:
            most_us: how long history is kept otherwise, microseconds; a queue cannot keep more.
            is_past: whether an hour is closed now, and older than a retention.
        """
        for queue, retention_us in sorted(self._shorter(most_us).items()):
            seen, rows = self._seen.setdefault(queue, Counter()), self._kept.rows(TASKS)
            if not any(seen[place] != number and is_past(place, retention_us) for place, number in rows.items()):
                continue
            with self._kept.tasks_lock:  # no batch may open one of them meanwhile
                rows = self._kept.rows(TASKS)
                places = {place for place in rows if seen[place] != rows[place] and is_past(place, retention_us)}
                if places:
                    self._purge(queue, places)
                rows = self._kept.rows(TASKS)
            self._seen[queue] = Counter({place: rows[place] for place in {*seen, *places} if rows[place]})

    def _shorter(self, most_us: int) -> dict[str, int]:
        """Queue → how long it keeps what it keeps for less, by its definition in force."""
        queues = QueuesInForce(self._start)
        stored = self._kept.readers.queue_definitions().items()
        queues.put({name: _kept_by(name, text) for name, (_, text) in stored})
        kept = {name: duration_us(one.retention) for name, one in queues.all().items() if one.retention is not None}
        return {name: us for name, us in kept.items() if us < most_us}

    def _purge(self, queue: str, places: Collection[HourBucket]) -> None:
        """Whatever names a task goes before its row: a crash in between is gone on from."""
        inside = in_places(places)
        ours = inside & (F.coalesce("queue", F.lit(DEFAULT_QUEUE)) == queue)
        tasks = self._kept.tables.spark.read.format("delta").load(self._kept.tables.location(TASKS))
        keys = tasks.where(ours).select(*KEY_NAMES).distinct()
        if keys.isEmpty():
            return
        self._remove_outputs(keys, places)
        for table in (ATTEMPTS, ATTEMPT_LOGS):
            with self._kept.lock_of(table):
                self._merge(table, keys, places).whenMatchedDelete().execute()
        failpoint.reach("ingest.purge.queue")
        with self._kept.lock_of(COMPLETIONS):
            there = reduce(operator.or_, (F.col(f"old.{name}").isNotNull() for name in _CARRIED))
            nothing = {name: F.lit(None) for name in _CARRIED}
            self._merge(COMPLETIONS, keys, places).whenMatchedUpdate(there, nothing).execute()
        self._delta(TASKS).delete(ours)
        log.info("purged a queue", queue=queue, hours=len({place.hour for place in places}))

    def _merge(self, table: Table, keys: DataFrame, places: Collection[HourBucket]) -> Any:
        same = (F.col(f"old.{name}") == F.col(f"gone.{name}") for name in KEY_NAMES)
        return (
            self._delta(table)
            .alias("old")
            .merge(keys.alias("gone"), reduce(operator.and_, same, in_places(places, "old.")))
        )

    def _delta(self, table: Table) -> Any:
        from delta.tables import DeltaTable

        self._kept.tables.before_commit()
        return DeltaTable.forPath(self._kept.tables.spark, self._kept.tables.location(table))

    def _remove_outputs(self, keys: DataFrame, places: Collection[HourBucket]) -> None:
        """Files are few, and lie in folders of their tasks: only hours that have any are looked through."""
        with_files = {HourBucket(*one) for one in self._outputs.hours()} & set(places)
        if not with_files:
            return
        rows = keys.where(in_places(with_files)).withColumn("us", F.unix_micros("scheduled_time"))
        for row in rows.select("us", "ordering_id", "uniqueness_key").toLocalIterator():
            self._outputs.remove_task(outputs_place(TaskKey(*row), 1, self._partitions))


def _kept_by(name: str, text: str | None) -> Queue | None:
    """The definition of a queue; None: it was deleted. One that cannot be read keeps its whole history."""
    try:
        return Queue.of(json.loads(text)) if text is not None else None
    except ValueError as error:
        log.error("the definition of a queue cannot be read: its history is kept", queue=name, why=str(error))
        return Queue(name=name)
