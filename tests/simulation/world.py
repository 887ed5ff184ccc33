"""A modelled world around real dispatchers: Kafka logs, tables, a consumer group, executors, a virtual clock and seeded faults.

What runs is the code of the product: engine, mailbox, scanner, look-ups, both tails, and ingest's progress. What is modelled is the
outside of them. Everything random comes from one seed, so a failing run replays. Time is in microseconds from 1_700_000_000 s.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from itertools import count
from typing import Any
from unittest.mock import PropertyMock, patch

from structlog.testing import capture_logs

from scylla_spark.config.settings import Settings
from scylla_spark.core.command import CANCEL, ENQUEUE, Command, Rejection, Rules, encode, validate
from scylla_spark.core.engine.holding import fact_bytes, note_bytes
from scylla_spark.core.engine.lane import Entry
from scylla_spark.core.engine.partition import Partition
from scylla_spark.core.fact import TOO_LATE, FenceLog, OutcomeRecord, Unreadable, decode
from scylla_spark.core.key import TaskKey, partition_of
from scylla_spark.core.task import CANCELLED, FAILED, STARTED, SUCCEEDED, YIELDED, Invocation
from scylla_spark.core.tenure import Basis
from tests.simulation.process import Process
from tests.simulation.tables import ModelTables

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
START = 1_700_000_000 * SECOND
PARTITIONS = 2
RETRIES = 4
QUEUES: dict[str, dict[str, Any]] = {
    "default": {},
    "replay": {"order": "replay"},
    "narrow": {"concurrency": 2, "rate": 20.0},
    "grouped": {"order": "replay", "group_concurrency": 1, "group_separator": "e"},
}
STUCK = {"paused": "paused lane", "parked": "lane without handler"}


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


LANES = _lanes(4)


@cache
def settings_of(held_kb: int) -> Settings:
    """Small limits, so that a few tasks reach them."""
    dispatch = {
        "look_ahead": "20s", "lane_depth": 3, "drain": "3s", "stall": "2s", "max_in_flight": 50, "max_retries": RETRIES,
        "retry_base": "500ms", "retry_cap": "4s", "session_timeout": "10s", "max_loaded": held_kb,
    }  # fmt: skip
    queues = {name: terms for name, terms in QUEUES.items() if terms} | {"paused": {"paused": True}}
    return Settings(partitions=PARTITIONS, dispatch=dispatch, queues=queues)


@dataclass
class Faults:
    """How often things go wrong, as probabilities per opportunity, and which rules are broken on purpose."""

    crash: float = 0.02
    pause: float = 0.02
    ambiguous_send: float = 0.03
    stale_scan: float = 0.3
    clock_step: float = 0.01
    jump: float = 0.3
    pressed: float = 0.15
    broken: frozenset[str] = frozenset()


@dataclass
class Run:
    """One attempt as the outside world saw it."""

    key: TaskKey
    attempt: int
    epoch: int
    process: int
    started: int
    ended: int | None = None
    outcome: str = ""
    tenure: Partition | None = None


@dataclass
class TaskRecord:
    """A record of `tasks` as a consumer gives it, and what it says; None if it is refused."""

    offset: int
    timestamp: int
    key: bytes
    value: bytes
    command: Command | None


@dataclass
class RawRecord:
    """A record of `outcomes` as a consumer gives it."""

    offset: int
    timestamp: int
    value: bytes


RULES = {
    "a fence is sent without reading the log to its end": "takes_unread",
    "facts of fenced-off owners are written to the tables": "ingest_ignores_fences",
    "a stored position forgets which fence holds there": "bare_positions",
    "an owner acts on a fact when its send returned": "acts_on_sends",
    "a failed send is believed to have failed": "trusts_failed_sends",
    "tasks start without fresh membership": "starts_without_membership",
    "children of a frozen dispatcher start what it handed them": "late_starts",
    "a revoked partition is given away at once": "revokes_at_once",
    "children outlive their dispatcher": "orphans",
    "a set clock goes unnoticed": "ignores_clock_steps",
    "tasks start before the tail has caught up": "starts_behind_the_tail",
    "progress is read before the horizon is raised": "horizon_after_progress",
    "a look-ahead scan does not wait for far records": "scan_ignores_far_records",
    "completed keys are forgotten at once": "forgets_ended",
    "overdue keys are not looked up": "no_lookup",
    "cancelled keys of the tables are not remembered": "forgets_cancelled",
    "lanes that were cut count as loaded": "ignores_cuts",
    "lanes that were left in the tables count as empty": "forgets_left_lanes",
    "a lane's timer is forgotten": "forgets_timers",
    "offers of other partitions are taken": "offers_of_other_partitions",
    "answers to an earlier tenure count": "answers_outlive_tenures",
    "answers of tables older than what was forgotten count": "old_answers_count",
    "what was forgotten is not looked up": "forgets_for_good",
    "work that waits in the executor counts as started": "counts_waiting_as_started",
    "the end of an attempt is lost where its start is known": "forgets_back_off",
    "an owner that owes caution resigns": "resigns_owing_caution",
    "the tail waits although a partition waits for it": "chokes_while_taking",
    "nothing is left to the tables where memory is short": "never_lets_go",
    "a lane is read again from tables that lack what it let go of": "reads_too_early",
    "a second fence of one's own takes the partition away": "drops_its_own_fence",
    "of two cancels at once only the last is answered": "answers_one",
}
"""What may be broken on purpose → the switch that breaks it (`Faults.broken`)."""


class Violation(AssertionError):
    """A promise was broken."""


class World:
    """One simulated deployment.

    Args:
        seed: decides everything.
        faults: how often things go wrong.
    """

    def __init__(self, seed: int, faults: Faults | None = None) -> None:
        self.rng = random.Random(seed)
        self.faults = faults or Faults()
        self.pressed = self.rng.random() < self.faults.pressed
        self.settings = settings_of(self.rng.choice([16, 30]) if self.pressed else 1_000_000)
        self.session_us = 10 * SECOND
        self.rules = Rules(PARTITIONS)
        self.now = START
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.count = 0
        self.tasks: list[list[TaskRecord]] = [[] for _ in range(PARTITIONS)]
        self.outcomes: list[list[OutcomeRecord]] = [[] for _ in range(PARTITIONS)]
        self.raw_outcomes: list[list[RawRecord]] = [[] for _ in range(PARTITIONS)]
        self.tables = ModelTables(self, PARTITIONS)
        self.truth = [FenceLog() for _ in range(PARTITIONS)]  # the fence rule applied to the whole log as it grows
        self.ended: dict[TaskKey, tuple[str, int]] = {}
        self.recorded: dict[TaskKey, int] = defaultdict(int)
        self.begun: dict[TaskKey, dict[int, int]] = defaultdict(
            dict
        )  # key → attempt → process that wrote its start fact
        self.announced: set[tuple[TaskKey, int]] = (
            set()
        )  # starts that were written before they happened, out of caution
        self.not_before: dict[TaskKey, int] = {}
        self.used: dict[TaskKey, int] = {}
        self.runs: list[Run] = []
        self.runs_of: dict[TaskKey, list[Run]] = defaultdict(list)
        self.acked: dict[TaskKey, int] = {}  # first enqueue offset
        self.cancels: set[TaskKey] = set()
        self.requests: dict[str, TaskKey] = {}
        self.answered: set[str] = set()
        self.processes: dict[int, Process] = {}
        self.unclean: set[int] = set()
        self.owner: dict[int, int | None] = dict.fromkeys(range(PARTITIONS))
        self.next_process = 0
        self.calm = False
        self.running_before: dict[tuple[int, str], int] = {}
        self.queue_of = {lane: self.rng.choice(list(QUEUES)) for lane in LANES}
        self.handler_of = {lane: self.rng.choice(["h", "h", "batch"]) for lane in LANES}
        self.failing: set[str] = set()
        if self.pressed:
            stuck = self.rng.sample(LANES, 3)
            self.queue_of[stuck[0]] = "paused"
            self.handler_of[stuck[1]] = ""
            self.failing.add(stuck[2])

    def broken(self, switch: str) -> bool:
        """Whether a rule is broken on purpose."""
        return switch in self.faults.broken

    def break_rules(self, process: Process) -> None:
        """Breaks those that are broken inside of a process."""
        for switch in self.faults.broken:
            if switch in _BREAKS:
                _BREAKS[switch](process)

    def place(self, key: TaskKey) -> int:
        """The partition of a key."""
        return partition_of(key.ordering_id, PARTITIONS)

    def violated(self, what: str) -> None:
        """Ends the play."""
        raise Violation(what)

    # -- time -----------------------------------------------------------------------------------------------------------

    def after(self, delay: int, call: Callable[[], None]) -> None:
        """Calls something after a while, microseconds."""
        self.count += 1
        heappush(self.events, (self.now + max(delay, 0), self.count, call))

    def jitter(self, low_ms: float, high_ms: float) -> int:
        """A random time in microseconds."""
        return int(self.rng.uniform(low_ms, high_ms) * 1000)

    def run_until(self, end: int) -> None:
        """Plays on until an instant."""
        while self.events and self.events[0][0] <= end:
            at, _, call = heappop(self.events)
            self.now = max(self.now, at)
            call()
        self.now = max(self.now, end)

    def jump(self, length: int) -> None:
        """All stands still for long: the machines were suspended, or everything was stopped."""
        if self.rng.random() < 0.5:
            for process in list(self.processes.values()):
                process.crash()
                self.after(self.jitter(100, 3000), self.add_process)
        self.now += length

    # -- the story ------------------------------------------------------------------------------------------------------

    def play(self, tasks: int = 40, episodes: int = 3, seconds: int = 15) -> None:
        """Clients enqueue and cancel, processes come and go, hours pass; then all is calm and everything must end."""
        for _ in range(2):
            self.add_process()
        self.after(self.jitter(100, 1000), self.ingest)
        self.after(SECOND, self.mishap)
        for episode in range(episodes):
            for _ in range(tasks // episodes * (3 if self.pressed else 1)):
                self.after(self.jitter(0, seconds * 800), self.client)
            self.run_until(self.now + seconds * SECOND)
            if episode < episodes - 1 and self.rng.random() < self.faults.jump:
                self.jump(self.rng.choice([20 * MINUTE, HOUR, 5 * HOUR, 40 * HOUR]))
        self.calm = True
        self.failing.clear()
        for _ in range(60):
            self.run_until(self.now + 10 * SECOND)
            waiting = self.unended()
            if not waiting:
                break
            soonest = min(key.time_us for key in waiting)
            if soonest > self.now + 30 * SECOND:
                self.jump(soonest - self.now - 10 * SECOND)
        self.check_end()

    def unended(self) -> list[TaskKey]:
        """Tasks that must still end."""
        return [key for key in self.acked if key not in self.ended and not self.is_stuck(key.ordering_id)]

    def is_stuck(self, lane: str) -> bool:
        """Whether tasks of a lane never start: its queue is paused, or no handler is named."""
        return self.queue_of[lane] == "paused" or not self.handler_of[lane]

    def client(self) -> None:
        """A client enqueues, sends a key again, cancels, perhaps twice at once, or moves nothing."""
        rng = self.rng
        dice = rng.random()
        known = list(self.acked)
        if known and dice < 0.12:
            key = rng.choice(known[-12:])
            self.send(CANCEL, key)
            if rng.random() < 0.3:
                self.send(CANCEL, key)
        elif known and dice < 0.25:
            self.send(ENQUEUE, rng.choice(known))
        else:
            due = rng.choice([-5, 0, 0, 0, 1, 3, 10, 30, 45]) * SECOND
            if dice > 0.9:
                due = rng.choice([HOUR, 3 * HOUR, 6 * HOUR, 30 * HOUR])
            lane = rng.choice([*LANES, *(name for name in LANES if self.is_stuck(name) or name in self.failing)])
            key = TaskKey(self.now + due, lane, f"u{rng.randrange(10**6)}")
            self.send(CANCEL if 0.88 < dice < 0.9 else ENQUEUE, key)

    def send(self, kind: str, key: TaskKey) -> None:
        """A record arrives; clients' stamps may be an hour old."""
        number, stamp = self.place(key), max(min(self.now, key.time_us + 5 * SECOND), self.now - 50 * MINUTE)
        log, request = self.tasks[number], f"r{len(self.requests)}"
        lane = key.ordering_id
        command = Command(
            kind, key, len(log), self.handler_of[lane] or None, self.queue_of[lane], enqueued_us=stamp,
            request_id=request if kind == CANCEL else None,
        )  # fmt: skip
        value, name = encode(command), lane.encode()
        verdict = validate(number, len(log), self.now // 1000 * 1000, name, value, self.rules)
        accepted = None if isinstance(verdict, Rejection) else verdict
        log.append(TaskRecord(len(log), self.now // 1000, name, value, accepted))
        if accepted is None:
            return
        if kind == CANCEL:
            self.cancels.add(key)
            self.requests[request] = key
        else:
            self.acked.setdefault(key, accepted.offset)

    def mishap(self) -> None:
        """Processes crash, freeze, and have their clocks set."""
        if self.calm:
            return
        self.after(self.jitter(300, 1500), self.mishap)
        for process in list(self.processes.values()):
            dice = self.rng.random()
            if dice < self.faults.crash:
                process.crash()
                self.after(self.jitter(500, 6000), self.add_process)
            elif dice < self.faults.crash + self.faults.pause:
                process.pause(self.jitter(500, 30_000))
            elif dice < self.faults.crash + self.faults.pause + self.faults.clock_step:
                process.skew = self.rng.choice([-20, -3, 3, 20]) * SECOND
        if self.rng.random() < 0.02 and len(self.processes) < 4:
            self.add_process()

    def ingest(self) -> None:
        """Ingest does one thing after the other, sometimes slowly."""
        slow = not self.calm and self.rng.random() < 0.1
        self.after(self.jitter(3000, 25_000) if slow else self.jitter(100, 1000), self.ingest)
        self.tables.turn()

    def add_process(self) -> None:
        """A dispatcher starts."""
        if len(self.processes) < 4:
            process = Process(self, self.next_process)
            self.processes[self.next_process] = process
            self.next_process += 1
            process.begin()
            self.rebalance()

    def rebalance(self) -> None:
        """The group coordinator: live members share the partitions; revoked ones are drained first."""
        members = [p for p in self.processes.values() if p.member]
        if not members:
            return
        for number in range(PARTITIONS):
            target = members[(number + self.next_process) % len(members)].number
            owner = self.owner[number]
            if owner == target:
                continue
            if owner is not None and owner in self.processes and self.processes[owner].member:
                self.processes[owner].revoke(number, lambda n=number, o=owner, t=target: self.hand_over(n, o, t))
            else:
                self.give(number, target)

    def hand_over(self, number: int, owner: int, target: int) -> None:
        """A revoked partition was let go of."""
        if self.owner[number] == owner:
            self.give(number, target)

    def give(self, number: int, target: int) -> None:
        """Assigns a partition."""
        process = self.processes.get(target)
        if process is None or not process.member:
            self.owner[number] = None
            self.after(SECOND, self.rebalance)
            return
        self.owner[number] = target
        process.assign(number)

    # -- the log and the judge ------------------------------------------------------------------------------------------

    def append_outcome(self, number: int, value: bytes) -> None:
        """A record lands in `outcomes`."""
        record = decode(value)
        if isinstance(record, Unreadable):
            raise Violation(f"an owner wrote what nobody can read: {record}")
        if len(value) > 1024 * 1024:
            raise Violation(f"a record of {len(value)} bytes")
        self.raw_outcomes[number].append(RawRecord(len(self.outcomes[number]), self.now // 1000, value))
        self.outcomes[number].append(record)
        if self.truth[number].admit(record):
            for fact in record.facts:
                self.judge_fact(number, fact)

    def judge_fact(self, number: int, fact: Any) -> None:
        """A fact counts: numbers grow, a task ends once, and as failed only after as many runs as its policy says."""
        if fact.request_id is not None:
            self.answered.add(fact.request_id)
        if fact.outcome == TOO_LATE:
            return
        if self.place(fact.key) != number:
            raise Violation(f"{fact.key} stands in partition {number}")
        if fact.outcome == STARTED:
            self.note_begun(number, fact)
        elif fact.attempt:
            if fact.attempt <= self.recorded[fact.key] and not (
                fact.terminal and fact.attempt == self.recorded[fact.key]
            ):
                raise Violation(
                    f"attempt numbers of {fact.key} do not increase: {self.recorded[fact.key]} then {fact.attempt}"
                )
            self.recorded[fact.key] = fact.attempt
        if fact.next_us is not None:
            self.not_before[fact.key] = fact.next_us
        if fact.terminal:
            self.judge_end(fact)

    def note_begun(self, number: int, fact: Any) -> None:
        """A start fact counts: who wrote it, and whether the task ran by then."""
        owner = self.owner[number]
        process = self.processes.get(owner) if owner is not None else None
        partition = process.engine.partitions.get(number) if process is not None else None
        self.begun[fact.key][fact.attempt] = -1 if owner is None else owner
        if partition is None or partition.cautious:
            self.announced.add((fact.key, fact.attempt))

    def judge_end(self, fact: Any) -> None:
        """A completion counts."""
        key = fact.key
        if key in self.ended:
            raise Violation(f"{key} completed twice: {self.ended[key]} and {fact.outcome}")
        if fact.outcome == FAILED:
            kind = fact.failure.kind if fact.failure is not None else ""
            if kind == "defect":
                raise Violation(f"a defect: {fact.failure}")
            ran = {run.attempt for run in self.runs_of[key] if run.outcome not in (YIELDED, SUCCEEDED)}
            idle = {attempt: who for attempt, who in self.begun[key].items() if attempt not in ran}
            idle = {
                attempt: who for attempt, who in idle.items() if all(r.attempt != attempt for r in self.runs_of[key])
            }
            cut_off = {a for a, who in idle.items() if who in self.unclean or who < 0 or (key, a) in self.announced}
            if len(ran | cut_off) < RETRIES + 1:
                raise Violation(f"{key} failed after attempts {sorted(ran)} and cut-off {sorted(cut_off)} only")
        self.ended[key] = (fact.outcome, self.now)

    def begin_run(self, process: Process, item: Invocation) -> Run:
        """A child begins a task."""
        run = Run(item.key, item.attempt, item.epoch, process.number, self.now)
        run.tenure = process.engine.partitions.get(self.place(item.key))
        self.judge_start(run)
        self.runs.append(run)
        self.runs_of[run.key].append(run)
        return run

    def judge_start(self, run: Run) -> None:
        """Nothing starts early, after its end, before its back-off is over, out of order, or beside another of its lane."""
        key = run.key
        if self.now < key.time_us:
            raise Violation(f"{key} started {key.time_us - self.now} µs early")
        if self.now < self.not_before.get(key, 0) and key not in self.ended:
            raise Violation(f"{key} started {self.not_before[key] - self.now} µs before its back-off was over")
        if key in self.ended:
            raise Violation(f"{key} started after its completion {self.ended[key]}")
        offset = self.acked[key]
        for other, other_offset in self.acked.items():
            if (
                other.ordering_id == key.ordering_id
                and other < key
                and other_offset < offset
                and other not in self.ended
                and (run.tenure is None or other not in run.tenure.ending)  # its cancel was seen; it is being written
                and not (self.goes_ahead(key.ordering_id) and self.has_ended(other, run))
            ):
                raise Violation(
                    f"{key} started before {other}, which is earlier in its lane and was enqueued before it"
                )
        for earlier in self.runs:
            if earlier.ended is not None or earlier.key.ordering_id != key.ordering_id:
                continue
            process = self.processes.get(earlier.process)  # a frozen one's children run on, a dead one's do not
            if process is None or (not process.paused and earlier.started > process.expelled_at):
                raise Violation(f"{key} overlaps {earlier.key} in its lane")

    def has_ended(self, key: TaskKey, by: Run) -> bool:
        """Whether a cancel or an attempt of the same owner ended the task, though that may not be recorded yet."""
        ended = any(
            run.outcome and (run.outcome == SUCCEEDED or run.attempt > RETRIES) and run.tenure is by.tenure
            for run in self.runs_of[key]
        )
        return key in self.cancels or ended

    def goes_ahead(self, lane: str) -> bool:
        """Whether tasks of the lane may start before the completion of the one before is recorded."""
        return QUEUES.get(self.queue_of[lane], {}).get("order") == "replay" or self.handler_of[lane] == "batch"

    def judge_engine(self, process: Process) -> None:
        """Limits hold, and memory stays within its bound."""
        engine = process.engine
        for name, gate in engine._gates._gates.items():
            before = self.running_before.get((process.number, name), 0)
            if gate._slots is not None and gate.running > max(gate._slots, before):
                raise Violation(f"{gate.running} tasks of queue {name} run where {gate._slots} may")
            self.running_before[process.number, name] = gate.running
            most = gate.limits.group_concurrency
            if most is not None and any(group.running > most for group in gate._groups.values()):
                raise Violation(f"a group of queue {name} runs more than {most} tasks")
        limit = engine.limits.max_held_bytes
        if engine.held_bytes > 2 * limit + 60 * 1024:
            raise Violation(f"process {process.number} holds {engine.held_bytes} bytes where {limit} are the limit")
        if process.steps % 16 == 0:
            for partition in engine.partitions.values():
                held = _held(partition)
                if held != partition.holding.bytes:
                    raise Violation(
                        f"partition {partition.number} counts {partition.holding.bytes} bytes and holds {held}"
                    )

    def check_end(self) -> None:
        """Everything has ended, rightly, and who asked was answered."""
        for key in self.unended():
            where = [p.describe(key) for p in self.processes.values()]
            raise Violation(f"{key} was lost; held by {where}")
        for key, (outcome, at) in self.ended.items():
            if outcome == CANCELLED and key not in self.cancels:
                raise Violation(f"{key} was cancelled by nobody")
            if any(run.started > at for run in self.runs_of[key]):
                raise Violation(f"{key} ran after its end")
        if not self.unclean and self.next_process == 2:
            for request, key in self.requests.items():
                if request not in self.answered and self.ended.get(key, ("", 0))[0] != CANCELLED:
                    raise Violation(f"cancel {request} of {key} was never answered")
            silent = [request for request in self.requests if request not in self.answered]
            if silent:
                raise Violation(f"cancels {silent} were never answered")


def _held(partition: Partition) -> int:
    """What a partition holds, counted anew."""
    entries = [e for lane in partition.lanes.values() for e in (*lane.entries.values(), *lane.beyond.values())]
    early = sum(note_bytes(key) + fact_bytes(fact) for key, (_, fact) in partition.early_facts.items())
    cancels = [*partition.cancelled, *(command.key for command in partition.early_cancels)]
    return sum(entry.cost for entry in entries) + early + sum(map(note_bytes, cancels))


# -- rules broken on purpose --------------------------------------------------------------------------------------------


def _wrap(name: str, around: Callable[..., Any], part: str = "") -> Callable[[Process], None]:
    """Replaces a method of the engine, or of a part of it: `around(process, the method, *arguments)`."""

    def apply(process: Process) -> None:
        owner = getattr(process.engine, part) if part else process.engine
        method = getattr(owner, name)
        setattr(owner, name, lambda *args, **options: around(process, method, *args, **options))

    return apply


def _late_horizon(process: Process, method: Callable[..., Any], tenure: Any, until: int) -> int:
    partition = process.engine.partitions[tenure.partition]
    process.later(process.world.jitter(50, 900), lambda: process.engine.held(tenure) and method(tenure, until))
    return partition.far_offset if partition.horizon_us else method(tenure, until)


def _forget_ended(process: Process, method: Callable[..., Any], tenure: Any, *args: Any, **options: Any) -> Any:
    found = method(tenure, *args, **options)
    partition = process.engine.held(tenure)
    if partition is not None:
        since = partition.ended.since_us
        partition.ended.forget(1 << 62, 1 << 62)
        partition.ended.since_us = since
    return found


def _no_floor(_process: Process, method: Callable[..., Any], partition: Partition, *args: Any) -> None:
    method(partition, *args)
    partition.floor = Basis()


def _for_good(_process: Process, method: Callable[..., Any], partition: Partition, *args: Any) -> None:
    since = partition.ended.since_us
    method(partition, *args)
    partition.ended.since_us = since


def _choke(process: Process, method: Callable[..., Any], *args: Any) -> None:
    method(*args)
    process.engine._unloading.choked = process.engine._unloading.pressed


def _fence_once(_process: Process, method: Callable[..., Any], partition: Partition, *args: Any) -> None:
    method(partition, *args)
    partition.tried.clear()


def _answer_last(
    _process: Process, method: Callable[..., Any], partition: Any, key: Any, requests: Any, now: int
) -> None:
    method(partition, key, tuple(requests)[1:], now)


def _certain(process: Process) -> None:
    process.tasks.certain_until_us = lambda: 1 << 62  # type: ignore[method-assign]


def _blind_to_clocks(process: Process) -> None:
    process.dispatcher._check_clock = lambda *_: None  # type: ignore[method-assign]
    process.engine.doubt = lambda _now: None  # type: ignore[method-assign]


def _hoard(process: Process) -> None:
    process.engine._unloading._trim_all = lambda _now: None  # type: ignore[method-assign]
    process.engine._unloading._unload = lambda _target, _now: None  # type: ignore[method-assign]


def _hasty(process: Process) -> None:
    questions = process.dispatcher._questions
    reload = questions.reload
    questions.reload = lambda item: reload(item._replace(covering=-1))  # type: ignore[method-assign]


def _any_tenure(process: Process) -> None:
    process.engine._state.held = lambda tenure: process.engine.partitions.get(tenure.partition)  # type: ignore[method-assign]


_BREAKS: dict[str, Callable[[Process], None]] = {
    "horizon_after_progress": _wrap("raise_horizon", _late_horizon),
    "scan_ignores_far_records": _wrap("raise_horizon", lambda _p, method, *args: (method(*args), -2)[1]),
    "forgets_ended": _wrap("scanned", _forget_ended),
    "trusts_failed_sends": _wrap("sent", lambda _p, method, *args, ok, now: method(*args, ok=True, now=now)),
    "starts_without_membership": _certain,
    "ignores_clock_steps": _blind_to_clocks,
    "offers_of_other_partitions": _wrap("_ours", lambda *_: True, "_feed"),
    "answers_outlive_tenures": _any_tenure,
    "old_answers_count": _wrap("_forget", _no_floor, "_feed"),
    "forgets_for_good": _wrap("_forget", _for_good, "_feed"),
    "chokes_while_taking": _wrap("relieve", _choke, "_unloading"),
    "never_lets_go": _hoard,
    "reads_too_early": _hasty,
    "drops_its_own_fence": _wrap("_fence", _fence_once, "_ownership"),
    "answers_one": _wrap("answer", _answer_last, "_recorder"),
}


def _by_number_only(self: Entry, attempt: int, used: int, next_us: int) -> bool:
    if attempt <= self.attempt:
        return False
    self.attempt, self.used, self.next_us = attempt, used, max(next_us, self.key.time_us)
    return True


@contextmanager
def _classes_broken(broken: frozenset[str]) -> Iterator[None]:
    with ExitStack() as stack:
        if "forgets_back_off" in broken:
            stack.enter_context(patch.object(Entry, "note_attempt", _by_number_only))
        if "resigns_owing_caution" in broken:
            stack.enter_context(patch.object(Partition, "owes_caution", new_callable=PropertyMock, return_value=False))
        yield


def simulate(seed: int, faults: Faults | None = None, *, tasks: int = 40) -> World:
    """Plays one seed; raises Violation with the seed in its text."""
    world = World(seed, faults)
    with capture_logs(), _classes_broken(world.faults.broken):
        try:
            world.play(tasks)
        except (AssertionError, KeyError, IndexError, AttributeError, TypeError) as error:
            raise Violation(f"seed {seed}: {type(error).__name__}: {error}") from error
    return world
