"""Limits of queues that change while tasks wait and run: what runs counts on, and what waited at the old gate waits at the new one."""

from __future__ import annotations

from scylla_spark.core.engine.queue import Gates, QueueLimits
from scylla_spark.core.engine.ready import ReadyLanes
from scylla_spark.core.engine.runs import Runs
from scylla_spark.core.engine.waiting import Waiting


class QueueChanges:
    """Gives queues other limits.

    Args:
        gates: of the queues.
        ready: lanes that wait at them.
        waiting: where lanes queue up again.
        runs: what executors have.
    """

    def __init__(self, gates: Gates, ready: ReadyLanes, waiting: Waiting, runs: Runs) -> None:
        self._gates = gates
        self._ready = ready
        self._waiting = waiting
        self._runs = runs

    def put(self, queue: str, limits: QueueLimits | None) -> None:
        """A queue has these limits from now on; None: none of its own.

        Nothing more starts before the next tick. What was released under the old limits goes on, even where the new ones are lower.
        """
        old, name = self._gates.of(queue), self._gates.name_of(queue)
        runs = self._runs.of_queue(queue)
        lanes = self._gates.put(queue, limits, [run.lane.ordering_id for run in runs])
        new = self._gates.of(queue)
        if new is not old:
            self._runs.regate(runs, new)
            if limits is None:
                new.running += len(runs)
            else:
                old.running -= len(runs)
            self._ready.move(queue, name, self._gates.name_of(queue))
        for lane in lanes:
            self._waiting.let_in(lane)
