"""How many Spark workers there should be: waiting tasks add some, idle ones end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from scylla_spark.config.spark_workers import SparkWorkers

_MOST_PENDING: Final = 4
STARVED_US: Final = 10_000_000
"""So long a stage of ingest or of the scan waits for a slot until a worker ends."""


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
    """Returns how many workers a cluster of so many slots has room for; none, if a worker would hold the only one."""
    return min(limits.max, max(1, slots - limits.reserve)) if slots > 1 else 0


class StarvedStages:
    """Stages of queries that wait for a slot, and since when."""

    def __init__(self) -> None:
        self._since_us: dict[int, int] = {}

    def note(self, stages: Iterable[int], now: int) -> bool:
        """Takes the stages of which no task runs now; returns whether one of them has waited for long.

        Args:
            stages: their ids.
            now: boot clock, microseconds.
        """
        self._since_us = {stage: self._since_us.get(stage, now) for stage in stages}
        return any(now - since_us >= STARVED_US for since_us in self._since_us.values())


def change(
    limits: SparkWorkers,
    slots: int,
    workers: Sequence[Present],
    starting: int,
    ending: int,
    waiting: int,
    now: int,
    *,
    starved: bool = False,
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
        starved: a stage of a query has waited long for a slot. Then no worker starts, and one after the other ends.
    """
    if starved:
        emptiest = sorted(workers, key=lambda one: one.held)[: 0 if ending else 1]
        return Change(drain=tuple(one.worker_id for one in emptiest))
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
