"""What waits for a child: in the order given, one lane never in two places."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from typing import TypeVar

from scylla_spark.core.tasks.task import Invocation

Q = TypeVar("Q", Invocation, Invocation | str)
_SCAN = 4  # how far beyond max_batch to look for tasks of free lanes


class _Lane:
    """An ordering id with unfinished invocations.

    Attributes:
        waiting: how many are in the ready queues.
        out: how many were taken and are not finished.
        batch: name of the batch handler whose queue the waiting ones are in; empty otherwise.
        held: those that must not be ready yet, in order.
        broken: one did not succeed; those behind it that are out still must not be tried again.
    """

    __slots__ = ("batch", "broken", "held", "out", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self.out = 0
        self.batch = ""
        self.held: deque[Invocation] | None = None
        self.broken = False


class Backlog:
    """Waiting invocations. Not thread-safe.

    An invocation of a lane is ready only when nothing earlier of this lane is unfinished. A batch handler may get several
    of one lane, in their order, in one call; others may follow each other in one child (`follower`), which runs them
    only as long as each succeeds.

    Args:
        max_batch: the most tasks in a call of a handler; None for one task a call.

    Attributes:
        out: how many were taken and are not finished.
        startable: how many wait for a child, and not for another one of their lane.
    """

    def __init__(self, max_batch: Callable[[str], int | None]) -> None:
        self._max_batch = max_batch
        self._ready: deque[Invocation | str] = deque()  # a text stands for the queue of that batch handler
        self._batches: dict[str, deque[Invocation]] = {}
        self._lanes: dict[str, _Lane] = {}
        self._marked: set[str] = set()  # batch handlers that stand in `_ready`
        self._waiting = 0
        self.startable = 0
        self.out = 0

    def __len__(self) -> int:
        return self._waiting

    @property
    def ready(self) -> int:
        """About how many calls could start now."""
        return len(self._ready)

    def startable_of(self, handlers: Container[str]) -> int:
        """Returns how many of `startable` are of these handlers."""
        single = sum(not isinstance(first, str) and first.handler in handlers for first in self._ready)
        batches = (item for name, queue in self._batches.items() if name in handlers for item in queue)
        return single + sum(not self._lanes[item.key[1]].out for item in batches)

    def head(self) -> str | None:
        """Handler of the next call, if one is ready."""
        if not self._ready:
            return None
        first = self._ready[0]
        return first if isinstance(first, str) else first.handler

    def pass_over(self) -> None:
        """Puts the next call behind all others that are ready."""
        self._ready.rotate(-1)

    def add(self, batch: Iterable[Invocation]) -> None:
        """Puts invocations at the end."""
        for item in batch:
            self._waiting += 1
            lane = self._lanes.get(item.key[1])
            if lane is None:
                lane = self._lanes[item.key[1]] = _Lane()
                self._place(item, lane)
            elif not lane.held and lane.batch and lane.batch == item.handler:
                self._place(item, lane)
            elif lane.held is None:
                lane.held = deque((item,))
            else:
                lane.held.append(item)

    def take(self) -> list[Invocation]:
        """The invocations of the next call; empty if none is ready."""
        while self._ready:
            first = self._ready.popleft()
            call = self._take_batch(first) if isinstance(first, str) else [first]
            for item in call:
                lane = self._lanes[item.key[1]]
                if not lane.out:
                    self.startable -= lane.waiting  # those that are not in this call wait for it
                lane.waiting -= 1
                lane.out += 1
            if call:
                self._waiting -= len(call)
                self.out += len(call)
                return call
        return []

    def follower(self, item: Invocation) -> Invocation | None:
        """The next of a lane whose `item` was just taken, if it may follow in the same child."""
        lane = self._lanes[item.key[1]]
        if not lane.held or lane.batch or lane.broken or self._max_batch(lane.held[0].handler) is not None:
            return None
        lane.out += 1
        self._waiting -= 1
        self.out += 1
        return lane.held.popleft()

    def fail(self, ordering_id: str) -> list[Invocation]:
        """One of the lane did not succeed: removes and returns what waits behind it. To be told before `finish`."""
        lane = self._lanes[ordering_id]
        lane.broken = True
        gone = list(lane.held or ())
        lane.held = None
        if lane.waiting and lane.batch:
            queue = self._batches[lane.batch]
            gone = [item for item in queue if item.key[1] == ordering_id] + gone
            self._batches[lane.batch] = deque(item for item in queue if item.key[1] != ordering_id)
            lane.waiting = 0
        self._waiting -= len(gone)
        return gone

    def broken(self, ordering_id: str) -> bool:
        """Returns True if one of the lane has failed while others were out behind it."""
        return self._lanes[ordering_id].broken

    def finish(self, call: Sequence[Invocation]) -> None:
        """Tells that taken invocations are over, which makes their lanes' next ones ready."""
        lanes = self._lanes
        self.out -= len(call)
        if len(call) == 1:
            ordering_id = call[0].key[1]
            self._returned(lanes[ordering_id])
            self._advance(ordering_id)
            return
        for item in call:
            self._returned(lanes[item.key[1]])
        for item in call:
            if item.key[1] in lanes:
                self._advance(item.key[1])

    def put_back(self, call: Sequence[Invocation]) -> None:
        """Returns taken invocations that were not started to the front (of several calls, the last one first)."""
        self._waiting += len(call)
        self.out -= len(call)
        name = call[0].handler
        if self._max_batch(name) is None:
            self._put_back_one(call[0])
            return
        queue = self._batches[name]
        for item in reversed(call):
            lane = self._lanes[item.key[1]]
            place = 0
            if lane.waiting:  # behind those of its lane that were before it and are back already
                earlier = (at for at, other in enumerate(queue) if other.key[1] == item.key[1] and other.id < item.id)
                place = max(earlier, default=-1) + 1
            queue.insert(place, item)
            lane.waiting += 1
            self._returned(lane)
        if name not in self._marked:
            self._marked.add(name)
            self._ready.appendleft(name)

    def _put_back_one(self, item: Invocation) -> None:
        """Into its place in the lane; ready only when all that were out with it are back or finished."""
        lane = self._lanes[item.key[1]]
        self._returned(lane)
        held = lane.held = lane.held or deque()
        place = next((index for index, other in enumerate(held) if other.id > item.id), len(held))
        held.insert(place, item)
        if not lane.out:
            lane.waiting += 1
            self.startable += 1
            lane.batch = ""
            self._ready.appendleft(held.popleft())

    def discard(self, ids: Container[int] | None = None) -> list[Invocation]:
        """Removes those invocations (default: all) that wait, and returns them."""
        gone: list[Invocation] = []

        def sift(queue: Iterable[Q]) -> deque[Q]:
            kept: deque[Q] = deque()
            for item in queue:
                if isinstance(item, str) or (ids is not None and item.id not in ids):
                    kept.append(item)
                else:
                    gone.append(item)
            return kept

        self._ready = sift(self._ready)
        self._batches = {name: sift(queue) for name, queue in self._batches.items()}
        for item in gone:
            lane = self._lanes[item.key[1]]
            lane.waiting -= 1
            self.startable -= not lane.out
        for lane in self._lanes.values():
            lane.held = sift(lane.held) if lane.held else None
        self._waiting -= len(gone)
        for name in {item.key[1] for item in gone}:
            self._advance(name)
        return gone

    def _returned(self, lane: _Lane) -> None:
        """One that was out is not out any more."""
        lane.out -= 1
        if not lane.out:
            self.startable += lane.waiting

    def _advance(self, ordering_id: str) -> None:
        lane = self._lanes[ordering_id]
        if lane.waiting:
            if lane.batch and not lane.out:
                self._mark(lane.batch)
        elif not lane.out:
            lane.broken = False
            if not lane.held:
                del self._lanes[ordering_id]
                return
            self._place(lane.held.popleft(), lane)
            while lane.batch and lane.held and lane.held[0].handler == lane.batch:
                self._place(lane.held.popleft(), lane)

    def _place(self, item: Invocation, lane: _Lane) -> None:
        lane.waiting += 1
        self.startable += not lane.out
        if self._max_batch(item.handler) is None:
            lane.batch = ""
            self._ready.append(item)
        else:
            lane.batch = item.handler
            self._batches.setdefault(item.handler, deque()).append(item)
            self._mark(item.handler)

    def _mark(self, batch: str) -> None:
        if batch not in self._marked:
            self._marked.add(batch)
            self._ready.append(batch)

    def _take_batch(self, name: str) -> list[Invocation]:
        self._marked.discard(name)
        queue = self._batches[name]
        limit = self._max_batch(name) or 1
        call: list[Invocation] = []
        aside: list[Invocation] = []  # their lane is in a call that runs
        while queue and len(call) < limit and len(aside) < _SCAN * limit:
            item = queue.popleft()
            (aside if self._lanes[item.key[1]].out else call).append(item)
        queue.extendleft(reversed(aside))
        if queue and call:
            self._mark(name)
        return call
