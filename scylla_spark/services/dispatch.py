"""Dispatch: the shell around the engine. It owns threads, Kafka clients, executors and the clock; the engine decides."""

from __future__ import annotations

import gc
import random
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from scylla_spark import failpoint
from scylla_spark.clock import boot_us, now_us
from scylla_spark.config import Settings
from scylla_spark.core import action
from scylla_spark.core.engine import Engine
from scylla_spark.core.fact import OutcomeRecord
from scylla_spark.core.key import TaskKey
from scylla_spark.core.lanes import Terms
from scylla_spark.core.partition import Mark, joined
from scylla_spark.core.task import Outcome, Retry
from scylla_spark.core.wire import Command
from scylla_spark.executors.interface import Executor, HandlerInfo
from scylla_spark.io.readers import Readers
from scylla_spark.io.tables import Tables
from scylla_spark.io.topics import producer
from scylla_spark.services.limits import engine_limits, queue_terms
from scylla_spark.services.mailbox import Mailbox
from scylla_spark.services.measure import Measures
from scylla_spark.services.questions import Questions
from scylla_spark.services.scan import Scanner
from scylla_spark.services.tails import OutcomesTail, TasksTail, clock_offset_us

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger("dispatch")

LOCAL = "local"
SPARK = "spark"
_MAX_SLEEP_S = 0.5
# With more than this under way, news is gathered for a moment: few large batches cost less than many small ones.
_BUSY_RUNS = 64
_GATHER_S = 0.002  # not longer: while we gather, children run out of work
_YOUNG_OBJECTS = 50_000
_CLOCK_TOLERANCE_US = 1_000_000


