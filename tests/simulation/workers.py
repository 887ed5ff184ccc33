"""Modelled workers: programs somewhere else that lease tasks, die, freeze and wake, lose answers and ask twice."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scylla_spark.core.engine.leases.book import CONFIRM_US
from scylla_spark.core.leases.messages import (
    OK,
    UNAVAILABLE,
    Answer,
    Call,
    Granted,
    Report,
    Want,
    folded,
    partition_of_token,
)
from scylla_spark.core.tasks.task import FAILED, RATE_LIMITED, SUCCEEDED, YIELDED, Failure
from tests.simulation.judge import Violation
from tests.simulation.profiles import RATE_KEYS
from tests.simulation.records import SECOND

if TYPE_CHECKING:
    from tests.simulation.world import World

QUEUES = ("pulled", "pulled-narrow")
LEASE_S = 4
_PATIENCE_US = 3 * SECOND  # beyond the time that a call may wait


@dataclass
class Work:
    """A lease as its worker sees it.

    Attributes:
        granted: what it got.
        done_us: when its work is done.
        outcome: of it.
        safe_until_us: until when nobody else can have it, as far as the worker knows.
    """

    granted: Granted
    done_us: int
    outcome: str
    safe_until_us: int
    reported: bool = False


@dataclass
class Asked:
    """A call under way: its parts by process, and what came back."""

    call: Call
    sent_us: int
    parts: dict[int, Call]
    answers: dict[int, Answer] = field(default_factory=dict)


class ModelWorker:
    """One run of a worker. It brings its calls to the owners of partitions, as the API does.

    Args:
        world: it lives in.
        name: of the worker.
    """

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name
        self.session = f"s{world.rng.getrandbits(40):x}"
        self.sequence = 0
        self.dead = False
        self.frozen_until_us = 0
        self.work: dict[str, Work] = {}
        self._asked: Asked | None = None
        self._list = False
        self._retries = 0
        self._later(world.jitter(1, 1500), self._turn)

    # -- time -----------------------------------------------------------------------------------------------------------

    def _later(self, delay: int, call) -> None:  # type: ignore[no-untyped-def]
        def run() -> None:
            if self.dead:
                return
            wait = self.frozen_until_us - self._world.now
            if wait > 0:
                self._world.after(wait, run)
            else:
                call()

        self._world.after(delay, run)

    def die(self) -> None:
        """It ends at once; another takes its name some time later."""
        self.dead = True

    def freeze(self, length: int) -> None:
        """It stands still."""
        self.frozen_until_us = self._world.now + length

    # -- calls ----------------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """The next call: what is done is reported, what there is room for is wanted."""
        if self._asked is not None:
            return
        world, rng = self._world, self._world.rng
        now = world.now
        done = [work for work in self.work.values() if work.done_us <= now]
        reports = tuple(_report(work, rng, world.profile.load.limited) for work in done)
        for work in done:
            work.reported = True
        room = 3 - len(self.work) + len(done)
        wants = tuple(Want(queue, rng.choice([1, room])) for queue in QUEUES) if room else ()
        held = tuple(self.work) if self._list or rng.random() < 0.02 else None
        self._list = False
        self.sequence += 1
        wait = rng.choice([0, 1, 3]) * SECOND
        self._ask(Call(0, self.name, self.session, self.sequence, wait, wants, reports, (), held))

    def _ask(self, call: Call) -> None:
        world = self._world
        owners = {number: world.group.owner.get(number) for number in range(len(world.tasks))}
        processes = {owner for owner in owners.values() if owner in world.processes}

        def ours(token: str, process: int) -> bool:
            return owners.get(partition_of_token(token)) == process  # type: ignore[arg-type]

        parts = {
            process: call._replace(
                reports=tuple(report for report in call.reports if ours(report.token, process)),
                held=None if call.held is None else tuple(token for token in call.held if ours(token, process)),
            )
            for process in processes
            if process is not None
        }
        asked = self._asked = Asked(call, world.now, parts)
        for process, part in parts.items():
            times = 2 if world.rng.random() < 0.03 and not world.calm else 1
            for _ in range(times):
                self._send(asked, process, part)
        self._later(call.until_us + _PATIENCE_US, lambda: self._give_up(asked))
        if not parts:
            self._later(world.jitter(100, 500), lambda: self._give_up(asked))

    def _send(self, asked: Asked, number: int, part: Call) -> None:
        world = self._world
        lost = world.rng.random() < world.profile.trouble.send and not world.calm

        def arrive() -> None:
            process = world.processes.get(number)
            if process is not None:
                process.take_call(part, answered)

        def answered(answer: Answer) -> None:
            if world.rng.random() < world.profile.trouble.send and not world.calm:
                return
            self._later(world.jitter(1, 20), lambda: self._answered(asked, number, answer))

        if not lost:
            world.after(world.jitter(1, 20), arrive)

    def _give_up(self, asked: Asked) -> None:
        """No answer came in time: the same is asked again, of those who own the partitions by now."""
        if self._asked is asked:
            self._ask(asked.call)

    def _answered(self, asked: Asked, number: int, answer: Answer) -> None:
        if self._asked is not asked or number in asked.answers:
            return
        asked.answers[number] = answer
        if answer.refusal:
            self._asked = None
            if answer.refusal == "worker_replaced":
                self.die()
                return
            self._later(self._world.jitter(50, 300), self._turn)
            return
        self._take(asked, number, answer)
        if len(asked.answers) == len(asked.parts) or answer.leases or answer.lost:
            self._asked = None
            self._later(self._world.jitter(1, 400), self._turn)

    def _take(self, asked: Asked, number: int, answer: Answer) -> None:
        """What an answer says: reports that count, leases that are over, new ones."""
        part = asked.parts[number]
        judge = self._world.judge.leases
        for report, status in zip(part.reports, answer.statuses, strict=True):
            if status == UNAVAILABLE:
                continue
            work = self.work.pop(report.token, None)
            if work is not None and status == OK:
                judge.reported(work.granted, report.outcome)
        for token in answer.lost:
            self.work.pop(token, None)
        for granted in answer.leases:
            if granted.token not in self.work:
                self._begin(granted, asked)
        here = {token: work for token, work in self.work.items() if self._owner(token) == number}
        if len(here) != answer.held or folded(here) != answer.digest:
            self._list = True
            return
        new = {granted.token for granted in answer.leases}
        for token, work in here.items():  # all that it holds of this owner was kept by the call
            if token not in new:
                work.safe_until_us = max(work.safe_until_us, asked.sent_us + LEASE_S * SECOND)

    def _owner(self, token: str) -> int | None:
        return self._world.group.owner.get(partition_of_token(token) or 0)

    def _begin(self, granted: Granted, asked: Asked) -> None:
        world = self._world
        rng, load = world.rng, world.profile.load
        length = world.jitter(500, load.longest_ms) if rng.random() < load.long else world.jitter(1, 300)
        outcome = SUCCEEDED
        if not world.calm:
            outcome = rng.choices([SUCCEEDED, FAILED, YIELDED], [0.95 - load.fails, load.fails, 0.05])[0]
        if granted.task.key.ordering_id in world.failing:
            outcome = FAILED
        world.judge.leases.begun(self, granted)
        world.workers.judge_overlap(self, granted)
        self.work[granted.token] = Work(granted, world.now + length, outcome, asked.sent_us + CONFIRM_US)


def _report(work: Work, rng: random.Random, limited: float) -> Report:
    failure = Failure("E", "no") if work.outcome == FAILED else None
    if work.outcome == YIELDED and limited and rng.random() < limited:
        failure = Failure(RATE_LIMITED, rng.choice(work.granted.task.tags or RATE_KEYS))
    after = rng.choice([None, 0, 200]) if work.outcome != SUCCEEDED else None
    return Report(work.granted.token, work.outcome, '"done"' if work.outcome == SUCCEEDED else None, failure, after)


class Workers:
    """All workers of a world, and what befalls them.

    Args:
        world: they live in.
        count: how many.
    """

    def __init__(self, world: World, count: int) -> None:
        self._world = world
        self._gone: list[ModelWorker] = []
        self._workers = [ModelWorker(world, f"w{number}") for number in range(count)]
        if count:
            world.after(SECOND, self._mishap)

    def judge_overlap(self, worker: ModelWorker, granted: Granted) -> None:
        """Nobody is told of a lease in a lane while somebody else may rely on one."""
        world, key = self._world, granted.task.key
        if not world.judge.leases.is_open(granted):
            return  # the answer came so late that it is over
        for other in (*self._workers, *self._gone):
            for token, work in other.work.items():
                relies = (
                    world.now < work.safe_until_us
                    and not work.reported
                    and work.granted.task.key not in world.judge.ended
                )
                if token != granted.token and work.granted.task.key.ordering_id == key.ordering_id and relies:
                    raise Violation(
                        f"{worker.name} gets {key} while {other.name} relies on its lease of {work.granted.task.key}"
                    )

    def _mishap(self) -> None:
        world, trouble = self._world, self._world.profile.trouble
        world.after(world.jitter(300, 1500), self._mishap)
        for place, worker in enumerate(self._workers):
            if worker.dead:
                if world.rng.random() < 0.5 or world.calm:
                    self._gone.append(worker)
                    self._workers[place] = ModelWorker(world, worker.name)
            elif world.calm:
                continue
            elif world.rng.random() < trouble.crash * 2:
                worker.die()
            elif world.rng.random() < trouble.pause * 2:
                worker.freeze(world.jitter(500, 12_000))
