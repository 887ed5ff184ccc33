"""Floors: the least that the same libraries and this machine can do, measured beside each benchmark.

Timer wake-up, Kafka echo, pool and sequential round trips run in helper processes; sink and append, which need the same Spark
session, are at the end.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kafka import TopicPartition

from scylla_spark.clock import boot_us, now_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import SUCCEEDED, Invocation, Outcome
from scylla_spark.executors.interface import Executor
from scylla_spark.executors.local.pool import LocalPool
from scylla_spark.handlers.description import LOCAL
from scylla_spark.io.kafka.topic_setup import plan_topics
from scylla_spark.io.kafka.topics import admin, consumer, producer, spark_options
from scylla_spark_tools.bench.handlers import MODULE, NOOP
from scylla_spark_tools.bench.helper_process import Channel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ECHO_TOPIC: Final = "bench-echo"
SINK_TOPIC: Final = "bench-sink"
_TASK: Final = (
    "orderingId string, uniquenessKey string, scheduledTime timestamp, handler string, queue string, "
    "taskData struct<n: bigint>"
)


def wait_until(at_us: int) -> int:
    """Sleeps until a wall time; returns how many microseconds too late it woke up."""
    while (left := at_us - now_us()) > 0:
        select.select([], [], [], left / 1e6)
    return -left


def timed(call: Callable[[], object]) -> int:
    """Microseconds that a call takes."""
    begun = boot_us()
    call()
    return boot_us() - begun


def make_topic(settings: Settings, name: str, partitions: int) -> None:
    """A topic with the settings of `tasks`.

    Args:
        settings: with the broker, and the other properties of the topic.
        name: of the topic; one that exists stays as it is.
        partitions: how many.
    """
    configs = plan_topics(settings)[settings.topics.tasks]["configs"]
    client = admin(settings)
    try:
        if name not in set(client.list_topics()):
            plan = {"num_partitions": partitions, "replication_factor": settings.topics.replication, "configs": configs}
            client.create_topics({name: plan}, wait_for_metadata=True)
    finally:
        client.close()


def timer(channel: Channel, settings: Settings, *, count: int, period_us: int) -> list[int]:
    """Returns how late a bare process wakes up for the instants of a schedule, microseconds.

    Args:
        channel: to the process that measures; it says when to begin.
        settings: not used; all floors are called alike.
        count: instants.
        period_us: time between two of them, microseconds.
    """
    channel.tell("ready")
    begin_us = channel.hear()
    return [wait_until(begin_us + index * period_us) for index in range(count)]


def echo(channel: Channel, settings: Settings, *, count: int, limit_s: float) -> list[int]:
    """Receives stamped records with a consumer like that of the tail of `tasks`; microseconds from stamp to receipt.

    Args:
        channel: to the process that measures.
        settings: with the broker.
        count: records to receive.
        limit_s: seconds after which it gives up.
    """
    late: list[int] = []
    with consumer(settings) as reader:
        _read_from_end(reader, settings, ECHO_TOPIC, settings.partitions)
        channel.tell("ready")
        begun = boot_us()
        while len(late) < count and boot_us() - begun < limit_s * 1e6:
            for records in reader.poll(timeout_ms=100).values():
                received = now_us()
                late += [received - int(record.value) for record in records]
    return late


def round_trips(channel: Channel, settings: Settings, *, seconds: float, size: int) -> dict[str, float]:
    """Sends a small record and reads it back, one after the other: what one durable fact costs at least.

    Args:
        channel: to the process that measures.
        settings: with the broker.
        seconds: how long.
        size: of a record, bytes.
    """
    count, value = 0, b"x" * size
    with producer(settings, linger_ms=0) as sender, consumer(settings) as reader:
        _read_from_end(reader, settings, ECHO_TOPIC, 1)
        for _ in range(20):
            _round_trip(sender, reader, value)
        begun = boot_us()
        while boot_us() - begun < seconds * 1e6:
            _round_trip(sender, reader, value)
            count += 1
        return {"rate_per_s": count / ((boot_us() - begun) / 1e6)}


def _round_trip(sender: Any, reader: Any, value: bytes) -> None:
    sender.send(ECHO_TOPIC, value, partition=0)
    while not reader.poll(timeout_ms=1_000):
        pass


def _read_from_end(reader: Any, settings: Settings, topic: str, partitions: int) -> None:
    places = [TopicPartition(topic, number) for number in range(partitions)]
    reader.assign(places)
    for place, end in reader.end_offsets(places).items():
        reader.seek(place, end)


def pool(channel: Channel, settings: Settings, *, count: int, rounds: int, handler: str = NOOP) -> dict[str, Any]:
    """The best rate at which a bare pool runs no-op tasks of lanes of their own, of several rounds of two ways to feed it.

    Args:
        channel: to the process that measures.
        settings: with the numbers of children.
        count: tasks of a round.
        rounds: of each way; the best counts.
        handler: name of the handler that all tasks have.
    """
    dispatch = settings.dispatch
    feeder = Feeder(LocalPool((MODULE,), min_children=dispatch.min_children, max_children=dispatch.max_children))
    try:
        feeder.run(invocations(min(count, 5_000), handler), at_once=True)
        rates: dict[str, list[float]] = {"at_once": [], "by_room": []}
        for _ in range(rounds):
            for way, found in rates.items():
                found.append(round(feeder.run(invocations(count, handler), at_once=way == "at_once")))
    finally:
        feeder.pool.stop(drain_s=0)
    return {"rate_per_s": max(map(max, rates.values())), "rounds": rates}


def invocations(count: int, handler: str, lanes: int | None = None, *, first: int = 1) -> list[Invocation]:
    """Attempts of a handler.

    Args:
        count: how many.
        handler: name of the handler that all have.
        lanes: over how many lanes they go in turn; None: each has one of its own.
        first: id of the first one.
    """
    now = now_us()
    keys = (TaskKey(now, f"lane-{n % lanes if lanes else n}", f"{n:09d}") for n in range(first, first + count))
    return [
        Invocation(first + n, key, 1, 1, handler, "default", '{"n":1}', 0, now, 300_000) for n, key in enumerate(keys)
    ]


class Feeder:
    """Feeds a pool and counts what comes back.

    Args:
        pool: not started.
        executor: name of the executor whose room counts.
    """

    def __init__(self, pool: Executor, executor: str = LOCAL) -> None:
        self.pool = pool
        self._executor = executor
        self._more = threading.Event()
        self._done = 0
        self._bad = 0
        pool.start(self._sink)

    def run(self, batch: list[Invocation], *, at_once: bool) -> float:
        """Tasks per second."""
        self._done, given = 0, 0
        begun = boot_us()
        if at_once:
            self.pool.submit(batch)
            given = len(batch)
        while self._done < len(batch):
            self._more.clear()
            if given < len(batch) and (room := self.pool.rooms()[self._executor]):
                self.pool.submit(batch[given : given + room])
                given += room
            elif self._done < len(batch):
                self._more.wait(1.0)
        if self._bad:
            raise RuntimeError(f"{self._bad} no-op tasks did not succeed.")
        return len(batch) / ((boot_us() - begun) / 1e6)

    def _sink(self, outcomes: Sequence[Outcome]) -> None:
        self._bad += sum(outcome.outcome != SUCCEEDED for outcome in outcomes)
        self._done += len(outcomes)
        self._more.set()


# -- in the session of the benchmark ------------------------------------------------------------------------------------------


def sink(records: DataFrame, settings: Settings, options: Mapping[str, str] | None = None) -> float:
    """Seconds in which Spark's Kafka sink writes `key` and `value`, acknowledged by all, as it is by default or with options.

    Args:
        records: rows with `key` and `value`.
        settings: with the broker.
        options: of the sink, beside ours; none by default.
    """
    begun = boot_us()
    records.select("key", "value").write.format("kafka").options(
        **spark_options(settings) | dict(options or {}), topic=SINK_TOPIC
    ).save()
    return (boot_us() - begun) / 1e6


def append(spark: SparkSession, settings: Settings, starts: dict[int, int], folder: str, *, parsed: bool) -> float:
    """Seconds in which a batch read of `tasks` is appended to a new unpartitioned Delta table.

    Args:
        spark: the session.
        settings: with the broker's address.
        starts: partition → first offset to read.
        folder: of the new table.
        parsed: parse the records in the JVM; else the value goes into the table as it is.
    """
    import json

    from pyspark.sql import functions as F

    options = spark_options(settings) | {
        "subscribe": settings.topics.tasks, "kafka.fetch.max.wait.ms": "10", "endingOffsets": "latest",
        "startingOffsets": json.dumps({settings.topics.tasks: {str(number): offset for number, offset in starts.items()}}),
    }  # fmt: skip
    begun = boot_us()
    rows = spark.read.format("kafka").options(**options).load()
    text = F.col("value").cast("string")
    plain = [
        F.col("partition").alias("partition_id"),
        F.col("offset").alias("data_offset"),
        F.col("timestamp").alias("enqueued_at"),
    ]
    if parsed:
        rows = rows.select(*plain, F.from_json(text, _TASK).alias("task")).select(
            "partition_id", "data_offset", "enqueued_at", "task.*"
        )
    else:
        rows = rows.select(*plain, F.col("key").cast("string").alias("ordering_id"), text.alias("payload"))
    rows.write.format("delta").mode("append").save(folder)
    return (boot_us() - begun) / 1e6
