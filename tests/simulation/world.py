"""A modelled world around real dispatchers: Kafka logs, tables, a consumer group, executors, a virtual clock and seeded faults.

What runs is the code of the product: engine, mailbox, scanner, look-ups, both tails, and ingest's progress. What is modelled is the
outside of them. Everything random comes from one seed, so a failing run replays. Time is in microseconds from 1_700_000_000 s.
"""

from __future__ import annotations

import gc
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from heapq import heappop, heappush
from itertools import count
from typing import Any
from unittest.mock import patch

from structlog.testing import capture_logs

from scylla_spark.config.settings import Settings
from scylla_spark.core.records.command import Rejection, Rules
from scylla_spark.core.records.fact import OutcomeRecord
from scylla_spark.core.tasks.key import TaskKey, partition_of
from scylla_spark.services.dispatch import outcomes_tail, tasks_tail
from tests.simulation import broken_rules, workers
from tests.simulation.clients import Clients
from tests.simulation.definitions import Definitions
from tests.simulation.group import Group
from tests.simulation.judge import RETRIES, Judge, Violation
from tests.simulation.process import Process
from tests.simulation.profiles import PROFILES, Profile
from tests.simulation.records import SECOND, RawRecord, TaskRecord, read_outcome, read_task
from tests.simulation.tables import ModelTables

START = 1_700_000_000 * SECOND
PARTITIONS = 2
MOST_PROCESSES = 4
QUEUES: dict[str, dict[str, Any]] = {
    "default": {},
    "replay": {"order": "replay"},
    "narrow": {"concurrency": 2, "rate": 20.0},
    "grouped": {"order": "replay", "group_concurrency": 1, "group_separator": "e"},
}
_AMPLE_KB = 1_000_000


@cache
def _lanes(each: int) -> list[str]:
    """Names of lanes, so many in each partition."""
    found: dict[int, list[str]] = defaultdict(list)
    for number in count():
        name = f"lane{number}"
        place = found[partition_of(name, PARTITIONS)]
        if len(place) < each:
            place.append(name)
        if all(len(found[place]) == each for place in range(PARTITIONS)):
            return sorted(name for names in found.values() for name in names)
    raise AssertionError


@cache
def _place(lane: str) -> int:
    return partition_of(lane, PARTITIONS)


@cache
def _settings_of(held_kb: int, session_s: int, look_ahead_s: int) -> Settings:
    """Small limits, so that a few tasks reach them."""
    dispatch = {
        "look_ahead": f"{look_ahead_s}s", "lane_depth": 3, "drain": "3s", "stall": "2s", "max_in_flight": 50, "max_retries": RETRIES,
        "retry_base": "500ms", "retry_cap": "4s", "session_timeout": f"{session_s}s", "max_loaded": held_kb,
    }  # fmt: skip
    queues = {name: terms for name, terms in QUEUES.items() if terms} | {"paused": {"paused": True}}
    lease = {"mode": "pull", "lease": f"{workers.LEASE_S}s"}
    queues |= {"pulled": lease, "pulled-narrow": lease | {"concurrency": 3}}
    return Settings(partitions=PARTITIONS, dispatch=dispatch, queues=queues)


