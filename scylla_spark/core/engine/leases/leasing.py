"""Leases what waits to those who want it: the most urgent lanes to the first who asked.

A lease is a fact before it is an answer: here it is decided and announced, `LeaseBook` hears when its fact counts.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from scylla_spark.core.engine import action
from scylla_spark.core.engine.bounds import LEASED, retry_of
from scylla_spark.core.engine.cancels import Cancels
from scylla_spark.core.engine.external_rate_limits import RateLimits
from scylla_spark.core.engine.lane import LOOKUP, READY, RECORDING, WAITING, Entry, Lane
from scylla_spark.core.engine.leases.book import LeaseBook
from scylla_spark.core.engine.leases.demand import Demand, Demands
from scylla_spark.core.engine.leases.ready_for_workers import PullQueues
from scylla_spark.core.engine.leases.worker_session import Lease, leased_run
from scylla_spark.core.engine.memory_use import size_of
from scylla_spark.core.engine.partition import ACTIVE, Partition
from scylla_spark.core.engine.queue import Gate, Gates
from scylla_spark.core.engine.ready import Place
from scylla_spark.core.engine.runs import Run
from scylla_spark.core.engine.state import EngineState
from scylla_spark.core.engine.waiting import Waiting
from scylla_spark.core.leases.messages import Scarcity, digest_of_token, new_token
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.key import place_of

MOST_ANSWER_BYTES: Final = (
    8 * 1024 * 1024
)  # of all that one answer tells of its leases; written as JSON it may be some times that
_MOST_LOOKED_AT: Final = 100  # lanes of a partition, because every worker that finds nothing asks
_LEASE_BYTES: Final = 512  # of a lease without its texts


class Leasing:
    """Hands lanes that wait for a worker to workers that wait for work.

    Args:
        state: of the engine.
        gates: of the queues.
        pulls: lanes that wait for a worker.
        waiting: where lanes go back to.
        cancels: ends cancelled heads.
        book: of leases.
        rates: rate limits for which tasks have to wait.

    Attributes:
        demands: what is wanted.
    """

    def __init__(
        self,
        state: EngineState,
        gates: Gates,
        pulls: PullQueues,
        *,
        waiting: Waiting,
        cancels: Cancels,
        book: LeaseBook,
        rates: RateLimits,
    ) -> None:
        self._state = state
        self._gates = gates
        self._pulls = pulls
        self._waiting = waiting
        self._cancels = cancels
        self._book = book
        self._rates = rates
        self.demands = Demands()

    def serve(self, now: int) -> None:
        """Leases all that is wanted and there."""
        for name in self.demands.queues():
            self._serve(name, now)
        for demand in self.demands.by_key():
            self._serve_key(demand, now)

    def opens_us(self, after_us: int) -> list[int]:
        """Returns when rates let something start that is wanted, later than an instant; microseconds since the epoch."""
        waited_for = [name for name in self.demands.queues() if self._pulls.get(name) is not None]
        opens = [self._gates.of(name).opens_us() for name in waited_for]
        return [at for at in opens if at is not None and at > after_us]

    def scarcity(self, name: str, now: int) -> Scarcity:
        """Returns what a queue has for workers here."""
        pull, gate = self._pulls.get(name), self._gates.of(name)
        if pull is not None and (ready := pull.count(now)):
            return Scarcity(name, ready, pull.oldest_us(), gate.limit(now))
        limit = gate.withheld() if pull is None else gate.limit(now)
        if not limit and self._is_unscanned(name):
            limit = gate.limit(now) or "tables"
        return Scarcity(name, 0, None, limit)

    def _is_unscanned(self, name: str) -> bool:
        """Whether tasks of a queue are due and wait until the tables have been scanned up to their times; a look at some of them."""
        for partition in self._state.partitions.values():
            for lane in islice(partition.unscanned, _MOST_LOOKED_AT):
                head = lane.head() if lane.state is WAITING else None
                if head is not None and head.data.queue == name and head.key.time_us > partition.complete_us:
                    return True
        return False

    def _serve(self, name: str, now: int) -> None:
        """Leases what waits in a queue to those who want it, the first first."""
        pull, gate = self._pulls.get(name), self._gates.of(name)
        if pull is None or not gate.is_open(now):
            return
        for demand in self.demands.of(name):
            while demand.got < demand.want.most and demand.session.bytes < MOST_ANSWER_BYTES and gate.is_open(now):
                place = pull.pop(demand.want.handlers)
                if place is None:
                    break
                self._try(demand, place, gate, now)
            if not pull.size or not gate.is_open(now):
                break
        self._pulls.forget_if_empty(name)

    def _serve_key(self, demand: Demand, now: int) -> None:
        """Leases the one task that is asked for, if it is the head of its lane, due, and nothing holds it up.

        Its lane keeps the place that it has, wherever that is, until it is leased: who only looks gives it no other.
        """
        key = demand.want.key
        assert key is not None
        partition = self._state.partitions.get(place_of(key.ordering_id, self._state.limits.partitions))
        lane = partition.lanes.get(key.ordering_id) if partition is not None else None
        if demand.got or partition is None or lane is None or lane.active is None or lane.active.key != key:
            return
        head, gate = lane.active, self._gates.of(lane.active.data.queue)
        ready = lane.state is READY and partition.state is ACTIVE and not partition.backed_up(self._state.limits)
        if not ready or self._waiting.executor_of(head.data) != LEASED or self._rates.of(head.data, now) is not None:
            return
        if gate.is_open(now) and gate.has_slot(lane.ordering_id):
            self._begin(demand, partition, lane, head, now)

    def _try(self, demand: Demand, place: Place, gate: Gate, now: int) -> None:
        """Leases the head of a lane, unless something else has to come first."""
        partition, lane = place.partition, place.lane
        head = lane.active
        if place.void or head is None:
            return
        if self._rates.holds(partition, lane, head, now):
            self._waiting.let_in(gate.instead(lane.ordering_id))
            return  # it shares a rate limit
        if not gate.admits(partition, lane):
            return  # it waits for a slot of its group
        if partition.backed_up(self._state.limits):
            partition.overflow.append((place.stamp, lane))
            self._waiting.let_in(gate.instead(lane.ordering_id))
        elif not self._begin(demand, partition, lane, head, now):
            self._waiting.let_in(gate.instead(lane.ordering_id))

    def _begin(self, demand: Demand, partition: Partition, lane: Lane, head: Entry, now: int) -> bool:
        """Leases the head of a ready lane, or does what has to come first; whether it is leased."""
        retry, gate = retry_of(head.data, self._state.policy_of(head.data)), self._gates.of(head.data.queue)
        lane.stamp += 1  # wherever it has a place, that is void from now on
        if not head.verified and not partition.is_fresh(head.key):
            lane.state = LOOKUP
            self._state.ask(action.Lookup(partition.tenure, [head.key]))
        elif head.cancelled or head.expired(now) or not retry.allows(head.used):
            lane.state = RECORDING
            self._cancels.end_unrun(partition, head, now)
        else:
            partition.reassure(lane)
            self._lease(demand, leased_run(partition, lane, head, head.attempt + 1, gate, retry), now)
            return True
        return False

    def _lease(self, demand: Demand, run: Run, now: int) -> None:
        """A worker gets a task, once the fact of it counts."""
        limits, session, want, work = run.gate.limits, demand.session, demand.want, run.entry.work
        token = new_token(run.partition.number, self._state.rng)
        lease_ms = limits.lease_ms if want.lease_ms is None else want.lease_ms
        run_ms = run.entry.data.timeout_ms or limits.max_run_ms
        note = WorkNote(
            session.worker or None,
            digest_of_token(token),
            lease_ms,
            now,
            now + run_ms * 1000,
            checkpoint=work.checkpoint if work is not None else None,
        )
        demand.got += 1
        session.bytes += _bytes_of(run)
        self._state.counts["leases"] += 1
        lease = Lease(run, note, digest_of_token(token), token, session)
        lease.want = want
        self._book.announce(lease, now)


def _bytes_of(run: Run) -> int:
    """About how many bytes a worker is told of a task."""
    item, checkpoint = run.invocation, run.entry.work.checkpoint if run.entry.work is not None else None
    texts = (
        *item.key[1:],
        *item.tags,
        *item.missing,
        *(item.last_error or ()),
        *(text for text in item if isinstance(text, str)),
    )
    return _LEASE_BYTES + size_of(checkpoint) + sum(map(size_of, texts))
