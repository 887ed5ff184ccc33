"""One dispatcher process: the real `Dispatcher`, `Scanner`, `Lookups` and tails, around modelled clients, executors and clocks."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from scylla_spark.core.engine.engine import Engine
from scylla_spark.core.leases.messages import Answer, Call
from scylla_spark.core.tables.progress import Mark, Tenure
from scylla_spark.errors import ClockError
from scylla_spark.services.dispatch.dispatcher import Dispatcher, Surroundings
from scylla_spark.services.dispatch.mailbox import Mailbox
from scylla_spark.services.dispatch.outcomes_tail import OutcomesTail
from scylla_spark.services.dispatch.tasks_tail import TasksTail
from tests.simulation.executor import ModelExecutor
from tests.simulation.kafka_clients import ModelMember, ModelProducer, ModelReader
from tests.simulation.records import SECOND
from tests.simulation.step_runner import ModelRunner
from tests.support.waiting import done_at_once

if TYPE_CHECKING:
    from tests.simulation.world import World

_SLEEP_US = 500_000  # the engine's thread looks at the clock at least so often
_LOOK_EVERY = 8  # steps between two that are played whatever there is to do, and after which all lanes are looked at
_DRAIN_US = 11 * SECOND  # how long the group's callback waits for a partition to be left


class _Unheard:
    """An event that no thread waits for."""

    def set(self) -> None:
        """Nobody is woken."""

    def clear(self) -> None:
        """Nobody looks."""


def _rests(engine: Engine) -> bool:
    """Returns True if nothing waits for what the engine does not wake up for: room, membership, memory, a drain."""
    if engine.runs or engine.choked or engine.held_bytes > engine.limits.max_held_bytes:
        return False
    if engine._ready.places() or any(engine._pulls.places()):
        return False
    partitions = engine.partitions.values()
    return not any(part.drain_by_us or part.outbox.unrecorded or part.overflow for part in partitions)


class Process:
    """One dispatcher process. Its threads are played one turn at a time, each some time after there is something to do.

    Args:
        world: it lives in.
        number: which.
    """

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.member = True
        self.leaving = False
        self.paused = False
        self.dead = False
        self.expelled_at = 0
        self.skew = 0  # of the wall clock
        self.steps = 0
        self.excess_since = 0  # when it held no more than it had to, the last time
        self._paused_at = 0
        self._told_at = 0  # when it hears that it was expelled
        self._blocked = 0  # callbacks of the group under way: the tail of `tasks` stands still
        self._next_step = 0
        self._wakes_at = 0  # when the engine has something to do, as it said after its last step
        self._may_rest = False  # nothing but time and messages gives it something to do before
        self._stepped_skew = 0  # of the wall clock at the last step
        self._turns: set[Callable[[], None]] = set()  # of tails, that are on their way
        self.backlog: list[Callable[[], None]] = []  # whose time has come while it stood still
        self._seed = world.rng.getrandbits(32)
        self.runner = ModelRunner(self)
        self.executor = ModelExecutor(self)
        self.dispatcher = Dispatcher(world.settings, {"local": self.executor}, self._surroundings)
        self.engine, self.mailbox = self.dispatcher.engine, self.dispatcher.mailbox
        self.dispatcher._rules = world.rules
        self._play_mailbox()
        self._next_call = 0
        self._callers: dict[int, Callable[[Answer], None]] = {}
        self.dispatcher.desk.answer = self._answer  # type: ignore[method-assign]
        self.dispatcher.desk.listen = self._listen  # type: ignore[method-assign]
        self.group, self.reader = ModelMember(self), ModelReader(self)
        self._gained = self.dispatcher.gained
        self.dispatcher.gained = self.gained  # type: ignore[method-assign]
        self.tasks = TasksTail(
            world.settings, world.rules, self.mailbox, self.engine, self.dispatcher, world.tables.marks, lambda: world.now,
            done_at_once,
        )  # fmt: skip
        self.outcomes = OutcomesTail(world.settings, self.dispatcher.outcome_records, self.noted_end, lambda: world.now)
        self.tasks.use(self.group)
        self.outcomes.use(self.reader)
        self.dispatcher.handlers |= self.executor.handlers()
        self.executor.start(self.dispatcher.finished)
        self.dispatcher.use(ModelProducer(self), self.tasks, self.outcomes)
        self.dispatcher.scanner.attach(world.tables)
        world.break_rules(self)

    def _surroundings(self, _mailbox: Mailbox) -> Surroundings:
        world = self.world
        return Surroundings(
            lambda: world.now + self.skew, lambda: world.now, world.tables, self.runner, random.Random(self._seed)
        )

    def _play_mailbox(self) -> None:
        """One thread plays all: who asks is answered at once, and what is posted wakes the engine."""
        mailbox, post, drain = self.mailbox, self.mailbox.post, self.mailbox.drain
        mailbox._ready = _Unheard()  # type: ignore[assignment]

        def posted(message: Callable[[int], object]) -> None:
            post(message)
            self.wake_engine(self.world.jitter(1, 100))

        def asked(question: Callable[[int], Any], **_options: object) -> Any:
            self._may_rest = False
            return question(self.world.now + self.skew)

        mailbox.post = posted  # type: ignore[method-assign]
        mailbox.ask = asked  # type: ignore[method-assign]
        mailbox.drain = lambda: drain(self.world.rng.choice([1, 3, 32]))  # type: ignore[method-assign]

    # -- time -----------------------------------------------------------------------------------------------------------

    def later(self, delay: int, call: Callable[[], None]) -> None:
        """Runs a call in this process; while it is stopped the call waits."""
        self.world.after(delay, call, self)

    def _repeat(self, low_ms: float, high_ms: float, call: Callable[[], None]) -> None:
        def again() -> None:
            call()
            self.later(self.world.jitter(low_ms, high_ms), again)

        self.later(self.world.jitter(1, high_ms), again)

    def begin(self) -> None:
        """Its threads start."""
        self.wake_engine(self.world.jitter(1, 100))
        self._repeat(1000, 5000, self._scan)
        self._repeat(1900, 2100, self._heartbeat)

    def wake_engine(self, delay: int) -> None:
        """The engine's thread takes a step after a while, unless it does so before."""
        at = self.world.now + delay
        if self._next_step <= self.world.now or at < self._next_step:
            self._next_step = at
            self.later(delay, lambda: self._step_at(at))

    def _step_at(self, at: int) -> None:
        if at != self._next_step:
            return  # another step came first
        self._next_step = 0
        now = self.world.now + self.skew
        self.steps += 1
        try:
            self._step_or_rest(now)
        except ClockError:  # its clock is wrong, as its own fence shows, or was
            self.world.crash(self)
            return
        if self._tasks_due() or not self.outcomes._controls.empty():
            self.wake_tails()
        due = self._wakes_at - now if not self.mailbox._messages else 0
        self.wake_engine(self.world.jitter(10, 100) + min(max(due, 0), _SLEEP_US))

    def _step_or_rest(self, now: int) -> None:
        if self._rests(now):
            self.mailbox.drain()
            self.dispatcher._clock()
        else:
            self._step()
            self._stepped_skew = self.skew
            self._wakes_at = 0 if self.mailbox._messages else self.dispatcher.next_wake()
            self._may_rest = now < self._wakes_at and _rests(self.engine)

    @property
    def looks(self) -> bool:
        """Returns True if all lanes are to be looked at after this step."""
        return self.steps % _LOOK_EVERY == 0

    def _rests(self, now: int) -> bool:
        """Returns True if a step would find nothing to do, as the last one has; now and then it is played all the same."""
        quiet = self._may_rest and now < self._wakes_at and self.skew == self._stepped_skew
        return quiet and not self.mailbox._messages and not self.looks

    def wake_tails(self) -> None:
        """There may be something to read."""
        self._soon(5, 60, self._read_outcomes)
        self._soon(10, 100, self._read_tasks)

    def _soon(self, low_ms: float, high_ms: float, turn: Callable[[], None]) -> None:
        def run() -> None:
            self._turns.discard(turn)
            turn()

        if turn not in self._turns:
            self._turns.add(turn)
            late = self.world.rng.random() < self.world.profile.trouble.tail and not self.world.calm
            self.later(self.world.jitter(500, 3000) if late else self.world.jitter(low_ms, high_ms), run)

    # -- its threads ----------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        held = {partition.tenure for partition in self.engine.partitions.values()}
        fenced_off = self.engine.counts["fenced_off"]
        self.dispatcher.step()
        if self.world.broken("forgets_timers") and self.world.rng.random() < 0.01:
            self.engine._waiting._timers.marks.clear()
        if self.engine.counts["fenced_off"] > fenced_off:
            kept = {partition.tenure for partition in self.engine.partitions.values()}
            self.world.judge.fenced_off(self, held - kept)
        self.world.judge.judge_engine(self)

    def _read_tasks(self) -> None:
        if not self.member and self.group.places and self.world.now > self._told_at:
            self._lose()  # what the client library tells a member that was expelled
        if self._blocked or not self.member:
            return
        if self.group.has_news() or self._tasks_due():
            self.tasks.turn()
        if not self.outcomes._controls.empty():
            self._soon(5, 60, self._read_outcomes)
        if self.group.has_news() or self._tasks_due():
            self._soon(10, 100, self._read_tasks)

    def _tasks_due(self) -> bool:
        """Returns True if the tail has something to do besides reading."""
        asked = not self.tasks._requests.empty() or not self.tasks._dropped.empty() or bool(self.tasks._retakes)
        return asked or self.world.now - self.tasks._asked_us > 2 * SECOND

    def _read_outcomes(self) -> None:
        try:
            self.outcomes.turn(wait_s=0)
        except ClockError:
            self.world.crash(self)
            return
        if self.reader.has_news() or self.outcomes._endless:
            self._soon(5, 60, self._read_outcomes)

    def _scan(self) -> None:
        if not self.runner.busy("scan"):
            self.dispatcher._soon()

    def _heartbeat(self) -> None:
        self.group.heartbeat()
        self._soon(10, 100, self._read_tasks)

    def take_call(self, call: Call, answered: Callable[[Answer], None]) -> None:
        """A worker's call arrives at its desk."""
        number = self._next_call = self._next_call + 1
        self._callers[number] = answered
        certain = self.dispatcher._certain_until_us

        def begin(now: int) -> None:
            asked = call._replace(number=number, until_us=now + call.until_us)
            self.engine.call(asked, now, certain=self.world.broken("promises_blindly") or certain() > self.world.now)

        self.mailbox.post(begin)

    def _answer(self, answer: Answer, _now: int) -> None:
        answered = self._callers.pop(answer.number, None)
        if answered is not None:
            answered(answer)

    def _listen(self, number: int) -> None:
        """Calls on their way take up to 20 ms; now and then a process of the API does not answer for long."""
        rare = self.world.rng.random() < 0.02 and not self.world.calm
        delay = self.world.jitter(1_000, 40_000) if rare else self.world.jitter(20, 60)
        self.later(delay, lambda: self.mailbox.post(lambda now: self.engine.listened(number)))

    def noted_end(self, tenure: Tenure, end: int) -> None:
        begin = self.world.tables.marks().get(tenure.partition, Mark()).outcomes_offset
        self.dispatcher._noted_end(tenure, begin if self.world.broken("takes_unread") else end)

    # -- faults ---------------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """It ends at once, and its children with it."""
        self.dead = True
        self.executor.die()

    def pause(self, length: int) -> None:
        """It stands still; its children go on. If that is for too long the group puts it out."""
        if self.paused:
            return
        self.paused, self._paused_at = True, self.world.now
        self.world.after(self.world.session_us, self._expel_if_paused)
        self.world.after(length, self._resume)

    def _resume(self) -> None:
        self.paused = False
        self._told_at = self.world.now + self.world.jitter(0, 3000)
        backlog, self.backlog = self.backlog, []
        for call in backlog:  # its threads go on at different times
            self.later(self.world.jitter(0, self.world.rng.choice([1, 2000])), call)

    def _expel_if_paused(self) -> None:
        if self.paused and not self.dead and self.world.now - self._paused_at >= self.world.session_us:
            self.world.group.expel(self)
            self.later(self.world.jitter(10, 500), self._hear)

    def _hear(self) -> None:
        """A frozen process hears only some time after it goes on."""
        if self.world.now >= self._told_at:
            self._rejoin()
        else:
            self.later(self._told_at - self.world.now, self._rejoin)

    def _rejoin(self) -> None:
        if self.member:
            return
        self._lose()
        if self.leaving:
            self.world.stopped(self)
            return
        self.member = True
        self.world.group.rebalance()

    def _lose(self) -> None:
        numbers = sorted(self.group.places)
        self.group.places.clear()
        self.tasks.let_go(numbers, self.dispatcher.lost)

    # -- group ----------------------------------------------------------------------------------------------------------

    def assign(self, number: int) -> None:
        """The group gives it a partition: progress is read, some time later both tails begin."""

        def read() -> None:
            marks = self.world.tables.marks()
            self.later(self.world.jitter(1, 300), lambda: begin(marks))

        def begin(marks: Mapping[int, Mark]) -> None:
            ours = self.world.group.owner[number] == self.number and self.member
            if ours and number not in self.group.places:
                self.group.places[number] = 0
                self.tasks.take([number], marks)
                self.wake_tails()

        self.later(self.world.jitter(1, 300), read)

    def gained(self, marks: Mapping[int, Mark]) -> Mapping[int, Tenure]:
        """A take begins."""
        tenures = self._gained(marks)
        for tenure in tenures.values():
            self.world.judge.takes(self, tenure, marks[tenure.partition].tasks_offset)
        return tenures

    def revoke(self, number: int, then: Callable[[], None]) -> None:
        """The group takes a partition back, and waits until it was let go of."""

        def begin() -> None:
            if number not in self.group.places:
                then()
                return
            if self.world.broken("revokes_at_once"):
                self.engine.drop(number)
            (left,) = self.dispatcher.revoke([number])
            self._blocked += 1
            wait(left, self.world.now + _DRAIN_US)

        def wait(left: Any, until: int) -> None:
            if not left.is_set() and self.world.now < until:
                self.later(30_000, lambda: wait(left, until))
                return
            self._blocked -= 1
            self.group.places.pop(number, None)
            self.tasks.let_go([number], lambda _numbers: None)
            self.wake_tails()
            then()

        self.later(self.world.jitter(1, 200), begin)

    def describe(self, key: Any) -> str:
        """Returns what it holds of a task."""
        for partition in self.engine.partitions.values():
            lane = partition.lanes.get(key.ordering_id)
            if lane is not None:
                entry = lane.find(key)
                place = f"process {self.number} p{partition.number} {partition.state}"
                return f"{place} lane {lane.state} entry {entry is not None} frontier {lane.frontier} reloading {lane.reloading}"
        held = {p.number: (str(p.state), len(p.unloaded), p.tasks_position) for p in self.engine.partitions.values()}
        return f"process {self.number} nothing, holds {held}, choked {self.engine.choked}"
