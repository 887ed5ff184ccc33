"""How many Spark workers there should be: waiting tasks add some, idle ones end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from scylla_spark.config.spark_workers import SparkWorkers

_MOST_PENDING: Final = 4


class Present(NamedTuple):
    """A worker that is connected.

    Attributes:
        worker_id: which one.
        executor_id: of Spark.
        held: attempts that it has.
        idle_us: boot clock since when it has had none.
    """

    worker_id: str
    executor_id: str
    held: int
    idle_us: int


class Change(NamedTuple):
    """What is to be done: start so many workers, and drain these."""

    start: int = 0
    drain: tuple[str, ...] = ()


def most_workers(limits: SparkWorkers, slots: int) -> int:
    """How many workers a cluster of so many slots has room for; none, if a worker would hold the only one."""
    return min(limits.max, max(1, slots - limits.reserve)) if slots > 1 else 0


def change(
    limits: SparkWorkers, slots: int, workers: Sequence[Present], starting: int, ending: int, waiting: int, now: int
) -> Change:
    """Decides whether workers are started or ended.

    Args:
        limits: how many there may be.
        slots: tasks that the cluster can run at once.
        workers: those that are connected and not draining.
        starting: jobs that were submitted and have not connected.
        ending: jobs whose worker is draining or lost; their slots are in use until Spark reports their end.
        waiting: attempts that no worker has room for.
        now: boot clock, microseconds.
    """
    most = most_workers(limits, slots)
    there = len(workers) + starting
    if (beyond := len(workers) - most) > 0:  # jobs that start may wait for a slot for ever, and are none to rely on
        return Change(drain=tuple(one.worker_id for one in sorted(workers, key=lambda one: one.held)[:beyond]))
    wanted = limits.min if not waiting else max(limits.min, there + min(waiting, max(1, len(workers))) - starting)
    start = max(0, min(wanted - there, most - there - ending, _MOST_PENDING - starting))
    if start or starting or waiting:
        return Change(start)
    per_executor: dict[str, int] = {}
    for one in workers:
        per_executor[one.executor_id] = per_executor.get(one.executor_id, 0) + one.held
    idle_us = limits.idle // timedelta(microseconds=1)
    idle = [one for one in workers if not one.held and now - one.idle_us >= idle_us]
    idle.sort(key=lambda one: per_executor[one.executor_id])  # so that Spark can remove whole executors
    return Change(drain=tuple(one.worker_id for one in idle[: max(0, len(workers) - limits.min)]))
