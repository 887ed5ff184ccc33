"""A dispatcher on virtual time: the real engine on one partition, a log that answers at once, and handlers called in this process."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import Any, BinaryIO, Final

from scylla_spark.config.settings import Settings
from scylla_spark.core.engine import action
from scylla_spark.core.engine.engine import Engine
from scylla_spark.core.engine.outbox import NEVER
from scylla_spark.core.leases.messages import Answer, Call
from scylla_spark.core.queues.in_force import Changes, QueuesInForce
from scylla_spark.core.records.command import Command
from scylla_spark.core.records.fact import Fact, Fence, OutcomeRecord, Unreadable, decode
from scylla_spark.core.tables.progress import Basis, Mark, Tenure
from scylla_spark.core.tasks.fold_commands import Folded
from scylla_spark.core.tasks.key import LATEST_US, TaskKey
from scylla_spark.core.tasks.output import OutputLink, outputs_place
from scylla_spark.core.tasks.state import attempts_of, completion_of
from scylla_spark.core.tasks.status import TaskStatus, status_of
from scylla_spark.core.tasks.stored_records import Known
from scylla_spark.core.tasks.task import (
    CANCELLED,
    FAILED,
    NOT_STARTED,
    SUCCEEDED,
    TIMED_OUT,
    Failure,
    Invocation,
    Outcome,
    Session,
)
from scylla_spark.errors import NotFoundError
from scylla_spark.executors.backlog import Backlog
from scylla_spark.handlers.description import AUTO, LOCAL
from scylla_spark.handlers.outputs import AttemptOutputs
from scylla_spark.handlers.registry import Handler
from scylla_spark.services.dispatch.describe import describe_load
from scylla_spark.services.dispatch.engine_settings import (
    engine_limits,
    limits_of,
    queue_terms,
    runner_of,
)
from scylla_spark.services.dispatch.handler_policies import HandlerPolicies
from scylla_spark.testing.call_notes import HeardCall
from scylla_spark.testing.handler_calls import failure_in, verdicts
from scylla_spark.testing.world_outputs import MemoryFiles, terms_of
from scylla_spark.worker.lease import Output

_KILLED: Final = Failure(CANCELLED, "It was cancelled, and killed after the grace.")
_ALL_READ: Final = Basis(1 << 62, 1 << 62)
_LONG_HELD_US: Final = (
    3_600_000_000  # so that no task is older than the dispatcher: of none it must ask whether it has run before
)
_NOTHING_WAITS_US: Final = 1 << 61  # facts are sent at once, and do not wait for others to go with them

Watcher = Callable[[Sequence[Invocation], Sequence[Outcome]], None]


class VirtualDispatcher:
    """Runs tasks. Whoever has it says what time it is.

    Args:
        settings: limits, and what holds where tasks and handlers say nothing.
        handlers: what tasks may name.
        now: microseconds since the epoch.
        counted: is told of facts.
        noted: is told of calls, and how they end.
        follow_up: sends what handlers ask for; why it did not, or None.

    Attributes:
        queues: definitions in force.
        lasts_us: handler → how long its calls take; of others, no time at all.
        answers: to calls of workers, by their number.
        last_called: handler that was called last.
        files: that handlers leave behind.
    """

    def __init__(
        self,
        settings: Settings,
        handlers: Mapping[str, Handler],
        now: int,
        *,
        counted: Callable[[Sequence[Fact]], None],
        noted: Watcher,
        follow_up: Callable[[action.SendFollowUps], Failure | None],
    ) -> None:
        self._follow_up = follow_up
        self.queues = QueuesInForce(settings.queues)
        self.lasts_us: dict[str, int] = {}
        self.session: Session | None = None
        self.files = MemoryFiles()
        self._output_terms = terms_of(settings)
        self.answers: dict[int, Answer] = {}
        self.last_called = ""
        self._handlers = handlers
        self._counted = counted
        self._noted = noted
        self._policies = HandlerPolicies(settings, self.queues, children=0)
        infos = {
            name: replace(one.info, runs_on=LOCAL) if one.info.runs_on == AUTO else one.info
            for name, one in handlers.items()
        }
        self._policies.know(infos, {info.executor for info in infos.values()})
        limits = engine_limits(settings)
        in_flight = limits.max_in_flight * limits.partitions
        limits = replace(limits, partitions=1, max_in_flight=in_flight, max_held_bytes=1 << 40)
        self._engine = Engine(self._policies.of, limits, random.Random(0), queues=queue_terms(self.queues.all()))
        self._backlog = Backlog(lambda name: handlers[name].info.max_batch if name in handlers else None)
        self._ends: list[tuple[int, int, list[Invocation], list[Outcome]]] = []
        self._began_us: dict[int, int] = {}
        self._commands: dict[TaskKey, Folded] = {}
        self._facts: dict[TaskKey, list[Fact]] = {}
        self._next_command = 0  # offsets of the two logs
        self._next_outcome = 0
        self._calls = 0
        self._now = now - _LONG_HELD_US
        self._tenure = self._take()

    def _take(self) -> Tenure:
        """The partition is ours, with empty tables and logs."""
        engine, now = self._engine, self._now
        tenure = engine.assign(0, Mark(), now)
        engine.raise_horizon(tenure, LATEST_US)
        engine.noted_end(tenure, 0, now)
        engine.scanned(tenure, LATEST_US, {}, Mark(), now)
        self.write(now)
        return tenure

    # -- what comes in --------------------------------------------------------------------------------------------------

    def offer(self, command: Command, now: int) -> None:
        """A command stands in the log of tasks."""
        command = command._replace(offset=self._next_command)
        self._next_command += 1
        self._commands.setdefault(command.key, Folded()).add(command)
        self._engine.commands(self._tenure, [command], self._next_command, now)

    def put_queues(self, changes: Changes, now: int) -> None:
        """Definitions of queues were put or deleted."""
        before = {name: self.queues.of(name) for name in changes}
        self.queues.put(changes)
        self._policies.queues_changed()
        for name, old in before.items():
            new = self.queues.of(name)
            self._engine.put_queue(name, limits_of(new) if new is not None else None, now)
            if runner_of(old) != runner_of(new):
                self._engine.reconsider(name, now)

    def call(self, call: Call, now: int) -> None:
        """A worker calls; its answer stands in `answers` some turns later."""
        self._engine.call(call, now, certain=True)

    # -- time -----------------------------------------------------------------------------------------------------------

    def turn(self, now: int, *, may_start: bool) -> bool:
        """Does what is to be done at an instant; whether there was anything.

        Args:
            now: microseconds since the epoch.
            may_start: whether handlers are called.
        """
        ended = self._end_calls(now)
        if self._engine.asks_who_runs(now):
            self._engine.running(self._began_us, now)
        self._engine.tick(now, _Room(NEVER if may_start else 0), start_by_us=NEVER)
        return self.write(now) or ended

    def write(self, now: int) -> bool:
        """Carries out what the engine asks for until it asks for nothing more; whether there was anything."""
        self._now, any_at_all = now, False
        while True:
            self._engine.flush(_NOTHING_WAITS_US + self._next_outcome * 10_000)
            actions = self._engine.take_actions()
            if not actions:
                return any_at_all
            any_at_all = True
            for item in actions:
                self._carry_out(item)

    def load(self, now: int) -> dict[str, Any]:
        """Returns what a dispatcher shows of its queues, for constraints on the load."""
        return describe_load(self._engine, now)

    @property
    def next_us(self) -> int:
        """Returns when something is to be done next, microseconds since the epoch; NEVER: nothing is."""
        wake = min(self._engine.next_wake(), self._ends[0][0] if self._ends else NEVER)
        return wake if wake < LATEST_US else NEVER

    # -- what is known --------------------------------------------------------------------------------------------------

    def status(self, key: TaskKey, now: int) -> TaskStatus:
        """Returns how a task stands.

        Raises:
            NotFoundError: nobody has enqueued it.
        """
        if key not in self._commands:
            raise NotFoundError(f"There is no task {key} in this world.", hint="Check all three parts of the key.")
        return status_of(key, self._commands[key], self.facts(key), now)

    def facts(self, key: TaskKey) -> list[Fact]:
        """Returns what has happened to a task."""
        return self._facts.get(key, [])

    def statuses(self, now: int) -> list[TaskStatus]:
        """Returns how all tasks stand, in the order of their first command."""
        return [self.status(key, now) for key in self._commands]

    def command(self, key: TaskKey) -> Command:
        """The newest enqueue of a key; whether its name is unique is what the first one said.

        Raises:
            NotFoundError: there is none.
        """
        folded = self._commands.get(key)
        if folded is None or folded.data is None or folded.first is None:
            raise NotFoundError(f"{key} was never enqueued in this world.", hint="Check all three parts of the key.")
        return folded.data._replace(unique=folded.first.unique)

    def is_known(self, key: TaskKey) -> bool:
        """Returns True if a key was ever enqueued or cancelled."""
        return key in self._commands

    def will_be_cancelled(self, key: TaskKey) -> bool:
        """Returns True if a task runs, and will be killed since somebody has cancelled it."""
        ends = (pair for _, _, call, outcomes in self._ends for pair in zip(call, outcomes, strict=True))
        return any(item.key == key and one.failure is _KILLED for item, one in ends)

    # -- below: how actions are carried out -----------------------------------------------------------------------------

    def _carry_out(self, item: action.Action) -> None:
        engine, now = self._engine, self._now
        match item:
            case action.Release(_, invocations):
                engine.handed([one.id for one in invocations], now)
                self._backlog.add(invocations)
                self._begin_calls()
            case action.Send(tenure, fence, records, content):
                self._append(
                    tenure, fence, [content] if content is not None else [decode(record) for record in records]
                )
            case action.SendFence(tenure, fence, record):
                self._append(tenure, fence, [decode(record)])
            case action.Confirm(tenure, fence):
                engine.confirmed(tenure, fence, 0, now)
            case action.Lookup(tenure, keys):
                engine.looked_up(tenure, {key: self._known(key) for key in keys}, _ALL_READ, now)
            case action.AskNames(tenure, names):
                engine.named(tenure, names, (), _ALL_READ, now)  # all that is open is in memory
            case action.SendFollowUps():
                engine.followed_up(item.number, self._follow_up(item), now)
            case action.Answered(answer):
                self.answers[answer.number] = answer
            case action.Kill(_, ids, grace_ms):
                self._kill(ids, now + grace_ms * 1000)
            case action.Listen(number):
                engine.listened(number)
            case _:
                raise AssertionError(f"nothing is cut or lost in this world: {item}")

    def _append(self, tenure: Tenure, fence: Fence, records: Sequence[OutcomeRecord | Unreadable]) -> None:
        """The records stand in the log, and are read back."""
        begin, self._next_outcome = self._next_outcome, self._next_outcome + len(records)
        facts = [fact for record in records if isinstance(record, OutcomeRecord) for fact in record.facts]
        for fact in facts:
            self._facts.setdefault(fact.key, []).append(fact)
        self._engine.sent(tenure, fence, ok=True, now=self._now)
        self._engine.outcome_records(tenure, list(enumerate(records, begin)), self._next_outcome, self._now)
        if facts:
            self._counted(facts)

    def keep_output(self, token: str, output: Output, content: BinaryIO) -> bool:
        """A leased worker leaves a file behind; whether it holds the lease.

        Args:
            token: of the lease.
            output: what it is to be called.
            content: of the file.
        """
        held = self._engine.lease_output(token, None, self._now)
        if isinstance(held, str):
            return False
        place = outputs_place(TaskKey(*held["key"]), held["attempt"], 1)
        left = self._output_terms.max_bytes - sum(held["sizes"].values())
        stored = self.files.write(place, output.name, content, left)
        self._engine.lease_output(token, OutputLink(output.name, *stored, output.media_type), self._now)
        return True

    def _known(self, key: TaskKey) -> Known:
        facts = self.facts(key)
        attempts, ended = attempts_of(facts), completion_of(facts) is not None
        if not attempts:
            return Known(ended)
        last = attempts[-1]
        return Known(ended, last.attempt, last.used, last.next_us or 0, last.work, last.brief_error)

    def _begin_calls(self) -> None:
        while call := self._backlog.take():
            self._calls, self.last_called = self._calls + 1, call[0].handler
            for item in call:
                self._began_us[item.id] = self._now
            if any(item.expires_us < self._now for item in call):
                self._hand_back(call)
                continue
            outcomes = self._called(call, self._now)
            self._noted(call, outcomes)
            heappush(self._ends, (outcomes[0].finished_us, self._calls, call, outcomes))

    def _hand_back(self, call: list[Invocation]) -> None:
        """A call that has expired meanwhile is not made."""
        behind = [one for item in call for one in self._backlog.fail(item.key.ordering_id)]
        self._backlog.finish(call)
        self._engine.finished([Outcome(item.id, NOT_STARTED) for item in (*call, *behind)], self._now)

    def _called(self, call: list[Invocation], begin: int) -> list[Outcome]:
        """Makes a call; one that takes longer than it may is not made, for it would be killed before its end."""
        limit_us = max(item.timeout_ms for item in call) * 1000
        end = begin + self.lasts_us.get(call[0].handler, 0)
        if end - begin > limit_us:
            failure = Failure(TIMED_OUT, f"It had not ended after {limit_us / 1e6:g} s and was killed.")
            return [Outcome(item.id, TIMED_OUT, begin, begin + limit_us, failure=failure) for item in call]
        heard = HeardCall(call[0], AttemptOutputs(self._output_terms, call[0], self.files))
        found = verdicts(self._handlers, call, begin, heard.notes, self.session)
        work, follow_ups = heard.end()
        return [
            Outcome(
                item.id, one.outcome, begin, end, one.result, failure_in(one), one.after_ms, work=work, follow_ups=follow_ups
            )
            for item, one in zip(call, found, strict=True)
        ]  # fmt: skip

    def _kill(self, ids: Sequence[int], at_us: int) -> None:
        """Calls that somebody cancels end by then; what their handlers had to say is lost, as that of a process that is killed."""
        for place, (end_us, number, call, _) in enumerate(self._ends):
            if end_us > at_us and {item.id for item in call} <= set(ids):
                killed = [Outcome(one.id, FAILED, self._began_us[one.id], at_us, failure=_KILLED) for one in call]
                self._noted(call, killed)
                self._ends[place] = at_us, number, call, killed
        heapify(self._ends)

    def _end_calls(self, now: int) -> bool:
        ended = False
        while self._ends and self._ends[0][0] <= now:
            _, _, call, outcomes = heappop(self._ends)
            self._end(call, outcomes, now)
            ended = True
        return ended

    def _end(self, call: list[Invocation], outcomes: list[Outcome], now: int) -> None:
        behind: list[Outcome] = []
        for item, outcome in zip(call, outcomes, strict=True):
            del self._began_us[item.id]
            if outcome.outcome != SUCCEEDED:
                behind += [Outcome(one.id, NOT_STARTED) for one in self._backlog.fail(item.key.ordering_id)]
        self._backlog.finish(call)
        self._engine.finished([*outcomes, *behind], now)
        self._begin_calls()


class _Room(Mapping[str, int]):
    """The same room in every executor, whatever it is called.

    Args:
        calls: how many more each wants.
    """

    def __init__(self, calls: int) -> None:
        self._calls = calls

    def __getitem__(self, executor: str) -> int:
        return self._calls

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0
