"""Lanes whose head waits for a worker: by queue, the most urgent first, then by turns among groups, then the oldest."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from scylla_spark.core.engine.lane import Entry, Lane
from scylla_spark.core.engine.partition import Partition
from scylla_spark.core.engine.queue import Gates
from scylla_spark.core.engine.ready import Place

_FEW: Final = 1_000  # lanes, which are counted whenever somebody asks
_RECOUNT_US: Final = 50  # for each lane more: so long a count holds
_SLACK: Final = 64  # void marks that a heap may hold before it is made anew, and as many again as it has groups


class _Group:
    """Lanes of one handler and one group, in order; `turn` is its virtual time: what is least gets its turn first."""

    __slots__ = ("places", "turn", "version", "weight")

    def __init__(self, turn: float, weight: int) -> None:
        self.places: list[Place] = []
        self.turn = turn
        self.weight = weight
        self.version = 0


_Mark = tuple[
    int, float, int, int, str, str, int
]  # rank, turn, planned time, number, handler, group, version of the group


class PullQueue:
    """The lanes of one queue that wait for a worker.

    Args:
        group_of: ordering id → group; None: there are no groups.
        weights: group → how many turns it gets for one of the others.
        ageing: whether a second of waiting counts as much as one of priority.
        gone: called when lanes were forgotten before their turn came.
    """

    def __init__(
        self,
        group_of: Callable[[str], str] | None = None,
        weights: Mapping[str, int] | None = None,
        *,
        ageing: bool = False,
        gone: Callable[[], None] = lambda: None,
    ) -> None:
        self._gone = gone
        self._group_of = group_of
        self._weights = weights or {}
        self._ageing = ageing
        self._groups: dict[tuple[str, str], _Group] = {}
        self._marks: dict[str | None, list[_Mark]] = {None: []}  # by handler; None: of all
        self._turn = 0.0
        self.size = 0  # void places included
        self._sweep_at = _SLACK
        self._counted_us = 0

    def push(self, partition: Partition, lane: Lane, head: Entry, number: int) -> None:
        """A lane waits for a worker."""
        handler = head.data.handler or ""
        name = handler, self._group_of(lane.ordering_id) if self._group_of is not None else ""
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group(self._turn, self._weights.get(name[1], 1))
        due_us = head.key.time_us  # its own, so that what comes again is not behind all that came meanwhile
        rank = due_us // 1_000_000 - head.data.priority if self._ageing else -head.data.priority
        place = Place(rank, due_us, number, lane.stamp, partition, lane)
        heappush(group.places, place)
        self.size += 1
        if group.places[0] is place:
            self._mark(name, group)
        if self.size > self._sweep_at:
            self.sweep()

    def count(self, now: int) -> int:
        """Returns how many lanes wait; of very many, how many did some moments ago.

        Args:
            now: microseconds since the epoch.
        """
        if now - self._counted_us > _RECOUNT_US * (self.size - _FEW):
            self.sweep()
            self._counted_us = now
        return self.size

    def sweep(self) -> None:
        """Forgets the lanes that have gone on by themselves, or whose partition is left."""
        for name, group in list(self._groups.items()):
            first, before = group.places[0], len(group.places)
            group.places = [place for place in group.places if place.may_count]
            if len(group.places) < before:
                self._gone()
                heapify(group.places)
                if not group.places or group.places[0] is not first:
                    self._mark(name, group)
        self.size = sum(len(group.places) for group in self._groups.values())
        self._sweep_at = 2 * self.size + _SLACK

    def pop(self, handlers: Collection[str] | None) -> Place | None:
        """The lane whose turn it is, of those handlers; None: of all."""
        names = [None] if handlers is None else [handler for handler in handlers if handler in self._marks]
        best = min((mark for name in names if (mark := self._first(name)) is not None), default=None)
        if best is None:
            return None
        name = best[4], best[5]
        group = self._groups[name]
        place = heappop(group.places)
        self.size -= 1
        if self._group_of is not None:
            self._turn = group.turn
            group.turn += 1 / group.weight
        self._mark(name, group)
        return place

    def places(self) -> Iterator[Place]:
        """All that wait, in no order."""
        for group in self._groups.values():
            yield from (place for place in group.places if not place.void)

    def oldest_us(self) -> int | None:
        """The scheduled time of the most urgent; None: nothing waits."""
        first = self._first(None)
        return first[2] if first is not None else None

    def _first(self, handler: str | None) -> _Mark | None:
        """The smallest mark that is right; those of places that are void by now are renewed."""
        marks = self._marks[handler]
        while marks:
            first = marks[0]
            name = first[4], first[5]
            group = self._groups.get(name)
            if group is None or group.version != first[6]:
                heappop(marks)
            elif group.places[0].void:
                self._gone()
                while group.places and group.places[0].void:
                    heappop(group.places)
                    self.size -= 1
                self._mark(name, group)
            else:
                return first
        return None

    def _mark(self, name: tuple[str, str], group: _Group) -> None:
        """The head of a group has changed, or its turn."""
        group.version += 1
        if not group.places:
            del self._groups[name]
            return
        first = group.places[0]
        mark = (first.rank, group.turn, first.planned_us, first.number, *name, group.version)
        for handler in (None, name[0]):
            marks = self._marks.setdefault(handler, [])
            heappush(marks, mark)
            if len(marks) > 2 * len(self._groups) + _SLACK:
                self._renew(handler)

    def _renew(self, handler: str | None) -> None:
        marks = [mark for mark in self._marks[handler] if self._is_right(mark)]
        heapify(marks)
        self._marks[handler] = marks
        for idle in [name for name, rest in self._marks.items() if name is not None and not rest]:
            del self._marks[idle]

    def _is_right(self, mark: _Mark) -> bool:
        group = self._groups.get((mark[4], mark[5]))
        return group is not None and group.version == mark[6]


class PullQueues:
    """All queues of which a lane waits for a worker; those of which none does are forgotten: their names come from data.

    Args:
        gates: of the queues: their groups, weights and ageing.

    Attributes:
        swept: lanes were forgotten before their turn came; if they had been let in for a slot of their group, it is free.
    """

    def __init__(self, gates: Gates) -> None:
        self.swept = False
        self._gates = gates
        self._queues: dict[str, PullQueue] = {}

    def push(self, partition: Partition, lane: Lane, head: Entry, number: int) -> None:
        """A lane waits for a worker."""
        queue = self._queues.get(head.data.queue)
        if queue is None:
            gate = self._gates.of(head.data.queue)
            group_of = gate.group_of if gate.limits.weights is not None else None
            queue = PullQueue(group_of, gate.limits.weights, ageing=gate.limits.ageing, gone=self._note)
            self._queues[head.data.queue] = queue
        queue.push(partition, lane, head, number)

    def _note(self) -> None:
        self.swept = True

    def get(self, name: str) -> PullQueue | None:
        """The queue, if any lane of it waits."""
        return self._queues.get(name)

    def forget_if_empty(self, name: str) -> None:
        """Nothing need be known of a queue that is empty."""
        queue = self._queues.get(name)
        if queue is not None and not queue.size:
            del self._queues[name]

    def places(self) -> Iterator[Place]:
        """All that wait in any queue, in no order."""
        for queue in self._queues.values():
            yield from queue.places()

    def sweep(self) -> None:
        """Forgets the lanes that have gone on by themselves, or whose partition is left."""
        for name, queue in list(self._queues.items()):
            queue.sweep()
            self.forget_if_empty(name)

    def withdraw(self, name: str) -> Iterable[Place]:
        """All that wait in a queue; they wait no longer."""
        queue = self._queues.pop(name, None)
        return list(queue.places()) if queue is not None else ()
