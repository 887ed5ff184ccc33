"""Where memory is short: what cannot start is left to the tables, so that it never keeps out what can.

The tables have every task, or will have it. So a lane may let go of all but its head, and a partition of whole lanes, as long as
it is known up to which offset tables must be when they are read again (`Lane.covers`, `Partition.unloaded`).
"""

from __future__ import annotations

from typing import Final

from scylla_spark.core.engine.bounds import LEASED
from scylla_spark.core.engine.external_rate_limits import RateLimits
from scylla_spark.core.engine.lane import BEFORE_ALL, IDLE, READY, RUNNING, Lane
from scylla_spark.core.engine.outbox import NEVER
from scylla_spark.core.engine.partition import ACTIVE, Partition
from scylla_spark.core.engine.queue import Gates
from scylla_spark.core.engine.state import EngineState
from scylla_spark.core.engine.waiting import Waiting
from scylla_spark.core.records.command import Command
from scylla_spark.core.tasks.state import NO_HANDLER

SOON_US: Final = 60_000_000  # a lane that may start within this keeps its head
_STUCK_US: Final = 100_000  # a lane whose head waits longer than this keeps nothing but its head
_LOOK_EVERY_US: Final = 1_000_000
_PATIENCE_US: Final = 10_000_000  # how long the tail may wait for what is held to run, before lanes keep less
_DEEP: Final = 25  # times lane_depth: what a lane keeps that runs


class Unloading:
    """Keeps what is held below the limit.

    Args:
        state: of the engine.
        gates: of the queues; a paused one starts nothing.
        waiting: where lanes go on that were cut.
        rates: rate limits; what waits for one starts when it is over.

    Attributes:
        choked: so much is held, and is about to start, that the tail should wait.
    """

    def __init__(self, state: EngineState, gates: Gates, waiting: Waiting, rates: RateLimits) -> None:
        self._state = state
        self._gates = gates
        self._waiting = waiting
        self._rates = rates
        self.choked = False
        self._looked_us = 0
        self._looked_bytes = 0
        self._choked_us = 0
        self._keep = 0

    @property
    def pressed(self) -> bool:
        """Returns True if more is held than should be."""
        return self._state.meter.bytes > self._state.limits.max_held_bytes

    @property
    def crowded(self) -> bool:
        """Whether so much is held that what waits for the tail must not take more: the rest is for what the tail brings, and runs."""
        return self._state.meter.bytes > self._state.limits.max_held_bytes // 2

    def leave_to_tables(self, partition: Partition, lane: Lane | None, command: Command, now: int) -> bool:
        """Returns True if a new task is not kept, because it could not start now anyway."""
        if lane is not None:
            if lane.frontier is None or command.key <= lane.frontier:
                return False
            lane.let_pass(command.offset)
            return True
        if (
            partition.state is not ACTIVE
            or partition.left(command.key)
            or self._starts_us(command, now) > now + SOON_US
        ):
            partition.leave(command.key.ordering_id, command.offset)
            self._rates.leave(command, now)
            return True
        return False

    def _starts_us(self, command: Command, now: int) -> int:
        """Returns when a task may start, by its time, a rate limit that it waits for, and what is fixed for this process."""
        if self._is_parked(command):
            return NEVER
        hold = self._rates.of(command, now)
        return command.key.time_us if hold is None else max(command.key.time_us, hold.until_us)

    def _is_parked(self, command: Command) -> bool:
        """Returns True if a task starts only when something changes: a worker asks, its queue is resumed, its handler is deployed."""
        parked = self._waiting.executor_of(command) in (LEASED, NO_HANDLER)
        return parked or self._gates.of(command.queue).limits.paused

    def relieve(self, now: int) -> None:
        """Lets go of what cannot start, if too much is held; what is left is about to start, and the tail should wait for it.

        It looks at all lanes, so it looks again only when more has come, or after a while.
        """
        most = self._state.limits.max_held_bytes
        if self._state.meter.bytes <= most:
            if self._state.meter.bytes <= most - most // 20:
                self.choked, self._keep = False, 0
            return
        if now - self._looked_us >= _LOOK_EVERY_US or self._state.meter.bytes > self._looked_bytes + most // 20:
            self._trim_all(now)
            if self._state.meter.bytes > most:
                self._unload(most - most // 10, now)
            self._looked_us, self._looked_bytes = now, self._state.meter.bytes
        loading = any(partition.state is not ACTIVE for partition in self._state.partitions.values())
        choked = self._state.meter.bytes > most and not loading
        if choked and not self.choked:
            self._choked_us = now
        elif choked and now - self._choked_us > _PATIENCE_US:
            self._keep, self._choked_us = max(1, self._kept() // 5), now
        self.choked = choked

    def _kept(self) -> int:
        """Returns how many tasks a lane that runs may keep."""
        return self._keep or _DEEP * self._state.limits.lane_depth

    def _trim_all(self, now: int) -> None:
        for partition in self._state.partitions.values():
            if partition.receiving:
                continue  # of a lane the first tasks may be still to come
            for lane in list(partition.lanes.values()):
                if not partition.scanned:  # the tables may hold earlier ones
                    if not partition.unload(lane):
                        lane.cut(BEFORE_ALL)
                    continue
                keep = 1 if self._stuck(partition, lane, now) else self._kept()
                if len(lane.entries) > keep or lane.beyond:
                    partition.trim(lane, keep)
                    self._waiting.settle(partition, lane, now)

    def _stuck(self, partition: Partition, lane: Lane, now: int) -> bool:
        if partition.state is not ACTIVE:
            return True
        head = lane.head()
        if head is None or lane.state is RUNNING:
            return False
        held_up = self._is_parked(head.data) or self._rates.of(head.data, now) is not None
        return head.next_us > now + _STUCK_US or (lane.state is READY and held_up)

    def _unload(self, target: int, now: int) -> None:
        """Leaves whole lanes to the tables, those first that will start last."""
        idle: list[tuple[int, int, Partition, Lane]] = []
        for partition in self._state.partitions.values():
            for lane in partition.lanes.values() if not partition.receiving else ():
                head = lane.head()
                if lane.state in IDLE and head is not None and not lane.held:
                    starts_us = max(self._starts_us(head.data, now), head.next_us)
                    if partition.state is not ACTIVE or starts_us > now + SOON_US:
                        idle.append((-starts_us, len(idle), partition, lane))
        for _, _, partition, lane in sorted(idle):
            if self._state.meter.bytes <= target:
                break
            head, lane.active = lane.head(), None
            if not partition.unload(lane):
                self._waiting.settle(partition, lane, now)
            elif head is not None:
                self._rates.leave(head.data, now)
