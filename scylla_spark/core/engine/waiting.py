"""What every idle lane waits for: the time of its head, room for it, or a reload of what the tables hold."""

from __future__ import annotations

from heapq import heappop

from scylla_spark.core.engine import action
from scylla_spark.core.engine.bounds import LEASED
from scylla_spark.core.engine.expiry_timers import ExpiryTimers, Timer, may_go_off
from scylla_spark.core.engine.external_rate_limits import RateLimits
from scylla_spark.core.engine.lane import CLOSING, IDLE, READY, RECORDING, RUNNING, WAITING, Entry, Lane
from scylla_spark.core.engine.leases.ready_for_workers import PullQueues
from scylla_spark.core.engine.outbox import NEVER
from scylla_spark.core.engine.partition import ACTIVE, DROPPED, Partition
from scylla_spark.core.engine.queue import Gates
from scylla_spark.core.engine.ready import ReadyLanes
from scylla_spark.core.engine.state import EngineState
from scylla_spark.core.engine.swept_heap import SweptHeap
from scylla_spark.core.records.command import Command
from scylla_spark.core.tasks.state import NO_HANDLER

_SOON_US, _LATE_US = 10_000_000, 60_000_000  # a lane reloaded again so soon gets twice as much, so late half as much …
_DEEPEST = 250  # … but never more than so many times the least


