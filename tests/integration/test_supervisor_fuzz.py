"""The local pool's decisions and readers against children that send and remember anything, without processes and on a clock of its own."""

from __future__ import annotations

import contextlib
import json
import random
import struct
from collections import Counter

import pytest

from scylla_spark.clock import boot_us
from scylla_spark.core.tasks.task import NOT_STARTED
from scylla_spark.executors.local.child_handle import ChildHandle
from scylla_spark.executors.local.crews import Limits
from scylla_spark.executors.local.outcomes import Moment
from scylla_spark.executors.local.supervisor import Supervisor
from scylla_spark.handlers.description import HandlerInfo
from scylla_spark.handlers.messages import CANCELLED
from scylla_spark.handlers.shared_memory import SharedMemory
from tests.support.executor_conformance import invocation

LIMITS = Limits(min_children=1, fast_children=2, max_children=4, idle_us=5_000_000, grace_ms=100)
HANDLERS = {
    "noop": HandlerInfo("noop"),
    "many": HandlerInfo("many", max_batch=5),
    "loop": HandlerInfo("loop", concurrency=4),
}
SEEDS = 400


class Puppet:
    """A child that does what the dice say."""

    def __init__(self, child: ChildHandle, dice: random.Random, *, honest: bool = False) -> None:
        sock, slot_fd = child.hand_over()
        self.sock = sock.dup()
        self.sock.setblocking(False)
        self.slot = SharedMemory(slot_fd)
        self.dice = dice
        self.calls: list[list] = []
        self.pending = b""
        self.running = 0
        self.killed = False
        self.tasks = 0
        self.failed = 0
        wild = (
            [self.rest]
            if honest
            else dice.sample([self.babble, self.half, self.mutate, self.scribble, self.hush, self.jump], 2)
        )
        self.habits = [self.work] * dice.choice([4, 40, 100]) + [self.rest, *wild]
        child.handed_over()
        child.pid = 2

    def close(self) -> None:
        self.sock.close()
        self.slot.close()

    def step(self, now: int) -> None:
        """Reads its calls, then is honest or not."""
        with contextlib.suppress(BlockingIOError):
            self.pending += self.sock.recv(1 << 20)
        while len(self.pending) >= 4:
            size = struct.unpack(">I", self.pending[:4])[0]
            orders, cancels = json.loads(self.pending[4 : 4 + size])
            self.calls += orders
            self.cancel(cancels)
            self.pending = self.pending[4 + size :]
        self.dice.choice(self.habits)(now)

    def cancel(self, numbers: list[int]) -> None:
        assert not numbers, "only calls on a loop are cancelled by a message"

    def rest(self, now: int) -> None:
        """Nothing."""

    def work(self, now: int) -> None:
        """What a child of ours does: it begins a call, or reports the one that it has begun."""
        if self.running:
            row = self.record(self.running, now)
            self.report(row)
            self.running = 0
        elif self.calls:
            item = self.calls.pop(0)
            void = item[2] < now or (item[0] < 0 and self.failed == abs(item[0]) - 1)
            if self.slot.claim(abs(item[0]), 0 if void else now) and not void:
                self.running = item[0]
                self.tasks = len(item[3]) if isinstance(item[3], list) else 0
            else:
                self.failed = abs(item[0])
                self.say(json.dumps([[abs(item[0]), "returned"]]).encode())

    def report(self, row: list) -> None:
        self.slot.put(json.dumps(row).encode())
        self.slot.rest()
        self.say(b"[" + self.slot.take() + b"]")
        self.slot.clear()

    def record(self, number: int, now: int) -> list:
        if self.tasks:
            return [abs(number), "batch", 0, 10, [["succeeded", None, None, 0]] * self.tasks, None, 0]
        if self.dice.random() < 0.2:
            self.failed = abs(number)
            return [abs(number), "failed", 0, 10, None, ["Error", "as it may", ""], 0]
        return [abs(number), "succeeded", 0, 10, self.dice.choice([None, '"x"']), None, 0]

    def hush(self, now: int) -> None:
        """Ends a call and says nothing of it."""
        if self.running:
            self.slot.rest()
            self.running = 0

    def jump(self, now: int) -> None:
        """Forgets the calls that it has."""
        self.calls.clear()

    def half(self, now: int) -> None:
        self.send(struct.pack(">I", self.dice.choice([10, 1000, 10**7, 10**9])) + b"[")

    def babble(self, now: int) -> None:
        self.send(self.dice.randbytes(self.dice.choice([1, 5, 300])))

    def mutate(self, now: int) -> None:
        wild = [
            "x",
            None,
            -1,
            2.5,
            float("nan"),
            1 << 80,
            [],
            {},
            [["failed", None, ["a", "b", "c"], 0]],
            "batch",
            "returned",
            3,
        ]
        if self.dice.random() < 0.3:
            self.say(json.dumps(self.dice.choice([*wild, [1], [[]], [None], [{}]])).encode())
            return
        row = [self.dice.randrange(6), "succeeded", 0, 10, None, None, 0]
        for _ in range(self.dice.randrange(3)):
            row[self.dice.randrange(len(row))] = self.dice.choice(wild)
        self.say(json.dumps([row[: self.dice.choice([7, 7, 2, 5])]]).encode())

    def scribble(self, now: int) -> None:
        words = self.slot._words
        words[self.dice.randrange(5)] = self.dice.choice(
            [0, 1, 2, 3, now, now + 10**9, -1, 1 << 62, self.dice.getrandbits(60)]
        )

    def say(self, body: bytes) -> None:
        self.send(struct.pack(">I", len(body)) + body)

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self.sock.send(data)


