"""What executors have: invocations under way, and which of them run so long that their start becomes a fact."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from typing import NamedTuple

from scylla_spark.core.engine import action
from scylla_spark.core.engine.fact_recorder import LINGER_US, Recorder
from scylla_spark.core.engine.lane import RELEASED, Entry, Lane, left_behind
from scylla_spark.core.engine.outbox import NEVER, identity_of
from scylla_spark.core.engine.partition import Partition
from scylla_spark.core.engine.queue import Gate
from scylla_spark.core.engine.shares_of_children import Shares
from scylla_spark.core.engine.state import EngineState
from scylla_spark.core.engine.waiting import Waiting
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import STARTED, Invocation, Outcome, Retry
from scylla_spark.defaults import LONG_RUN_US

_NOTE_US = 1_000_000  # between two records of what a handler says of its work
_LOOK_AGAIN_US = 500_000  # between two looks at what was handed over and has no start fact yet


class Run(NamedTuple):
    """An invocation under way."""

    partition: Partition
    lane: Lane
    entry: Entry
    invocation: Invocation
    executor: str
    gate: Gate
    retry: Retry


class Returned(NamedTuple):
    """How an attempt ended, that stays under way until its follow-ups are acknowledged.

    Attributes:
        decided_us: when they were decided to be sent, microseconds since the epoch.
        asked: the shell was asked to send them.
    """

    outcome: Outcome
    decided_us: int
    asked: bool = False


class Runs:
    """All invocations that were released and have not been reported back.

    Args:
        state: of the engine.
        waiting: where lanes go that waited for a slot.
        recorder: writes start facts.
        shares: of queues in the children of executors.

    Attributes:
        by_id: invocation id → run.
        returned: key → how its attempt ended, of those that have follow-ups.
    """

    def __init__(self, state: EngineState, waiting: Waiting, recorder: Recorder, shares: Shares) -> None:
        self._state = state
        self._waiting = waiting
        self._shares = shares
        self._recorder = recorder
        self.by_id: dict[int, Run] = {}
        self.returned: dict[TaskKey, Returned] = {}
        self._untold: dict[int, tuple[WorkNote, int]] = {}  # what handlers say, and when they began
        self._told: dict[int, int] = {}  # invocation id → when a note of it was recorded
        self._handed: list[tuple[int, int]] = []  # (when to look whether it runs long, invocation id)

    def begin(self, run: Run) -> None:
        """A task is released."""
        self.by_id[run.invocation.id] = run
        run.partition.in_flight += 1

    def end(self, number: int) -> Run | None:
        """An invocation is no longer under way, whatever became of it; None if it was given up before."""
        run = self.by_id.pop(number, None)
        if run is not None:
            self._shares.end(number)
            self._untold.pop(number, None)
            self._told.pop(number, None)
            self.returned.pop(run.entry.key, None)
            run.partition.in_flight -= 1
            self._waiting.let_in(run.gate.end(run.lane.ordering_id))
        return run

    def of_queue(self, queue: str) -> list[Run]:
        """Returns what is under way of a queue."""
        return [run for run in self.by_id.values() if run.invocation.queue == queue]

    def regate(self, runs: Iterable[Run], gate: Gate) -> None:
        """What is under way counts at another gate from now on."""
        for run in runs:
            self.by_id[run.invocation.id] = run._replace(gate=gate)

    def kill(self, partition: Partition) -> None:
        """Asks executors to end what runs of a partition."""
        of_executor: dict[str, list[int]] = {}
        for number, run in self.by_id.items():
            if run.partition is partition:
                of_executor.setdefault(run.executor, []).append(number)
        for executor, ids in of_executor.items():
            self._state.ask(action.Kill(executor, ids))

    def end_of(self, entry: Entry, grace_ms: int) -> bool:
        """Has the executor end what runs of a task; False: nothing does, or a batch, whose other tasks it would end, too.

        Args:
            entry: the task.
            grace_ms: how long it is only asked to.
        """
        if entry.stage is not RELEASED or self._state.policy_of(entry.data).max_batch > 1:
            return False
        found = [(number, run.executor) for number, run in self.by_id.items() if run.entry is entry]
        for number, executor in found:
            self._state.ask(action.Kill(executor, [number], grace_ms))
        return bool(found)

    def give_up(self, partition: Partition) -> None:
        """The partition is lost: what runs of it is killed, and whatever is reported of it does not matter."""
        self.kill(partition)
        for number in [number for number, run in self.by_id.items() if run.partition is partition]:
            self.end(number)

    def handed(self, ids: Iterable[int], now: int) -> None:
        """The shell handed these invocations over; those still under way after a second may be long runs."""
        for number in ids:
            heappush(self._handed, (now + LONG_RUN_US, number))

    def next_look_us(self) -> int:
        """Returns when something may have run for a second without a start fact; NEVER: nothing is under way."""
        while self._handed and self._handed[0][1] not in self.by_id:
            heappop(self._handed)
        return self._handed[0][0] if self._handed else NEVER

    def hold(self, run: Run, outcome: Outcome, decided_us: int) -> None:
        """A handler has returned, and what it asked for is to be sent; what it has said goes with the fact of that."""
        self.returned[run.entry.key] = Returned(outcome, decided_us)
        self._untold.pop(run.invocation.id, None)

    def noted(self, notes: Mapping[int, WorkNote], began_us: Mapping[int, int], now: int) -> None:
        """What handlers say of their work while they run. It is recorded by telling the start again, once a second at most.

        Args:
            notes: invocation id → the latest word of it.
            began_us: invocation id → wall clock at which its handler began, microseconds since the epoch.
            now: microseconds since the epoch.
        """
        for number, note in notes.items():
            if number in self.by_id and number in began_us:
                self._untold[number] = (note, began_us[number])
        for number in [number for number in self._untold if self._told.get(number, 0) <= now - _NOTE_US]:
            run = self.by_id[number]
            note, began = self._untold[number]
            fact = start_of(run, began, note)
            # while the start is on its way without this, it would be passed over
            if run.partition.deciding and identity_of(fact) not in run.partition.outbox.unrecorded:
                del self._untold[number]
                self._told[number] = now
                self._recorder.record(run.partition, fact, now, now + LINGER_US)

    def running(self, began_us: Mapping[int, int], now: int) -> None:
        """What executors have begun, and when; what has run for a second gets a start fact. The rest waits in an executor.

        Args:
            began_us: invocation id → wall clock at which its handler began, microseconds since the epoch.
            now: microseconds since the epoch.
        """
        again: list[int] = []
        while self._handed and self._handed[0][0] <= now:
            number = heappop(self._handed)[1]
            run = self.by_id.get(number)
            if run is None or run.entry.attempt >= run.invocation.attempt:
                continue  # it has ended, or its start is recorded
            again.append(number)  # also with a start fact, until that counts: a new fence may have cut it off
            began = began_us.get(number)
            if began is not None and began <= now - LONG_RUN_US and run.partition.deciding:
                self._recorder.record(run.partition, start_of(run, began), now, now + LINGER_US)
        for number in again:
            heappush(self._handed, (now + _LOOK_AGAIN_US, number))


def start_of(run: Run, began_us: int, note: WorkNote | None = None) -> Fact:
    """The start of an attempt, for the first time or again with what its handler says; what was left behind before is kept.

    Args:
        run: the attempt.
        began_us: when its handler began, microseconds since the epoch.
        note: what it says.
    """
    invocation, entry, before = run.invocation, run.entry, left_behind(run.entry)
    used = entry.used + (0 if entry.attempt >= invocation.attempt else 1)
    return Fact(
        entry.key,
        invocation.attempt,
        STARTED,
        began_us,
        planned_us=invocation.planned_us,
        used=used,
        work=note.after(before) if note is not None else before,
    ).of(invocation)  # triggers on starts go by its handler
