"""One dispatcher process: the real `Dispatcher`, `Scanner`, `Lookups` and tails, around modelled clients, executors and clocks."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kafka import TopicPartition
from kafka.errors import IllegalGenerationError, KafkaTimeoutError

from scylla_spark.core.fact import decode
from scylla_spark.core.mark import Mark
from scylla_spark.core.task import FAILED, NOT_STARTED, SUCCEEDED, TIMED_OUT, YIELDED, Invocation, Outcome
from scylla_spark.executors.interface import HandlerInfo
from scylla_spark.services.dispatch.dispatcher import Dispatcher, Surroundings
from scylla_spark.services.dispatch.mailbox import Mailbox
from scylla_spark.services.dispatch.outcomes_tail import OutcomesTail
from scylla_spark.services.dispatch.steps import Ask, Pause, Steps
from scylla_spark.services.dispatch.tasks_tail import TasksTail
from tests.simulation.awaited import sleepers

if TYPE_CHECKING:
    from tests.simulation.world import Run, World

SECOND = 1_000_000
LOOK_EVERY = 8  # steps between two looks at what lanes wait for; a lane that sleeps goes on doing so
CHILDREN = 4


class Process:
    """One dispatcher process.

    Args:
        world: it lives in.
        number: which.
    """

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.member = True
        self.paused = False
        self.dead = False
        self.expelled_at = 0
        self.told_at = 0  # when it hears that it was expelled
        self.skew = 0  # of the wall clock
        self.blocked = 0  # callbacks of the group under way: the tail of `tasks` stands still
        self.scans = 0
        self.steps = 0
        self.stepped_at = 0
        self.backlog: list[Callable[[], None]] = []
        self.seed = world.rng.getrandbits(32)
        self.executor = ModelExecutor(self)
        self.dispatcher = Dispatcher(world.settings, {"local": self.executor}, self._surroundings)
        self.engine, self.mailbox = self.dispatcher.engine, self.dispatcher.mailbox
        self.mailbox.ask = self._ask  # type: ignore[method-assign] - one thread plays all
        self._drain = self.mailbox.drain
        self.mailbox.drain = lambda: self._drain(world.rng.choice([1, 3, 32]))  # type: ignore[method-assign]
        self.group = ModelMember(self)
        self.tasks = TasksTail(
            world.settings,
            world.rules,
            self.mailbox,
            self.engine,
            self.dispatcher,
            world.tables.marks,
            lambda: world.now,
        )
        self.tasks.use(self.group)
        self.outcomes = OutcomesTail(world.settings, self.dispatcher.outcome_records, self.noted_end)
        self.reader = ModelReader(self)
        self.outcomes.use(self.reader)
        self.dispatcher.handlers |= self.executor.handlers()
        self.executor.start(self.dispatcher.finished)
        self.dispatcher.use(ModelProducer(self), self.tasks, self.outcomes)
        self.dispatcher.scanner.attach(world.tables)
        world.break_rules(self)

    def _surroundings(self, _mailbox: Mailbox) -> Surroundings:
        return Surroundings(
            lambda: self.world.now + self.skew,
            lambda: self.world.now,
            self.world.tables,
            ModelRunner(self),
            random.Random(self.seed),
        )

    def _ask(self, question: Callable[[int], Any], **_options: Any) -> Any:
        return question(self.world.now + self.skew)

    def noted_end(self, tenure: Any, end: int) -> None:
        begin = self.world.tables.marks().get(tenure.partition, Mark()).outcomes_offset
        self.dispatcher._noted_end(tenure, begin if self.world.broken("takes_unread") else end)

    # -- time -----------------------------------------------------------------------------------------------------------

    def later(self, delay: int, call: Callable[[], None]) -> None:
        """Runs a call in this process; while it is stopped the call waits."""

        def run() -> None:
            if self.dead:
                return
            if self.paused:
                self.backlog.append(run)
            else:
                call()

        self.world.after(delay, run)

    def repeat(self, low_ms: float, high_ms: float, call: Callable[[], None]) -> None:
        def again() -> None:
            call()
            self.later(self.world.jitter(low_ms, high_ms), again)

        self.later(self.world.jitter(1, high_ms), again)

    def begin(self) -> None:
        """Its threads start."""
        self.repeat(20, 120, self.step)
        self.repeat(10, 100, self.read_tasks)
        self.repeat(5, 60, self.read_outcomes)
        self.repeat(1000, 5000, self.scan)
        self.repeat(1900, 2100, self.group.heartbeat)

    def step(self) -> None:
        idle = not self.mailbox._messages and self.engine.next_wake() > self.world.now + self.skew
        if idle and self.world.now - self.stepped_at < 500_000:
            return  # it sleeps
        self.stepped_at = self.world.now
        self.dispatcher.step()
        self.steps += 1
        if self.world.broken("forgets_timers") and self.world.rng.random() < 0.01:
            self.engine._waiting._timers.clear()
        self.world.judge_engine(self)
        if self.steps % LOOK_EVERY == 0 and (asleep := list(sleepers(self.engine))):
            self.world.violated(f"process {self.number}: {'; '.join(asleep)}")

    def read_tasks(self) -> None:
        if not self.member and self.group.places and self.world.now > self.told_at:
            self.lose()  # what the client library tells a member that was expelled
        if not self.blocked and self.member and (self.group.has_news() or self.tasks_due()):
            self.tasks.turn()

    def tasks_due(self) -> bool:
        """Whether the tail has something to do besides reading."""
        asked = not self.tasks._requests.empty() or not self.tasks._dropped.empty() or bool(self.tasks._retakes)
        return asked or self.world.now - self.tasks._asked_us > 2 * SECOND

    def read_outcomes(self) -> None:
        if self.outcomes._controls.empty() and not self.reader.has_news():
            return
        try:
            self.outcomes.turn(wait_s=0)
        except RuntimeError as error:
            if "clock" not in str(error):
                raise
            self.crash()  # its own fence shows that its clock is wrong: it ends with an error, and is started again
            self.world.after(self.world.jitter(500, 6000), self.world.add_process)

    def scan(self) -> None:
        if not self.scans:
            self.dispatcher._soon()

    # -- faults ---------------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        self.dead = True
        self.world.processes.pop(self.number, None)
        self.world.unclean.add(self.number)
        self.executor.die()
        self.world.after(self.world.session_us, self.expel)

    def pause(self, length: int) -> None:
        self.paused = True
        self.world.after(self.world.session_us, self.expel_if_paused)
        self.world.after(length, self.resume)
        self.paused_at = self.world.now

    def resume(self) -> None:
        self.paused = False
        self.told_at = self.world.now + self.world.jitter(0, 3000)
        backlog, self.backlog = self.backlog, []
        for call in backlog:  # its threads go on at different times
            self.world.after(self.world.jitter(0, self.world.rng.choice([1, 2000])), call)

    def expel_if_paused(self) -> None:
        if self.paused and self.world.now - self.paused_at >= self.world.session_us:
            self.expel()

    def expel(self) -> None:
        self.member = False
        self.expelled_at = self.world.now
        self.world.unclean.add(self.number)
        for number, owner in self.world.owner.items():
            if owner == self.number:
                self.world.owner[number] = None
        self.world.after(0, self.world.rebalance)
        if not self.dead:
            self.later(self.world.jitter(10, 500), self.hear)

    def hear(self) -> None:
        """A frozen process hears only some time after it goes on."""
        if self.world.now >= self.told_at:
            self.rejoin()
        else:
            self.later(self.told_at - self.world.now, self.rejoin)

    def rejoin(self) -> None:
        if self.member:
            return
        self.lose()
        self.member = True
        self.world.rebalance()

    def lose(self) -> None:
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
            if self.world.owner[number] == self.number and self.member and number not in self.group.places:
                self.group.places[number] = 0
                self.tasks.take([number], marks)

        self.later(self.world.jitter(1, 300), read)

    def revoke(self, number: int, then: Callable[[], None]) -> None:
        """The group takes a partition back, and waits until it was let go of."""

        def begin() -> None:
            if number not in self.group.places:
                then()
                return
            if self.world.broken("revokes_at_once"):
                self.engine.drop(number)
            (left,) = self.dispatcher.revoke([number])
            self.blocked += 1
            wait(left, self.world.now + 11 * SECOND)

        def wait(left: Any, until: int) -> None:
            if not left.is_set() and self.world.now < until:
                self.later(30_000, lambda: wait(left, until))
                return
            self.blocked -= 1
            self.group.places.pop(number, None)
            self.tasks.let_go([number], lambda _numbers: None)
            then()

        self.later(self.world.jitter(1, 200), begin)

    def describe(self, key: Any) -> str:
        for partition in self.engine.partitions.values():
            lane = partition.lanes.get(key.ordering_id)
            if lane is not None:
                entry = lane.find(key)
                place = f"process {self.number} p{partition.number} {partition.state}"
                return f"{place} lane {lane.state} entry {entry is not None} frontier {lane.frontier} reloading {lane.reloading}"
        held = {p.number: (str(p.state), len(p.unloaded), p.tasks_position) for p in self.engine.partitions.values()}
        return f"process {self.number} nothing, holds {held}, choked {self.engine.choked}"


class ModelRunner:
    """Carries out pieces of work step by step, each some time after the one before; one piece of a line at a time."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._lines: dict[str, list[Steps[Any]]] = {}

    def run(self, line: str, work: Steps[Any]) -> Future[Any]:
        waiting = self._lines.setdefault(line, [])
        waiting.append(work)
        if line == "scan":
            self._process.scans += 1
        if len(waiting) == 1:
            self._step(line, work, None)
        return Future()

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        self._process.later(int(seconds * SECOND), lambda: (call(), None)[1])

    def _step(self, line: str, work: Steps[Any], answer: Any, failure: Exception | None = None) -> None:
        process, world = self._process, self._process.world
        try:
            step = work.send(answer) if failure is None else work.throw(failure)
        except StopIteration:
            if line == "scan":
                process.scans -= 1
            self._lines[line].pop(0)
            if self._lines[line]:
                process.later(world.jitter(1, 50), lambda: self._step(line, self._lines[line][0], None))
            return
        slow = world.rng.random() < world.faults.stale_scan
        delay = world.jitter(200, 9000) if slow else world.jitter(5, 300)
        if isinstance(step, Pause):
            process.later(int(step.seconds * SECOND), lambda: self._step(line, work, None))
        elif isinstance(step, Ask):
            process.mailbox.post(lambda now: self._answered(line, work, step.question(now)))
        else:
            process.later(world.jitter(1, 400), lambda: self._read(line, work, step.work, delay))

    def _answered(self, line: str, work: Steps[Any], answer: Any) -> None:
        self._process.later(self._process.world.jitter(1, 30), lambda: self._step(line, work, answer))

    def _read(self, line: str, work: Steps[Any], read: Callable[[], Any], delay: int) -> None:
        """What is read now is told some time later; sometimes storage fails."""
        world = self._process.world
        if not world.calm and world.rng.random() < 0.01:
            self._process.later(delay, lambda: self._step(line, work, None, OSError("modelled storage")))
            return
        found = read()
        self._process.later(delay, lambda: self._step(line, work, found))


