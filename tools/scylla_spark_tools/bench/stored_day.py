"""A day of tasks that stands in the tables from the start: most have ended, some twice, the others are still to come.

The rows are made and written by the deployment's own Spark session, column by column, in seconds. To enqueue and run them, and let ingest
merge them, takes ten minutes and more for a million, and is what other benchmarks measure.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from scylla_spark.clock import iso
from scylla_spark.core.tasks.key import HOUR_US, partition_of
from scylla_spark.core.tasks.task import FAILED, SUCCEEDED
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, TASKS, Table
from scylla_spark_tools.bench.deployment_under_test import say
from scylla_spark_tools.bench.handlers import NOOP

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from scylla_spark.config.settings import Settings

ENDED_US: Final = 22 * HOUR_US
"""How far back the first task was due."""
COMING_US: Final = 2 * HOUR_US
QUEUES: Final = 20
_PAUSE_US: Final = (
    1_800_000_000  # from now to the first that is to come, so that none of them runs while something is measured
)
_AGAIN: Final = 9  # of so many that have ended, one had failed once before
_FAILED: Final = 100  # and of so many, one has failed for good
_OFFSET: Final = -1  # in no log: whatever is enqueued or cancelled later is newer


@dataclass(frozen=True, slots=True)
class StoredDay:
    """What stands in the tables.

    Attributes:
        count: tasks.
        lanes: ordering ids that they go over in turn.
        now: when it was made, microseconds since the epoch.
    """

    count: int
    lanes: int
    now: int

    @property
    def ended(self) -> int:
        """Returns how many tasks have ended: those that come first."""
        return self.count * ENDED_US // (ENDED_US + COMING_US)

    @property
    def window(self) -> dict[str, str]:
        """The day, as routes take it."""
        return {"from": iso(self.now - ENDED_US), "to": iso(self.now + COMING_US + _PAUSE_US)}

    def lane(self, number: int) -> str:
        """The ordering id of a task."""
        return f"stored-{number % self.lanes}"

    def id(self, number: int) -> str:
        """The name of a task in paths."""
        first, step = self._line(ended=number < self.ended)
        return f"{iso(first + number * step)},{self.lane(number)},{number:09d}"

    def picked(self, calls: int) -> list[int]:
        """Numbers of tasks at random, the same for each number of calls."""
        rng = random.Random(calls)
        return [rng.randrange(self.count) for _ in range(calls)]

    def store(self, spark: SparkSession, settings: Settings) -> int:
        """Writes the rows; returns how many attempts stand in the tables beside the last one of each task.

        Args:
            spark: the session of the deployment's ingest: only one application may write.
            settings: of the deployment.
        """
        tasks, ended = self._tasks(spark, settings), F.col("n") < self.ended
        again = tasks.filter(ended & (F.col("n") % _AGAIN == 0))
        _append(settings, TASKS, tasks)
        _append(settings, COMPLETIONS, self._facts(tasks.filter(ended)))
        _append(settings, ATTEMPTS, _first_failures(again))
        say(f"{self.count} tasks stored, {self.ended} of which have ended")
        return -(-self.ended // _AGAIN)

    def _line(self, *, ended: bool) -> tuple[int, int]:
        """Returns when the tasks are due: that of number n at the first value plus n times the second, microseconds since the epoch."""
        if ended:
            return self.now - ENDED_US, ENDED_US // self.ended
        step = COMING_US // max(self.count - self.ended, 1)
        return self.now + _PAUSE_US - self.ended * step, step

    def _tasks(self, spark: SparkSession, settings: Settings) -> DataFrame:
        n, lane = F.col("n"), F.col("n") % self.lanes
        (past, past_step), (coming, coming_step) = self._line(ended=True), self._line(ended=False)
        due_us = F.when(n < self.ended, F.lit(past) + n * past_step).otherwise(F.lit(coming) + n * coming_step)
        partitions = ",".join(str(partition_of(self.lane(number), settings.partitions)) for number in range(self.lanes))
        return spark.range(self.count).toDF("n").select(
            "n", due_us.alias("due_us"),
            F.expr(f"array({partitions})")[lane.cast("int")].alias("partition_id"),
            F.floor(due_us / HOUR_US).cast("int").alias("hour"),
            F.timestamp_micros(due_us).alias("scheduled_time"),
            F.concat(F.lit("stored-"), lane.cast("string")).alias("ordering_id"),
            F.lpad(n.cast("string"), 9, "0").alias("uniqueness_key"),
            F.lit(NOOP).alias("handler"), F.concat(F.lit("reads-"), (lane % QUEUES).cast("string")).alias("queue"),
            F.lit(0).alias("priority"), F.format_string('{"n":%d}', n).alias("payload"),
            F.timestamp_micros(F.lit(self.now - ENDED_US - HOUR_US)).alias("enqueued_at"),
            F.lit(_OFFSET).cast("bigint").alias("data_offset"),
        )  # fmt: skip

    def _facts(self, tasks: DataFrame) -> DataFrame:
        """The last attempt of each, which has ended it; a few milliseconds late, once an hour by seconds."""
        failed, attempt = F.col("n") % _FAILED == 0, F.when(F.col("n") % _AGAIN == 0, 2).otherwise(1)
        late_us = 3_000 + F.col("n") % 7_919 + F.when(F.col("due_us") % HOUR_US < 30_000_000, 4_000_000).otherwise(0)
        return tasks.withColumns(
            _fact(attempt, F.col("due_us") + late_us)
            | {
                "outcome": F.when(failed, FAILED).otherwise(SUCCEEDED),
                "error_class": F.when(failed, "TimeoutError"),
                "error_message": F.when(failed, "The mail server did not answer within 30 s"),
                "result": F.when(~failed, "null"),
            }
        )


def _first_failures(tasks: DataFrame) -> DataFrame:
    """The attempt before the last."""
    more: Mapping[str, Column] = {
        "outcome": F.lit(FAILED), "error_class": F.lit("ConnectionError"), "error_message": F.lit("refused"),
        "next_at": F.timestamp_micros(F.col("due_us") + 3_000),
    }  # fmt: skip
    return tasks.withColumns(_fact(F.lit(1), F.col("due_us") + 1_000) | dict(more))


def _fact(attempt: Column, started_us: Column) -> dict[str, Column]:
    return {
        "attempt": attempt.cast("int"), "used": attempt.cast("int"), "epoch": F.lit(1).cast("bigint"),
        "planned_at": F.col("scheduled_time"), "started_at": F.timestamp_micros(started_us),
        "finished_at": F.timestamp_micros(started_us + 1_500), "fact_offset": F.lit(_OFFSET).cast("bigint"),
    }  # fmt: skip


def _append(settings: Settings, table: Table, rows: DataFrame) -> None:
    """One file for each folder, as ingest leaves hours that are over."""
    known = [name for name in table.names if name in rows.columns]
    folders = (
        rows.select(*known)
        .repartition(2, *table.partitioned_by)
        .sortWithinPartitions(*table.partitioned_by, "scheduled_time")
    )
    folders.write.format("delta").mode("append").save(f"{settings.tables_path}/{table.name}")