class Dispatcher:
    """One dispatcher process.

    Args:
        settings: with the broker's address filled in.
        executors: name → executor ("local", "spark"), not started.
    """

    def __init__(self, settings: Settings, executors: Mapping[str, Executor]) -> None:
        self.settings = settings
        self.executors = dict(executors)
        self.handlers: dict[str, HandlerInfo] = {}
        self.mailbox = Mailbox()
        self.measures = Measures(settings.metrics.payload_labels)
        self.engine = Engine(self._terms_of, engine_limits(settings), random.Random(), queues=queue_terms(settings))
        self.failure: BaseException | None = None
        self._known: dict[str, Terms] = {}
        self._default = self._terms(HandlerInfo(""))
        self._parked = Terms("", self._default.timeout_ms, self._default.retry)
        self._readers = Readers(settings.tables_path)
        self._questions = Questions(self._readers, self.mailbox, self.engine)
        self._scanner = Scanner(self._readers, settings, self.mailbox, self.engine)
        self._producer: Any = None
        self._fences: dict[int, int] = {}
        self._left: dict[int, threading.Event] = {}
        self._stopping = threading.Event()
        self._now = 0
        self._offset = now_us() - boot_us()  # changes when the clock is set
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._tasks: TasksTail | None = None
        self._outcomes = OutcomesTail(settings, self._outcome_records, self._noted_end)

    def start(self, address: str = "") -> None:
        """Starts all that needs no Spark; returns at once. Partitions come with the group's first assignment.

        Args:
            address: where this process serves its state; stands in its fences.

        Raises:
            NotFoundError: there are no tables yet.
        """
        rules = self._readers.rules()
        sys.setswitchinterval(0.0005)  # the engine's thread must not wait 5 ms for a busy one
        gc.freeze()  # tasks and facts hold no cycles: looking through all of them often costs time and finds nothing
        gc.set_threshold(_YOUNG_OBJECTS, 20, 50)
        self.engine.address = address
        self._producer = producer(self.settings, linger_ms=0)
        for executor in self.executors.values():
            executor.start(self._finished)
            self.handlers |= executor.handlers()
        self._known = {name: self._terms(info) for name, info in self.handlers.items()}
        self._tasks = TasksTail(self.settings, rules, self.mailbox, self.engine, self, self._marks)
        self._thread.start()
        self._outcomes.start()
        self._tasks.start()

    def attach(self, spark: SparkSession) -> None:
        """Starts what needs Spark, which takes seconds to come up: large scans and the look-ahead."""
        self._scanner.start(Tables(spark, self.settings.tables_path))

    def stop(self) -> None:
        """Drains: release stops, what runs may finish, all is recorded, then everything ends."""
        if self._tasks is not None:
            self._tasks.stop()
        drain_s = self.settings.dispatch.drain.total_seconds() if self.engine.runs and self.failure is None else 0.0
        for executor in self.executors.values():
            executor.stop(drain_s=drain_s)
        self._scanner.stop()
        self._outcomes.stop()
        self._stopping.set()
        self.mailbox.post(lambda now: None)
        if self._thread.ident is not None:
            self._thread.join(timeout=10)
        self._questions.stop()
        if self._producer is not None:
            self._producer.close(timeout=5)

    def alive(self) -> bool:
        """Whether all parts run.

        Raises:
            BaseException: what ended a part.
        """
        parts: list[Any] = [self, self._tasks, self._outcomes]
        for part in parts:
            if part is not None and part.failure is not None:
                raise part.failure
        return self._scanner.alive() and self._thread.is_alive()

    def ready(self) -> bool:
        """Whether every partition of this process releases tasks."""
        return self.mailbox.ask(
            lambda now: (
                bool(self.engine.partitions) and all(p.state == "active" for p in self.engine.partitions.values())
            )
        )

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
            self.mailbox.close(error)
            for left in list(self._left.values()):
                left.set()

    def _pause(self) -> float:
        return min(max((self.engine.next_wake() - now_us()) / 1e6, 0.0), _MAX_SLEEP_S)

    def step(self) -> None:
        """Runs some messages, releases what is due, carries out what the engine asks for."""
        now = self._clock()
        if abs(now_us() - boot_us() - self._offset) > _CLOCK_TOLERANCE_US:
            self._offset = now_us() - boot_us()
            log.warning("the clock was set; fences show whether it is right now")
            self.engine.doubt(now)
        for message in self.mailbox.drain():
            message(now)
        room = {name: executor.room() for name, executor in self.executors.items()}
        start_by_us = self._tasks.certain_until_us() if self._tasks is not None else 0
        self.engine.tick(self._clock(), room, start_by_us=start_by_us)
        actions, self.engine.actions = self.engine.actions, []
        lookups: dict[int, list[TaskKey]] = {}
        for item in actions:
            if isinstance(item, action.Release):
                self._release(item)
            elif isinstance(item, action.Lookup):
                lookups.setdefault(item.partition, []).extend(item.keys)
            else:
                self._perform(item)
        for number, keys in lookups.items():
            self._questions.look_up(number, keys)

    def _clock(self) -> int:
        self._now = max(self._now, now_us())
        return self._now

    def _release(self, item: action.Release) -> None:
        executor = self.executors.get(item.executor) or self.executors[LOCAL]
        failpoint.reach("dispatch.release.decided")
        executor.submit(item.invocations)
        failpoint.reach("dispatch.release.submitted")
        self.engine.started([invocation.id for invocation in item.invocations], self._now)

    def _perform(self, item: action.Action) -> None:
        match item:
            case action.Send(partition, records, content):
                if content is not None:
                    self._outcomes.expect(records[0], content)
                self._send(partition, records)
            case action.SendFence(partition, record):
                failpoint.reach("dispatch.take.fencing")
                self._fences[partition] = now_us()
                self._send(partition, [record])
            case action.Confirm(partition):
                if self._tasks is not None:
                    self._tasks.confirm(partition)
            case action.Kill(name, ids):
                self.executors[name].kill(ids)
            case action.Reload():
                self._questions.reload(item)
            case action.Left(partition, clean):
                self._forget(partition, clean=clean)

    def _send(self, partition: int, records: list[bytes]) -> None:
        """Appends records in order; the engine hears once, when the last is acknowledged or any failed."""
        remaining = len(records)
        begun = now_us()

        def done(*, ok: bool) -> None:
            nonlocal remaining
            failpoint.reach("dispatch.send.acknowledged")
            remaining = remaining - 1 if ok else -1
            if remaining == 0 or not ok:
                self.measures.persisted(now_us() - begun)
                self.mailbox.post(lambda now: self.engine.sent(partition, ok=ok, now=now))

        def failed(error: BaseException) -> None:
            log.warning("send failed", partition=partition, error=repr(error))
            done(ok=False)

        try:
            failpoint.reach("dispatch.send.begun")
            for record in records:
                future = self._producer.send(self.settings.topics.outcomes, value=record, partition=partition)
                future.add_callback(lambda _metadata: done(ok=True))
                future.add_errback(failed)
            failpoint.reach("dispatch.send.handed_over")
        except Exception as error:
            failed(error)

    # -- called from other threads ------------------------------------------------------------------------------------------

    def gained(self, marks: Mapping[int, Mark]) -> None:
        """The group assigned partitions: begin their takes."""
        failpoint.reach("dispatch.take.assigned")
        horizon = self._scanner.horizon(now_us())

        def begin(now: int) -> None:
            for number, mark in marks.items():
                self.engine.assign(number, mark, now)
                self.engine.raise_horizon(number, horizon)

        self.mailbox.ask(begin)
        for number, mark in marks.items():
            self._outcomes.add(number, mark.outcomes_offset)
            self._scanner.add(number, horizon)
        self._scanner.soon()
        log.info("assigned", partitions=sorted(marks))

    def losing(self, partitions: list[int]) -> None:
        """The group takes partitions back: drain them, then return."""
        for number in partitions:
            self._left[number] = threading.Event()
            self.mailbox.post(partial(self.engine.revoke, number))
        for number in partitions:
            if self.failure is None:  # else nothing can be drained any more
                self._left[number].wait(2 * self.settings.dispatch.drain.total_seconds() + 5)
        log.info("revoked", partitions=partitions)

    def lost(self, partitions: list[int]) -> None:
        """Partitions are somebody else's already: drop them at once."""

        def drop(_now: int) -> None:
            for number in partitions:
                self.engine.drop(number)

        self.mailbox.ask(drop)
        log.warning("lost", partitions=partitions)

    def _forget(self, partition: int, *, clean: bool) -> None:
        self._outcomes.remove(partition)
        self._scanner.remove(partition)
        event = self._left.get(partition)
        if event is not None:
            event.set()
        if not clean:
            log.warning("partition dropped", partition=partition)
            if self._tasks is not None:
                self._tasks.retake(partition)

    def _marks(self) -> Mapping[int, Mark]:
        return joined(self._readers.marks())

    def _finished(self, outcomes: Sequence[Outcome]) -> None:
        def report(now: int) -> None:
            self.measures.finished(outcomes, self.engine.runs)
            self.engine.finished(outcomes, now)

        self.mailbox.post(report)

    def _outcome_records(
        self, partition: int, records: list[tuple[int, OutcomeRecord | None, int]], next_offset: int
    ) -> None:
        failpoint.reach("dispatch.facts.read_back")
        plain = [(offset, record) for offset, record, _ in records]
        for _, record, append_ms in records:
            if record is not None and record.kind == "fence":
                self._check_clock(partition, record, append_ms)
        self.mailbox.post(lambda now: self.engine.outcome_records(partition, plain, next_offset, now))

    def _check_clock(self, partition: int, record: OutcomeRecord, append_ms: int) -> None:
        taken = self.engine.partitions.get(partition)
        if taken is None or record.fence != taken.mine:
            return
        offset = clock_offset_us(append_ms, self._fences.get(partition, 0))
        if abs(offset) > _CLOCK_TOLERANCE_US:
            raise RuntimeError(
                f"This machine's clock is {offset / 1e6:+.1f} s off the broker's; tasks would start at wrong times. Set the clock."
            )

    def _noted_end(self, partition: int, end: int) -> None:
        self.mailbox.post(lambda now: self.engine.noted_end(partition, end, now))

    def _terms(self, info: HandlerInfo) -> Terms:
        dispatch = self.settings.dispatch
        executor = info.runs_on if info.runs_on in self.executors else LOCAL
        timeout_ms = info.timeout_ms if info.timeout_ms is not None else int(dispatch.timeout.total_seconds() * 1000)
        return Terms(
            executor,
            timeout_ms,
            info.retry or Retry(dispatch.max_retries, dispatch.retry_base, dispatch.retry_cap),
            info.max_batch or 1,
        )

    def _terms_of(self, command: Command) -> Terms:
        if command.handler is None:
            return self._parked
        return self._known.get(command.handler, self._default)
