"""A modelled pool of a few children."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.follow_up import FollowUp
from scylla_spark.core.tasks.task import (
    FAILED,
    NOT_STARTED,
    RATE_LIMITED,
    SUCCEEDED,
    TIMED_OUT,
    YIELDED,
    Failure,
    Invocation,
    Outcome,
)
from scylla_spark.handlers import follow_ups
from scylla_spark.handlers.description import HandlerInfo
from tests.simulation.judge import Violation
from tests.simulation.profiles import RATE_KEYS
from tests.simulation.records import SECOND

if TYPE_CHECKING:
    from tests.simulation.judge import Run
    from tests.simulation.process import Process


class ModelExecutor:
    """Runs one task of a lane at a time, in the order given; the rest waits. Children go on while their parent stands still."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._load = process.world.profile.load
        self._sink: Callable[[Sequence[Outcome]], None] = lambda _outcomes: None
        self.waiting: list[Invocation] = []
        self.under_way: dict[int, tuple[Invocation, Run]] = {}
        self._limited_until: dict[str, int] = {}  # key of a rate limit → when it is over, as far as the engine was told

    def start(self, sink: Callable[[Sequence[Outcome]], None]) -> None:
        self._sink = sink
        engine = self._process.engine
        engine.finished = partial(self._note_limits, engine.finished)  # type: ignore[method-assign]

    def handlers(self) -> dict[str, HandlerInfo]:
        return {"h": HandlerInfo("h"), "batch": HandlerInfo("batch", max_batch=3)}

    def rooms(self) -> dict[str, int]:
        return {"local": max(0, self._load.children + self._load.ahead - len(self.under_way) - len(self.waiting))}

    def running(self) -> dict[int, int]:
        began = {number: run.started for number, (_, run) in self.under_way.items()}
        if self._world.broken("counts_waiting_as_started"):
            began |= {item.id: self._world.now - 2 * SECOND for item in self.waiting}
        return began

    def notes(self) -> dict[int, WorkNote]:
        return {}

    def submit(self, batch: Sequence[Invocation]) -> None:
        for item in batch:
            if any(self._limited_until.get(tag, 0) > self._world.now for tag in item.tags):
                raise Violation(f"{item.key} starts although it shares a rate limit")
        self.waiting += batch
        self._process.later(self._world.jitter(0, 5), self._fill)

    def kill(self, ids: Sequence[int], *, grace_ms: int = 0) -> None:
        gone = [item for item in self.waiting if item.id in ids]
        self.waiting = [item for item in self.waiting if item.id not in ids]
        self._report([Outcome(item.id, NOT_STARTED) for item in gone])
        for number in ids:
            if number in self.under_way:
                self._world.after(self._world.jitter(1, 1200), lambda n=number: self._end(n, TIMED_OUT))

    def die(self) -> None:
        """Children end with their parent."""
        self.waiting.clear()
        if not self._world.broken("orphans"):
            for _, run in self.under_way.values():
                run.ended = self._world.now
            self.under_way.clear()

    def _fill(self) -> None:
        busy = {invocation.key.ordering_id for invocation, _ in self.under_way.values()}
        for item in list(self.waiting):
            lane = item.key.ordering_id
            if len(self.under_way) >= self._load.children:
                return
            if lane in busy:
                continue
            busy.add(lane)  # those behind it wait for it
            if item in self.waiting:
                self.waiting.remove(item)
                self._start(item)

    def _start(self, item: Invocation) -> None:
        world = self._world
        late = world.now > item.start_by_us and not world.broken("late_starts")
        if late or world.rng.random() < world.profile.trouble.hand_back:
            self._report([Outcome(item.id, NOT_STARTED), *self._behind(item)])
            return
        run = world.judge.begin_run(self._process, item)
        self.under_way[item.id] = item, run
        outcome, length = self._fate(item.key.ordering_id)
        world.after(length, lambda: self._end(item.id, outcome))

    def _fate(self, lane: str) -> tuple[str, int]:
        """Returns what becomes of an attempt, and after how long."""
        world, load = self._world, self._load
        long = world.rng.random() < load.long
        good = [SUCCEEDED, YIELDED]
        outcome = world.rng.choices(
            [*good, FAILED, TIMED_OUT], [0.95 - load.fails, 0.05, load.fails * 0.75, load.fails * 0.25]
        )[0]
        if lane in world.failing:
            outcome = FAILED
        return outcome, world.jitter(500, load.longest_ms) if long else world.jitter(1, 100)

    def _follow_ups(self, item: Invocation) -> tuple[FollowUp, ...]:
        """Returns what a task asks for; by its key, so that all its attempts ask for the same."""
        if not self._world.judge.asks(item.key):
            return ()
        lane, key = item.key.ordering_id, item.key
        options = {"ordering_id": lane, "queue": self._world.queue_of[lane]}
        return (follow_ups.task(key, "child", self._world.handler_of[lane] or None, {"at": 10**9}, options),)

    def _limit(self, item: Invocation) -> tuple[Failure | None, int]:
        """Whether what yields has run into a rate limit, and how long it is to wait in milliseconds."""
        rng, chance = self._world.rng, self._load.limited
        if not chance or rng.random() >= chance:
            return None, 200
        waits = (200, 3_000, 8_000) if self._world.calm else self._load.limit_ms
        return Failure(RATE_LIMITED, rng.choice(item.tags or RATE_KEYS)), rng.choice(waits)

    def _behind(self, item: Invocation) -> list[Outcome]:
        """Returns what waits behind a task of its lane is handed back."""
        behind = [w for w in self.waiting if w.key.ordering_id == item.key.ordering_id]
        self.waiting = [w for w in self.waiting if w not in behind]
        return [Outcome(w.id, NOT_STARTED) for w in behind]

    def _end(self, number: int, outcome: str) -> None:
        if number not in self.under_way:
            return
        item, run = self.under_way.pop(number)
        world = self._world
        run.ended, run.outcome = world.now, outcome
        size = 60_000 if world.rng.random() < self._load.big else world.rng.choice([0, 10])
        result = f'"{"x" * size}"' if outcome == SUCCEEDED else None
        asked = self._follow_ups(item) if outcome == SUCCEEDED else ()
        failure, after_ms = self._limit(item) if outcome == YIELDED else (None, 200)
        ended = Outcome(number, outcome, run.started, run.ended, result, failure, after_ms, follow_ups=asked)
        outcomes = [ended]
        if outcome != SUCCEEDED:
            outcomes += self._behind(item)
        self._report(outcomes)
        if not self._process.dead:
            self._fill()

    def _report(self, outcomes: list[Outcome]) -> None:
        if outcomes:
            self._process.later(self._world.jitter(0, 5), lambda: self._sink(outcomes))

    def _note_limits(self, finished: Callable[..., None], outcomes: Sequence[Outcome], now: int) -> None:
        """The engine takes outcomes; those of a partition that it has dropped it does not know."""
        runs = self._process.engine.runs
        known = [(one, runs[one.id].invocation.tags) for one in outcomes if one.id in runs]
        finished(outcomes, now)
        for one, tags in known:
            if one.outcome == YIELDED and one.failure is not None and one.failure.message in tags:
                until = one.finished_us + one.after_ms * 1000
                key = one.failure.message
                self._limited_until[key] = max(until, self._limited_until.get(key, 0))