class LoopPuppet(Puppet):
    """A child with many calls at once."""

    def __init__(self, child: ChildHandle, dice: random.Random, *, honest: bool = False) -> None:
        super().__init__(child, dice, honest=honest)
        self.begun: list[int] = []

    def work(self, now: int) -> None:
        if self.calls and self.dice.random() < 0.6:
            number, _, start_by_us, *_ = self.calls.pop(0)
            self.slot.claim(number, 0)
            if start_by_us < now:
                self.say(json.dumps([[number, "returned", 0, 0, None, None, 0]]).encode())
            else:
                self.begun.append(number)
        elif self.begun:
            self.report(self.record(self.begun.pop(self.dice.randrange(len(self.begun))), now))

    def cancel(self, numbers: list[int]) -> None:
        for number in numbers:
            if number in self.begun:
                self.begun.remove(number)
                self.report([number, "failed", 0, 10, None, [CANCELLED, "It was cancelled.", ""], 0])

    def hush(self, now: int) -> None:
        if self.begun:
            self.begun.pop()


class Stage:
    """A supervisor whose children are puppets."""

    def __init__(self, seed: int, *, honest: bool = False) -> None:
        self.honest = honest
        self.named: set[int] = set()
        self.handed_back: set[int] = set()
        self.dice = random.Random(seed)
        self.now = boot_us()
        self.puppets: dict[int, Puppet] = {}
        self.supervisor = Supervisor(LIMITS, HANDLERS, self)
        self.told: Counter[int] = Counter()

    def spawn(self, child: ChildHandle) -> None:
        puppet = LoopPuppet if child.on_loop else Puppet
        self.puppets[child.number] = puppet(child, self.dice, honest=self.honest)

    def kill_child(self, number: int, grace_ms: int) -> None:
        self.puppets[number].killed = True

    def turn(self) -> None:
        """What the pool's thread does in one turn."""
        self.now += self.dice.choice([1_000, 10_000, 200_000, 1_000_000])
        for number, puppet in list(self.puppets.items()):
            puppet.step(self.now)
            child = self.supervisor.children[number]
            if not child.deaf and not self.supervisor.receive(child, self.now):
                child.deaf = True
        self.supervisor.watch(self.now)
        for number in [number for number, puppet in self.puppets.items() if puppet.killed]:
            self.supervisor.died(self.supervisor.children[number], -9, self.now)
            self.puppets.pop(number).close()
        self.supervisor.fill(self.now) or self.supervisor.grow(self.now)
        running = self.supervisor.running(Moment(0, self.now))
        done = {outcome.id for outcome in self.supervisor.done} | set(self.told)
        assert not done & running.keys(), "what has ended is named as running"
        self.named |= running.keys()
        self.handed_back |= {outcome.id for outcome in self.supervisor.done if outcome.outcome == NOT_STARTED}
        self.told.update(outcome.id for outcome in self.supervisor.done)
        self.supervisor.done.clear()

    def close(self) -> None:
        for number, puppet in self.puppets.items():
            puppet.close()
            self.supervisor.children[number].close()


@pytest.mark.promise
@pytest.mark.parametrize("part", range(5))
def test_children_that_do_anything_leave_one_outcome_for_each_invocation(part):
    for seed in range(part, SEEDS, 5):
        stage = Stage(seed)
        calls = [
            invocation(
                stage.dice.choice(["noop", "many", "loop"]), lane=f"l{stage.dice.randrange(20)}", timeout_ms=3000
            )
            for _ in range(30)
        ]
        stage.supervisor.submit(calls)
        for _ in range(4000):
            stage.turn()
            if len(stage.told) == len(calls):
                break
        stage.close()
        assert stage.told == Counter(call.id for call in calls), f"seed {seed}"


@pytest.mark.parametrize("part", range(5))
def test_what_was_named_as_running_is_never_handed_back(part):
    named = handed_back = 0
    for seed in range(part, SEEDS, 5):
        stage = Stage(seed, honest=True)
        dice = stage.dice
        calls = [
            invocation(
                dice.choice(["noop", "many", "loop"]), lane=f"l{dice.randrange(20)}", timeout_ms=60_000
            )._replace(start_by_us=dice.choice([1, 1 << 62, 1 << 62]))
            for _ in range(60)
        ]
        stage.supervisor.submit(calls)
        for _ in range(4000):
            stage.turn()
            if dice.random() < 0.02:
                stage.supervisor.kill([call.id for call in dice.sample(calls, 3)], stage.now)
            if len(stage.told) == len(calls):
                break
        stage.close()
        assert stage.told == Counter(call.id for call in calls), f"seed {seed}"
        assert not stage.named & stage.handed_back, f"seed {seed}"
        named += len(stage.named)
        handed_back += len(stage.handed_back)
    assert named > 500
    assert handed_back > 500
