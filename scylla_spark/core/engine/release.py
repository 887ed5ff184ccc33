"""Releasing: which ready tasks start now, and how many of a lane go together."""

from __future__ import annotations

from typing import NamedTuple

from scylla_spark import failpoint
from scylla_spark.core.engine import action
from scylla_spark.core.engine.bounds import HandlerPolicy, retry_of
from scylla_spark.core.engine.cancels import Cancels
from scylla_spark.core.engine.external_rate_limits import RateLimits
from scylla_spark.core.engine.fact_recorder import Recorder
from scylla_spark.core.engine.lane import LOOKUP, OPEN, RECORDING, RUNNING, STARTING, Entry, Lane, left_behind
from scylla_spark.core.engine.own_defects import Defects
from scylla_spark.core.engine.partition import Partition
from scylla_spark.core.engine.queue import Gate
from scylla_spark.core.engine.ready import Place, ReadyLanes
from scylla_spark.core.engine.runs import Run, Runs
from scylla_spark.core.engine.shares_of_children import Shares
from scylla_spark.core.engine.state import EngineState
from scylla_spark.core.engine.waiting import Waiting
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.handler_durations import HandlerDurations
from scylla_spark.core.tasks.task import STARTED, Invocation, Retry

MAX_TRAIN = 512
TRAIN_US = 50_000  # tasks of a replay lane are handed over together up to about this much work


class _Turn(NamedTuple):
    """A lane whose turn it is, and what its head is run by."""

    partition: Partition
    lane: Lane
    executor: str
    gate: Gate
    policy: HandlerPolicy


