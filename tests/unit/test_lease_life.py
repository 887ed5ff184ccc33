"""The whole life of leases, played by hypothesis against the real engine: whatever workers, clients, time and new owners do in turn.

A model knows of each lease until when it must be in force; the log says which is. FUZZ says how long it is played; `make fuzz` plays far
longer than `make test`.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from scylla_spark.core.engine.bounds import Limits
from scylla_spark.core.engine.engine import Engine
from scylla_spark.core.engine.queue import QueueLimits
from scylla_spark.core.leases.messages import CANCELLED, ENDED, FOREIGN, LOST, OK, Granted
from scylla_spark.core.records.command import Command
from scylla_spark.core.tables.progress import Mark
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import STARTED, Failure
from tests.simulation.lease_judge import LeaseJudge
from tests.support.engine_harness import SECOND
from tests.support.worker_harness import PullWorld

EXAMPLES = max(1, int(os.environ.get("FUZZ", "5000")) // 15)
TERM_US = 10 * SECOND
MAX_RUN_US = 45 * SECOND
CONFIRM_US = 2 * SECOND
SLACK_US = SECOND // 5  # facts gather for a moment before they are sent
LANES = st.sampled_from(["a", "b", "c"])
WORKERS = st.sampled_from(["one", "two"])
NUMBERS = st.integers(0, 1_000)


class LeaseWorld(PullWorld):
    """An engine that another may follow, which knows what both logs say and nothing else."""

    def __init__(self):
        self.commands = []
        super().__init__(lease_ms=TERM_US // 1000, max_run_ms=MAX_RUN_US // 1000)

    def command(self, kind, key, **fields):
        self.commands.append(Command(kind, key, self.offset, **fields))
        return super().command(kind, key, **fields)

    def take_over(self):
        """The engine is gone; the next one reads both logs from their beginning, and the tables are empty."""
        engine, self.offset = self.engine, len(self.commands)
        queues = {"gpu": QueueLimits(pull=True, lease_ms=TERM_US // 1000, max_run_ms=MAX_RUN_US // 1000)}
        self.engine = Engine(
            engine._state.policy_of, Limits(least_wait_us=0), random.Random(len(self.log) + 100), queues=queues
        )
        self.other = []
        self.sequences = {}
        self.tenure = self.engine.assign(0, Mark(), self.now)
        self.engine.raise_horizon(self.tenure, self.now + 300 * SECOND)
        self.engine.noted_end(self.tenure, len(self.log), self.now)
        self.engine.outcome_records(self.tenure, list(enumerate(self.log)), len(self.log), self.now)
        self.pump()
        self.engine.confirmed(self.tenure, self.fence, self.offset, self.now)
        self.engine.scanned(self.tenure, self.now + 300 * SECOND, {}, Mark(), self.now)
        self.engine.commands(self.tenure, self.commands, self.offset, self.now)
        self.partition.ended.since_us = 0
        self.pump()


@dataclass
class Held:
    """A lease as the model knows it: whose, until when, and whether it was confirmed; `session` is empty where there is none."""

    granted: Granted
    worker: str
    session: str
    until_us: int
    confirmed: bool
    ended: bool = False

    def extend(self, now):
        self.until_us = min(now + TERM_US, self.granted.until_us)


class LeaseLife(RuleBasedStateMachine):
    """Workers with and without sessions, clients that enqueue and cancel, time, and owners that follow each other."""

    def __init__(self):
        super().__init__()
        self.world = LeaseWorld()
        self.judge = LeaseJudge(AssertionError)
        self.judged = 0
        self.held: list[Held] = []
        self.tasks: set[TaskKey] = set()
        self.ended: dict[TaskKey, str] = {}
        self.attempts: dict[TaskKey, int] = defaultdict(int)
        self.checkpoints: dict[TaskKey, str | None] = {}
        self.recorded: dict[TaskKey, str | None] = {}
        self.progress: dict[str, float] = {}
        self.sessions = {"one": "first", "two": "first"}
        self.last: dict[str, tuple[int, tuple[str, ...], list[str]]] = {}

    # -- clients ----------------------------------------------------------------------------------------------------------

    @rule(lane=LANES, due=st.integers(-1, 6), priority=st.integers(0, 3))
    def put(self, lane, due, priority):
        moment = self.world.now + due * SECOND
        unique = f"u{len(self.tasks):03}"
        key = TaskKey(moment, lane, unique)
        self.world.command("enqueue", key, handler="h", queue="gpu", priority=priority)
        self.tasks.add(key)
        self.world.pump()

    @precondition(lambda self: self.tasks)
    @rule(number=NUMBERS)
    def cancel(self, number):
        key = self._task(number)
        before = self.ended.get(key)
        self.world.command("cancel", key, request_id=f"r{self.world.offset}")
        self.world.pump()
        self.look()
        assert self.ended[key] == (before or "cancelled"), "a cancel wins from ready and from running"

    # -- workers ----------------------------------------------------------------------------------------------------------

    @rule(worker=WORKERS, most=st.integers(1, 3))
    def lease(self, worker, most):
        answer = self.world.answer(self.world.once(most, worker=worker))
        assert len(answer.leases) <= most
        self.granted(answer.leases, worker, "")

    @rule(worker=WORKERS, most=st.integers(0, 3))
    def ask(self, worker, most):
        mine = [one for one in self.held if one.session and one.worker == worker and self.says(one)]
        tokens = tuple(one.granted.token for one in mine)
        sequence = self.last.get(worker, (0,))[0] + 1
        self.called(worker, sequence, most, tokens)

    @precondition(lambda self: self.last)
    @rule(number=NUMBERS)
    def ask_again(self, number):
        """The same call once more, as if its answer had been lost: what it was given is given again, and nothing else."""
        worker = sorted(self.last)[number % len(self.last)]
        sequence, tokens, given = self.last[worker]
        if self.world.sequences.get((worker, self.sessions[worker])) != sequence:
            return  # another owner, who has heard of no call, takes it for a new one
        answer = self.world.answer(
            self.world.ask(worker, 3, session=self.sessions[worker], sequence=sequence, held=tokens)
        )
        assert not answer.refusal
        again = [one for one in self.held if one.granted in answer.leases]
        for one in again:
            if not one.confirmed:
                one.until_us = self.world.now + CONFIRM_US
        new = [one for one in answer.leases if one.token not in given]
        self.granted(new, worker, self.sessions[worker])
        for one in self.held:
            if one.granted.token in tokens and self.is_open(one):
                one.confirmed = True
                one.extend(self.world.now)
        self.last[worker] = sequence, tokens, given + [one.token for one in new]

    @precondition(lambda self: self.held)
    @rule(
        number=NUMBERS, worker=WORKERS, how_far=st.sampled_from([None, 0.1, 0.5]), row=st.sampled_from([None, "1", "2"])
    )
    def sign(self, number, worker, how_far, row):
        one = self._lease(number)
        granted, before = one.granted, self.is_open(one)
        status = self.world.sign(granted.token, worker=worker, progress=how_far, checkpoint=row)
        if before and one.worker == worker:
            assert status == OK
            one.confirmed, one.session = True, one.session
            one.extend(self.world.now)
            if how_far is not None:
                self.progress[granted.token] = how_far
            if row is not None:
                self.checkpoints[granted.task.key] = row
        else:
            assert status == (FOREIGN if before else status) != OK

    @precondition(lambda self: self.held)
    @rule(
        number=NUMBERS,
        worker=WORKERS,
        outcome=st.sampled_from(["succeeded", "failed", "aborted", "yielded"]),
        row=st.sampled_from([None, "3"]),
    )
    def report(self, number, worker, outcome, row):
        one = self._lease(number)
        granted, before, ends = one.granted, self.is_open(one), self.ends(one)
        failure = Failure("broken") if outcome in ("failed", "aborted") else None
        after = {"after_ms": 1_000} if outcome == "failed" else {}
        status = self.world.report(granted.token, outcome, worker=worker, failure=failure, checkpoint=row, **after)
        self.look()
        if before and one.worker == worker:
            assert status == OK
            one.ended = True
            if row is not None:
                self.checkpoints[granted.task.key] = row
        if status == OK:
            self.judge.reported(granted, outcome)
        else:
            assert status in ({FOREIGN} if before else {LOST, ENDED, CANCELLED})
            assert self.ends(one) == ends, "who is refused changes nothing"

    @precondition(lambda self: self.last)
    @rule(number=NUMBERS)
    def leave(self, number):
        worker = sorted(self.last)[number % len(self.last)]
        session = self.sessions[worker]
        known = worker in {one.worker for one in self.world.engine.sessions}
        self.world.engine.leave(worker, session, self.world.now)
        self.world.pump()
        self.look()
        mine = [one for one in self.held if one.session == session and one.worker == worker]
        for one in mine if known else ():
            one.ended = not self.is_open(one)
        self.sessions[worker] = session + "x"
        del self.last[worker]

    # -- time, and owners -------------------------------------------------------------------------------------------------

    @rule(us=st.sampled_from([SECOND // 2, SECOND, 3 * SECOND, 7 * SECOND, 12 * SECOND]))
    def wait(self, us):
        self.world.now += us
        self.world.pump()

    @rule()
    def take_over(self):
        self.look()
        self.checkpoints = dict(self.recorded)  # what was not recorded yet is lost with its owner
        self.world.take_over()
        self.progress.clear()
        for one in self.held:
            if not one.ended:
                one.confirmed, one.until_us = True, self.world.now + TERM_US  # whoever was told, a whole new term

    # -- what must hold ---------------------------------------------------------------------------------------------------

    @invariant()
    def leases_are_in_force_exactly_as_long_as_they_should(self):
        self.look()
        for one in self.held:
            if one.ended:
                continue
            if self.ends(one):
                one.ended = True
                (how,) = self.ends(one)[:1]
                assert how == "cancelled" or self.world.now >= one.until_us - SLACK_US, (how, one)
            else:
                assert self.world.now <= one.until_us + SLACK_US, one

    @invariant()
    def an_ended_task_is_leased_to_nobody(self):
        for one in self.held:
            assert not (one.granted.task.key in self.ended and self.judge.is_open(one.granted))

    def teardown(self):
        """Everything ends: no task is lost, and none ends twice."""
        self.world.now += 2 * MAX_RUN_US
        for _ in range(6 * len(self.tasks) + 6):
            self.world.now += 10 * SECOND
            leases = self.world.leases(self.world.once(50, worker="last"))
            self.granted(leases, "last", "")
            for granted in leases:
                assert self.world.report(granted.token, worker="last") == OK
            self.look()
            if self.tasks <= self.ended.keys():
                break
        assert self.tasks == self.ended.keys()

    # -- below: how it is known -------------------------------------------------------------------------------------------

    def called(self, worker, sequence, most, tokens):
        session = self.sessions[worker]
        answer = self.world.answer(self.world.ask(worker, most, session=session, sequence=sequence, held=tokens))
        assert not answer.refusal, answer
        self.look()
        for one in self.held:
            if one.granted.token in tokens and self.is_open(one):
                one.confirmed = True
                one.extend(self.world.now)
                assert one.granted.token not in answer.lost
        self.granted(answer.leases, worker, session)
        self.last[worker] = sequence, tokens, [one.token for one in answer.leases]

    def granted(self, leases, worker, session):
        """A worker was told of leases: they stand in the log, it is their turn, and they know what was left behind."""
        self.look()
        for granted in leases:
            key = granted.task.key
            self.judge.begun(Named(worker), granted)
            assert key.time_us <= self.world.now
            assert key not in self.ended
            behind = [one for one in self.tasks if one.ordering_id == key.ordering_id and one < key]
            assert all(one in self.ended for one in behind), "the lane's order"
            assert granted.task.checkpoint == self.checkpoints.get(key)
            until = self.world.now + (CONFIRM_US if session else TERM_US)
            self.held.append(Held(granted, worker, session, until, confirmed=not session))

    def look(self):
        """Judges what the log says since it was looked at last."""
        facts = self.world.facts
        for fact in facts[self.judged :]:
            if fact.request_id is not None and fact.outcome == "too_late":
                continue
            self.judge.note(fact)
            key = fact.key
            if fact.work is not None:
                self.recorded[key] = fact.work.checkpoint
            if fact.outcome == STARTED:
                assert key not in self.ended
                assert fact.attempt >= self.attempts[key]
                self.attempts[key] = fact.attempt
            elif fact.terminal:
                assert key not in self.ended, f"{key} ends twice"
                self.ended[key] = fact.outcome
            if fact.outcome == "timed_out":
                known = [
                    one for one in self.held if (one.granted.task.key, one.granted.task.attempt) == (key, fact.attempt)
                ]
                assert [fact.work.worker] == [one.worker for one in known]
                said = self.progress.get(known[0].granted.token)
                assert said is None or fact.work.progress == said, "history says how far it was"
        self.judged = len(facts)

    def ends(self, one):
        return list(self.judge._ends.get((one.granted.task.key, one.granted.task.attempt), ()))

    def is_open(self, one):
        self.look()
        return self.judge.is_open(one.granted)

    def says(self, one):
        """Whether a worker takes a lease for its own: it has not reported it, nor was it given back."""
        return not one.ended and one.session == self.sessions[one.worker]

    def _task(self, number):
        return sorted(self.tasks)[number % len(self.tasks)]

    def _lease(self, number):
        return self.held[-1 - number % min(len(self.held), 8)]


@dataclass
class Named:
    """A worker as the judge names it."""

    name: str


@pytest.mark.promise
@pytest.mark.slow
def test_whatever_happens_to_leases_their_promises_hold():
    run_state_machine_as_test(
        LeaseLife,
        settings=settings(
            max_examples=EXAMPLES, stateful_step_count=40, deadline=None, derandomize=EXAMPLES <= 400,
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
