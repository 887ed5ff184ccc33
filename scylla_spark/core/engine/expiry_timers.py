"""When the heads of ready lanes expire: a task that has not begun by then is not to start any more."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop

from scylla_spark.core.engine.lane import NEVER_EXPIRES_US, READY, Entry, Lane
from scylla_spark.core.engine.partition import ACTIVE, DROPPED, Partition
from scylla_spark.core.engine.state import EngineState
from scylla_spark.core.engine.swept_heap import SweptHeap

Timer = tuple[int, int, int, Partition, Lane]  # when, number, stamp, …


def may_go_off(timer: Timer) -> bool:
    """Returns True if the lane of a timer has not gone on, and its partition is not left."""
    return timer[2] == timer[4].stamp and timer[3].state is not DROPPED


class ExpiryTimers:
    """A timer for every ready lane whose head expires; one whose lane has gone on is void.

    Args:
        state: of the engine.
    """

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._timers: SweptHeap[Timer] = SweptHeap(may_go_off)
        self._held_up: dict[Partition, list[Timer]] = {}  # by partitions that have to wait for their facts

    def watch(self, partition: Partition, lane: Lane, head: Entry) -> None:
        """A lane is ready; its head may expire before it starts."""
        self._push(head.expires_us, lane.stamp, partition, lane)

    def due(self, now: int) -> Iterator[tuple[Partition, Lane, Entry]]:
        """The lanes whose heads have expired; each is told once, unless it becomes ready again.

        Lanes of a partition wait whose facts are not being recorded, or of which too many wait for the tables.
        """
        self._let_go()
        while (marks := self._timers.marks) and marks[0][0] <= now:
            timer = heappop(marks)
            _, _, stamp, partition, lane = timer
            head = lane.active
            if stamp != lane.stamp or lane.state is not READY or partition.state is not ACTIVE or head is None:
                continue
            if head.expires_us > now:
                self._push(head.expires_us, stamp, partition, lane)
            elif partition.backed_up(self._state.limits):
                self._held_up.setdefault(partition, []).append(timer)
            else:
                yield partition, lane, head

    def next_us(self) -> int:
        """Returns when the next timer is due, microseconds since the epoch; a far instant: there is none."""
        timers = self._timers.marks
        while timers and timers[0][2] != timers[0][4].stamp:
            heappop(timers)
        return timers[0][0] if timers else NEVER_EXPIRES_US

    def sweep(self) -> None:
        """Forgets lanes that have gone on, and partitions that are left."""
        self._let_go()
        self._timers.sweep()

    def _let_go(self) -> None:
        """Partitions that need not wait any longer, or are left, are looked at again."""
        for partition in list(self._held_up):
            if partition.state is not ACTIVE or not partition.backed_up(self._state.limits):
                for timer in self._held_up.pop(partition):
                    self._timers.push(timer)

    def _push(self, when_us: int, stamp: int, partition: Partition, lane: Lane) -> None:
        if when_us < NEVER_EXPIRES_US:
            self._timers.push((when_us, self._state.next_number(), stamp, partition, lane))
