"""Attempts of tasks, as dispatchers hand them to their children and to leased workers."""

from __future__ import annotations

from typing import Any

from scylla_spark.core.leases.messages import Granted
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import Invocation


def invocation(
    time_us: int = 1, ordering_id: str = "lane", uniqueness_key: str = "key", payload: str = "{}", **more: Any
) -> Invocation:
    """The first attempt of a task of handler `h`, with one second; `more` are other fields of `Invocation`."""
    fields: dict[str, Any] = {
        "id": 0, "attempt": 1, "epoch": 7, "handler": "h", "queue": "default", "priority": 0, "planned_us": 0, "timeout_ms": 1000,
    }  # fmt: skip
    return Invocation(key=TaskKey(time_us, ordering_id, uniqueness_key), payload=payload, **(fields | more))


def lease_on(token: str, task: Invocation, until_us: int = 0) -> Granted:
    """A lease of ten seconds on an attempt, which can be kept until `until_us`."""
    return Granted(token, task, 10_000, until_us)
