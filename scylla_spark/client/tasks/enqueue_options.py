"""The keyword arguments of `Scheduler.enqueue`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TypedDict

from scylla_spark.core.tasks.task import Retry


class EnqueueOptions(TypedDict, total=False):
    """What may be said of a task besides its handler and its payload.

    Attributes:
        ordering_id: the lane; tasks of one lane run one at a time, in the order of their keys. Default: a lane of its own.
        uniqueness_key: with lane and time the identity of the task: the same again overwrites. Default: a new,
            time-sortable one, so that tasks of one time keep the order in which they were enqueued.
        at: when it is due (aware datetime). Default: now.
        delay: or how long from now (duration).
        queue: queue.
        priority: 0-255, higher is more urgent.
        retry: when it runs again after a failure. Default: as the handler or the deployment says.
        timeout: longest run of an attempt (duration). Default: likewise.
        expires: it ends as expired, without a run, if no attempt has begun so long after its scheduled time (duration). Default: it
            never does.
        tags: at most 16 texts of at most 64 characters by which it is found. Default: none.
        traceparent: trace and span that it belongs to, as W3C Trace Context writes them. Default: OpenTelemetry's current span.
        unique: "open": of all tasks of its lane and uniqueness key, whatever their times, one is open at most: it ends as a
            `duplicate`, without a run, if an earlier one is. Default: keys with different times do not concern each other.
    """

    ordering_id: str | None
    uniqueness_key: str | None
    at: datetime | None
    delay: object
    queue: str
    priority: int
    retry: Retry | None
    timeout: object
    expires: object
    tags: Iterable[str] | None
    traceparent: str | None
    unique: str | None
