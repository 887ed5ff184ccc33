"""Limits of queues that change while tasks wait and run: what runs counts on, and what waited at the old gate waits at the new one."""

from __future__ import annotations

from scylla_spark.core.engine.lane import READY
from scylla_spark.core.engine.leases.book import LeaseBook
from scylla_spark.core.engine.leases.ready_for_workers import PullQueues
from scylla_spark.core.engine.queue import Gates, QueueLimits
from scylla_spark.core.engine.ready import ReadyLanes
from scylla_spark.core.engine.runs import Runs
from scylla_spark.core.engine.state import EngineState
from scylla_spark.core.engine.waiting import Waiting


class QueueChanges:
    """Gives queues other limits.

    Args:
        state: of the engine.
        gates: of the queues.
        ready: lanes that wait at them for an executor.
        pulls: lanes that wait for a worker.
        waiting: where lanes queue up again.
        runs: what executors have.
        book: what workers have.
    """

    def __init__(
        self,
        state: EngineState,
        gates: Gates,
        ready: ReadyLanes,
        pulls: PullQueues,
        *,
        waiting: Waiting,
        runs: Runs,
        book: LeaseBook,
    ) -> None:
        self._state = state
        self._gates = gates
        self._ready = ready
        self._pulls = pulls
        self._waiting = waiting
        self._runs = runs
        self._book = book

    def put(self, queue: str, limits: QueueLimits | None) -> None:
        """A queue has these limits from now on; None: none of its own.

        Nothing more starts before the next tick. What was released under the old limits goes on, even where the new ones are lower.
        """
        old, name = self._gates.of(queue), self._gates.name_of(queue)
        leased, runs = self._book.of_queue(queue), self._runs.of_queue(queue)
        under_way = [*runs, *(lease.run for lease in leased)]
        pulled = self._gates.of(queue).limits.pull
        lanes = self._gates.put(queue, limits, [run.lane.ordering_id for run in under_way])
        new = self._gates.of(queue)
        if new is not old:
            self._runs.regate(runs, new)
            for lease in leased:
                lease.run = lease.run._replace(gate=new)
            if limits is None:
                new.running += len(under_way)
            else:
                old.running -= len(under_way)
            self._ready.move(queue, name, self._gates.name_of(queue))
        if new.limits.pull and not pulled:  # what waited for an executor waits for a worker now
            lanes += self._ready.withdraw(queue, self._gates.name_of(queue))
        lanes += [(place.partition, place.lane) for place in self._pulls.withdraw(queue)]
        for lane in lanes:
            self._waiting.let_in(lane)

    def reconsider(self, queue: str, now: int) -> None:
        """Who runs tasks of a queue has changed: its lanes that are due wait for that from now on. It looks at all lanes."""
        for partition in self._state.partitions.values():
            for lane in list(partition.lanes.values()):
                head = lane.head() if lane.state is READY else None
                if head is not None and head.data.queue == queue:
                    self._waiting.settle(partition, lane, now)