class Release:
    """Takes ready lanes in order of priority and planned time, as far as partitions, queues and executors have room.

    Args:
        state: of the engine.
        ready: lanes whose head is due.
        waiting: where lanes go back to.
        cancels: ends cancelled heads.
        runs: what executors have.
        recorder: writes start facts, and the ends of tasks whose attempts are used up.
        defects: of ours, that a task meets.
        rates: rate limits for which tasks have to wait.
        shares: of queues in the children of executors.
        durations: how long tasks of each handler take.
    """

    def __init__(
        self,
        state: EngineState,
        ready: ReadyLanes,
        *,
        waiting: Waiting,
        cancels: Cancels,
        runs: Runs,
        recorder: Recorder,
        defects: Defects,
        rates: RateLimits,
        shares: Shares,
        durations: HandlerDurations,
    ) -> None:
        self._state = state
        self._ready = ready
        self._shares = shares
        self._durations = durations
        self._waiting = waiting
        self._cancels = cancels
        self._runs = runs
        self._recorder = recorder
        self._defects = defects
        self._rates = rates
        self._start_by_us = 0

    def held_up(self, partition: Partition) -> str:
        """Returns why nothing of a partition starts now, whatever its queue; nothing if it may."""
        limits, outbox = self._state.limits, partition.outbox
        if partition.stalled or len(outbox.unrecorded) >= limits.max_unrecorded:
            return "its outcomes are not being recorded; is Kafka reachable?"
        if outbox.bytes >= limits.max_unrecorded_bytes:
            return "results that are being recorded take too much memory"
        if len(partition.ended) >= limits.max_ended:
            return "too many completions wait for the tables; is ingest running?"
        return "as many of its tasks run as may at once" if partition.in_flight >= limits.max_in_flight else ""

    def readmit(self, now: int) -> None:
        """Lanes that were ready while their partition was full queue up again if it is not."""
        for partition in self._state.partitions.values():
            partition.stalled = partition.outbox.oldest_us(now) > self._state.limits.stall_us
            if partition.overflow and not self._full(partition):
                overflow, partition.overflow = partition.overflow, []
                for stamp, lane in overflow:
                    if stamp == lane.stamp and lane.active is not None:
                        self._waiting.make_ready(partition, lane, lane.active)

    def release(self, executor: str, room: int, now: int, *, start_by_us: int) -> None:
        """Hands due tasks to an executor.

        Args:
            executor: its name.
            room: how many more calls it wants.
            now: microseconds since the epoch.
            start_by_us: boot clock until which membership is certain.
        """
        self._start_by_us = start_by_us
        batch: list[Invocation] = []
        while room > 0 and (found := self._ready.pop(executor, now, self._refuses)) is not None:
            place, gate = found
            partition, lane = place.partition, place.lane
            if place.void:
                self._waiting.let_in(gate.instead(lane.ordering_id))
            elif self._shares.full and self._refuses(place, gate):
                self._ready.set_apart(executor, place)
            elif self._full(partition):
                partition.overflow.append((place.stamp, lane))
                self._waiting.let_in(gate.instead(lane.ordering_id))
            elif lane.active is not None and self._rates.holds(partition, lane, lane.active, now):
                self._waiting.let_in(gate.instead(lane.ordering_id))
            elif gate.admits(partition, lane):
                room -= self._depart(partition, lane, executor, gate, batch, now)
        if batch:
            self._state.ask(action.Release(executor, batch))

    def _refuses(self, place: Place, gate: Gate) -> bool:
        """Returns True if a lane has to leave the free children of its executor to other queues."""
        head = place.lane.active
        return (
            not place.void
            and head is not None
            and self._shares.refuses(head.data, self._state.policy_of(head.data), gate)
        )

    def _full(self, partition: Partition) -> bool:
        limits = self._state.limits
        return partition.in_flight >= limits.max_in_flight or partition.backed_up(limits)

    def _depart(
        self, partition: Partition, lane: Lane, executor: str, gate: Gate, batch: list[Invocation], now: int
    ) -> int:
        """Releases the lane's head, and what may go with it; 1 if the executor gets work, else 0."""
        head = lane.active
        assert head is not None
        turn = _Turn(partition, lane, executor, gate, self._state.policy_of(head.data))
        try:
            if failpoint.armed:
                failpoint.reach("engine.release", head.key.uniqueness_key)
            first = self._prepare(turn, head, now)
        except Exception as error:
            self._defects.set_aside(partition, head.key, error, now)
            first = None
        if first is None:
            self._waiting.let_in(gate.instead(lane.ordering_id))
            return 0
        batch.append(first)
        gate.begin(lane.ordering_id, now)
        most = self._train_length(turn, head)
        while most > 1 and (follower := self._follower(turn, head, now)) is not None:
            if self._full(partition) or not gate.is_open(now) or not gate.admits_more(lane.ordering_id):
                break
            batch.append(self._start(turn, follower, retry_of(follower.data, turn.policy), follower.attempt + 1))
            gate.begin(lane.ordering_id, now)
            most -= 1
        return 1

    def _train_length(self, turn: _Turn, head: Entry) -> int:
        """Returns how many tasks of a lane may be released together: a batch, or what a replay lane does in a moment."""
        if not turn.gate.limits.replay or turn.gate.limited or turn.policy.alone:
            return turn.policy.max_batch
        average_us = self._durations.average_us(head.data.handler or turn.policy.handler)
        if average_us is None:
            return turn.policy.max_batch
        return max(turn.policy.max_batch, min(MAX_TRAIN, int(TRAIN_US / (average_us + 10))))

    def _follower(self, turn: _Turn, head: Entry, now: int) -> Entry | None:
        """The lane's next task, if it can go along with its head as it is."""
        entry = turn.lane.head()
        if entry is None or entry.next_us > now or entry.key.time_us > turn.partition.complete_us:
            return None
        if entry.stage is not OPEN or entry.undecided or entry.cancelled or entry.announced or entry.expired(now):
            return None
        if turn.lane.frontier is not None and entry.key > turn.lane.frontier:
            return None
        if not entry.verified and not turn.partition.is_fresh(entry.key):
            return None
        if self._rates.of(entry.data, now) is not None:
            return None
        same = entry.data.handler == head.data.handler and entry.data.queue == head.data.queue
        return entry if same and retry_of(entry.data, turn.policy).allows(entry.used) else None

    def _prepare(self, turn: _Turn, entry: Entry, now: int) -> Invocation | None:
        """The invocation of a ready lane's head, or None where something else has to come first."""
        partition, lane, retry = turn.partition, turn.lane, retry_of(entry.data, turn.policy)
        if not entry.verified and not partition.is_fresh(entry.key):
            lane.state = LOOKUP
            self._state.ask(action.Lookup(partition.tenure, [entry.key]))
            return None
        announced = entry.announced == entry.attempt > 0
        if entry.cancelled or entry.expired(now) or not (announced or retry.allows(entry.used)):
            lane.state = RECORDING
            self._cancels.end_unrun(partition, entry, now)
            return None
        if announced:
            return self._start(turn, entry, retry, entry.attempt)
        if partition.suspects(lane):
            partition.reassure(lane)
            lane.state = STARTING
            start = Fact(
                entry.key,
                entry.attempt + 1,
                STARTED,
                now,
                planned_us=entry.planned_us,
                used=entry.used + 1,
                work=left_behind(entry),
            )
            self._recorder.record(partition, start, now)
            return None
        return self._start(turn, entry, retry, entry.attempt + 1)

    def _start(self, turn: _Turn, entry: Entry, retry: Retry, attempt: int) -> Invocation:
        data, partition = entry.data, turn.partition
        assert partition.mine is not None
        invocation = data.invocation(
            self._state.next_number(),
            attempt,
            partition.mine.epoch,
            entry.planned_us,
            handler=turn.policy.handler,
            timeout_ms=turn.policy.timeout_ms,
            start_by_us=self._start_by_us,
            checkpoint=entry.work.checkpoint if entry.work is not None else None,
            last_error=entry.error,
            expires_us=entry.expires_us,
        )
        turn.lane.hold(entry)
        turn.lane.state = RUNNING
        self._runs.begin(Run(partition, turn.lane, entry, invocation, turn.executor, turn.gate, retry))
        self._shares.begin(invocation.id, data, turn.policy)
        return invocation
