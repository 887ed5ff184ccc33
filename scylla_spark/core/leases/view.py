"""What a worker is told of a lease: by the API, and in the world of a test."""

from __future__ import annotations

import json
from typing import Any

from scylla_spark.clock import iso
from scylla_spark.core.leases.messages import Granted
from scylla_spark.core.tasks.key_view import key_view


def lease_view(granted: Granted) -> dict[str, Any]:
    """A lease, as its worker is told of it.

    Args:
        granted: what it is; its `until_us` is how long it can be kept from now on, microseconds.
    """
    key = granted.key
    task = key_view(key) | {
        "handler": granted.handler, "queue": granted.queue, "priority": granted.priority, "payload": json.loads(granted.payload),
        "attempt": granted.attempt, "epoch": str(granted.epoch),
        "checkpoint": json.loads(granted.checkpoint) if granted.checkpoint is not None else None,
        "last_error": granted.last_error._asdict() if granted.last_error is not None else None,
        "tags": list(granted.tags), "traceparent": granted.traceparent, "due_at": iso(granted.planned_us),
    }  # fmt: skip
    return {
        "lease": granted.token, "expires_in_ms": granted.lease_ms, "beat_every_ms": max(granted.lease_ms // 3, 50),
        "max_ms": granted.until_us // 1000, "task": task,
    }  # fmt: skip
