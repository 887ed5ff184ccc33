"""One real engine, driven by hand: answers of tables come late, in any order, and from tables that are ahead of their progress.

The worlds of `world.py` play whole dispatchers, whose threads make some orders of events rare. Here nothing stands around the
engine: rows, reloads and look-ups come when chance wants it, sends are lost, fences are doubted, owners follow each other,
queues pause, memory is tiny; and after every step all that is counted is counted anew.

`lone_run.py` plays such lives.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import count

from scylla_spark.core.engine import action, bounds
from scylla_spark.core.engine.bounds import HandlerPolicy, Limits
from scylla_spark.core.engine.engine import Engine
from scylla_spark.core.engine.outbox import NEVER
from scylla_spark.core.engine.queue import QueueLimits
from scylla_spark.core.records.command import Command
from scylla_spark.core.records.fact import Fence, OutcomeRecord, decode, encode_fence
from scylla_spark.core.tasks.task import Retry
from tests.simulation.judge import Violation
from tests.simulation.lone_answers import LOOK_AHEAD_US, LateAnswers
from tests.simulation.lone_callers import LEASED, LOCAL, RETRY, LoneClients, LoneExecutor, LoneWorkers, Mode
from tests.simulation.lone_judge import LoneJudge, recount
from tests.simulation.lone_tables import LoneTables
from tests.simulation.records import SECOND
from tests.simulation.sleeping_lanes import sleepers

_START = 1_700_000_000 * SECOND
_STEPS = 500  # with trouble …
_CALM_STEPS = 3_000  # … and without, within which all must end


class Life:
    """An engine, or one after the other, of a partition, and all that comes to it.

    Args:
        seed: of everything random.
        mode: what the life is about.
    """

    def __init__(self, seed: int, mode: Mode) -> None:
        self.rng, self.mode, self.now, self.calm = random.Random(seed), mode, _START, False
        self.tables = LoneTables()
        self.judge = LoneJudge(self.tables)
        self.clients = LoneClients(self.rng, self.tables, mode)
        self.workers = LoneWorkers(self.rng, mode)
        self.asked: Counter[type[action.Action]] = Counter()  # what the engine asked for, how often
        self.paused: set[str] = set()
        self._replay = self.rng.random() < 0.3
        self._group = self.rng.choice([None, 1, 2])
        self._most_bytes = self.rng.choice([4_000, 8_000, 14_000])
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self._ingesting = False
        self._begin()

    def _begin(self) -> None:
        """A process begins, as after a crash: of what was known, logs, tables and progress are left."""
        limits = Limits(max_held_bytes=self._most_bytes, lane_depth=2, least_wait_us=0)
        self.engine = Engine(self._policy_of, limits, random.Random(self.rng.random()), queues=self._queues())
        self.executor = LoneExecutor(self.rng, self.mode)
        self._take()

    def _take(self) -> None:
        """The partition is given to it."""
        progress = self.tables.progress
        self.tenure = self.engine.assign(0, progress, self.now)
        self.engine.raise_horizon(self.tenure, self.now + LOOK_AHEAD_US)
        self._answers = LateAnswers(self)
        self._tasks_read, self._outcomes_read = progress.basis
        self.engine.noted_end(self.tenure, len(self.tables.outcomes), self.now)

    def _policy_of(self, command: Command) -> HandlerPolicy:
        executor = bounds.LEASED if command.queue == LEASED else "local"
        return HandlerPolicy(executor, 5_000, Retry.from_ms(*RETRY), max_batch=3 if self.mode.mixed else 1)

    def _queues(self) -> dict[str, QueueLimits]:
        return {
            LEASED: QueueLimits(pull=True, group_concurrency=self._group, lease_ms=8_000, paused=LEASED in self.paused),
            LOCAL: QueueLimits(replay=self._replay, group_concurrency=self._group, paused=LOCAL in self.paused),
        }

    # -- time -----------------------------------------------------------------------------------------------------------

    def later(self, most_s: float, call: Callable[[], None], *, outlives: bool = False) -> None:
        """Does something within so many seconds, unless the engine is another one by then and the thing is no business of others."""
        engine = self.engine
        due = self.now + int(self.rng.random() * most_s * SECOND)
        mine = call if outlives else lambda: call() if self.engine is engine else None
        heappush(self._events, (due, next(self._numbers), mine))

    def play(self) -> None:
        """Trouble for a while; then all is calm, and all that was asked for must end."""
        for _ in range(_STEPS):
            self._step()
        self.calm = True
        self._pause(set())
        for _ in range(_CALM_STEPS):
            self._step()
            if self.judge.ended.issuperset(self.clients.keys):
                return
        left = [key for key in self.clients.keys if key not in self.judge.ended]
        raise Violation(f"{left[0]}, one of {len(left)}, was lost")

    def _step(self) -> None:
        rng = self.rng
        self.now += rng.choice([50_000, 200_000, SECOND])
        if rng.random() < 0.5:
            self._ingest()
        if rng.random() < (0.25 if self.mode.slow else 0.1 if self.calm else 0.05):
            self._answers.scan()
        if rng.random() < 0.4:
            self.workers.act(self.engine, self.now, calm=self.calm)
        if not self.calm:
            self._trouble()
        self.executor.work(self.engine, self.now, calm=self.calm)
        self._feed()
        self._look()

    def _trouble(self) -> None:
        rng = self.rng
        if rng.random() < 0.6:
            self.clients.act(self.now)
        if rng.random() < 0.02:
            self._pause(self.paused ^ {rng.choice([LEASED, LOCAL])})
        often = 4 if self.mode.leased else 1
        for chance, strike in (
            (0.002 * often, self._begin),
            (0.002, lambda: self.engine.revoke(0, self.now)),
            (0.002, self._fence_off),
            (0.01 * often, lambda: self.engine.doubt(self.now)),
        ):
            if rng.random() < chance:
                strike()

    def _fence_off(self) -> None:
        """Somebody else takes the partition, and does nothing with it."""
        self._land([encode_fence(Fence(self.judge.log.fence.epoch + 1, "other"), "", self.now)])

    def _pause(self, queues: set[str]) -> None:
        self.paused = queues
        for name, limits in self._queues().items():
            self.engine.put_queue(name, limits, self.now)

    def _look(self) -> None:
        """What is due happens; then the engine decides, its actions are carried out, and what it holds is looked at."""
        while self._events and self._events[0][0] <= self.now:
            heappop(self._events)[2]()
        engine = self.engine
        engine.tick(self.now, {"local": 5}, start_by_us=NEVER)
        for item in engine.take_actions():
            self.asked[type(item)] += 1
            self._carry_out(item)
        recount(self.engine, one_by_one=not self.mode.mixed)
        for what in sleepers(self.engine):
            raise Violation(what)
        for key, defect in engine.take_defects():
            raise Violation(f"{key}: {defect!r}") from defect

    # -- logs and tables ------------------------------------------------------------------------------------------------

    def _feed(self) -> None:
        """Both tails read on, a little or all."""
        engine, tables, rng = self.engine, self.tables, self.rng
        if engine.held(self.tenure) is None:
            return
        end = rng.randint(self._tasks_read, len(tables.tasks))
        if not engine.choked and end > self._tasks_read:
            engine.commands(self.tenure, tables.tasks[self._tasks_read : end], end, self.now)
            self._tasks_read = end
        begin, end = self._outcomes_read, rng.randint(self._outcomes_read, len(tables.outcomes))
        if end > begin:
            self._outcomes_read = end
            engine.outcome_records(self.tenure, list(enumerate(tables.outcomes[begin:end], begin)), end, self.now)

    def _land(self, records: Iterable[bytes]) -> None:
        for value in records:
            record = decode(value)
            assert isinstance(record, OutcomeRecord)
            self.tables.outcomes.append(record)
            self.judge.lands(record, self.now)

    def _ingest(self) -> None:
        """Rows are written at once; the progress that tells of them follows."""
        if self._ingesting:
            return
        self._ingesting = True
        mark = self.tables.write(self.rng)

        def store() -> None:
            self.tables.progress = mark
            self._ingesting = False

        self.later(12 if self.mode.slow else 1.5, store, outlives=True)

    # -- what the engine asks for ---------------------------------------------------------------------------------------

    def _carry_out(self, item: action.Action) -> None:
        match item:
            case action.Send():
                self._send(item)
            case action.SendFence(_, _, record):
                self.later(0.3, lambda: self._land([record]), outlives=True)
            case action.Confirm(tenure, fence):
                self.later(0.3, lambda: self.engine.confirmed(tenure, fence, len(self.tables.tasks), self.now))
            case action.Release(_, invocations):
                for invocation in invocations:
                    self.judge.starts(invocation.key, invocation.attempt, self.now)
                    if not self._replay and not self.mode.mixed:
                        self.judge.in_order(invocation.key, self._tasks_read)
                self.executor.take(self.engine, invocations, self.now)
            case action.Kill(_, ids):
                self.later(0.3, lambda: self.executor.kill(self.engine, ids, self.now))
            case action.Listen(number):
                self.later(0.1, lambda: self.engine.listened(number))
            case action.Answered(answer):
                self.workers.hear(answer)
            case action.Left():
                self._take()
            case _:
                self._answers.ask(item)

    def _send(self, item: action.Send) -> None:
        """Now and then a send is lost, or lands and is said to have failed."""
        dice = self.rng.random()

        def arrive() -> None:
            if dice < 0.97:
                self._land(item.records)
            if self.engine is engine:
                engine.sent(item.tenure, item.fence, ok=dice < 0.95, now=self.now)

        engine = self.engine
        self.later(0.3, arrive, outlives=True)
