"""A dispatcher and its Spark workers on virtual time, with connections that break, stall and lie dead, and processes that freeze and die.

Everything but the state machines is made here: clocks, a network, and pools whose handlers run for a random time. Frames pass through
JSON, as on the wire. `play` raises `Violation` if a promise breaks.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import (
    FAILED,
    NOT_STARTED,
    SUCCEEDED,
    TIMED_OUT,
    YIELDED,
    Failure,
    Invocation,
    Outcome,
)
from scylla_spark.executors.backlog import Backlog
from scylla_spark.executors.local.outcomes import Moment
from scylla_spark.executors.remote.frames import BEGUN
from scylla_spark.executors.remote.remote_worker import Hello
from scylla_spark.executors.remote.supervisor import LOST, RemoteSupervisor, RemoteTerms
from scylla_spark.executors.remote.worker_end import LEASE_ENDED, Kill, Recall, WorkerEnd
from scylla_spark.handlers.description import HandlerInfo
from tests.simulation.judge import Violation

MS: Final = 1_000
S: Final = 1_000_000
TERMS: Final = RemoteTerms(lease_us=5 * S)
SINGLE, BATCH = "h", "b"
HANDLERS: Final = {SINGLE: HandlerInfo(SINGLE), BATCH: HandlerInfo(BATCH, max_batch=3)}
WALL_US: Final = 1_800_000_000 * S
_FAULTS_UNTIL: Final = 60 * S
_LIMIT: Final = 400 * S
_LONGEST_SILENCE: Final = TERMS.lease_us * 3 // 2 + TERMS.kill_us + 2 * TERMS.beat_us


@dataclass
class Run:
    """A handler that runs, or has run, in true time."""

    item: Invocation
    began: int
    ends: int
    succeeds: bool
    over: bool = False


@dataclass(frozen=True)
class Rules:
    """The parts under test; a test breaks a rule by giving another one."""

    supervisor: Callable[[RemoteTerms, dict[str, HandlerInfo]], RemoteSupervisor] = RemoteSupervisor
    worker: Callable[[int, int], WorkerEnd] = WorkerEnd
    watchdog: bool = True
    faults: tuple[str, ...] = ("cut", "stall_in", "stall_out", "freeze", "die")


class World:
    """One run of the simulation.

    Args:
        seed: of everything that is random.
        rules: the parts under test.
    """

    def __init__(self, seed: int, rules: Rules) -> None:
        self.rng = random.Random(seed)
        self.rules = rules
        self.now = 0
        self.lanes = Lanes(self, self.rng.randint(3, 12), self.rng.randint(2, 8))
        self.supervisor = rules.supervisor(TERMS, HANDLERS)
        self.workers: dict[str, Worker] = {}
        self.dead: list[Worker] = []
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._names = itertools.count()
        self.heard_at: dict[str, int] = {}

    def at(self, when: int, act: Callable[[], None]) -> None:
        """Does something at a time."""
        heapq.heappush(self._events, (max(when, self.now), next(self._order), act))

    def moment(self) -> Moment:
        """Now, on the clocks of the dispatcher."""
        return Moment(WALL_US + self.now, self.now)

    def play(self) -> int:
        """Plays until every task has succeeded; returns how many attempts were lost with a worker.

        Raises:
            Violation: a promise broke.
        """
        for _ in range(self.rng.randint(1, 4)):
            self.start_worker()
        self.at(0, self.lanes.hand_over)
        self.at(0, self._lease)
        self.at(0, self._watch)
        self.at(self.rng.randint(0, 3 * S), self._fault)
        while not self.lanes.done:
            if not self._events or self.now > _LIMIT:
                raise Violation(f"after {self.now / S:.0f} s it has not ended: {self.lanes.missing()}")
            self.now, _, act = heapq.heappop(self._events)
            act()
        return self.lanes.lost

    def start_worker(self) -> None:
        """A new Spark job connects."""
        if sum(not worker.frozen for worker in self.workers.values()) < 4:
            worker = Worker(self, f"w{next(self._names)}")
            self.workers[worker.name] = worker
            self.at(self.now + self.rng.randint(100 * MS, 2 * S), worker.connect)

    def flush(self) -> None:
        """Hands outcomes on, and writes what the dispatcher has to send."""
        done, self.supervisor.done = self.supervisor.done, []
        for outcome in done:
            self.lanes.take(outcome)
        for name, remote in self.supervisor.workers.items():
            if remote.connected and name in self.workers:
                self.workers[name].to_worker.write(remote.link.take())
        if done:
            self.at(self.now + self.rng.randint(0, 5 * MS), self.lanes.hand_over)

    def _lease(self) -> None:
        for name, frame in list(self.supervisor.leases(self.now)):
            if name in self.workers:
                self.workers[name].to_worker.write([frame])
        self.at(self.now + TERMS.beat_us, self._lease)

    def _watch(self) -> None:
        next_us = self.supervisor.watch(self.moment())
        for name, remote in self.supervisor.workers.items():
            if remote.held and self.now - self.heard_at[name] > _LONGEST_SILENCE:
                raise Violation("attempts wait for a worker that was silent for longer than its lease")
        if all(worker.frozen for worker in self.workers.values()):
            self.start_worker()
        self.flush()
        self.at(min(next_us, self.now + 100 * MS), self._watch)

    def _fault(self) -> None:
        if self.workers:
            worker = self.rng.choice(list(self.workers.values()))
            getattr(worker, self.rng.choice(self.rules.faults))()
        if self.rng.random() < 0.2:
            self.start_worker()
        if self.now < _FAULTS_UNTIL:
            self.at(self.now + self.rng.randint(100 * MS, 6 * S), self._fault)


class Lanes:
    """The tasks, and what a dispatcher makes of outcomes.

    Args:
        world: in which they are.
        count: of lanes.
        length: tasks of each.
    """

    def __init__(self, world: World, count: int, length: int) -> None:
        self.world = world
        self.lost = 0
        self._ids = itertools.count(1)
        self._todo = {f"lane{n}": deque(range(length)) for n in range(count)}
        self._attempts: dict[tuple[str, int], int] = {}
        self._out: dict[int, tuple[str, int, Invocation]] = {}
        self._runs: dict[int, Run] = {}
        self._tokens: set[tuple[str, int, int]] = set()
        self._running: dict[str, Run] = {}
        self._cancelled: set[int] = set()
        self.reported: set[int] = set()  # attempts whose start the dispatcher has heard of
        self._losses: dict[tuple[str, int], int] = {}  # of attempts whose start it has not heard of, by task
        self._together = world.rng.random() < 0.5  # whether several tasks of a lane are handed over at once
        self._batched = {lane for lane in self._todo if world.rng.random() < 0.3}  # lanes of tasks of a batch handler

    @property
    def done(self) -> bool:
        """Returns True if every task has succeeded."""
        return not any(self._todo.values()) and not self._out

    def missing(self) -> str:
        """Returns what has not ended, in words."""
        return f"{sum(map(len, self._todo.values()))} tasks, {len(self._out)} attempts at the pool"

    def hand_over(self) -> None:
        """Gives the supervisor the next attempts of each lane of which nothing is out, and sometimes cancels one."""
        busy = {lane for lane, _, _ in self._out.values()}
        batch = []
        for lane, todo in self._todo.items():
            if lane in busy:
                continue
            most = self.world.rng.randint(1, 3) if self._together and lane not in self._batched else 1
            for number in list(todo)[:most]:
                item = self._attempt(lane, number)
                self._out[item.id] = (lane, number, item)
                batch.append(item)
        if batch:
            self.world.supervisor.submit(batch, self.world.moment())
            if self.world.rng.random() < 0.02:
                cancelled = self.world.rng.choice(batch).id
                self._cancelled.add(cancelled)
                self.world.supervisor.kill([cancelled], 1000)
            self.world.flush()

    def _attempt(self, lane: str, number: int) -> Invocation:
        attempt = self._attempts.setdefault((lane, number), 1)
        start_by = self.world.now + self.world.rng.choice((2 * S, 30 * S, 1 << 62))
        handler = BATCH if lane in self._batched else SINGLE
        return Invocation(
            next(self._ids), TaskKey(number, lane, str(number)), attempt, 1, handler, "q", "{}", 0, 0, 60_000, start_by
        )

    def take(self, outcome: Outcome) -> None:
        """An attempt has ended, as the supervisor says."""
        if outcome.id not in self._out:
            raise Violation(f"a second outcome of attempt {outcome.id}")
        lane, number, item = self._out.pop(outcome.id)
        run = self._runs.get(outcome.id)
        if run is not None and not run.over:
            raise Violation(f"the outcome {outcome.outcome} of an attempt that still runs")
        if outcome.id in self._cancelled:
            self._todo[lane].remove(number)
            return
        if outcome.outcome == NOT_STARTED:
            if run is not None:
                raise Violation("an attempt that ran was reported as not started")
            self._tokens.discard((lane, number, item.attempt))
            return
        if outcome.outcome == SUCCEEDED:
            if run is None or not run.succeeds:
                raise Violation("an attempt succeeded that did not")
            self._todo[lane].remove(number)
            return
        if outcome.failure is not None and outcome.failure.kind == LOST:
            self.lost += 1
            self._judge_loss(outcome, (lane, number))
        elif outcome.outcome == YIELDED or (run is None and outcome.outcome != TIMED_OUT):
            raise Violation(f"the outcome {outcome.outcome} of an attempt that neither ran nor was lost")
        else:
            self._losses.pop((lane, number), None)
        self._attempts[lane, number] += 1

    def _judge_loss(self, outcome: Outcome, task: tuple[str, int]) -> None:
        """A loss uses up a retry if the start of the attempt was reported, or at the third loss of its task without that."""
        begun = outcome.id in self.reported
        losses = self._losses[task] = self._losses.get(task, 0) + (not begun)
        if begun and outcome.outcome == YIELDED:
            raise Violation("an attempt whose start was reported was lost, and uses up no retry")
        if not begun and (outcome.outcome == YIELDED) != (losses <= 2):
            raise Violation(
                f"loss {losses} of a task whose attempt had not begun, as far as is known: {outcome.outcome}"
            )

    def begins(self, item: Invocation, ends: int, *, succeeds: bool) -> Run:
        """A handler begins at a worker."""
        lane, number = item.key.ordering_id, item.key.time_us
        if item.id not in self._out:
            raise Violation(f"an attempt began after its outcome: {item.key}")
        if item.id in self._runs or (lane, number, item.attempt) in self._tokens:
            raise Violation(f"two runs share a token: {item.key}, attempt {item.attempt}")
        if (other := self._running.get(lane)) is not None:
            raise Violation(f"two tasks of {lane} run at once: {other.item.key} and {item.key}")
        if any(earlier < number and earlier in self._todo[lane] for earlier in self._unfinished(lane)):
            raise Violation(f"{item.key} began before one that is before it in its lane")
        if self.world.now > item.start_by_us:
            raise Violation("it began after its limit")
        self._tokens.add((lane, number, item.attempt))
        run = self._runs[item.id] = self._running[lane] = Run(item, self.world.now, ends, succeeds)
        return run

    def _unfinished(self, lane: str) -> list[int]:
        """Tasks of a lane that did not succeed and were not cancelled, as far as workers know."""
        over = {
            run.item.key.time_us for run in self._runs.values()
            if run.item.key.ordering_id == lane and run.over and run.succeeds
        }  # fmt: skip
        over |= {number for n, (name, number, _) in self._out.items() if name == lane and n in self._cancelled}
        return [number for number in self._todo[lane] if number not in over]

    def over(self, run: Run) -> None:
        """A handler has ended, or was killed."""
        if run.over:
            return
        run.over = True
        del self._running[run.item.key.ordering_id]


class Wire:
    """One direction of a connection: frames arrive in order, late, or never.

    Args:
        world: in which it is.
        arrive: takes a frame.
    """

    def __init__(self, world: World, arrive: Callable[[Any], None]) -> None:
        self._world = world
        self._arrive = arrive
        self._last = 0
        self._stalled_until = 0
        self._way: deque[str] = deque()
        self._open = True

    def write(self, frames: list[Any]) -> None:
        """Sends frames; into a broken connection they are lost."""
        for frame in frames if self._open else ():
            delay = self._world.rng.choice((200, 1000, 5 * MS, 5 * MS, 300 * MS))
            self._last = max(self._last, self._world.now + delay)
            self._way.append(json.dumps(frame))
            self._world.at(self._last, self._deliver)

    def _deliver(self) -> None:
        if self._way and self._world.now < self._stalled_until:
            self._world.at(self._stalled_until, self._deliver)
        elif self._way:
            self._arrive(json.loads(self._way.popleft()))

    def stall(self, until: int) -> None:
        """Nothing arrives until then."""
        self._stalled_until = max(self._stalled_until, until)

    def open(self) -> None:
        """A new connection."""
        self._open = True

    def reset(self) -> None:
        """The connection is gone, with all that was under way."""
        self._open = False
        self._way.clear()
        self._last = self._stalled_until = 0


class Worker:
    """A Spark worker: its end of the connection, a pool, and a watchdog that outlives a frozen process.

    Args:
        world: in which it is.
        name: its id.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.to_worker = Wire(world, self._receive)
        self.to_dispatcher = Wire(world, self._received)
        self.connected = self.gone = self.broken = False
        self._ahead = world.rng.randint(-(10**12), 10**12) + 10**13
        self._slots = world.rng.randint(1, 3)
        self._backlog = Backlog(lambda name: HANDLERS[name].max_batch)
        self._runs: dict[int, Run] = {}
        self._begun: dict[int, int] = {}
        self._frozen_until = 0
        self._connections = 1
        self._inbox: deque[Any] = deque()
        self.end = world.rules.worker(self.clock(), TERMS.lease_us)

    def clock(self) -> int:
        """Its boot clock, which drifts."""
        return self._ahead + self.world.now + self.world.now // 20_000

    def connect(self) -> None:
        """The first connection, and the beats that follow it."""
        self.end = self.world.rules.worker(self.clock(), TERMS.lease_us)
        hello = Hello("1", "host", dict.fromkeys(HANDLERS, ""))
        if not self.world.supervisor.joined(self.name, hello, self.world.now):
            raise Violation("a new worker was refused")
        self.connected = True
        self.world.heard_at[self.name] = self.world.now
        self._tick()
        self._beat()

    # ---- faults ----

    def cut(self) -> None:
        """Its connection is reset; it connects again soon."""
        if self.gone or not self.connected:
            return
        self.connected = False
        self._inbox.clear()
        self.to_worker.reset()
        self.to_dispatcher.reset()
        self._noticed_later()
        self.world.at(self.world.now + self.world.rng.randint(10 * MS, 8 * S), self._reconnect)

    def stall_in(self) -> None:
        """Nothing reaches it for a while."""
        self.to_worker.stall(self.world.now + self.world.rng.randint(1, 12) * S)

    def stall_out(self) -> None:
        """Nothing of it arrives for a while."""
        self.to_dispatcher.stall(self.world.now + self.world.rng.randint(1, 12) * S)

    def freeze(self) -> None:
        """Its process is stopped, and its children run on."""
        length = self.world.rng.randint(1, 15) if self.world.rng.random() < 0.9 else 3600
        self._frozen_until = max(self._frozen_until, self.world.now + length * S)

    def die(self) -> None:
        """Its process is killed, and its children with it."""
        if not self.gone:
            self._vanish()
            self._noticed_later()

    def _noticed_later(self) -> None:
        """The dispatcher notices the end of this connection, unless there is a newer one by then."""

        def notice(connection: int = self._connections) -> None:
            if connection == self._connections:
                self.world.supervisor.cut(self.name)

        self.world.at(self.world.now + self.world.rng.randint(0, 2 * S), notice)

    def _vanish(self) -> None:
        self.gone, self.connected = True, False
        for run in self._runs.values():
            self.world.lanes.over(run)
        self._runs.clear()
        self.to_worker.reset()
        self.to_dispatcher.reset()
        del self.world.workers[self.name]
        self.world.at(self.world.now + self.world.rng.randint(100 * MS, 3 * S), self.world.start_worker)

    def _reconnect(self) -> None:
        if self.gone or self.connected:
            return
        if self.frozen:
            self.world.at(self._frozen_until, self._reconnect)
            return
        self.world.supervisor.cut(self.name)
        if not self.world.supervisor.rejoined(self.name, self.end.link.received, self.world.now):
            self._vanish()  # it was given up: it kills its handlers and ends
            return
        self.world.heard_at[self.name] = self.world.now
        self.end.link.reconnected(self.world.supervisor.workers[self.name].link.received)
        self.connected = True
        self._connections += 1
        self.to_worker.open()
        self.to_dispatcher.open()
        self.world.flush()
        self._flush()

    # ---- its process ----

    @property
    def frozen(self) -> bool:
        """Returns True if its process is stopped."""
        return self.world.now < self._frozen_until

    def _receive(self, frame: Any) -> None:
        self._inbox.append(frame)
        if not self.frozen:
            self._read()

    def _read(self) -> None:
        if not self.end.may_run(self.clock()):
            return  # it kills its handlers first
        while self._inbox:
            for order in self.end.receive(self._inbox.popleft(), self.clock()):
                self._obey(order)
            if self.end.asked:
                self._answer()
        self._go_on()

    def _obey(self, order: Invocation | Kill | Recall) -> None:
        if isinstance(order, Invocation):
            self._backlog.add((order,))
        elif isinstance(order, Recall):
            self._hand_back(self._backlog.discard(set(order.ids)))
        else:
            self._hand_back(self._backlog.discard(set(order.ids)))
            for number in order.ids:
                if number in self._runs:
                    self._finish(self._runs[number], TIMED_OUT)

    def _go_on(self) -> None:
        while len(self._runs) < self._slots and (call := self._backlog.take()):
            ends = self.world.now + self.world.rng.choice((MS, 10 * MS, 100 * MS, S, 4 * S))
            for item in call:
                if item.start_by_us > self.clock():
                    self._begin(item, ends)
                    continue
                self._hand_back(self._backlog.fail(item.key.ordering_id))
                self._backlog.finish([item])
                self._hand_back([item])
        self._flush()

    def _begin(self, item: Invocation, ends: int) -> None:
        original = self.world.lanes._out.get(item.id)
        known = item if original is None else original[2]
        run = self.world.lanes.begins(known, ends, succeeds=self.world.rng.random() < 0.9)
        self._runs[item.id] = run
        self._begun[item.id] = self.clock()
        self.world.at(ends, lambda: self._ends(run))

    def _ends(self, run: Run) -> None:
        if self._runs.get(run.item.id) is not run:
            return
        if self.frozen:  # the child is done, and its process does not read it
            self.world.lanes.over(run)
            self.world.at(self._frozen_until, lambda: self._ends(run))
            return
        if not self.end.may_run(self.clock()):
            return
        self._finish(run, SUCCEEDED if run.succeeds else FAILED)
        self._go_on()

    def _finish(self, run: Run, outcome: str) -> None:
        del self._runs[run.item.id]
        self.world.lanes.over(run)
        if outcome != SUCCEEDED:
            run.succeeds = False
            self._hand_back(self._backlog.fail(run.item.key.ordering_id))
        self._backlog.finish([run.item])
        failure = None if outcome == SUCCEEDED else Failure("X", "it failed")
        wall = WALL_US + self.world.now
        outcome = FAILED if outcome == TIMED_OUT else outcome
        self._report([Outcome(run.item.id, outcome, wall - (self.world.now - run.began), wall, None, failure)])

    def _hand_back(self, items: list[Invocation]) -> None:
        if items:
            self._report([Outcome(item.id, NOT_STARTED) for item in items])

    def _report(self, outcomes: list[Outcome]) -> None:
        self.end.begun({n: at for n, at in self._begun.items() if n in self._runs})
        self.end.ended(outcomes, self._free(), WALL_US + self.world.now - self.clock())
        self._flush()

    def _free(self) -> dict[str, int]:
        return {"local": max(0, self._slots + 1 - len(self._runs) - len(self._backlog))}

    def _flush(self) -> None:
        if self.connected:
            self.to_dispatcher.write(self.end.link.take())

    def _received(self, frame: Any) -> None:
        self.world.heard_at[self.name] = self.world.now
        remote = self.world.supervisor.workers.get(self.name)
        if frame[2][0] == BEGUN and remote is not None and frame[0] == remote.link.received + 1:
            self.world.lanes.reported.update(number for number, _ in frame[2][1])
        if (
            not self.world.supervisor.receive(self.name, frame, self.world.moment())
            and not self.gone
            and self.connected
        ):
            self.cut()
        self.world.flush()

    def _beat(self) -> None:
        if self.gone:
            return
        if not self.frozen:
            self._answer()
        self.world.at(max(self._frozen_until, self.world.now + S), self._beat)

    def _answer(self) -> None:
        if self.connected:
            self.to_dispatcher.write([self.end.beat(self._free(), 1, self.clock())])

    def _tick(self) -> None:
        if self.gone:
            return
        now = self.clock()
        if not self.end.may_run(now) and self.world.rules.watchdog:
            self._lease_over()
            return
        if not self.frozen:
            self.end.begun({n: at for n, at in self._begun.items() if n in self._runs})
            self._read()
        self.world.at(self.world.now + 50 * MS, self._tick)

    def _lease_over(self) -> None:
        """Its watchdog kills its handlers, also while it is frozen; it says so when it can."""
        if self.gone:
            return
        for run in list(self._runs.values()):
            if not run.over:
                run.succeeds = False
                self.world.lanes.over(run)
        if self.frozen:
            self.world.at(self._frozen_until, self._lease_over)
            return
        self._runs.clear()
        self.end.dead(LEASE_ENDED)
        self._flush()
        self.gone, self.connected = True, False
        del self.world.workers[self.name]
        self.world.at(self.world.now + S, self.world.start_worker)


def play(seed: int, rules: Rules = Rules()) -> int:
    """Plays a seed.

    Raises:
        Violation: a promise broke.
    """
    return World(seed, rules).play()
