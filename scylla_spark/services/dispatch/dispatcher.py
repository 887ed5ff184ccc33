"""Dispatch: the shell around the engine. It owns threads, Kafka clients, executors and the clock; the engine decides."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from scylla_spark import failpoint
from scylla_spark.clock import boot_us, now_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.engine import action
from scylla_spark.core.engine.engine import Engine
from scylla_spark.core.queues.in_force import Changes, QueuesInForce
from scylla_spark.core.records.command import Rules
from scylla_spark.core.records.fact import Fence, OutcomeRecord
from scylla_spark.core.tables.progress import Mark, Tenure
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.output import OutputTerms
from scylla_spark.core.tasks.task import Failure, Outcome
from scylla_spark.errors import ClockError
from scylla_spark.executors.interface import Executor, KeepsLogs, KeepsOutputs, LogKeeper, OnWorkers, Shortage
from scylla_spark.executors.unsandboxed import UNSANDBOXED, Unsandboxed
from scylla_spark.handlers.description import HandlerInfo
from scylla_spark.io.delta.open_tasks import OpenTasksReader
from scylla_spark.io.delta.passing_errors import is_passing
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.kafka.broker_clock import clock_offset
from scylla_spark.io.kafka.send_at_once import never_waiting, send_at_once
from scylla_spark.io.kafka.send_together import together
from scylla_spark.io.kafka.topics import producer
from scylla_spark.log import get_logger
from scylla_spark.services.dispatch.attempt_lines import AttemptName, LeasedRows
from scylla_spark.services.dispatch.attempt_logs import TakesLines
from scylla_spark.services.dispatch.engine_settings import (
    engine_limits,
    limits_of,
    queue_terms,
    runner_of,
)
from scylla_spark.services.dispatch.executor_catalog import BUILT_IN, turned_on_by
from scylla_spark.services.dispatch.failed_attempts import FailedAttempts
from scylla_spark.services.dispatch.failed_sends import FailedSends
from scylla_spark.services.dispatch.follow_ups import FollowUpSender
from scylla_spark.services.dispatch.handler_policies import HandlerPolicies
from scylla_spark.services.dispatch.joint_acknowledgement import Acknowledgements
from scylla_spark.services.dispatch.lease_desk import Desk
from scylla_spark.services.dispatch.lookups import Lookups
from scylla_spark.services.dispatch.mailbox import Mailbox
from scylla_spark.services.dispatch.metrics import DispatchMetrics
from scylla_spark.services.dispatch.note_redaction import NoteRedaction
from scylla_spark.services.dispatch.outcomes_tail import Delivered, OutcomesTail
from scylla_spark.services.dispatch.queue_definitions import QueueFollower
from scylla_spark.services.dispatch.scanner import LargeScan, OpenTasks, Scanner, Ticker
from scylla_spark.services.dispatch.stepwise_work import Runner, Steps, Threads
from scylla_spark.services.dispatch.tasks_tail import TasksTail, longest_drain_s

log = get_logger("dispatch")

_MAX_SLEEP_S = 0.5
# With more than this under way, news is gathered for a moment: few large batches cost less than many small ones.
_BUSY_RUNS = 64
_GATHER_S = 0.002  # not longer: while we gather, children run out of work
_CLOCK_TOLERANCE_US = 1_000_000
_MOST_WAITED_US = (
    10_000_000  # time stands still so long where a clock is set back; by more, what was decided is not to be trusted
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a dispatcher touches besides Kafka's tails and its executors; the simulation brings its own.

    Attributes:
        wall_us: wall clock, microseconds since the epoch.
        boot_us: clock that never steps and counts suspended time.
        tables: reads what is open.
        runner: carries out reading.
        rng: source of back-off jitter and nonces.
    """

    wall_us: Callable[[], int]
    boot_us: Callable[[], int]
    tables: OpenTasks
    runner: Runner
    rng: random.Random = field(default_factory=random.SystemRandom)


class _Glance(NamedTuple):
    """What other threads see of the engine without asking it: as it was after its last step.

    Attributes:
        choked: reading is to wait for memory.
        runs: invocations under way.
    """

    choked: bool = False
    runs: int = 0


