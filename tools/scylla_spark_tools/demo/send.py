"""Sends the plan: by DataFrame, by a foreign client and by our Python client; notes when Kafka had acknowledged it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from scylla_spark.client.scheduler import Scheduler
from scylla_spark.client.tasks.handle import TaskHandle
from scylla_spark.clock import from_us, now_us
from scylla_spark.config.settings import Settings
from scylla_spark.errors import SchedulerError
from scylla_spark_tools.demo import bad_records as bad
from scylla_spark_tools.demo.foreign import ForeignProducer
from scylla_spark_tools.demo.planned_tasks import CLIENT, FOREIGN, FRAME, Plan, Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEY: Final = ("scheduled_time", "ordering_id", "uniqueness_key")

_SEEN_US = 1_000_000  # within this the dispatcher has read what was acknowledged, also on a busy machine


class Sender:
    """All three clients; a context manager.

    Args:
        settings: with the broker's address.
        spark: session for the frames.
        plan: what to send.
    """

    def __init__(self, settings: Settings, spark: SparkSession, plan: Plan) -> None:
        self.acked: dict[str, int] = {}
        self.refused: dict[tuple[int, int], bad.BadRecord] = {}
        self._settings = settings
        self._spark = spark
        self._plan = plan
        self._client = Scheduler.connect(settings, spark=spark)
        self._foreign = ForeignProducer(settings.kafka.bootstrap_servers, settings.topics.tasks)
        self._handles: dict[Row, TaskHandle] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._foreign.close()
        self._client.close()

    def warm_up(self) -> None:
        """Sends a frame without rows: the first frame of a session takes several times as long as the next."""
        self._enqueue_frame([])

    def first(self) -> None:
        """Every task, once or twice, and the bad records."""
        self._enqueue_frame(self._plan.first)
        self.acked[FRAME] = now_us()
        self._foreign.send(row.wire() for row in self._plan.foreign)
        self.acked[FOREIGN] = now_us()
        for key, handler, queue, payload, _ in self._plan.client:
            self._client.enqueue(
                handler,
                payload,
                ordering_id=key.ordering_id,
                uniqueness_key=key.uniqueness_key,
                at=from_us(key.time_us),
                queue=queue,
            )
        self.acked[CLIENT] = now_us()
        settings = self._settings
        self.refused = bad.send(
            settings.kafka.bootstrap_servers, settings.topics.tasks, settings.partitions, self._plan.start_us
        )

    def changes(self, before_us: int) -> None:
        """Duplicates, overwrites and cancels of tasks that are not due yet.

        Args:
            before_us: when the first of these tasks is due.

        Raises:
            SchedulerError: it took longer than that, so nothing can be judged; or a cancel was answered as too late.
        """
        self._enqueue_frame(self._plan.second)
        cancels = self._plan.cancels
        self._client.cancel_df(self._frame(cancels[FRAME]))
        self._foreign.send(row.wire("cancel") for row in cancels[FOREIGN])
        answers = {row.key: self._client.task(row.key).cancel() for row in cancels[CLIENT]}
        if now_us() > before_us - _SEEN_US:
            raise SchedulerError(
                "This machine is too busy for the demo: its changes of tasks were acknowledged when those were due.",
                hint="Try again when it is quieter.",
            )
        late = [str(key) for key, answer in answers.items() if answer != "cancelled"]
        if late:
            raise SchedulerError(f"A cancel of a task that was not due yet was answered as too late: {late[0]}.")

    def again(self, rows: Sequence[Row]) -> None:
        """Foreign records of tasks that were sent before."""
        self._foreign.send(row.wire() for row in rows)

    def _enqueue_frame(self, rows: Sequence[Row]) -> None:
        from pyspark.sql import functions as F

        self._client.enqueue_df(
            self._frame(rows),
            handler=F.col("handler"),
            ordering_id="ordering_id",
            uniqueness_key="uniqueness_key",
            scheduled_time="scheduled_time",
            payload="payload",
            queue=F.col("queue"),
        )

    def _frame(self, rows: Sequence[Row]) -> DataFrame:
        import pyarrow as pa

        columns: dict[str, Any] = {
            "scheduled_time": pa.array([row.key.time_us for row in rows], pa.timestamp("us", "UTC")),
            "ordering_id": pa.array([row.key.ordering_id for row in rows], pa.string()),
            "uniqueness_key": pa.array([row.key.uniqueness_key for row in rows], pa.string()),
            "handler": pa.array([row.handler for row in rows], pa.string()),
            "queue": pa.array([row.queue for row in rows], pa.string()),
            "payload": pa.array([json.dumps(row.payload) for row in rows], pa.string()),
        }
        return self._spark.createDataFrame(pa.table(columns))
