"""Which child gets which calls, and how many children there should be: for calls one after the other, and for calls on an event loop.

A crew is the children of one executor, and what waits for them. What is the same for all crews is in `supervisor`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from scylla_spark.core.tasks.handler_durations import MAX_DEPTH, HandlerDurations
from scylla_spark.executors.backlog import Backlog
from scylla_spark.executors.local.child_handle import Call, ChildHandle
from scylla_spark.handlers.description import HandlerInfo

FRAME_CHARS: Final = 256 * 1024
_MOST_CHILDREN: Final = 4  # with a loop: one that works, others whose loop is blocked, or that are dying


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes of a pool.

    Attributes:
        min_children: how many are kept.
        fast_children: how many handlers that take less than a millisecond may occupy (usually: one per core).
        max_children: how many there may be.
        idle_us: after how long without work a child above the minimum goes.
        grace_ms: from SIGTERM to SIGKILL.
        longest_ms: how long a call may run at most if it asks for longer than its timeout.
    """

    min_children: int
    fast_children: int
    max_children: int
    idle_us: int
    grace_ms: int
    longest_ms: int = 0


class InTurn:
    """The crew whose children run one call at a time; more calls wait in a child whose handlers are fast.

    Args:
        limits: of the pool.
        handlers: by every name that tasks may use.

    Attributes:
        children: those that it has now, by number.
        backlog: what waits for them.
        min_children: how many it keeps without work.
        lean: it has one child at most, since memory is short; those that there are stay.
        spawn_from_us: boot clock before which it starts none, since one has just died before it began.
    """

    on_loop: Final = False

    def __init__(self, limits: Limits, handlers: Mapping[str, HandlerInfo]) -> None:
        self.children: dict[int, ChildHandle] = {}
        self.lean = False
        self.spawn_from_us = 0
        self.backlog = Backlog(lambda name: handlers[name].max_batch)
        self.min_children = limits.min_children
        self._limits = limits
        self._pace = HandlerDurations()
        self._depth = 0  # how many calls a child could have when it was last given some

    def room(self, now: int) -> int:
        """Free and possible children, and prefetch space in those that run fast handlers, less what waits."""
        children = list(self.children.values())
        idle = sum(not child.calls and not child.ending and not child.unforked(now) for child in children)
        free = idle + (0 if self.lean and children else self._limits.max_children - len(children))
        fast = [child for child in children if child.calls and child.depth > 2]
        ahead = sum(child.depth - len(child.calls) for child in fast)
        if self._depth > 2:  # the latest calls were fast ones; more of them are likely
            ahead += min(idle, max(0, self._limits.fast_children - len(fast))) * (self._depth - 1)
        return max(0, free + ahead - len(self.backlog))

    def fill(self, now: int) -> bool:
        """Gives waiting calls to children that can take them; whether it did."""
        ready = self.backlog.ready
        if not ready:
            return False
        able = [m for m in self.children.values() if len(m.calls) <= m.depth // 2 and m.usable(now)]
        able.sort(key=lambda child: len(child.calls))
        head = self.backlog.head()
        if head is not None and self._pace.depth(head) > 1:  # a few children do fast calls in fewer and larger frames
            busy = sum(m not in able and bool(m.calls) and not m.hangs(now) for m in self.children.values())
            able = able[: max(1, self._limits.fast_children - busy)]
        for index, child in enumerate(able):
            share = -(-self.backlog.ready // (len(able) - index))
            if share == 0:
                break
            self._give(child, share)
        return self.backlog.ready < ready

    def missing(self, now: int) -> int:
        """Returns how many children to start, because work waits that the present ones will not do soon."""
        head, limits = self.backlog.head(), self._limits
        present = sum(not child.ending for child in self.children.values())
        wanted = limits.min_children - present
        if head is not None:
            most = limits.max_children
            if self._pace.depth(head) > 1:
                most = min(most, limits.fast_children + sum(child.hangs(now) for child in self.children.values()))
            wanted = max(wanted, min(self.backlog.ready, most - present))
        return min(wanted, (1 if self.lean else limits.max_children) - len(self.children))

    def ended(self, call: Call, duration_us: int) -> None:
        """A call has run for so long."""
        self._pace.note(call[0].handler, duration_us)

    def _give(self, child: ChildHandle, share: int) -> None:
        backlog, pace = self.backlog, self._pace
        queued = len(child.calls)
        depth = child.depth if queued else MAX_DEPTH
        calls: list[Call] = []
        followers: set[int] = set()
        chars = 0
        while len(calls) < share and chars < FRAME_CHARS and (head := backlog.head()) is not None:
            depth = min(depth, pace.depth(head))
            if queued + len(calls) >= depth:
                break
            call = backlog.take()
            if not call:
                break
            calls.append(call)
            last = call[0]
            chars += len(last.payload) if len(call) == 1 else sum(len(item.payload) for item in call)
            while (
                queued + len(calls) < depth and chars < FRAME_CHARS and (behind := backlog.follower(last)) is not None
            ):
                calls.append([behind])
                chars += len(behind.payload)
                followers.add(behind.id)
                last = behind
        if calls:
            child.depth = self._depth = depth
            child.send(calls, followers)


class OnLoop:
    """The crew of one `async def` handler: many calls at once in one child, and others only while its loop is blocked.

    Args:
        info: the handler.

    Attributes: as those of `InTurn`.
    """

    on_loop: Final = True
    min_children: Final = 0

    def __init__(self, info: HandlerInfo) -> None:
        self.children: dict[int, ChildHandle] = {}
        self.lean = False
        self.spawn_from_us = 0
        self.backlog = Backlog(lambda name: None)
        self._at_once = info.concurrency or 1

    def room(self, now: int) -> int:
        """Returns how many more calls would run now."""
        return max(0, self._free - len(self.backlog))

    @property
    def _free(self) -> int:
        return self._at_once - self.backlog.out

    def fill(self, now: int) -> bool:
        """Gives waiting calls to a child whose loop is free; whether it did."""
        child = self._usable(now) if self.backlog.ready and self._free > 0 else None
        if child is None:
            return False
        while not child.blocked and (calls := self._next_calls()):
            child.send(calls)
        return True

    def _next_calls(self) -> list[Call]:
        calls: list[Call] = []
        chars = 0
        while self._free > 0 and chars <= FRAME_CHARS and (call := self.backlog.take()):
            calls.append(call)
            chars += len(call[0].payload)
        return calls

    def missing(self, now: int) -> int:
        """One child, if something waits that no child can take."""
        most = 1 if self.lean else _MOST_CHILDREN
        waits = self.backlog.ready and self._free > 0 and len(self.children) < most
        return int(bool(waits) and self._usable(now) is None)

    def ended(self, call: Call, duration_us: int) -> None:
        """Nothing follows from how long a call has run."""

    def _usable(self, now: int) -> ChildHandle | None:
        return next((child for child in self.children.values() if child.usable(now)), None)


Crew = InTurn | OnLoop