class World:
    """One simulated deployment.

    Args:
        seed: decides everything that is left to chance.
        profile: what kind of world it is.
    """

    def __init__(self, seed: int, profile: Profile) -> None:
        self.rng = random.Random(seed)
        self._random = self.rng.random
        # in some worlds leaders are away now and then; by chance of its own, so that all other worlds stay as they were
        self.leaders = random.Random(-seed) if seed % 7 in (3, 5) and not profile.faultless else None
        self.profile = profile
        trouble = profile.trouble
        held_kb = self.rng.choice(trouble.memory_kb)
        self.settings = _settings_of(held_kb, trouble.session_s, trouble.look_ahead_s)
        self.session_us = trouble.session_s * SECOND
        self.rules = Rules(PARTITIONS)
        self.now = START
        self.calm = False
        self.stood_still_us = 0  # in all
        self._events: list[tuple[int, int, Process | None, Callable[[], None]]] = []
        self._count = 0
        self.tasks: list[list[TaskRecord]] = [[] for _ in range(PARTITIONS)]
        self.outcomes: list[list[OutcomeRecord]] = [[] for _ in range(PARTITIONS)]
        self.raw_outcomes: list[list[RawRecord]] = [[] for _ in range(PARTITIONS)]
        self.tables = ModelTables(self, PARTITIONS)
        self.judge = Judge(self, PARTITIONS)
        self.group = Group(self, PARTITIONS)
        self.processes: dict[int, Process] = {}
        self.unclean: set[int] = set()
        self.begun_processes = 0
        self.lanes = _lanes(profile.load.lanes)
        queues = profile.load.queues or tuple(QUEUES)
        self.queue_of = {lane: self.rng.choice(queues) for lane in self.lanes}
        self.handler_of = {lane: self.rng.choice(["h", "h", "batch"]) for lane in self.lanes}
        self.failing: set[str] = set()
        self.stuck_lanes: list[str] = []
        if held_kb < _AMPLE_KB:
            self._block_lanes()
        if profile.load.workers:
            for lane in self.lanes[::2]:
                self.queue_of[lane] = self.rng.choice(workers.QUEUES)
        self.clients = Clients(self)
        self.workers = workers.Workers(self, profile.load.workers)
        self.definitions = Definitions(self)

    def _block_lanes(self) -> None:
        """One lane is paused, one has no handler, one fails until all is calm; they get more tasks than others."""
        self.stuck_lanes = self.rng.sample(self.lanes, 3)
        paused, parked, failing = self.stuck_lanes
        self.queue_of[paused] = "paused"
        self.handler_of[parked] = ""
        self.failing.add(failing)

    def broken(self, switch: str) -> bool:
        """Returns True if a rule is broken on purpose."""
        return switch in self.profile.broken

    def break_rules(self, process: Process) -> None:
        """Breaks those that are broken inside of a process."""
        broken_rules.apply(self.profile.broken, process)

    def place(self, key: TaskKey) -> int:
        """The partition of a key."""
        return _place(key.ordering_id)

    def is_stuck(self, lane: str) -> bool:
        """Returns True if tasks of a lane never start: its queue is paused, or no handler is named."""
        return self.queue_of[lane] == "paused" or not self.handler_of[lane]

    # -- time -----------------------------------------------------------------------------------------------------------

    def after(self, delay: int, call: Callable[[], None], within: Process | None = None) -> None:
        """Calls something after a while, microseconds; what is to happen within a process waits while that stands still."""
        self._count += 1
        heappush(self._events, (self.now + delay if delay > 0 else self.now, self._count, within, call))

    def jitter(self, low_ms: float, high_ms: float) -> int:
        """A random time in microseconds."""
        return int((low_ms + (high_ms - low_ms) * self._random()) * 1000)

    def run_until(self, end: int) -> None:
        """Plays on until an instant."""
        events = self._events
        while events and events[0][0] <= end:
            at, _, process, call = heappop(events)
            if at > self.now:
                self.now = at
            if process is None:
                call()
            elif process.paused and not process.dead:
                process.backlog.append(call)
            elif not process.dead:
                call()
        self.now = max(self.now, end)

    def _jump(self, length: int) -> None:
        """All stands still for long: the machines were suspended, or everything was stopped."""
        if not self.profile.faultless and self.rng.random() < 0.5:
            for process in list(self.processes.values()):
                self.crash(process)
        self.now += length
        self.stood_still_us += length

    # -- the story ------------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Clients enqueue and cancel, processes come and go, hours pass; then all is calm and everything must end."""
        load = self.profile.load
        for _ in range(2):
            self.add_process()
        self.after(self.jitter(100, 1000), self._ingest)
        self.after(SECOND, self._mishap)
        for episode in range(load.episodes):
            for _ in range(load.tasks // load.episodes // load.bulk):
                self.after(self.jitter(0, load.seconds * load.busy * 1000), self.clients.act)
            self.run_until(self.now + load.seconds * SECOND)
            if episode < load.episodes - 1 and self.rng.random() < self.profile.trouble.jump:
                self._jump(self.rng.choice(self.profile.trouble.jumps_s) * SECOND)
        self._come_to_rest()
        self.judge.judge_rest()

    def _come_to_rest(self) -> None:
        self.calm = True
        self.failing.clear()
        self.definitions.delete_all()
        for _ in range(60):
            self.run_until(self.now + 10 * SECOND)
            waiting = self.judge.unended()
            if not waiting and not self.judge.unanswered():
                break
            soonest = min((key.time_us for key in waiting), default=0)
            if soonest > self.now + 30 * SECOND:
                self._jump(soonest - self.now - 10 * SECOND)

    def _mishap(self) -> None:
        """Processes crash, freeze, leave, and have their clocks set."""
        if self.calm:
            return
        self.after(self.jitter(300, 1500), self._mishap)
        trouble, rng = self.profile.trouble, self.rng
        for process in list(self.processes.values()):
            dice = rng.random()
            for chance, strike in (
                (trouble.crash, self.crash),
                (trouble.pause, lambda p: p.pause(self.jitter(*trouble.pause_ms))),
                (trouble.clock_step, self._set_clock),
                (trouble.leave, self._leave),
            ):
                if dice < chance:
                    strike(process)
                    break
                dice -= chance
        if rng.random() < trouble.join:
            self.add_process()
        if trouble.redefine and rng.random() < trouble.redefine:
            self.definitions.change()

    def _set_clock(self, process: Process) -> None:
        skew = self.rng.choice([-20, -3, 3, 20]) * SECOND
        process.skew = 0 if process.skew else skew  # what was wrong is set right

    def crash(self, process: Process) -> None:
        """A process ends at once; another comes in its place, and the group misses the first some time later."""
        self.judge.crashes(process)
        self.processes.pop(process.number, None)
        self.unclean.add(process.number)
        process.crash()
        trouble = self.profile.trouble
        back = process.number if trouble.static else None
        self.after(self.jitter(*trouble.restart_ms), lambda: self.add_process(back))
        self.after(self.session_us, lambda: self.group.expel(process))

    def _leave(self, process: Process) -> None:
        if not process.leaving and process.member and not process.paused:
            process.leaving = True
            self.group.joined()
            self._stop_if_idle(process)

    def _stop_if_idle(self, process: Process) -> None:
        if process.number not in self.group.owner.values():
            self.stopped(process)

    def stopped(self, process: Process) -> None:
        """A process has left the group in good order and ends."""
        if self.processes.pop(process.number, None) is None:
            return
        process.crash()
        self.after(self.jitter(*self.profile.trouble.restart_ms), self.add_process)

    def add_process(self, instead_of: int | None = None) -> None:
        """A dispatcher starts."""
        if len(self.processes) >= MOST_PROCESSES:
            return
        process = Process(self, self.begun_processes)
        self.processes[self.begun_processes] = process
        self.begun_processes += 1
        process.begin()
        self.definitions.tell_all(process)
        if instead_of is not None:
            self.group.replace(instead_of, process)
        self.group.joined()

    def _ingest(self) -> None:
        """Ingest does one thing after the other, sometimes slowly."""
        trouble = self.profile.trouble
        lags = not self.calm and self.rng.random() < trouble.lag / 4
        self.after(self.jitter(*trouble.lag_ms if lags else trouble.ingest_ms), self._ingest)
        self.tables.turn()

    # -- the logs -------------------------------------------------------------------------------------------------------

    def append_task(self, number: int, name: bytes, value: bytes) -> bool:
        """A record lands in `tasks`; whether it is accepted."""
        log = self.tasks[number]
        verdict = read_task(number, len(log), self.now // 1000 * 1000, name, value, self.rules)
        accepted = None if isinstance(verdict, Rejection) else verdict
        log.append(TaskRecord(len(log), self.now // 1000, name, value, accepted))
        marks = self.profile.trouble.marks
        if marks and self.rng.random() < marks:
            log.append(TaskRecord(len(log), self.now // 1000, b"", b"", None, is_mark=True))
        if accepted is not None:
            self.judge.accepted(accepted)
        self.news_of_tasks(number)
        return accepted is not None

    def news_of_tasks(self, number: int) -> None:
        """A record landed in `tasks`."""
        for process in self.processes.values():
            if number in process.group.places:
                process.wake_tails()

    def append_outcome(self, number: int, value: bytes) -> None:
        """A record lands in `outcomes`."""
        record = read_outcome(value)
        self.judge.judge_record(record, len(value))
        assert isinstance(record, OutcomeRecord)
        self.raw_outcomes[number].append(RawRecord(len(self.outcomes[number]), self.now // 1000, value))
        self.outcomes[number].append(record)
        self.judge.landed(number, record)
        for process in self.processes.values():
            if process.reader.reads(number):
                process.wake_tails()


@contextmanager
def no_look_for_cycles() -> Iterator[None]:
    """A world is made of cycles that live until it ends: it is looked through once, by the outermost of those who ask for this."""
    outermost = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if outermost:
            gc.collect(1)
            gc.enable()


@contextmanager
def read_once() -> Iterator[None]:
    """Yields what depends on its bytes alone is read once in a world and not by each dispatcher: records."""
    with (
        patch.object(tasks_tail, "validate", read_task),
        patch.object(outcomes_tail, "decode", read_outcome),
    ):
        yield


def simulate(seed: int, profile: Profile | None = None) -> World:
    """Plays one seed; raises Violation with the seed in its text."""
    profile = profile or PROFILES[seed % len(PROFILES)]
    with (
        no_look_for_cycles(), capture_logs(), read_once(),
        broken_rules.of_classes(profile.broken), broken_rules.remembering(profile.trouble.remember_s),
    ):  # fmt: skip
        world = World(seed, profile)
        try:
            world.play()
        except (AssertionError, KeyError, IndexError, AttributeError, TypeError) as error:
            raise Violation(f"seed {seed} ({profile.name}): {type(error).__name__}: {error}") from error
    return world


def violation_of(seed: int, profile: Profile) -> str | None:
    """Plays one seed; what was broken, if anything. Nothing is left of its world."""
    with no_look_for_cycles():
        try:
            simulate(seed, profile)
        except Violation as violation:
            return str(violation)
    return None
