"""What a worker is told of a lease: by the API, and in the world of a test."""

from __future__ import annotations

import json
from typing import Any

from scylla_spark.clock import iso
from scylla_spark.core.leases.messages import Granted
from scylla_spark.core.tasks.key_view import key_view
from scylla_spark.core.tasks.task import AS_ENQUEUED


def lease_view(granted: Granted) -> dict[str, Any]:
    """A lease, as its worker is told of it.

    Args:
        granted: what it is; its `until_us` is how long it can be kept from now on, microseconds.
    """
    item = granted.task
    task = (
        key_view(item.key)
        | {name: getattr(item, name) for name in AS_ENQUEUED}
        | {
            "handler": item.handler or None,
            "payload": json.loads(item.payload),
            "attempt": item.attempt,
            "epoch": str(item.epoch),
            "checkpoint": None if item.checkpoint is None else json.loads(item.checkpoint),
            "last_error": None if item.last_error is None else item.last_error._asdict(),
            "tags": list(item.tags),
            "due_at": iso(item.planned_us),
        }
    )
    return {
        "lease": granted.token,
        "expires_in_ms": granted.lease_ms,
        "beat_every_ms": max(granted.lease_ms // 3, 50),
        "max_ms": granted.until_us // 1000,
        "task": task,
    }
