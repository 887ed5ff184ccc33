"""How many children of an executor one queue may hold: some are always left for other queues, however long its tasks run."""

from __future__ import annotations

from collections import Counter
from typing import Final

from scylla_spark.core.engine.bounds import HandlerPolicy
from scylla_spark.core.engine.queue import Gate
from scylla_spark.core.records.command import Command
from scylla_spark.core.tasks.handler_durations import HandlerDurations

_FIFTH: Final = 5


class Shares:
    """Counts the children that tasks of each queue hold.

    A task of a handler that is known to be quick is not counted: several of them share one child, and leave it in a moment.

    Args:
        durations: how long tasks of each handler take.

    Attributes:
        full: executors and queues of which tasks hold all that they may.
    """

    def __init__(self, durations: HandlerDurations) -> None:
        self._durations = durations
        self._held: Counter[tuple[str, str]] = Counter()  # by executor and queue
        self.full: set[tuple[str, str]] = set()
        self._counted: dict[int, tuple[tuple[str, str], int]] = {}  # invocation → where it counts, and the bound there

    def refuses(self, task: Command, policy: HandlerPolicy, gate: Gate) -> bool:
        """Returns True if a task has to leave the free children to other queues; `concurrency` says otherwise for a queue."""
        full = (policy.executor, task.queue) in self.full
        return full and gate.limits.concurrency is None and not self._is_quick(task, policy)

    def begin(self, number: int, task: Command, policy: HandlerPolicy) -> None:
        """A task is released as the invocation of that number."""
        most = policy.children and most_of(policy.children)
        if most and not self._is_quick(task, policy):
            place = policy.executor, task.queue
            self._counted[number] = place, most
            self._held[place] += 1
            if self._held[place] >= most:
                self.full.add(place)

    def end(self, number: int) -> None:
        """An invocation is no longer under way."""
        counted = self._counted.pop(number, None)
        if counted is not None:
            place, most = counted
            self._held[place] -= 1
            if self._held[place] < most:
                self.full.discard(place)
            if not self._held[place]:
                del self._held[place]  # names of queues come from data

    def held(self, executor: str) -> dict[str, int]:
        """Queue → children of an executor that its tasks hold."""
        return {queue: count for (name, queue), count in self._held.items() if name == executor}

    def _is_quick(self, task: Command, policy: HandlerPolicy) -> bool:
        return self._durations.depth(task.handler or policy.handler) > 1


def most_of(children: int) -> int:
    """Returns how many of so many children one queue may hold: all but the last fifth, at least one; 0: a single child is not shared."""
    return children - max(1, children // _FIFTH) if children > 1 else 0
