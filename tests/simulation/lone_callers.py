"""Whom a lone engine works for, and who works for it: clients, an executor of this machine, and workers that lease."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import NamedTuple

from scylla_spark.core.engine.engine import Engine
from scylla_spark.core.leases.messages import Answer, Call, Report, Sign, Want
from scylla_spark.core.records.command import CANCEL, ENQUEUE, Command, WireRetry
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.key import TaskKey
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
from tests.simulation.lone_tables import LoneTables
from tests.simulation.records import SECOND

LEASED, LOCAL = "gpu", "cpu"  # queues
RETRY = WireRetry(50, 20_000, 40_000)
_MOST_TASKS = 60
_LATELY = 15  # tasks, of which clients cancel some
_LANES = [f"{group}:{number}" for group in "ABC" for number in range(4)]
_TAG = "lim"  # of tasks that share a rate limit


class Mode(NamedTuple):
    """What a life is about.

    Attributes:
        slow: scans come up to fifteen seconds late, and progress up to twelve.
        forgetful: what has ended is remembered for five seconds and not for a minute.
        mixed: tasks run in batches, expire, and run into rate limits.
        sessions: workers have sessions, ask twice, hang up, and miss answers.
        unique: a few names are sent again and again, and some are to be unique.
        leased: workers lease the tasks of most lanes; owners follow each other, and doubt their fences, again and again.
    """

    slow: bool = False
    forgetful: bool = False
    mixed: bool = False
    sessions: bool = False
    unique: bool = False
    leased: bool = False


class LoneClients:
    """Enqueue, change their minds, and cancel."""

    def __init__(self, rng: random.Random, tables: LoneTables, mode: Mode) -> None:
        self._rng, self._tables, self._mode = rng, tables, mode
        self.keys: dict[TaskKey, None] = {}

    def act(self, now: int) -> None:
        """One of them does something, perhaps."""
        dice = self._rng.random()
        if dice < 0.5 and len(self.keys) < _MOST_TASKS:
            self._enqueue(self._new_key(now))
        elif self.keys and dice < 0.7:
            self._enqueue(self._rng.choice(list(self.keys)))
        elif self.keys and dice < 0.8:
            self._cancel(self._rng.choice(list(self.keys)[-_LATELY:]))

    def _new_key(self, now: int) -> TaskKey:
        due = now + self._rng.choice([-5, 0, 0, 5, 30, 100]) * SECOND
        name = f"n{self._rng.randint(0, 2)}" if self._mode.unique else f"u{len(self.keys)}"
        return TaskKey(due, self._rng.choice(_LANES), name)

    def _enqueue(self, key: TaskKey) -> None:
        rng, mixed = self._rng, self._mode.mixed
        self.keys[key] = None
        leased = key.ordering_id[-1] in ("012" if self._mode.leased else "01")
        self._tables.add_task(
            Command(
                ENQUEUE, key, len(self._tables.tasks), "h", LEASED if leased else LOCAL, "p" * rng.choice([0, 500]), retry=RETRY,
                expires_ms=60_000 if mixed and rng.random() < 0.2 else None,
                tags=(_TAG,) if mixed and rng.random() < 0.3 else (),
                unique=self._mode.unique and rng.random() < 0.6,
            )
        )  # fmt: skip

    def _cancel(self, key: TaskKey) -> None:
        offset = len(self._tables.tasks)
        grace_ms = self._rng.choice([None, 1_000])
        self._tables.add_task(Command(CANCEL, key, offset, request_id=f"r{offset}", grace_ms=grace_ms))


class LoneExecutor:
    """Runs what it is handed, for a step or several, and tells of what runs for long."""

    def __init__(self, rng: random.Random, mode: Mode) -> None:
        self._rng, self._mode = rng, mode
        self._began_us: dict[int, int] = {}  # of what was handed over; if it comes back as not started it never began
        self._told: set[int] = set()  # that are known to have begun

    def take(self, engine: Engine, items: list[Invocation], now: int) -> None:
        """These begin."""
        self._began_us |= dict.fromkeys((item.id for item in items), now)
        engine.handed([item.id for item in items], now)

    def kill(self, engine: Engine, ids: list[int], now: int) -> None:
        """These are to end, as far as they run."""
        for number in self._began_us.keys() & ids:
            self._end(engine, number, TIMED_OUT, now)

    def work(self, engine: Engine, now: int, *, calm: bool) -> None:
        """Some of what runs ends."""
        if engine.asks_who_runs(now):
            self._told = set(self._began_us)
            engine.running(self._began_us, now)
        for number in list(self._began_us):
            if self._rng.random() < 0.15:
                self._end(engine, number, SUCCEEDED if calm else self._fate(number), now)

    def _fate(self, number: int) -> str:
        fate = self._rng.choice([SUCCEEDED, FAILED, FAILED, FAILED, YIELDED, NOT_STARTED])
        return FAILED if fate == NOT_STARTED and number in self._told else fate

    def _end(self, engine: Engine, number: int, outcome: str, now: int) -> None:
        engine.finished([self._outcome(number, outcome, self._began_us.pop(number), now)], now)

    def _outcome(self, number: int, outcome: str, began_us: int, now: int) -> Outcome:
        failure = Failure("E", "y" * 200) if outcome == FAILED else None
        if outcome == YIELDED and self._mode.mixed:
            failure = Failure(RATE_LIMITED, _TAG)
        return Outcome(number, outcome, began_us, now, failure=failure, after_ms=15_000 if outcome == YIELDED else 0)


class LoneWorkers:
    """Lease, sign, report, and lose what they have."""

    def __init__(self, rng: random.Random, mode: Mode) -> None:
        self._rng, self._mode = rng, mode
        self._calls = 0
        self._of_call: dict[int, str] = {}
        self._tokens: dict[str, list[str]] = defaultdict(list)  # by worker; without a session all are one
        self._sessions: dict[str, tuple[int, int]] = {}  # number, and that of its last call

    def hear(self, answer: Answer) -> None:
        """An answer comes to whoever asked; those with sessions miss some."""
        worker = self._of_call.get(answer.number, "")
        if not worker or self._rng.random() >= 0.15:
            self._tokens[worker] += [granted.token for granted in answer.leases if granted.token]

    def act(self, engine: Engine, now: int, *, calm: bool) -> None:
        """One of them calls, perhaps."""
        self._calls += 1
        if self._mode.sessions and self._rng.random() < 0.5:
            self._call_of_session(engine, self._rng.choice("xyz"), now, calm)
        elif self._tokens[""] and self._rng.random() < 0.6:
            self._tell(engine, now, calm)
        else:
            wants = (Want(LEASED, self._rng.randint(1, 3)),)
            engine.call(Call(self._calls, "w", until_us=self._patience(now), wants=wants), now, certain=True)

    def _tell(self, engine: Engine, now: int, calm: bool) -> None:
        tokens, rng, told = self._tokens[""], self._rng, Call(self._calls, "w", until_us=now)
        token = tokens.pop(rng.randrange(len(tokens)))
        dice = rng.random()
        if dice < 0.2 and not calm:
            return  # it is lost
        if dice < 0.35:
            tokens.append(token)
            told = told._replace(signs=(Sign(token, WorkNote(checkpoint=f'"c{self._calls}"')),))
        else:
            told = told._replace(reports=(self._report(token, calm),))
        engine.call(told, now, certain=True)

    def _call_of_session(self, engine: Engine, worker: str, now: int, calm: bool) -> None:
        rng, tokens = self._rng, self._tokens[worker]
        session, sequence = self._sessions.get(worker, (0, 0))
        session, sequence = (session + 1, 0) if rng.random() < 0.05 else (session, sequence)
        sequence += rng.random() < 0.9  # else it asks again
        self._sessions[worker], self._of_call[self._calls] = (session, sequence), worker
        done = [token for token in tokens if rng.random() < 0.4]
        self._tokens[worker] = tokens = [token for token in tokens if token not in done]
        wants = (Want(LEASED, rng.randint(1, 2), lease_ms=rng.choice([None, None, 0])),) if rng.random() < 0.8 else ()
        held = tuple(tokens) if rng.random() < 0.2 else None
        reports = tuple(self._report(token, calm) for token in done)
        call = Call(self._calls, worker, f"s{session}", sequence, self._patience(now), wants, reports, held=held)
        engine.call(call, now, certain=True)
        if rng.random() < 0.05:
            engine.hang_up([self._calls])

    def _patience(self, now: int) -> int:
        return now + self._rng.choice([0, 3]) * SECOND

    def _report(self, token: str, calm: bool) -> Report:
        outcome = SUCCEEDED if calm else self._rng.choice([SUCCEEDED, FAILED, FAILED, FAILED, YIELDED])
        failure = Failure("E", "x" * 200) if outcome == FAILED else None
        return Report(token, outcome, failure=failure, checkpoint=self._rng.choice([None, None, f'"{"c" * 300}"']))