class Dispatcher:
    """One dispatcher process.

    Args:
        settings: with the broker's address filled in.
        executors: name → executor, not started.
        surroundings: makes what it touches, given its mailbox; default: the real things.
    """

    def __init__(
        self,
        settings: Settings,
        executors: Mapping[str, Executor],
        surroundings: Callable[[Mailbox], Surroundings] | None = None,
    ) -> None:
        self.settings = settings
        self.executors = dict(executors)
        self.handlers: dict[str, HandlerInfo] = {}
        self.mailbox = Mailbox()
        self.failed_attempts = FailedAttempts()
        self.measures = DispatchMetrics(
            settings.metrics.payload_labels, settings.metrics.tags, self.failed_attempts.report
        )
        self.failure: BaseException | None = None
        self.notes = NoteRedaction()  # before `start`: is told of the secrets
        self.log_keeper: LogKeeper | None = None  # before `start`: takes what handlers print and log
        self.queues = QueuesInForce(settings.queues)
        self._policies = HandlerPolicies(settings, self.queues)
        self._follower: QueueFollower | None = None
        self._queues_known = True  # until somebody follows them
        self._readers = TableReader.of(settings)
        self._threads = Threads(self.mailbox)
        make = surroundings or (lambda _: Surroundings(now_us, boot_us, OpenTasksReader(self._readers), self._threads))
        self._around = make(self.mailbox)
        self.engine = Engine(
            self._policies.of, engine_limits(settings), self._around.rng, queues=queue_terms(self.queues.all())
        )
        self._questions = Lookups(self._around.tables, self.mailbox, self.engine, self._around.runner)
        self.scanner = Scanner(self._around.tables, settings, self.mailbox, self.engine)
        self.desk = Desk(
            settings, self.mailbox, self.engine, self._certain_until_us, self._leased_lines, self.notes, self.on_workers
        )
        self._ticker: Ticker | None = None
        self._producer: Any = None
        self._together: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        self._rules: Rules | None = None  # as the tables say; not before `start`
        self._follow_ups = FollowUpSender(settings.topics, self._known_rules, self._followed_up)
        self._failed_sends = FailedSends(self._around.boot_us)
        self._fences: dict[Tenure, tuple[Fence, int]] = {}  # the newest of each, and the wall clock when it was sent
        self._left: dict[int, threading.Event] = {}
        self._stopping = threading.Event()
        self._glance = _Glance()
        self._now = 0
        self._offset = self._around.wall_us() - self._around.boot_us()  # changes when the clock is set
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._tasks: TasksTail | None = None
        self._outcomes = OutcomesTail(settings, self.outcome_records, self._noted_end)

    def start(self, address: str = "") -> None:
        """Starts all that needs no Spark; returns at once. Partitions come with the group's first assignment.

        Args:
            address: where this process serves its state; stands in its fences.

        Raises:
            NotFoundError: there are no tables yet.
            ConfigError: the settings say another partition count than the tables.
        """
        rules = self._rules = self._readers.agreed_rules(self.settings.partitions)
        self.engine.address = address
        for executor in self._distinct():
            self._begin(executor)
            self.handlers |= executor.handlers()
            self.executors |= dict.fromkeys(executor.rooms(), executor)
        self._warn_of_what_is_off()
        self.executors[UNSANDBOXED] = Unsandboxed()
        self.executors[UNSANDBOXED].start(self.finished)
        tasks = TasksTail(self.settings, rules, self.mailbox, self.engine, self, self._around.tables.marks)
        sender = producer(self.settings, linger_ms=0)
        self._together = together(sender)
        self.use(sender, tasks, self._outcomes)
        self._queues_known = False
        self._follower = QueueFollower(self.settings, self._readers, self._put_queues)
        self.desk.start()
        self._thread.start()
        self._follower.start()
        self._outcomes.start()
        topics = self.settings.topics
        never_waiting(sender, (topics.outcomes, topics.tasks, topics.schedules))
        tasks.start()  # from now on there may be something to send

    def _leased_lines(self, name: AttemptName, told: LeasedRows) -> None:
        """Leased attempts have written something; without a keeper it is thrown away."""
        if isinstance(self.log_keeper, TakesLines):
            self.log_keeper.take(name, told)

    def _distinct(self) -> list[Executor]:
        """The executors, each once, however many names it serves."""
        return list(dict.fromkeys(self.executors.values()))

    def shortages(self) -> dict[str, Shortage]:
        """Executor name → why none of its tasks can run, of those that have no worker."""
        found: dict[str, Shortage] = {}
        for executor in self.on_workers():
            if (shortage := executor.shortage()) is not None:
                found |= dict.fromkeys(executor.rooms(), shortage)
        return found

    def on_workers(self) -> list[Any]:
        """The executors whose tasks run in Spark workers."""
        return [executor for executor in self._distinct() if isinstance(executor, OnWorkers)]

    def _begin(self, executor: Executor) -> None:
        if self.log_keeper is not None and isinstance(executor, KeepsLogs):
            executor.keep_logs(self.log_keeper)
        if isinstance(executor, KeepsOutputs):
            folder, most = str(self.settings.outputs_path), self.settings.outputs.max_bytes
            executor.keep_outputs(OutputTerms(folder, self._known_rules().partitions, most))
        executor.start(self.finished)

    def handler_names(self) -> list[str]:
        """Names under which handlers are registered here, sorted; those of the scheduler itself are left out."""
        return sorted({info.name for info in self.handlers.values() if info.runs_on not in BUILT_IN})

    def _warn_of_what_is_off(self) -> None:
        """Tasks of handlers whose executor is off here wait, as those of handlers that are not here; see `HandlerPolicies.know`."""
        if not self.handler_names():
            log.warning(
                "0 handlers are registered here: only queues of workers make progress", remedy="--handlers MODULE"
            )
        off = {handler: info.runs_on for handler, info in self.handlers.items() if info.executor not in self.executors}
        for name in sorted(set(off.values())):
            asking = sorted(handler for handler, executor in off.items() if executor == name)
            remedy = turned_on_by(name)
            log.warning("handlers run on an executor that is off here", executor=name, handlers=asking, remedy=remedy)

    def use(self, sender: Any, tasks: TasksTail, outcomes: OutcomesTail) -> None:
        """Takes what it sends and reads with, and the handlers that its executors know by now.

        Args:
            sender: a Kafka producer, or what is like one.
            tasks: the tail of `tasks`.
            outcomes: the tail of `outcomes`.
        """
        self._producer, self._tasks, self._outcomes = sender, tasks, outcomes
        self._policies.know(self.handlers, self.executors)

    def attach(self, scan: LargeScan, ticker: Ticker) -> None:
        """Starts large scans and the look-ahead, which may have to wait for Spark.

        Args:
            scan: reads what is open.
            ticker: says when to scan.
        """
        self.scanner.attach(scan)
        self._soon()
        self._ticker = ticker
        ticker.start(self._tick)

    def stop(self) -> None:
        """Drains: release stops, what runs may finish, all is recorded, then everything ends."""
        if self._tasks is not None:
            self._tasks.stop()
        drain_s = self.settings.dispatch.drain.total_seconds() if self._glance.runs and self.failure is None else 0.0
        for executor in self._distinct():
            executor.stop(drain_s=drain_s)
        if self._ticker is not None:
            self._ticker.stop()
        self._outcomes.stop()
        self.desk.stop()
        if self._follower is not None:
            self._follower.stop()
        self._threads.stop()
        self._stopping.set()
        self.mailbox.post(lambda now: None)
        if self._thread.ident is not None:
            self._thread.join(timeout=10)
        if self._producer is not None:
            self._producer.close(timeout=5)

    def alive(self) -> bool:
        """Returns True if all parts run.

        Raises:
            BaseException: what ended a part.
        """
        parts: list[Any] = [self, self._tasks, self._outcomes, self._follower, *self._distinct()]
        for part in parts:
            if getattr(part, "failure", None) is not None:
                raise part.failure
        return (self._ticker is None or self._ticker.alive()) and self._thread.is_alive()

    def trouble(self) -> str | None:
        """Returns a sentence that says why not every partition of this process releases tasks; None: all do.

        Raises:
            TimeoutError: the engine did not answer in time.
        """
        return self.mailbox.ask(lambda _now: self._trouble())

    def _trouble(self) -> str | None:
        held = self.engine.partitions
        if not self._queues_known:
            return "The stored definitions of queues are not read yet."
        if not held:
            return "No partition is assigned to this dispatcher: the group is still forming, or it has more members than partitions."
        if taken := Counter(str(one.state) for one in held.values() if one.state != "active"):
            states = ", ".join(f"{count} {state}" for state, count in sorted(taken.items()))
            return f"Of {len(held)} partitions some release no tasks yet: {states}."
        if not self._certain_until_us():
            return "Kafka has not confirmed for too long that the partitions are still ours: nothing starts."
        if stalled := sum(one.stalled for one in held.values()):
            return f"Kafka has not acknowledged the outcomes of {stalled} of {len(held)} partitions in time: they start nothing."
        return None

    # -- the engine's thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.mailbox.wait(self._pause())
                if len(self.engine.runs) > _BUSY_RUNS:
                    self._stopping.wait(_GATHER_S)
                self.step()
        except BaseException as error:
            self.failure = error
            log.exception("engine ended")
        finally:  # nobody waits for an engine that has ended, however it ended
            self.mailbox.close(self.failure or TimeoutError("The engine has stopped."))
            for left in list(self._left.values()):
                left.set()

    def _pause(self) -> float:
        return min(max((self.next_wake() - self._around.wall_us()) / 1e6, 0.0), _MAX_SLEEP_S)

    def next_wake(self) -> int:
        """Returns when a step is due although no message has come, microseconds since the epoch."""
        return min(self.engine.next_wake(), self._around.wall_us() + self._failed_sends.wait_us())

    def step(self) -> None:
        """Runs some messages, releases what is due, carries out what the engine asks for."""
        now = self._clock()
        for message in (*self.mailbox.drain(), *self._failed_sends.due()):
            message(now)
        now = self._clock()
        if self.engine.asks_who_runs(now):
            self.engine.running(self.begun(), now)
        self._take_notes(now)
        room: dict[str, int] = {}
        for executor in self._distinct():
            room |= executor.rooms()
        start_by_us = self._certain_until_us()
        self.engine.tick(now, room, start_by_us=start_by_us)
        self.measures.leased(self.engine.ended_leases())
        with self._together():
            self._carry_out(self.engine.take_actions())
        self._report_defects()
        self._glance = _Glance(self.engine.choked, len(self.engine.runs))

    def _carry_out(self, actions: Sequence[action.Action]) -> None:
        lookups: dict[Tenure, list[TaskKey]] = {}
        for item in actions:
            if isinstance(item, action.Release):
                self._release(item)
            elif isinstance(item, action.Lookup):
                lookups.setdefault(item.tenure, []).extend(item.keys)
            else:
                self._perform(item)
        for tenure, keys in lookups.items():
            self._questions.look_up(tenure, keys)

    def begun(self) -> dict[int, int]:
        """Returns which invocations run, and since when (id → microseconds since the epoch)."""
        began: dict[int, int] = {}
        for executor in self._distinct():
            began |= executor.running()
        return began

    def _take_notes(self, now: int) -> None:
        """What handlers say of their work; also where nobody has said anything, because of what waits to be recorded."""
        notes: dict[int, WorkNote] = {}
        began: dict[int, int] = {}
        for executor in self._distinct():
            if said := executor.notes():
                notes |= {number: self.notes.note(note) for number, note in said.items()}
                began |= executor.running()
        self.engine.noted(notes, began, now)

    def _certain_until_us(self) -> int:
        """Boot clock until which what is held is certainly ours; 0: it is not certain, or it is not known what queues allow."""
        return self._tasks.certain_until_us() if self._tasks is not None and self._queues_known else 0

    def choked(self) -> bool:
        """Returns True if so much is held in memory, and about to start, that reading is to wait."""
        return self._glance.choked

    def _clock(self) -> int:
        """The time, which never falls here. Whether the clock was set is seen in the very reading that is used.

        Raises:
            ClockError: it was ahead for long, and was set back: by this time attempts would wait for nothing, or leases for ever.
        """
        wall, boot = self._around.wall_us(), self._around.boot_us()
        self._now = max(self._now, wall)
        if abs(wall - boot - self._offset) > _CLOCK_TOLERANCE_US:
            self._offset = wall - boot
            if self._now - wall > _MOST_WAITED_US:
                raise ClockError(
                    f"This machine's clock was set back by {(self._now - wall) / 1e6:.1f} s.",
                    hint="A new start goes by the clock as it is now. Let machines set their clocks first (time-sync.target).",
                )
            log.warning("the clock was set; fences show whether it is right now")
            self.engine.doubt(self._now)
        return self._now

    def _report_defects(self) -> None:
        for key, error in self.engine.take_defects():
            log.error("a defect of scylla-spark: the task is set aside", key=str(key), exc_info=error)

    def _release(self, item: action.Release) -> None:
        failpoint.reach("dispatch.release.decided")
        self.executors[item.executor].submit([one.in_time(self._offset) for one in item.invocations])
        failpoint.reach("dispatch.release.submitted")
        self.engine.handed([invocation.id for invocation in item.invocations], self._now)

    def _perform(self, item: action.Action) -> None:
        match item:
            case action.Send(_, _, records, content):
                if content is not None:
                    self._outcomes.expect(records[0], content)
                self._send(item.tenure, item.fence, records, content)
            case action.SendFence(tenure, fence, record):
                failpoint.reach("dispatch.take.fencing")
                self._fences[tenure] = fence, self._around.wall_us()
                self._send(tenure, fence, [record])
            case action.Confirm():
                if self._tasks is not None:
                    self._tasks.confirm(item)
            case action.Kill(name, ids, grace_ms):
                self.executors[name].kill(ids, grace_ms=grace_ms)
            case action.Reload():
                self._questions.reload(item)
            case action.AskNames():
                self._questions.ask_names(item)
            case action.Answered(answer):
                self.desk.answer(answer, self._now)
            case action.Listen(number):
                self.desk.listen(number)
            case action.LookAgain():
                self._look_again()
            case action.Left(tenure, clean):
                self._forget(tenure, clean=clean)
            case action.SendFollowUps():
                self._follow_ups.send(self._producer, item, self._now)

    def _known_rules(self) -> Rules:
        return self._rules or self._readers.rules()

    def _followed_up(self, number: int, failure: Failure | None) -> None:
        self.mailbox.post(lambda now: self.engine.followed_up(number, failure, now))

    def _send(self, tenure: Tenure, fence: Fence, records: list[bytes], content: OutcomeRecord | None = None) -> None:
        """Appends records in order; the engine hears once, when the last is acknowledged, or some time after any failed.

        With the `content` of the only record it also hears where that stands, which saves the wait until it is read back.
        """
        begun = self._around.boot_us()
        offset = -1  # of the record acknowledged last

        def hear(error: BaseException | None, now: int) -> None:
            if error is not None:
                self._send_failed(tenure, fence, error)
                return
            self._failed_sends.succeeded(tenure)
            if content is not None:
                self.engine.landed(tenure, offset, content, now)
            self.engine.sent(tenure, fence, ok=True, now=now)

        def told(error: BaseException | None) -> None:
            self.measures.persisted(self._around.boot_us() - begun)
            self.mailbox.post(partial(hear, error))

        pending = Acknowledgements(len(records), told)

        def acknowledged(metadata: Any) -> None:
            nonlocal offset
            failpoint.reach("dispatch.send.acknowledged")
            offset = metadata.offset
            pending.acknowledged()

        try:
            failpoint.reach("dispatch.send.begun")
            for record in records:
                future = send_at_once(self._producer, self.settings.topics.outcomes, record, tenure.partition)
                future.add_callback(acknowledged)
                future.add_errback(pending.lost)
            failpoint.reach("dispatch.send.handed_over")
        except Exception as error:
            pending.lost(error)

    def _send_failed(self, tenure: Tenure, fence: Fence, error: BaseException) -> None:
        if self.engine.held(tenure) is not None:
            self._failed_sends.failed(tenure, error, lambda now: self.engine.sent(tenure, fence, ok=False, now=now))

    # -- called from other threads ------------------------------------------------------------------------------------------

    def gained(self, marks: Mapping[int, Mark]) -> Mapping[int, Tenure]:
        """The group assigned partitions: begin their takes."""
        failpoint.reach("dispatch.take.assigned")

        def begin(now: int) -> dict[int, Tenure]:
            tenures = {number: self.engine.assign(number, mark, now) for number, mark in marks.items()}
            for number, tenure in tenures.items():
                horizon = self.scanner.horizon(now)
                self.engine.raise_horizon(tenure, horizon)
                self.scanner.add(tenure, horizon)
                self._outcomes.add(tenure, marks[number].outcomes_offset)
            return tenures

        tenures = self.mailbox.ask(begin, timeout_s=None)
        self._soon()
        log.info("assigned", partitions=sorted(marks))
        return tenures

    def losing(self, partitions: list[int]) -> None:
        """The group takes partitions back: drain them, then return."""
        for left in self.revoke(partitions):
            if self.failure is None:  # else nothing can be drained any more
                left.wait(longest_drain_s(self.settings))
        log.info("revoked", partitions=partitions)

    def revoke(self, partitions: list[int]) -> list[threading.Event]:
        """Begins to drain partitions; each event is set when one was left."""
        for number in partitions:
            self._left[number] = threading.Event()
            self.mailbox.post(partial(self.engine.revoke, number))
        return [self._left[number] for number in partitions]

    def lost(self, partitions: list[int]) -> None:
        """Partitions are somebody else's already: drop them at once."""

        def drop(_now: int) -> None:
            for number in partitions:
                self.engine.drop(number)

        self.mailbox.ask(drop, timeout_s=None)
        log.warning("lost", partitions=partitions)

    def _forget(self, tenure: Tenure, *, clean: bool) -> None:
        self._outcomes.remove(tenure)
        self.scanner.remove(tenure)
        self._fences.pop(tenure, None)
        self._failed_sends.forget(tenure)
        event = self._left.get(tenure.partition)
        if event is not None:
            event.set()
        if not clean:
            log.warning("partition dropped", partition=tenure.partition)
            if self._tasks is not None:
                self._tasks.retake(tenure)

    def _soon(self) -> Future[Any]:
        """Scans now, after a scan that is under way: what was added does not wait for the next batch of the query."""
        return self._around.runner.run("scan", self._scan())

    def _look_again(self) -> None:
        """Looks at what was left to the tables because it could not start."""
        self.scanner.look_again()
        self._soon()

    def _tick(self) -> None:
        """One tick of the scans."""
        with contextlib.suppress(CancelledError):  # it was stopped
            self._soon().result()

    def _scan(self) -> Steps[None]:
        """One scan; tables that changed meanwhile, or storage that does not answer, are tried again later."""
        try:
            yield from self.scanner.turn(self._around.wall_us())
        except Exception as error:
            if not is_passing(error):
                self.failure = self.failure or error
                raise
            log.warning("scan failed, tried again", error=repr(error)[:500])

    def finished(self, outcomes: Sequence[Outcome]) -> None:
        """What executors report."""
        outcomes = self.notes.outcomes(outcomes)

        def report(now: int) -> None:
            self.measures.finished(outcomes, self.engine.runs)
            self.engine.finished(outcomes, now)

        self.mailbox.post(report)

    def _put_queues(self, changes: Changes) -> None:
        """Definitions were put or deleted, or nothing is stored; nothing starts before this was told once."""

        def put(now: int) -> None:
            before = {name: self.queues.of(name) for name in changes}
            self.queues.put(changes)
            self._policies.queues_changed()
            opened = False
            for name, old in before.items():
                new = self.queues.of(name)
                self.engine.put_queue(name, limits_of(new) if new is not None else None, now)
                if runner_of(old) != runner_of(new):
                    self.engine.reconsider(name, now)
                    opened = True
                opened |= old is not None and old.paused
            self._queues_known = True
            if opened:
                self._look_again()

        self.mailbox.post(put)
        if changes:
            log.info("queues", changed=sorted(changes))

    def outcome_records(self, tenure: Tenure, records: list[Delivered], next_offset: int) -> None:
        """What stands in `outcomes`.

        Args:
            tenure: whose partition was read.
            records: in the order of the log.
            next_offset: behind the last of them.

        Raises:
            ClockError: this machine's clock is wrong, as the append time of our own fence shows.
        """
        failpoint.reach("dispatch.facts.read_back")
        if self.engine.has_read(tenure, next_offset):
            return  # all of it is ours, and was acknowledged before
        plain = [(found.offset, found.record) for found in records]
        for found in records:
            if isinstance(found.record, OutcomeRecord) and found.record.kind == "fence":
                self._hold_clock_against(tenure, found.record.fence, found.append_ms)
        self.mailbox.post(lambda now: self.engine.outcome_records(tenure, plain, next_offset, now))

    def _hold_clock_against(self, tenure: Tenure, fence: Fence, append_ms: int) -> None:
        """A fence that is heard of too late does not count: a clock that is ahead would look right. Another one has to show it.

        One that is behind makes tasks late, not early, and is found out where the answers are quick.
        """
        newest, sent_us = self._fences.get(tenure, (None, 0))
        if fence != newest:
            return
        offset = clock_offset(append_ms, sent_us, self._around.wall_us())
        if abs(offset.certain_us()) > _CLOCK_TOLERANCE_US:
            raise ClockError(
                f"This machine's clock is {offset.certain_us() / 1e6:+.1f} s off the broker's; tasks would start at wrong times.",
                hint="Set the clock, here or on the broker's machine.",
            )
        if offset.most_us > _CLOCK_TOLERANCE_US:
            log.warning(
                "a fence came too late to show whether the clock is right, another one follows",
                partition=tenure.partition,
            )
            self.mailbox.post(lambda now: self.engine.fence_again(tenure, fence, now))

    def _noted_end(self, tenure: Tenure, end: int) -> None:
        self.mailbox.post(lambda now: self.engine.noted_end(tenure, end, now))
