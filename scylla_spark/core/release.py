"""Releasing: which ready tasks start now, and how many of a lane go together."""

from __future__ import annotations

from functools import lru_cache
from heapq import heappop

from scylla_spark import failpoint
from scylla_spark.core import action
from scylla_spark.core.fact import Fact
from scylla_spark.core.feed import Feeder
from scylla_spark.core.lane import CLOSING, LOOKUP, OPEN, RECORDING, RUNNING, STARTING, Entry, Lane
from scylla_spark.core.lanes import NEVER, Ready, Run, Terms
from scylla_spark.core.partition import ACTIVE, Partition
from scylla_spark.core.queue import Gate
from scylla_spark.core.task import FAILED, STARTED, Failure, Invocation, Retry

MAX_TRAIN = 512
TRAIN_US = 50_000  # tasks of a replay lane are handed over together up to about this much work

_own_retry = lru_cache(maxsize=1_000)(Retry.from_ms)  # tasks that bring a policy bring one of a few


class Releaser(Feeder):
    """Takes ready lanes in order of priority and planned time, as far as partitions, queues and executors have room."""

    def _full(self, partition: Partition) -> bool:
        limits = self.limits
        return (
            partition.in_flight >= limits.max_in_flight
            or len(partition.unrecorded) >= limits.max_unrecorded
            or partition.unrecorded_bytes >= limits.max_unrecorded_bytes
            or len(partition.ended) >= limits.max_ended
            or partition.stalled
        )

    def held_up(self, partition: Partition) -> str:
        """Why nothing of a partition starts now, whatever its queue; nothing if it may."""
        limits = self.limits
        if partition.stalled or len(partition.unrecorded) >= limits.max_unrecorded:
            return "its outcomes are not being recorded; is Kafka reachable?"
        if partition.unrecorded_bytes >= limits.max_unrecorded_bytes:
            return "results that are being recorded take too much memory"
        if len(partition.ended) >= limits.max_ended:
            return "too many completions wait for the tables; is ingest running?"
        return "as many of its tasks run as may at once" if partition.in_flight >= limits.max_in_flight else ""

    def _release(self, executor: str, room: int, now: int) -> None:
        batch: list[Invocation] = []
        queues = self._ready[executor]
        while room > 0 and (found := self._next_queue(queues, now)) is not None:
            heap, gate = found
            _, _, _, stamp, lane = heappop(heap)
            partition = lane.partition
            if stamp != lane.stamp or partition.state is not ACTIVE:
                self._let_in(gate.instead(lane.ordering_id), now)
            elif self._full(partition):
                partition.overflow.append((stamp, lane))
                self._let_in(gate.instead(lane.ordering_id), now)
            elif gate.admits(lane):
                room -= self._depart(partition, lane, executor, gate, batch, now)
        if batch:
            self.actions.append(action.Release(executor, batch))

    def _next_queue(self, queues: dict[str, list[Ready]], now: int) -> tuple[list[Ready], Gate] | None:
        """The heap of the open queue whose first lane is the most urgent."""
        best: tuple[list[Ready], Gate] | None = None
        for name, heap in queues.items():
            if heap and (best is None or heap[0] < best[0][0]):
                gate = self._gates[name]
                if gate.is_open(now):
                    best = (heap, gate)
        return best

    def _depart(
        self, partition: Partition, lane: Lane, executor: str, gate: Gate, batch: list[Invocation], now: int
    ) -> int:
        """Releases the lane's head, and what may go with it; 1 if the executor gets work, else 0."""
        head = lane.active
        assert head is not None
        terms = self._terms(head.data)
        try:
            if failpoint.armed:
                failpoint.reach("engine.release", head.key.uniqueness_key)
            first = self._prepare(partition, lane, head, executor, gate, terms, now)
        except Exception as error:
            self._set_aside(partition, head.key, error, now)
            first = None
        if first is None:
            self._let_in(gate.instead(lane.ordering_id), now)
            return 0
        batch.append(first)
        gate.begin(lane.ordering_id, now)
        most = self._train_length(head, terms, gate)
        while most > 1 and (follower := self._follower(partition, lane, head, now)) is not None:
            if self._full(partition) or not gate.is_open(now) or not gate.admits_more(lane.ordering_id):
                break
            retry = self._retry_of(follower, terms)
            batch.append(self._start(lane, follower, terms, retry, executor, gate, follower.attempt + 1))
            gate.begin(lane.ordering_id, now)
            most -= 1
        return 1

    def _train_length(self, head: Entry, terms: Terms, gate: Gate) -> int:
        """How many tasks of a lane may be released together: a batch, or what a replay lane does in a moment."""
        if not gate.terms.replay or gate.limited:
            return terms.max_batch
        pace = self._pace.get(head.data.handler or "")
        if pace is None:
            return terms.max_batch
        return max(terms.max_batch, min(MAX_TRAIN, int(TRAIN_US / (pace + 10))))

    def _follower(self, partition: Partition, lane: Lane, head: Entry, now: int) -> Entry | None:
        """The lane's next task, if it can go along with its head as it is."""
        entry = lane.head()
        if entry is None or entry.next_us > now or entry.key.time_us > partition.complete_us:
            return None
        if entry.stage is not OPEN or entry.cancelled or entry.announced:
            return None
        if lane.frontier is not None and entry.key > lane.frontier:
            return None
        if not entry.verified and not self._fresh(partition, entry):
            return None
        same = entry.data.handler == head.data.handler and entry.data.queue == head.data.queue
        return entry if same and self._retry_of(entry, self._terms(entry.data)).allows(entry.used) else None

    def _retry_of(self, entry: Entry, terms: Terms) -> Retry:
        return _own_retry(*entry.data.retry) if entry.data.retry is not None else terms.retry

    def _prepare(
        self, partition: Partition, lane: Lane, entry: Entry, executor: str, gate: Gate, terms: Terms, now: int
    ) -> Invocation | None:
        """The invocation of a ready lane's head, or None where something else has to come first."""
        if not entry.verified and not self._fresh(partition, entry):
            lane.state = LOOKUP
            self.actions.append(action.Lookup(partition.tenure, [entry.key]))
            return None
        announced = entry.announced == entry.attempt > 0
        retry = self._retry_of(entry, terms)
        if entry.cancelled or not (announced or retry.allows(entry.used)):
            lane.state = RECORDING
            self._close_unrun(partition, entry, now)
            return None
        if announced:
            return self._start(lane, entry, terms, retry, executor, gate, entry.attempt)
        if lane.cautious:
            lane.cautious = False
            lane.state = STARTING
            attempt = entry.attempt + 1
            self._record(
                partition, Fact(entry.key, attempt, STARTED, now, planned_us=entry.next_us, used=entry.used + 1), now
            )
            return None
        return self._start(lane, entry, terms, retry, executor, gate, entry.attempt + 1)

    def _start(
        self, lane: Lane, entry: Entry, terms: Terms, retry: Retry, executor: str, gate: Gate, attempt: int
    ) -> Invocation:
        self._sequence += 1
        data, partition = entry.data, lane.partition
        assert partition.mine is not None
        invocation = Invocation(
            self._sequence, entry.key, attempt, partition.mine.epoch, data.handler or "", data.queue, data.payload,
            data.priority, entry.next_us, data.timeout_ms or terms.timeout_ms,
            self._start_by_us,
        )  # fmt: skip
        lane.hold(entry)
        lane.state = RUNNING
        self.runs[self._sequence] = Run(partition, lane, entry, invocation, executor, gate, retry)
        partition.in_flight += 1
        return invocation

    def _close_unrun(self, partition: Partition, entry: Entry, now: int) -> None:
        if entry.cancelled:
            self._close_cancelled(partition, entry, now)
            return
        entry.stage = CLOSING
        failure = Failure("attempts_exhausted", f"{entry.used} attempts were begun and none came to an end.")
        self.counts["retries_exhausted"] += 1
        self._record(
            partition, Fact(entry.key, entry.attempt, FAILED, finished_us=now, used=entry.used, failure=failure), now
        )

    def _next_gate_us(self) -> int:
        """When the rate of a queue lets the next ready lane start."""
        names = {name for queues in self._ready.values() for name, heap in queues.items() if heap}
        opens = [self._gates[name].opens_us() for name in names]
        return min([at for at in opens if at is not None], default=NEVER)
