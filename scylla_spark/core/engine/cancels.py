"""Cancelling: a cancel ends its key for ever, once, also a key not seen yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scylla_spark.clock import iso
from scylla_spark.core.engine import action
from scylla_spark.core.engine.fact_recorder import Recorder
from scylla_spark.core.engine.lane import CLOSING, IDLE, LOOKUP, OPEN, STARTING, WAITING, Entry, Lane
from scylla_spark.core.engine.leases.book import LeaseBook
from scylla_spark.core.engine.partition import ACTIVE, Partition
from scylla_spark.core.engine.runs import Runs
from scylla_spark.core.engine.state import EngineState
from scylla_spark.core.engine.unique_names import UniqueNames
from scylla_spark.core.engine.waiting import Waiting
from scylla_spark.core.records.command import Command
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tables.progress import Basis, Tenure
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.stored_records import NOTHING, Known
from scylla_spark.core.tasks.task import CANCELLED, EXPIRED, FAILED, Failure


class Cancels:
    """What becomes of cancels, and of questions to the tables.

    Args:
        state: of the engine.
        waiting: where lanes go on.
        recorder: writes the ends of cancelled tasks, and answers.
        book: of leases, which a cancel ends.
        runs: what executors have, which a cancel ends that says so.
        names: which of them are duplicates, now that more is known.
    """

    def __init__(
        self, state: EngineState, waiting: Waiting, recorder: Recorder, book: LeaseBook, runs: Runs, names: UniqueNames
    ) -> None:
        self._runs = runs
        self._names = names
        self._state = state
        self._waiting = waiting
        self._recorder = recorder
        self._book = book

    def remember_cancelled(self, tenure: Tenure, keys: Iterable[TaskKey]) -> None:
        """Keys of the tables that were cancelled, or ended as duplicates: a later record of such a key must not run."""
        partition = self._state.held(tenure)
        if partition is None:
            return
        for key in keys:
            partition.remember_cancel(key, -1)
            partition.told[key] = None
            lane = partition.lanes.get(key.ordering_id)
            entry = lane.find(key) if lane is not None else None
            if entry is not None:
                entry.cancelled = True

    def looked_up(self, tenure: Tenure, answers: Mapping[TaskKey, Known], basis: Basis, now: int) -> None:
        """The answer to `Lookup`: what the tables hold of each key.

        Args:
            tenure: in which it was asked.
            answers: one for each key.
            basis: how far the tables were, from a progress that was read before them.
            now: microseconds since the epoch.
        """
        partition = self._state.held(tenure)
        if partition is None:
            return
        if not basis.covers(partition.floor):
            self._state.ask(action.Lookup(tenure, list(answers)))  # what ended meanwhile is forgotten by now
            return
        for key, known in answers.items():
            self._known(partition, key, known, now)

    def _known(self, partition: Partition, key: TaskKey, known: Known, now: int) -> None:
        done = known.ended or key in partition.ended
        lane = partition.lanes.get(key.ordering_id)
        entry = lane.find(key) if lane is not None else None
        waiting = partition.lookups.pop(key, [])
        if done or key in partition.ending or (entry is not None and entry.stage is not OPEN):
            self._recorder.answer(partition, key, requests_of(waiting), now)
        elif entry is not None:
            entry.requests += requests_of(waiting)
        elif waiting:
            self._cancel_unknown(partition, key, requests_of(waiting), known, now)
        if lane is None or entry is None:
            self._names.know_more(partition, key)
            return
        entry.verified = True
        lane.note_attempt(entry, known)
        if (
            done and entry.stage is OPEN
        ):  # else the tables tell of what we wrote, and the lane waits until that is read back
            self._recorder.answer(partition, entry.key, entry.requests, now)
            lane.remove(key)
        elif entry.cancelled and entry.stage is OPEN and not _is_starting(lane, entry):
            self.close(partition, entry, now)  # a head too: it may wait for a queue that is paused, or for room
        if lane.state is LOOKUP and lane.active in (entry, None):
            lane.state = WAITING
        if not done:
            self._book.adopt(partition, lane, entry, now)
            self._names.consider(partition, entry)
        self._names.know_more(partition, key)
        self._waiting.settle(partition, lane, now)

    def cancel(self, partition: Partition, command: Command, now: int) -> None:
        """A cancel of an active partition: its key ends, unless it has ended already or something else ends it."""
        key = command.key
        lane = partition.lanes.get(key.ordering_id)
        entry = lane.find(key) if lane is not None else None
        if key in partition.ended or key in partition.ending:
            self._recorder.answer(partition, key, [command.request_id], now)
        elif lane is not None and entry is not None:
            self.cancel_entry(partition, lane, entry, command, now)
        elif (
            not partition.left(key) and self._surely_new(partition, command) and not (lane and lane.may_have_tried(key))
        ):
            partition.told[key] = None
            self._cancel_unknown(partition, key, requests_of([command]), NOTHING, now)
        else:
            self._look_up_for(partition, command)

    def _surely_new(self, partition: Partition, command: Command) -> bool:
        """Returns True if nobody can have ended the key before: the record is later than our fence, and the key's time has been ours.

        Of times past the last scan, keys that were cancelled before are not known yet.
        """
        if partition.tasks_end is None or command.offset < partition.tasks_end or command.key in partition.told:
            return False
        return partition.ended.since_us <= command.key.time_us <= partition.complete_us

    def _look_up_for(self, partition: Partition, command: Command) -> None:
        if command.key.time_us <= partition.horizon_us:
            partition.told[command.key] = None
        waiting = partition.lookups.setdefault(command.key, [])
        waiting.append(command)
        if len(waiting) == 1:
            self._state.ask(action.Lookup(partition.tenure, [command.key]))

    def _cancel_unknown(
        self, partition: Partition, key: TaskKey, requests: tuple[str, ...], known: Known, now: int
    ) -> None:
        """Ends a key of which no task is loaded; once, however many cancels there are. `known`: what the tables tell of it."""
        partition.ending.add(key)
        first, tried = requests[0] if requests else None, partition.attempts.get(key)
        if tried is not None and tried.known.attempt >= known.attempt:
            known = tried.known
        fact = Fact(key, known.attempt, CANCELLED, finished_us=now, used=known.used, request_id=first)
        self._recorder.record(partition, fact, now)
        self._recorder.answer(partition, key, requests[1:], now)

    def cancel_entry(self, partition: Partition, lane: Lane, entry: Entry, command: Command, now: int) -> None:
        """A cancel of a task that is loaded; it ends at once where nothing runs and nobody can have ended it before."""
        lease = self._book.of(entry)
        if lease is not None:
            self._book.cancel(lease, requests_of([command]), now)
            return
        entry.cancelled = True
        if command.grace_ms is not None and self._runs.end_of(entry, command.grace_ms):
            entry.requests += requests_of([command])  # the fact of the end answers
            return
        if _is_starting(lane, entry) or entry.stage is not OPEN:
            self._recorder.answer(partition, entry.key, [command.request_id], now)
            return
        entry.requests += requests_of([command])
        if partition.state is ACTIVE:
            if not entry.verified and not self._surely_new(partition, command):
                self._look_up_for(partition, command._replace(request_id=None))
                return
            self.close(partition, entry, now)
            if lane.state in IDLE:
                self._waiting.settle(partition, lane, now)

    def close(self, partition: Partition, entry: Entry, now: int) -> None:
        """Ends a task that a cancel was seen of; whoever else asked for it hears after the completion that it has ended."""
        entry.stage = CLOSING
        first = entry.requests[0] if entry.requests else None
        work = entry.work if entry.leased else None  # of an earlier owner's lease, which ends with it
        fact = Fact(entry.key, entry.attempt, CANCELLED, finished_us=now, used=entry.used, request_id=first, work=work)
        # who is told of the ends of a queue or a handler is told of this one, too
        self._recorder.record(partition, fact.of(entry.data), now)
        self._recorder.answer(partition, entry.key, entry.requests[1:], now)
        entry.requests = ()

    def end_unrun(self, partition: Partition, entry: Entry, now: int) -> None:
        """Ends the head of a lane that is not to start: it was cancelled, has expired, or its attempts are used up."""
        if entry.cancelled:
            self.close(partition, entry, now)
            return
        if entry.expired(now):
            outcome, failure = EXPIRED, Failure(EXPIRED, f"It had not begun by {iso(entry.expires_us)}.")
        else:
            said = f"{entry.used} attempts were begun and none came to an end."
            outcome, failure = FAILED, Failure("attempts_exhausted", said)
            self._state.counts["retries_exhausted"] += 1
        entry.stage = CLOSING
        fact = Fact(entry.key, entry.attempt, outcome, finished_us=now, used=entry.used, failure=failure)
        self._recorder.record(partition, fact.of(entry.data), now)


def _is_starting(lane: Lane, entry: Entry) -> bool:
    """Returns True if the fact that the task starts is being written: it starts, whoever cancels it now."""
    return entry is lane.active and lane.state is STARTING


def requests_of(commands: Iterable[Command]) -> tuple[str, ...]:
    """The requests that wait for an answer."""
    return tuple(command.request_id for command in commands if command.request_id is not None)
