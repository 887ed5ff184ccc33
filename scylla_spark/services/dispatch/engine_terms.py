"""From settings to what the engine takes: its bounds and the terms of its queues."""

from __future__ import annotations

from scylla_spark.config.settings import Settings
from scylla_spark.core.engine.bounds import Limits
from scylla_spark.core.engine.queue import QueueLimits
from scylla_spark.duration import duration_us


def engine_limits(settings: Settings) -> Limits:
    """The bounds of the engine of a dispatcher."""
    dispatch = settings.dispatch
    return Limits(
        dispatch.max_in_flight,
        dispatch.lane_depth,
        duration_us(dispatch.stall),
        duration_us(dispatch.drain),
        settings.partitions,
        max_held_bytes=dispatch.max_loaded * 1024,
        least_wait_us=duration_us(dispatch.least_wait),
    )


def queue_terms(settings: Settings) -> dict[str, QueueLimits]:
    """The queues of the settings, by name."""
    return {
        name: QueueLimits(
            queue.concurrency,
            queue.rate,
            queue.paused,
            queue.order == "replay",
            queue.group_concurrency,
            queue.group_separator,
        )
        for name, queue in settings.queues.items()
    }
