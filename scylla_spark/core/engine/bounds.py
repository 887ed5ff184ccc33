"""What the engine is given: its bounds, and how the tasks of a handler run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from scylla_spark.core.records.command import Command, WireRetry
from scylla_spark.core.tasks.task import Retry

LEASED: Final = "lease"
"""The name that stands for workers, among those of executors."""


@dataclass(frozen=True, slots=True)
class HandlerPolicy:
    """How commands of one handler and queue run.

    Attributes:
        executor: its name; LEASED: workers run them; NO_HANDLER: nothing here does, and they wait.
        timeout_ms: longest run of an attempt.
        retry: of tasks that bring no policy.
        max_batch: tasks per call.
        handler: what runs tasks that name none.
        rate_keys: of the rate limits that its tasks share.
        alone: the next task of a lane is handed over only after the one before has ended, also in replay order.
        children: how many its executor has, each for one task at a time; 0: they are not counted.
        missing: of NO_HANDLER: what to set so that something runs them, as a sentence; empty: there is no such handler.
    """

    executor: str
    timeout_ms: int
    retry: Retry
    max_batch: int = 1
    handler: str = ""
    alone: bool = False
    rate_keys: tuple[str, ...] = ()
    children: int = 0
    missing: str = ""


@lru_cache(maxsize=1_000)  # tasks that bring a policy bring one of a few
def _own_retry(terms: WireRetry, otherwise: Retry) -> Retry:
    return Retry.from_ms(*terms).filled(otherwise)


def retry_of(command: Command, policy: HandlerPolicy) -> Retry:
    """The retry policy of a task: what it says itself, and of the rest what its handler, its queue and the deployment say."""
    return _own_retry(command.retry, policy.retry) if command.retry is not None else policy.retry


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the engine.

    Attributes:
        max_in_flight: released and unfinished tasks per partition.
        lane_depth: tasks of a lane loaded at a time, at first; a reload is asked for at half of it.
        stall_us: release stops while the oldest unrecorded fact is older than this.
        drain_us: how long running tasks may finish after a revocation.
        partitions: how many the deployment has, over which limits of queues are shared out.
        max_unrecorded: release stops while so many facts of a partition were decided but not read back …
        max_unrecorded_bytes: … or facts whose texts take so many bytes.
        max_ended: release stops while so many ended keys of a partition wait for the tables to hold their completions.
        max_held_bytes: above this, what cannot start is left to the tables, and then the tail is to wait.
        least_wait_us: shortest wait between two attempts of a task, whatever its policy says.
        max_output_bytes: files that a leased attempt leaves behind have no more bytes together.
    """

    max_in_flight: int = 1_000
    lane_depth: int = 200
    stall_us: int = 10_000_000
    drain_us: int = 10_000_000
    partitions: int = 1
    max_unrecorded: int = 20_000
    max_unrecorded_bytes: int = 64 * 1024 * 1024
    max_ended: int = 4_000_000
    max_held_bytes: int = 1 << 30
    least_wait_us: int = 100_000
    max_output_bytes: int = 1 << 62
