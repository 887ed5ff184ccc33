"""The tables of ingest with the locks of whoever writes them: what every chore between batches works on."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from scylla_spark.core.tables.progress import Mark, OpenHours
from scylla_spark.io.delta.spark_tables import HourBucket, Tables
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.schemas import ATTEMPT_LOGS, ATTEMPTS, COMPLETIONS, Table
from scylla_spark.services.ingest.progress import Progress
from scylla_spark.transforms.plan_rows import PLAN_TABLES

SMALL_BYTES: Final = 32 << 20
_QUIET: Final = {
    "spark.databricks.delta.optimize.minFileSize": str(SMALL_BYTES),
    "spark.databricks.delta.optimize.maxFileSize": str(2 * SMALL_BYTES),
    "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.threshold": str(8 * SMALL_BYTES),
    "spark.databricks.io.skipping.mdc.sortWithinFiles": "true",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",  # a vacuum has so many tasks; by default 10,000
}

_OF_OUTCOMES = frozenset(table.name for table in (COMPLETIONS, ATTEMPTS, *PLAN_TABLES.values()))


@dataclass(frozen=True)
class LockedTables:
    """The tables of one deployment, to change rows and files of.

    Attributes:
        tables: through Spark.
        readers: without Spark; they tell what files there are.
        progress: how far the tables are, and which hours are closed.
        tasks_lock: held by whoever writes `tasks`, `deferred` or `rejected`.
        outcomes_lock: held by whoever writes `completions` or `attempts`.
    """

    tables: Tables
    readers: TableReader
    progress: Progress
    tasks_lock: AbstractContextManager[Any]
    outcomes_lock: AbstractContextManager[Any]

    def lock_of(self, table: Table) -> AbstractContextManager[Any]:
        """The lock of a table's writers; lines of attempts are only appended, and who changes their files waits for nobody."""
        if table is ATTEMPT_LOGS:
            return nullcontext()
        return self.outcomes_lock if table.name in _OF_OUTCOMES else self.tasks_lock

    def rows(self, table: Table) -> Counter[HourBucket]:
        """Rows per (partition, hour), from the log alone; repeats included."""
        rows: Counter[HourBucket] = Counter()
        for file in self.readers.files(table):
            rows[HourBucket(file["partition_id"], file["hour"])] += file["rows"] or 0
        return rows

    @cached_property
    def quiet(self) -> Tables:
        """The tables in a session with settings of its own for files, which nobody else sees."""
        session = self.tables.spark.newSession()
        for name, value in _QUIET.items():
            session.conf.set(name, value)
        return Tables(session, self.tables.path)


def maybe_open(place: HourBucket, mark: Mark) -> bool:
    """Returns True if an hour of the partition that a mark is of may hold open tasks."""
    return OpenHours.of(mark).holds(place.hour)