class Waiting:
    """Timers of lanes, and where a lane goes when it is idle.

    Args:
        state: of the engine.
        gates: of the queues.
        ready: where lanes wait whose head is due.
        pulls: where those wait that a worker is to lease.
        expiries: until when those wait whose head expires.
        rates: rate limits for which those wait that share them.
    """

    def __init__(
        self,
        state: EngineState,
        gates: Gates,
        ready: ReadyLanes,
        pulls: PullQueues,
        *,
        expiries: ExpiryTimers,
        rates: RateLimits,
    ) -> None:
        self._state = state
        self._gates = gates
        self._ready = ready
        self._pulls = pulls
        self._expiries = expiries
        self._rates = rates
        self._timers: SweptHeap[Timer] = SweptHeap(may_go_off)
        self._left = False

    def settle(self, partition: Partition, lane: Lane, now: int) -> None:
        """Decides what an idle lane waits for."""
        if lane.state not in IDLE:
            return
        lane.stamp += 1
        lane.active = None
        if partition.state is not ACTIVE:
            lane.state = WAITING
            return
        if lane.frontier is not None:
            lane.retreat()
            self._reload_if_low(partition, lane, now)
        head = lane.head()
        while head is not None and head.stage is CLOSING and self._gates.of(head.data.queue).limits.replay:
            lane.pass_over()
            head = lane.head()
        if head is None:
            lane.state = WAITING
            if lane.empty and partition.lanes.get(lane.ordering_id) is lane:  # not a later one of that name
                del partition.lanes[lane.ordering_id]
        elif head.stage is CLOSING:
            lane.state, lane.active = RECORDING, head
        elif head.undecided:
            lane.state = WAITING  # until it is known who has its name
        elif head.next_us <= now:
            self.make_ready(partition, lane, head)
            if head.data.expires_ms is not None and lane.state is READY:
                self._expiries.watch(partition, lane, head)
        else:
            lane.state = WAITING
            self._timers.push((head.next_us, self._state.next_number(), lane.stamp, partition, lane))

    def make_ready(self, partition: Partition, lane: Lane, head: Entry) -> None:
        """The head is due: its lane waits for room, unless the tables have not been read so far."""
        if head.key.time_us > partition.complete_us:
            lane.state = WAITING
            partition.unscanned.append(lane)
            return
        executor = self.executor_of(head.data)
        if executor == NO_HANDLER and head.cancelled:
            executor = LEASED  # a place that always has its turn: it ends, and needs no handler
        lane.state, lane.active = READY, head
        if executor == LEASED and not head.cancelled:
            self._pulls.push(partition, lane, head, self._state.next_number())
        else:
            self._ready.push(executor, partition, lane, head, self._state.next_number())

    def executor_of(self, command: Command) -> str:
        """The name of the executor of a task; LEASED where workers run it, NO_HANDLER where nothing here does."""
        if self._gates.of(command.queue).limits.pull:
            return LEASED
        return self._state.policy_of(command).executor

    def go_on(self, partition: Partition, lane: Lane, now: int) -> None:
        """A lane whose released tasks have ended, or whose fact counts, does the next thing."""
        if lane.held:
            lane.state = RUNNING if lane.out else RECORDING
        else:
            lane.state = WAITING
            self.settle(partition, lane, now)

    def let_in(self, waiting: tuple[Partition, Lane] | None) -> None:
        """A lane that waited for a slot of its group, or for a rate limit, queues up again; it stands in one queue at a time."""
        if waiting is not None and waiting[1].state is READY and waiting[1].active is not None:
            self.make_ready(*waiting, waiting[1].active)

    def insert(self, partition: Partition, entry: Entry, now: int) -> None:
        """A task that was not known is loaded into its lane."""
        tried = partition.attempts.get(entry.key) if partition.attempts else None
        if tried is not None:
            entry.note_attempt(tried.known)
            partition.forget_attempt(entry.key)  # it is the task's from now on
        if entry.error is not None:
            self._rates.learn(
                entry.data, entry.error, entry.next_us, now
            )  # an earlier owner's tasks may have run into one
        lane = partition.lane(entry.key.ordering_id)
        lane.load(entry)
        if lane.state in IDLE:
            if lane.frontier is not None or lane.head() is entry:  # else it goes on waiting for the same
                self.settle(partition, lane, now)
        elif lane.state is RECORDING and partition.outbox.waiting and entry.next_us <= now:
            partition.outbox.send_by_us = 0

    def fire(self, now: int) -> None:
        """Lanes whose time has come are settled anew, and those queue up again that need not wait for a rate limit any longer."""
        if self._left:
            self._left = False
            self._sweep()
        if self._ready.swept or self._pulls.swept:
            self._ready.swept = self._pulls.swept = False
            for gate in self._gates.all():
                for vacancy in gate.vacancies():
                    self.let_in(vacancy)
        for place in self._rates.let_go(now):
            self.let_in(place)
        while (timers := self._timers.marks) and timers[0][0] <= now:
            _, _, stamp, partition, lane = heappop(timers)
            if stamp == lane.stamp and partition.state is not DROPPED:
                self.settle(partition, lane, now)

    def next_us(self) -> int:
        """Returns when the next timer is due, microseconds since the epoch; NEVER: there is none."""
        if (self._ready.swept or self._pulls.swept) and any(gate.holds_back for gate in self._gates.all()):
            return 0
        timers = self._timers.marks
        while timers and timers[0][2] != timers[0][4].stamp:
            heappop(timers)
        return min(timers[0][0] if timers else NEVER, self._rates.next_us())

    def timers(self) -> list[Timer]:
        """All timers as (when, number, stamp, partition, lane), void ones included, in no order."""
        return self._timers.marks

    def forget_left(self) -> None:
        """A partition was left: nothing that waits refers to it any more from the next tick on; several go together."""
        self._left = True

    def _sweep(self) -> None:
        self._timers.sweep()
        self._expiries.sweep()
        self._ready.sweep()
        self._pulls.sweep()

    def _reload_if_low(self, partition: Partition, lane: Lane, now: int) -> None:
        state, least = self._state, self._state.limits.lane_depth
        if lane.frontier is None or lane.reloading or len(lane.entries) > max(lane.depth, least) // 2:
            return
        if lane.entries and state.meter.bytes > state.limits.max_held_bytes // 2:
            return  # it has something to go on with, and others need the room
        waited = now - lane.asked_us
        if waited < _SOON_US:  # it runs through what is read within seconds: a read costs much, a row little
            lane.depth = min(2 * lane.depth, _DEEPEST * least)
        elif waited > _LATE_US:
            lane.depth = max(lane.depth // 2, least)
        lane.asked_us, lane.reloading = now, True
        state.ask(
            action.Reload(
                partition.tenure, lane.ordering_id, lane.frontier, partition.horizon_us, lane.depth, lane.covers
            )
        )