class ModelMember:
    """The consumer of `tasks`, a member of the group."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.places: dict[int, int] = {}  # partition → position
        self._paused: set[TopicPartition] = set()
        self._coordinator = SimpleNamespace(heard_us=0)

    def has_news(self) -> bool:
        return any(position < len(self._process.world.tasks[number]) for number, position in self.places.items())

    def heartbeat(self) -> None:
        if self._process.member:
            self._coordinator.heard_us = self._process.world.now

    def assignment(self) -> set[TopicPartition]:
        return {TopicPartition("tasks", number) for number in self.places}

    def paused(self) -> set[TopicPartition]:
        return {place for place in self._paused if place.partition in self.places}

    def pause(self, *places: TopicPartition) -> None:
        self._paused.update(places)

    def resume(self, *places: TopicPartition) -> None:
        self._paused.difference_update(places)

    def seek(self, place: TopicPartition, offset: int) -> None:
        self.places[place.partition] = offset

    def position(self, place: TopicPartition) -> int:
        return self.places[place.partition]

    def poll(self, timeout_ms: int) -> dict[TopicPartition, list[Any]]:
        world, found = self._process.world, {}
        for place in sorted(self.assignment() - self._paused):
            log, begin = world.tasks[place.partition], self.places[place.partition]
            end = world.rng.randint(begin, len(log))
            if end > begin:
                found[place] = log[begin:end]
                self.places[place.partition] = end
        return found

    def commit(self, _offsets: object, timeout_ms: int) -> None:
        if not self._process.member or self._process.world.rng.random() < 0.02:
            raise IllegalGenerationError("modelled")

    def end_offsets(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        world = self._process.world
        behind = world.broken("starts_behind_the_tail")
        return {place: 0 if behind else len(world.tasks[place.partition]) for place in places}


class ModelReader:
    """The consumer of `outcomes`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._positions: dict[int, int] = {}

    def has_news(self) -> bool:
        return any(at < len(self._process.world.outcomes[number]) for number, at in self._positions.items())

    def assign(self, places: Sequence[TopicPartition]) -> None:
        self._positions = {place.partition: self._positions.get(place.partition, 0) for place in places}

    def seek(self, place: TopicPartition, offset: int) -> None:
        self._positions[place.partition] = offset

    def poll(self, timeout_ms: int) -> dict[TopicPartition, list[Any]]:
        world, found = self._process.world, {}
        for number, begin in self._positions.items():
            log = world.raw_outcomes[number]
            end = world.rng.randint(begin, len(log))
            if end > begin:
                found[TopicPartition("outcomes", number)] = log[begin:end]
                self._positions[number] = end
        return found

    def end_offsets(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return {place: len(self._process.world.outcomes[place.partition]) for place in places}


class ModelProducer:
    """Sends in order; what has left the process arrives even if the process stops, perhaps after it was reported as failed."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._groups: dict[int, list[tuple[bytes, ModelFuture]]] = {}

    def send(self, _topic: str, value: bytes, partition: int) -> ModelFuture:
        future = ModelFuture()
        group = self._groups.setdefault(partition, [])
        group.append((value, future))
        if len(group) == 1:
            self._process.world.after(0, lambda: self._go(partition))
        return future

    def _go(self, partition: int) -> None:
        process, world = self._process, self._process.world
        group = self._groups.pop(partition)
        if not world.calm and world.rng.random() < world.faults.ambiguous_send:
            landed, landing = world.rng.randint(0, len(group)), world.jitter(2, 6000)
            for value, _ in group[:landed]:
                world.after(landing, lambda value=value: world.append_outcome(partition, value))
            for _, future in group:
                process.later(world.jitter(500, 3000), lambda f=future: f.fail(KafkaTimeoutError("modelled")))
            return
        delay = world.jitter(2, 40)
        for value, future in group:
            world.after(delay, lambda value=value: world.append_outcome(partition, value))
            process.later(delay + world.jitter(1, 5), lambda f=future, v=value: self._acknowledged(partition, f, v))

    def _acknowledged(self, number: int, future: ModelFuture, value: bytes) -> None:
        partition = self._process.engine.partitions.get(number)
        if partition is not None and self._process.world.broken("acts_on_sends"):
            for fact in decode(value).facts:
                self._process.engine._outcomes._apply(
                    partition, fact, len(self._process.world.outcomes[number]), self._process.world.now
                )
        future.succeed()


class ModelFuture:
    """What a producer returns."""

    def __init__(self) -> None:
        self.succeed: Callable[[], object] = lambda: None
        self.fail: Callable[[BaseException], object] = lambda _error: None

    def add_callback(self, call: Callable[[object], object]) -> None:
        self.succeed = lambda: call(None)

    def add_errback(self, call: Callable[[BaseException], object]) -> None:
        self.fail = call


class ModelExecutor:
    """A pool of a few children: one task of a lane at a time, in the order given; the rest waits."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._sink: Callable[[Sequence[Outcome]], None] = lambda _outcomes: None
        self.waiting: list[Invocation] = []
        self.under_way: dict[int, tuple[Invocation, Run]] = {}

    def start(self, sink: Callable[[Sequence[Outcome]], None]) -> None:
        self._sink = sink

    def handlers(self) -> dict[str, HandlerInfo]:
        return {"h": HandlerInfo("h"), "batch": HandlerInfo("batch", max_batch=3)}

    def room(self) -> int:
        return max(0, CHILDREN + 2 - len(self.under_way) - len(self.waiting))

    def running(self) -> dict[int, int]:
        began = {number: run.started for number, (_, run) in self.under_way.items() if run.ended is None}
        if self._process.world.broken("counts_waiting_as_started"):
            began |= {item.id: self._process.world.now - 2 * SECOND for item in self.waiting}
        return began

    def submit(self, batch: Sequence[Invocation]) -> None:
        self.waiting += batch
        self._process.later(self._process.world.jitter(0, 5), self._fill)

    def kill(self, ids: Sequence[int]) -> None:
        gone = [item for item in self.waiting if item.id in ids]
        self.waiting = [item for item in self.waiting if item.id not in ids]
        self._hand_back(gone)
        for number in ids:
            if number in self.under_way:
                self._process.later(self._process.world.jitter(1, 1200), lambda n=number: self._finish(n, TIMED_OUT))

    def die(self) -> None:
        """Children end with their parent."""
        for _, run in self.under_way.values():
            if not self._process.world.broken("orphans"):
                run.ended = run.ended or self._process.world.now
        self.waiting.clear()

    def _fill(self) -> None:
        for item in list(self.waiting):
            busy = {invocation.key.ordering_id for invocation, _ in self.under_way.values()}
            if len(self.under_way) >= CHILDREN:
                return
            first = next((w for w in self.waiting if w.key.ordering_id == item.key.ordering_id), None)
            if item.key.ordering_id not in busy and first is item:
                self.waiting.remove(item)
                self._start(item)

    def _start(self, item: Invocation) -> None:
        world = self._process.world
        late = world.now > item.start_by_us and not world.broken("late_starts")
        if late or world.rng.random() < 0.02:
            behind = [w for w in self.waiting if w.key.ordering_id == item.key.ordering_id]
            self.waiting = [w for w in self.waiting if w not in behind]
            self._hand_back([item, *behind])
            return
        run = world.begin_run(self._process, item)
        self.under_way[item.id] = item, run
        long = world.rng.random() < 0.15
        outcome = world.rng.choices([SUCCEEDED, FAILED, TIMED_OUT, YIELDED], [0.75, 0.15, 0.05, 0.05])[0]
        if item.key.ordering_id in world.failing:
            outcome = FAILED
        world.after(world.jitter(500, 9000) if long else world.jitter(1, 100), lambda: end(run))

        def end(run: Run) -> None:  # children run on while their parent is stopped, and die with it
            if run.ended is None:
                run.ended = world.now
            self._process.later(0, lambda: self._finish(item.id, outcome))

    def _hand_back(self, items: Sequence[Invocation]) -> None:
        if items:
            outcomes = [Outcome(item.id, NOT_STARTED) for item in items]
            self._process.later(self._process.world.jitter(1, 50), lambda: self._sink(outcomes))

    def _finish(self, number: int, outcome: str) -> None:
        item, run = self.under_way.pop(number, (None, None))
        if item is None or run is None:
            return
        world = self._process.world
        run.ended, run.outcome = run.ended or world.now, outcome
        result = '"' + "x" * world.rng.choice([0, 10, 60_000]) + '"' if outcome == SUCCEEDED else None
        outcomes = [Outcome(number, outcome, run.started, run.ended, result, after_ms=200)]
        if outcome != SUCCEEDED:
            behind = [w for w in self.waiting if w.key.ordering_id == item.key.ordering_id]
            self.waiting = [w for w in self.waiting if w not in behind]
            outcomes += [Outcome(w.id, NOT_STARTED) for w in behind]
        self._sink(outcomes)
        self._fill()
