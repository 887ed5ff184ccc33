"""Load: generators that run in processes of their own, and frames of tasks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from scylla_spark.client.scheduler import Scheduler
from scylla_spark.clock import from_us, now_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.records.command import ENQUEUE, Command, encode
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.io.kafka.topics import producer
from scylla_spark_tools.bench.floor_measurements import ECHO_TOPIC, wait_until
from scylla_spark_tools.bench.handlers import NOOP, STAMP
from scylla_spark_tools.bench.helper_process import Channel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def steady(
    channel: Channel,
    settings: Settings,
    *,
    count: int,
    period_us: int,
    lanes: int,
    ahead_us: int,
    together_us: int = 1,
    lines: int = 0,
    handler: str = STAMP,
) -> dict[str, Any]:
    """Enqueues one task per period without waiting for Kafka, each due `ahead_us` after its place in the schedule.

    Args:
        channel: to the process that measures; it says when to begin.
        settings: with the broker.
        count: tasks.
        period_us: time between two of them, microseconds.
        lanes: over how many ordering ids they go in turn.
        ahead_us: from its place in the schedule to its scheduled time, microseconds.
        together_us: scheduled times are whole multiples of it, the next after that: so that many fall due at once.
        lines: that each handler prints.
        handler: of all tasks; it returns when it began, as `stamp`.

    Returns:
        `sent`, and `behind_ms`: how late the generator itself was at worst.
    """
    begin_us = behind = 0

    def paced() -> Iterator[dict[str, Any]]:
        nonlocal behind
        for index in range(count):
            at = begin_us + index * period_us
            behind = max(behind, wait_until(at))
            lane = f"lane-{index % lanes}"
            yield {
                "handler": handler,
                "payload": {"lines": lines} if lines else {},
                "ordering_id": lane,
                "uniqueness_key": f"{index:09d}",
                "at": from_us(-(-(at + ahead_us) // together_us) * together_us),
            }

    with Scheduler.connect(settings) as scheduler:
        begin_us = _begin(channel, scheduler)
        done = scheduler.enqueue_many(paced())
    return {"sent": done.sent, "behind_ms": behind / 1000}


def pings(channel: Channel, settings: Settings, *, count: int, period_us: int, lanes: int) -> dict[str, Any]:
    """Enqueues one task per period, due now and stamped before the call, and halfway between sends an echo record likewise.

    Args:
        channel: to the process that measures.
        settings: with the broker.
        count: tasks, and as many echo records.
        period_us: time between two tasks, microseconds.
        lanes: over how many ordering ids they go in turn.
    """
    behind, half = 0, period_us // 2
    with Scheduler.connect(settings) as scheduler, producer(settings) as echo:
        now = now_us()
        payload = json.dumps({"sent": now}, separators=(",", ":"))
        size = len(
            encode(Command(ENQUEUE, TaskKey(now, "lane-100", "x" * 9), 0, STAMP, payload=payload, enqueued_us=now))
        )
        begin_us = _begin(channel, scheduler)
        for index in range(count):
            behind = max(behind, wait_until(begin_us + index * period_us))
            lane = f"lane-{index % lanes}"
            scheduler.enqueue(STAMP, {"sent": now_us()}, ordering_id=lane, uniqueness_key=f"{index:09d}")
            wait_until(begin_us + index * period_us + half)
            stamp = str(now_us()).encode()
            echo.send(ECHO_TOPIC, stamp.ljust(size), key=lane.encode()).get(timeout=30)
    return {"sent": count, "behind_ms": behind / 1000}


def _begin(channel: Channel, scheduler: Scheduler) -> int:
    """Gets ready, says so, and hears when the schedule begins (microseconds since the epoch)."""
    _ = scheduler.connection.rules
    channel.tell("ready")
    return int(channel.hear())


def tasks(
    spark: SparkSession, count: int, lanes: int, first_us: int, step_us: float, *, prefix: str = "lane"
) -> DataFrame:
    """One row per task for `Scheduler.enqueue_df`: ordering_id, uniqueness_key, scheduled_time, payload; ascending in time.

    Args:
        spark: session.
        count: rows.
        lanes: over how many ordering ids they go in turn.
        first_us: scheduled time of the first, microseconds since the epoch.
        step_us: time from one to the next, microseconds.
        prefix: what all ordering ids begin with.
    """
    from pyspark.sql import functions as F

    index = F.col("id")
    return spark.range(count).select(
        F.concat(F.lit(f"{prefix}-"), (index % lanes).cast("string")).alias("ordering_id"),
        F.lpad(index.cast("string"), 9, "0").alias("uniqueness_key"),
        F.timestamp_micros(F.lit(first_us) + (index * step_us).cast("bigint")).alias("scheduled_time"),
        F.struct(index.alias("n")).alias("payload"),
    )


def enqueue(scheduler: Scheduler, frame: DataFrame, *, handler: str = NOOP, queue: str = "default") -> int:
    """Enqueues the rows of such a frame; returns how many.

    Args:
        scheduler: a client.
        frame: as `tasks` makes it.
        handler: of all rows.
        queue: of all rows.
    """
    done = scheduler.enqueue_df(
        frame,
        handler=handler,
        queue=queue,
        ordering_id="ordering_id",
        uniqueness_key="uniqueness_key",
        scheduled_time="scheduled_time",
        payload="payload",
    )
    return done.sent


def poll(seconds: float) -> None:
    """A pause between two looks at something."""
    time.sleep(seconds)
