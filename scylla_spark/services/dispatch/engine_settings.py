"""From settings and definitions to what the engine takes: its bounds and the limits of its queues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Final

from scylla_spark.config.settings import Settings
from scylla_spark.core.engine.bounds import Limits
from scylla_spark.core.engine.queue import QueueLimits
from scylla_spark.definitions.queue import Queue
from scylla_spark.duration import duration_ms, duration_us


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
        max_output_bytes=settings.outputs.max_bytes,
    )


_SAME: Final = {one.name for one in fields(QueueLimits)} & Queue.model_fields.keys() - {"weights"}


def limits_of(definition: Queue) -> QueueLimits:
    """Returns what the engine obeys of a definition: fields of one name as they are, and what stands here."""
    return QueueLimits(
        **{name: getattr(definition, name) for name in _SAME},
        replay=definition.order == "replay",
        pull=definition.mode == "pull",
        lease_ms=duration_ms(definition.lease),
        max_run_ms=duration_ms(definition.max_run),
        weights=dict(definition.weights) or None,
        fails_at_once=definition.on_exception == "fail",
        redelivers=definition.redelivers,
    )


def runner_of(definition: Queue | None) -> tuple[str, str | None, str]:
    """By what tasks of a queue are run, and how they are kept apart; where that changes, the engine is to look at its lanes anew."""
    if definition is None:
        return "push", None, "handler"
    return definition.mode, definition.default_handler, definition.isolation


def queue_terms(definitions: Mapping[str, Queue]) -> dict[str, QueueLimits]:
    """Returns what the engine obeys of definitions, by name of the queue."""
    return {name: limits_of(definition) for name, definition in definitions.items()}
