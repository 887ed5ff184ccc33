"""Load: generators that run in processes of their own, and frames of tasks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from scylla_spark.bench.floors import ECHO_TOPIC, wait_until
from scylla_spark.bench.handlers import NOOP, STAMP
from scylla_spark.bench.helper import Channel
from scylla_spark.client import Scheduler
from scylla_spark.clock import from_us, now_us
from scylla_spark.config import Settings
from scylla_spark.io.topics import producer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def steady(
    tell: Channel, settings: Settings, *, begin_us: int, count: int, period_us: int, lanes: int, ahead_us: int
) -> dict[str, Any]:
    """Enqueues one task per period, each due `ahead_us` after its place in the schedule, over round-robin lanes.

    Returns:
        `sent`, and `behind_ms`: how late the generator itself was at worst.
    """
    behind = 0
    with Scheduler.connect(settings) as scheduler:
        for index in range(count):
            at = begin_us + index * period_us
            behind = max(behind, wait_until(at))
            scheduler.enqueue(
                STAMP, ordering_id=f"lane-{index % lanes}", uniqueness_key=f"{index:09d}", at=from_us(at + ahead_us)
            )
    return {"sent": count, "behind_ms": behind / 1000}


def pings(
    tell: Channel, settings: Settings, *, begin_us: int, count: int, period_us: int, lanes: int
) -> dict[str, Any]:
    """Enqueues one task per period, due now and stamped before the call, and halfway between sends an echo record likewise."""
    behind, half = 0, period_us // 2
    with Scheduler.connect(settings) as scheduler, producer(settings) as echo:
        typical = scheduler.command(STAMP, {"sent": now_us()}, ordering_id="lane-100", uniqueness_key="x" * 9)
        size = len(scheduler.sender.record(typical).value)
        for index in range(count):
            behind = max(behind, wait_until(begin_us + index * period_us))
            lane = f"lane-{index % lanes}"
            scheduler.enqueue(STAMP, {"sent": now_us()}, ordering_id=lane, uniqueness_key=f"{index:09d}")
            wait_until(begin_us + index * period_us + half)
            stamp = str(now_us()).encode()
            echo.send(ECHO_TOPIC, stamp.ljust(size), key=lane.encode()).get(timeout=30)
    return {"sent": count, "behind_ms": behind / 1000}


def tasks(
    spark: SparkSession, count: int, lanes: int, first_us: int, step_us: float, *, prefix: str = "lane"
) -> DataFrame:
    """One row per task for `Scheduler.enqueue_df`: ordering_id, uniqueness_key, scheduled_time, payload; ascending in time."""
    from pyspark.sql import functions as F

    index = F.col("id")
    return spark.range(count).select(
        F.concat(F.lit(f"{prefix}-"), (index % lanes).cast("string")).alias("ordering_id"),
        F.lpad(index.cast("string"), 9, "0").alias("uniqueness_key"),
        F.timestamp_micros(F.lit(first_us) + (index * step_us).cast("bigint")).alias("scheduled_time"),
        F.struct(index.alias("n")).alias("payload"),
    )


def enqueue(scheduler: Scheduler, frame: DataFrame) -> int:
    """Enqueues the rows of such a frame for the no-op handler; returns how many."""
    done = scheduler.enqueue_df(
        frame,
        handler=NOOP,
        ordering_id="ordering_id",
        uniqueness_key="uniqueness_key",
        scheduled_time="scheduled_time",
        payload="payload",
    )
    return done.sent


def poll(seconds: float) -> None:
    """A pause between two looks at something."""
    time.sleep(seconds)
