"""Lanes whose head is due: by executor and queue, the most urgent first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop
from typing import NamedTuple

from scylla_spark.core.engine.lane import READY, Entry, Lane
from scylla_spark.core.engine.partition import ACTIVE, DROPPED, Partition
from scylla_spark.core.engine.queue import Gate, Gates
from scylla_spark.core.engine.swept_heap import SweptHeap

NEVER = 1 << 62


class Place(NamedTuple):
    """A lane that waits for room at an executor, or for a worker; the smallest place is the most urgent.

    Attributes:
        rank: smaller is more urgent: priority, negated.
        planned_us: when its head was to start; at a worker the scheduled time of its task; microseconds since the epoch.
        number: no two places have the same.
        stamp: of the lane, when it queued up; the place is void once the lane has another.
    """

    rank: int
    planned_us: int
    number: int
    stamp: int
    partition: Partition
    lane: Lane

    @property
    def may_count(self) -> bool:
        """Returns True if the lane has not gone on, and its partition is not left."""
        return self.stamp == self.lane.stamp and self.partition.state is not DROPPED

    @property
    def void(self) -> bool:
        """Returns True if the lane has gone on meanwhile."""
        return self.stamp != self.lane.stamp or self.lane.state is not READY or self.partition.state is not ACTIVE


class ReadyLanes:
    """Ready lanes of all held partitions.

    Args:
        gates: which queues are open.

    Attributes:
        swept: lanes were forgotten before their turn came; if they had been let in for a slot of their group, it is free.
    """

    def __init__(self, gates: Gates) -> None:
        self.swept = False
        self._gates = gates
        self._heaps: dict[str, dict[str, SweptHeap[Place]]] = {}  # executor → name of the gate → heap
        self._apart: dict[
            str, dict[str, SweptHeap[Place]]
        ] = {}  # executor → queue that leaves children to others → heap

    def push(self, executor: str, partition: Partition, lane: Lane, head: Entry, number: int) -> None:
        """A lane waits for room at an executor."""
        heaps = self._heaps.get(executor)
        if heaps is None:
            heaps = self._heaps[executor] = {}
        heap = self._apart[executor].get(head.data.queue) if executor in self._apart else None
        if heap is None:
            name = self._gates.name_of(head.data.queue)
            heap = heaps.get(name) or heaps.setdefault(name, _heap())
        heap.push(Place(-head.data.priority, head.next_us, number, lane.stamp, partition, lane))
        self._note(heap)

    def sweep(self) -> None:
        """Forgets the lanes that have gone on by themselves, or whose partition is left."""
        for heap in self._all():
            heap.sweep()
            self._note(heap)

    def _note(self, heap: SweptHeap[Place]) -> None:
        if heap.swept:
            self.swept, heap.swept = True, False

    def set_apart(self, executor: str, place: Place) -> None:
        """A lane that was popped leaves the free children to other queues, and so do all that wait with it of its queue."""
        assert place.lane.active is not None
        queue = place.lane.active.data.queue
        apart = self._apart.setdefault(executor, {}).setdefault(queue, _heap())
        waited = self._heaps[executor].pop(self._gates.name_of(queue), None)
        self._part((place, *(waited.marks if waited is not None else ())), executor, queue, apart)

    def _part(self, places: Iterable[Place], executor: str, queue: str, apart: SweptHeap[Place]) -> None:
        rest = self._heaps[executor].setdefault(self._gates.name_of(queue), _heap())
        for place in places:
            head = place.lane.active
            if place.lane.stamp == place.stamp and head is not None:
                (apart if head.data.queue == queue else rest).push(place)
            else:
                self.swept = True

    def pop(self, executor: str, now: int, refuses: Callable[[Place, Gate], bool]) -> tuple[Place, Gate] | None:
        """The most urgent lane of an executor whose queue is open, with its gate; it may be void.

        Args:
            executor: its name.
            now: microseconds since the epoch.
            refuses: whether a lane that was set apart still leaves children to other queues.
        """
        best: tuple[list[Place], Gate] | None = None
        for name, swept in self._heaps[executor].items():
            heap = swept.marks
            if heap and (best is None or heap[0] < best[0][0]):
                gate = self._gates[name]
                if gate.is_open(now):
                    best = (heap, gate)
        for queue, swept in list(self._apart[executor].items()) if executor in self._apart else ():
            heap, gate = swept.marks, self._gates.of(queue)
            if not heap:
                del self._apart[executor][queue]
            elif (best is None or heap[0] < best[0][0]) and gate.is_open(now) and not refuses(heap[0], gate):
                best = (heap, gate)
        return (heappop(best[0]), best[1]) if best is not None else None

    def move(self, queue: str, before: str, after: str) -> None:
        """The lanes whose head is of a queue wait at another gate from now on.

        Args:
            queue: its name.
            before: name of the gate at which they wait.
            after: name of the other.
        """
        for heaps in self._heaps.values():
            waited = heaps.pop(before, None)
            for place in waited.marks if waited is not None else ():
                head = place.lane.active
                if place.lane.stamp == place.stamp and head is not None:
                    heaps.setdefault(after if head.data.queue == queue else before, _heap()).push(place)

    def withdraw(self, queue: str, gate: str) -> list[tuple[Partition, Lane]]:
        """The lanes whose head is of a queue; they wait for no executor any longer.

        Args:
            queue: its name.
            gate: name of the gate at which they wait.
        """
        found = []
        for executor, heaps in self._heaps.items():
            waited, apart = heaps.pop(gate, None), self._apart.get(executor, {}).pop(queue, None)
            for place in [one for heap in (waited, apart) if heap is not None for one in heap.marks]:
                head = place.lane.active
                if place.lane.stamp == place.stamp and head is not None and head.data.queue == queue:
                    found.append((place.partition, place.lane))
                else:
                    heaps.setdefault(gate, _heap()).push(place)
        return found

    def executors(self) -> list[str]:
        """The executors for which any lane has ever waited."""
        return list(self._heaps)

    def places(self) -> list[Place]:
        """All places, void ones included, in no order."""
        return [place for heap in self._all() for place in heap.marks]

    def of(self, executor: str) -> Iterator[Place]:
        """The lanes that wait for an executor, in no order."""
        for heaps in (self._heaps.get(executor, {}), self._apart.get(executor, {})):
            yield from (place for heap in heaps.values() for place in heap.marks if not place.void)

    def next_us(self, after_us: int) -> int:
        """Returns when the rate of a queue lets its next lane start; NEVER: no rate holds one back.

        Args:
            after_us: only later than this: what was open by then, something else holds back.
        """
        names = {name for heaps in self._heaps.values() for name, heap in heaps.items() if heap.marks}
        names |= {
            self._gates.name_of(queue) for heaps in self._apart.values() for queue, heap in heaps.items() if heap.marks
        }
        opens = [self._gates[name].opens_us() for name in names]
        return min([at for at in opens if at is not None and at > after_us], default=NEVER)

    def _all(self) -> Iterator[SweptHeap[Place]]:
        return (heap for kind in (self._heaps, self._apart) for heaps in kind.values() for heap in heaps.values())


def _heap() -> SweptHeap[Place]:
    return SweptHeap(lambda place: place.may_count)
