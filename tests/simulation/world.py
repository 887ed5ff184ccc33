"""A modelled world around the real engine: Kafka logs, tables, a consumer group, executors, a virtual clock and seeded faults.

Everything random comes from one seed, so a failing run replays. Time is in microseconds from 1_700_000_000 s.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from scylla_spark.core import action
from scylla_spark.core.cancel import Known
from scylla_spark.core.engine import Engine
from scylla_spark.core.fact import NO_FENCE, FenceLog, OutcomeRecord, decode
from scylla_spark.core.feed import ScanRow
from scylla_spark.core.fold import Folded
from scylla_spark.core.key import TaskKey
from scylla_spark.core.lanes import NEVER, Limits, Terms
from scylla_spark.core.partition import Mark, Partition
from scylla_spark.core.queue import QueueTerms
from scylla_spark.core.task import (
    FAILED,
    NOT_STARTED,
    STARTED,
    SUCCEEDED,
    TIMED_OUT,
    YIELDED,
    Invocation,
    Outcome,
    Retry,
)
from scylla_spark.core.wire import CANCEL, ENQUEUE, Command
from tests.simulation.awaited import sleepers

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
PARTITIONS = 2
LANES = 7
SESSION = 10 * SECOND
MARGIN = 3 * SECOND
LOOK_AHEAD = 20 * SECOND
RETRIES = 4
BUDGET = 2  # rows of a scan
CLOCK_TOLERANCE = 1 * SECOND
LOOK_EVERY = 8  # steps of a process between two looks at what its lanes wait for; a lane that sleeps goes on doing so
QUEUES = {
    "default": QueueTerms(),
    "replay": QueueTerms(replay=True),
    "narrow": QueueTerms(concurrency=2, rate=20.0),
    "grouped": QueueTerms(replay=True, group_concurrency=1, group_separator="e"),
}


@dataclass
class Faults:
    """How often things go wrong, as probabilities per opportunity, and which rules are broken on purpose."""

    crash: float = 0.02
    pause: float = 0.02
    ambiguous_send: float = 0.03
    stale_scan: float = 0.3
    slow_ingest: float = 0.2
    clock_step: float = 0.01
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
}
"""What may be broken on purpose → the switch that breaks it (`Faults.broken`)."""


class Violation(AssertionError):
    """A promise was broken."""


@dataclass
class Tables:
    """What ingest has written."""

    rows: dict[TaskKey, Folded] = field(default_factory=dict)
    completed: set[TaskKey] = field(default_factory=set)
    attempts: dict[TaskKey, tuple[int, int, int]] = field(default_factory=dict)


class World:
    """One simulated deployment.

    Args:
        seed: decides everything.
        faults: how often things go wrong.
    """

    def __init__(self, seed: int, faults: Faults | None = None) -> None:
        self.rng = random.Random(seed)
        self.faults = faults or Faults()
        self.now = START
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.count = 0
        self.tasks: list[list[Command]] = [[] for _ in range(PARTITIONS)]
        self.outcomes: list[list[OutcomeRecord]] = [[] for _ in range(PARTITIONS)]
        self.tables = [Tables() for _ in range(PARTITIONS)]
        self.marks = [Mark() for _ in range(PARTITIONS)]
        self.ingest_logs = [FenceLog() for _ in range(PARTITIONS)]
        self.truth = [FenceLog() for _ in range(PARTITIONS)]  # the fence rule applied to the whole log as it grows
        self.ended: dict[TaskKey, tuple[str, int]] = {}
        self.recorded: dict[TaskKey, int] = defaultdict(int)
        self.runs: list[Run] = []
        self.acked: dict[TaskKey, int] = {}  # first enqueue offset
        self.cancels: set[TaskKey] = set()
        self.processes: dict[int, Process] = {}
        self.owner: dict[int, int | None] = dict.fromkeys(range(PARTITIONS))
        self.next_process = 0
        self.calm = False
        self.queue_of = {f"lane{n}": self.rng.choice(list(QUEUES)) for n in range(LANES)}
        self.handler_of = {f"lane{n}": self.rng.choice(["h", "h", "batch"]) for n in range(LANES)}

    def broken(self, switch: str) -> bool:
        """Whether a rule is broken on purpose."""
        return switch in self.faults.broken

    # -- time -----------------------------------------------------------------------------------------------------------

    def after(self, delay: int, call: Callable[[], None]) -> None:
        self.count += 1
        heappush(self.events, (self.now + max(delay, 0), self.count, call))

    def jitter(self, low_ms: float, high_ms: float) -> int:
        return int(self.rng.uniform(low_ms, high_ms) * 1000)

    def run_until(self, end: int) -> None:
        while self.events and self.events[0][0] <= end:
            at, _, call = heappop(self.events)
            self.now = max(self.now, at)
            call()
        self.now = max(self.now, end)

    # -- the story ------------------------------------------------------------------------------------------------------

    def play(self, tasks: int = 40, seconds: int = 60) -> None:
        """Clients enqueue and cancel, processes come and go; then all is calm and everything must end."""
        for _ in range(2):
            self.add_process()
        self.after(self.jitter(100, 2000), self.ingest)
        for _ in range(tasks):
            self.after(self.jitter(0, seconds * 700), self.client)
        self.after(SECOND, self.mishap)
        self.run_until(START + seconds * SECOND)
        self.calm = True
        for _ in range(40):
            self.run_until(self.now + 30 * SECOND)
            if set(self.acked) <= set(self.ended):
                break
        self.check_end()

    def client(self) -> None:
        rng = self.rng
        known = list(self.acked)
        dice = rng.random()
        if known and dice < 0.12:
            key = rng.choice(known)
            kind = CANCEL
        elif known and dice < 0.25:
            key = rng.choice(known)
            kind = ENQUEUE
            if key.time_us < self.now - 10 * SECOND:
                return
        else:
            kind = CANCEL if dice > 0.98 else ENQUEUE
            due = self.now + rng.choice([-5, 0, 0, 0, 1, 3, 10, 30, 45]) * SECOND
            key = TaskKey(due, f"lane{rng.randrange(LANES)}", f"u{rng.randrange(10**6)}")
        partition = int(key.ordering_id[4:]) % PARTITIONS
        offset = len(self.tasks[partition])
        self.tasks[partition].append(
            Command(
                kind,
                key,
                offset,
                self.handler_of[key.ordering_id],
                self.queue_of[key.ordering_id],
                enqueued_us=self.now,
                request_id="r" if kind == CANCEL else None,
            )
        )
        if kind == CANCEL:
            self.cancels.add(key)
        else:
            self.acked.setdefault(key, offset)
        for process in self.processes.values():
            process.wake_tail(partition)

    def mishap(self) -> None:
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

    def add_process(self) -> None:
        if len(self.processes) < 4:
            process = Process(self, self.next_process)
            self.processes[self.next_process] = process
            self.next_process += 1
            process.loop()
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
        if self.owner[number] == owner:
            self.give(number, target)

    def give(self, number: int, target: int) -> None:
        process = self.processes.get(target)
        if process is None or not process.member:
            self.owner[number] = None
            self.after(SECOND, self.rebalance)
            return
        self.owner[number] = target
        process.assign(number)

    # -- ingest ---------------------------------------------------------------------------------------------------------

    def ingest(self) -> None:
        slow = not self.calm and self.rng.random() < self.faults.slow_ingest
        self.after(self.jitter(3000, 25_000) if slow else self.jitter(300, 3000), self.ingest)
        for number in range(PARTITIONS):
            self.ingest_partition(number)

    def ingest_partition(self, number: int) -> None:
        table, mark = self.tables[number], self.marks[number]
        tasks_end = self.rng.randint(mark.tasks_offset, len(self.tasks[number]))
        for command in self.tasks[number][mark.tasks_offset : tasks_end]:
            table.rows.setdefault(command.key, Folded()).add(command)
        log = self.ingest_logs[number]
        outcomes_end = self.rng.randint(mark.outcomes_offset, len(self.outcomes[number]))
        for record in self.outcomes[number][mark.outcomes_offset : outcomes_end]:
            counts = log.admit(record) or self.broken("ingest_ignores_fences")
            for fact in record.facts if counts else ():
                if fact.terminal:
                    table.completed.add(fact.key)
                elif fact.outcome == STARTED or fact.next_us is not None:
                    known = table.attempts.get(fact.key, (0, 0, 0))
                    table.attempts[fact.key] = max(
                        known, (fact.attempt, fact.used, fact.next_us or 0), key=lambda a: a[0]
                    )
        fence = NO_FENCE if self.broken("bare_positions") else log.fence
        self.marks[number] = Mark(tasks_end, outcomes_end, fence, log.resigned)

    def rows(
        self, number: int, wanted: Callable[[TaskKey], bool], depth: int, budget: int = 10**9
    ) -> tuple[list[ScanRow], dict[str, TaskKey], frozenset[int]]:
        """Open tasks, at most `depth` per lane and `budget` in all, first of all lanes first; cut lanes; lanes left out."""
        table = self.tables[number]
        lanes: dict[str, list[ScanRow]] = defaultdict(list)
        for key in sorted(table.rows):
            if key not in table.completed and wanted(key):
                folded = table.rows[key]
                command = folded.data or Command(ENQUEUE, key, folded.cancel.offset if folded.cancel else 0, "h")
                row = ScanRow(command, folded.cancel is not None, *table.attempts.get(key, (0, 0, 0)))
                lanes[key.ordering_id].append(row)
        ranked = sorted(
            (rank, row.command.key, row) for lane in lanes.values() for rank, row in enumerate(lane[:depth])
        )
        chosen = [row for _, _, row in ranked[:budget]]
        cuts: dict[str, TaskKey] = {}
        for ordering_id, lane in lanes.items():
            loaded = [row.command.key for row in chosen if row.command.key.ordering_id == ordering_id]
            if loaded and len(loaded) < len(lane):
                cuts[ordering_id] = max(loaded)
        left = {hash(name) for name in lanes} - {hash(row.command.key.ordering_id) for row in chosen}
        return sorted(chosen, key=lambda row: row.command.key), cuts, frozenset(left)

    # -- the log and the judge ------------------------------------------------------------------------------------------

    def append_outcome(self, number: int, record: OutcomeRecord) -> None:
        self.outcomes[number].append(record)
        if self.truth[number].admit(record):
            for fact in record.facts:
                self.judge_fact(fact)
        for process in self.processes.values():
            process.wake_tail(number)

    def judge_fact(self, fact: object) -> None:
        if fact.outcome == "too_late":
            return
        if fact.outcome != STARTED and fact.attempt:
            if fact.attempt <= self.recorded[fact.key] and not (
                fact.terminal and fact.attempt == self.recorded[fact.key]
            ):
                raise Violation(
                    f"attempt numbers of {fact.key} do not increase: {self.recorded[fact.key]} then {fact.attempt}"
                )
            self.recorded[fact.key] = fact.attempt
        if fact.terminal:
            if fact.key in self.ended:
                raise Violation(f"{fact.key} completed twice: {self.ended[fact.key]} and {fact.outcome}")
            self.ended[fact.key] = (fact.outcome, self.now)

    def judge_start(self, run: Run) -> None:
        key = run.key
        if self.now < key.time_us:
            raise Violation(f"{key} started {key.time_us - self.now} µs early")
        if key in self.ended:
            raise Violation(f"{key} started after its completion {self.ended[key]}")
        offset = self.acked[key]
        for other, other_offset in self.acked.items():
            if (
                other.ordering_id == key.ordering_id
                and other < key
                and other_offset < offset
                and other not in self.ended
                and other not in run.tenure.ending  # its cancel was seen; the completion is being written
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
        return key in self.cancels or any(
            run.key == key and run.outcome and run.tenure is by.tenure for run in self.runs
        )

    def goes_ahead(self, lane: str) -> bool:
        """Whether tasks of the lane may start before the completion of the one before is recorded."""
        return QUEUES[self.queue_of[lane]].replay or self.handler_of[lane] == "batch"

    def check_end(self) -> None:
        for key in self.acked:
            if key not in self.ended:
                where = [p.describe(key) for p in self.processes.values()]
                raise Violation(f"{key} was lost; held by {where}")
        for key, (outcome, at) in self.ended.items():
            if outcome == "cancelled" and key not in self.cancels:
                raise Violation(f"{key} was cancelled by nobody")
            if any(run.key == key and run.started > at for run in self.runs):
                raise Violation(f"{key} ran after its end")


class Process:
    """One dispatcher process: the engine, its tails, its membership, its children."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.member = True
        self.paused = False
        self.dead = False
        self.confirmed = world.now
        self.expelled_at = 0
        self.told_at = 0  # when it hears that it was expelled
        self.skew = 0  # of the wall clock
        self.known_skew = 0
        self.latest = 0
        retry = Retry.from_ms(RETRIES, 500, 4000)
        limits = Limits(50, lane_depth=3, stall_us=2 * SECOND, drain_us=3 * SECOND, partitions=PARTITIONS)
        terms = {"h": Terms("local", 10_000, retry), "batch": Terms("local", 10_000, retry, max_batch=3)}
        self.engine = Engine(
            lambda command: terms[command.handler or "h"],
            limits,
            random.Random(world.rng.getrandbits(32)),
            queues=QUEUES,
        )
        self.reading: dict[int, list[int]] = {}  # partition → [tasks position, outcomes position]
        self.reach: dict[int, tuple[int | None, int]] = {}
        self.scanning: set[int] = set()
        self.waiting: dict[int, Callable[[], None]] = {}
        self.backlog: list[Callable[[], None]] = []
        self.steps = 0
        self.running: dict[int, Run] = {}
        self.queued: dict[str, list[Invocation]] = {}  # lane → what the executor holds behind what runs of it

    def clock(self) -> int:
        """The process's wall clock, which never goes back."""
        self.latest = max(self.latest, self.world.now + self.skew)
        return self.latest

    def describe(self, key: TaskKey) -> str:
        for partition in self.engine.partitions.values():
            lane = partition.lanes.get(key.ordering_id)
            if lane is not None:
                entry = lane.find(key)
                place = f"process {self.number} p{partition.number} {partition.state}"
                return f"{place} lane {lane.state} entry {entry is not None} frontier {lane.frontier}"
        return f"process {self.number} nothing, holds {list(self.engine.partitions)}"

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

    def loop(self) -> None:
        self.step()
        self.later(self.world.jitter(20, 120), self.loop)
        if self.world.now - self.confirmed > 2 * SECOND and self.member:
            self.confirmed = self.world.now

    def step(self) -> None:
        world, engine = self.world, self.engine
        start_by = self.confirmed + SESSION - MARGIN
        if not self.member or start_by <= world.now:
            start_by = 0
        if world.broken("starts_without_membership"):
            start_by = NEVER
        if not self.member and self.reading and world.now > self.told_at:
            self.lose(list(self.reading))  # what the client library tells a member that was expelled
        if self.skew != self.known_skew and not world.broken("ignores_clock_steps"):
            self.known_skew = self.skew
            engine.doubt(self.clock())
        self.look_ahead()
        if world.broken("forgets_timers") and world.rng.random() < 0.01:
            engine._timers.clear()
        engine.tick(self.clock(), {"local": 4}, start_by_us=start_by)
        self.act()
        self.steps += 1
        if self.steps % LOOK_EVERY == 0:
            asleep = list(sleepers(engine))
            if asleep:
                raise Violation(f"process {self.number}: {'; '.join(asleep)}")

    def act(self) -> None:
        """Carries out what the engine asks for."""
        actions, self.engine.actions = self.engine.actions, []
        for item in actions:
            self.perform(item)

    # -- faults ---------------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        self.dead = True
        del self.world.processes[self.number]
        for run in self.running.values():
            if not self.world.broken("orphans"):
                run.ended = self.world.now
        self.queued.clear()
        self.world.after(SESSION, self.expel)

    def pause(self, length: int) -> None:
        self.paused = True
        self.world.after(SESSION, self.expel_if_paused)
        self.world.after(length, self.resume)
        self.paused_at = self.world.now

    def resume(self) -> None:
        self.paused = False
        self.told_at = self.world.now + self.world.jitter(0, 3000)
        backlog, self.backlog = self.backlog, []
        for call in backlog:
            if not self.paused:
                call()

    def expel_if_paused(self) -> None:
        if self.paused and self.world.now - self.paused_at >= SESSION:
            self.expel()

    def expel(self) -> None:
        self.member = False
        self.expelled_at = self.world.now
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
        self.lose(list(self.reading))
        self.member = True
        self.confirmed = self.world.now
        self.world.rebalance()

    def lose(self, numbers: list[int]) -> None:
        for number in numbers:
            self.engine.drop(number)
            self.reading.pop(number, None)
            self.reach.pop(number, None)
            self.scanning.discard(number)
        self.act()

    # -- group ----------------------------------------------------------------------------------------------------------

    def assign(self, number: int) -> None:
        mark = self.world.marks[number]

        def begin() -> None:
            self.act()
            if self.world.owner[number] != self.number or number in self.engine.partitions:
                return
            now = self.clock()
            self.engine.assign(number, mark, now)
            self.reach[number] = (None, now + LOOK_AHEAD)
            self.engine.raise_horizon(number, now + LOOK_AHEAD)
            self.reading[number] = [mark.tasks_offset, mark.outcomes_offset]
            unread = self.world.broken("takes_unread")
            self.engine.noted_end(number, mark.outcomes_offset if unread else len(self.world.outcomes[number]), now)
            self.wake_tail(number)
            self.later(self.world.jitter(50, 800), lambda: self.scan(number))

        self.later(self.world.jitter(1, 300), begin)

    def revoke(self, number: int, then: Callable[[], None]) -> None:
        def begin() -> None:
            if number in self.waiting:
                return
            self.waiting[number] = then
            if self.world.broken("revokes_at_once"):
                self.engine.drop(number)
            else:
                self.engine.revoke(number, self.clock())
            self.step()

        self.later(self.world.jitter(1, 200), begin)

    # -- feeds ----------------------------------------------------------------------------------------------------------

    def wake_tail(self, number: int) -> None:
        if number in self.reading:
            self.later(self.world.jitter(1, 60), lambda: self.tail(number))

    def tail(self, number: int) -> None:
        world, position = self.world, self.reading.get(number)
        if position is None or number not in self.engine.partitions:
            return
        if world.rng.random() < 0.5:
            self.tail_tasks(number, position)
            self.tail_outcomes(number, position)
        else:
            self.tail_outcomes(number, position)
            self.tail_tasks(number, position)
        if position[0] < len(world.tasks[number]) or position[1] < len(world.outcomes[number]):
            self.wake_tail(number)

    def tail_tasks(self, number: int, position: list[int]) -> None:
        world = self.world
        end = world.rng.randint(position[0], len(world.tasks[number]))
        self.engine.commands(number, world.tasks[number][position[0] : end], end, self.clock())
        position[0] = end

    def tail_outcomes(self, number: int, position: list[int]) -> None:
        world = self.world
        end = world.rng.randint(position[1], len(world.outcomes[number]))
        records = [(offset, world.outcomes[number][offset]) for offset in range(position[1], end)]
        if abs(self.skew) > CLOCK_TOLERANCE and any(self.is_mine(number, record) for _, record in records):
            self.crash()  # its own fence shows that its clock is wrong: it ends with an error, and is started again
            world.after(world.jitter(500, 6000), world.add_process)
            return
        self.engine.outcome_records(number, records, end, self.clock())
        position[1] = end

    def is_mine(self, number: int, record: OutcomeRecord) -> bool:
        return (
            record.kind == "fence"
            and record.fence == self.engine.partitions[number].mine
            and not self.world.broken("ignores_clock_steps")
        )

    def look_ahead(self) -> None:
        for number, (scanned, horizon) in list(self.reach.items()):
            if number not in self.engine.partitions or number in self.scanning:
                continue
            partition = self.engine.partitions[number]
            low = bool(partition.unloaded) and len(partition.lanes) <= 1
            if low or horizon - self.world.now < LOOK_AHEAD // 2:
                self.reach[number] = (scanned, self.world.now + LOOK_AHEAD)
                self.scan(number)

    def raise_horizon(self, number: int, until: int) -> None:
        if number in self.engine.partitions:
            self.engine.raise_horizon(number, until)

    def scan(self, number: int) -> None:
        """Raise the horizon, read progress, read the tables some time later, deliver some time after that."""
        if number not in self.reach or number not in self.engine.partitions:
            return
        self.scanning.add(number)
        after, until = self.reach[number]
        if self.world.broken("horizon_after_progress"):
            mark, far = self.world.marks[number], self.engine.partitions[number].far_offset
            self.later(self.world.jitter(50, 900), lambda: self.raise_horizon(number, until))
        else:
            far = self.engine.raise_horizon(number, until)
            mark = self.world.marks[number]
        if mark.tasks_offset <= far and not self.world.broken("scan_ignores_far_records"):
            self.later(self.world.jitter(500, 1500), lambda: self.scan(number))
            return
        stale = self.world.rng.random() < self.world.faults.stale_scan
        partition = self.engine.partitions[number]

        def read() -> None:
            wanted = lambda key: key.time_us <= until and (after is None or key.time_us > after)  # noqa: E731
            rows, cuts, left = self.world.rows(number, wanted, 3, BUDGET if after is None else 10**9)
            table = self.world.tables[number].rows
            cancelled = [key for key, folded in table.items() if folded.cancel and wanted(key)]
            self.later(
                self.world.jitter(200, 9000) if stale else self.world.jitter(10, 300),
                lambda: deliver(rows, cuts, left, cancelled),
            )

        def deliver(
            rows: list[ScanRow], cuts: dict[str, TaskKey], left: frozenset[int], cancelled: list[TaskKey]
        ) -> None:
            if self.engine.partitions.get(number) is not partition:
                return
            whole = after is None
            if not self.world.broken("forgets_cancelled"):
                self.engine.remember_cancelled(number, cancelled)
            if self.world.broken("ignores_cuts"):
                cuts.clear()
            self.engine.rows(number, rows, self.clock(), whole=whole)
            if whole and self.world.broken("forgets_left_lanes"):
                left = frozenset()
            self.engine.scanned(number, until, cuts, mark, self.clock(), left if whole else None)
            if self.world.broken("forgets_ended"):
                partition.ended.forget(1 << 62, 1 << 62)
            self.reach[number] = (None if partition.unloaded else until, self.reach[number][1])
            self.scanning.discard(number)

        self.later(self.world.jitter(1, 400), read)

    # -- actions --------------------------------------------------------------------------------------------------------

    def perform(self, item: action.Action) -> None:
        match item:
            case action.Send(number, records) | action.SendFence(number, bytes() as records):
                self.send(number, [records] if isinstance(records, bytes) else records)
            case action.Confirm(number):
                self.later(self.world.jitter(1, 50), lambda: self.confirm(number))
            case action.Release(_, invocations):
                for invocation in invocations:
                    self.submit(invocation)
                self.engine.started([i.id for i in invocations], self.clock())
            case action.Kill(_, ids):
                self.kill(ids)
            case action.Lookup(number, keys):
                self.later(self.world.jitter(5, 500), lambda: self.look_up(number, keys))
            case action.Reload(number, ordering_id, after, most):
                self.reload(number, ordering_id, after, most)
            case action.Left(number, _):
                self.reading.pop(number, None)
                self.reach.pop(number, None)
                self.scanning.discard(number)
                then = self.waiting.pop(number, None)
                if then is not None:
                    then()
                elif self.world.owner[number] == self.number and self.member:
                    self.later(SECOND, lambda: self.assign(number))  # fenced off, but still assigned: take it again

    def send(self, number: int, records: list[bytes]) -> None:
        world = self.world
        decoded = [decode(record) for record in records]
        assert all(decoded)
        delay = world.jitter(2, 40)
        if not world.calm and world.rng.random() < world.faults.ambiguous_send:
            landed = decoded[: world.rng.randint(0, len(decoded))]
            landing = world.jitter(2, 6000)  # perhaps after it was reported as failed
            for record in landed:
                world.after(landing, lambda r=record: world.append_outcome(number, r))
            self.later(world.jitter(500, 3000), lambda: self.report(number, ok=False))
            return
        for record in decoded:  # what has left the process arrives even if the process stops
            world.after(delay, lambda r=record: world.append_outcome(number, r))
        self.later(delay + world.jitter(1, 5), lambda: self.report(number, ok=True, records=decoded))

    def report(self, number: int, *, ok: bool, records: list[OutcomeRecord] | None = None) -> None:
        partition = self.engine.partitions.get(number)
        if ok and partition is not None and self.world.broken("acts_on_sends"):
            for fact in [fact for record in records or () for fact in record.facts]:
                self.engine._apply(partition, fact, len(self.world.outcomes[number]), self.clock())
        self.engine.sent(number, ok=ok or self.world.broken("trusts_failed_sends"), now=self.clock())

    def confirm(self, number: int) -> None:
        if self.member and self.world.owner[number] == self.number:
            self.confirmed = self.world.now
            end = 0 if self.world.broken("starts_behind_the_tail") else len(self.world.tasks[number])
            self.engine.confirmed(number, end, self.clock())
        elif number in self.reading:
            self.later(500_000, lambda: self.confirm(number))

    def look_up(self, number: int, keys: list[TaskKey]) -> None:
        tables = self.world.tables[number]
        found = {key: Known(key in tables.completed, *tables.attempts.get(key, (0, 0, 0))) for key in keys}
        if self.world.broken("no_lookup"):
            found = {key: Known() for key in keys}
        self.later(self.world.jitter(5, 500), lambda: self.engine.looked_up(number, found, self.clock()))

    def reload(self, number: int, ordering_id: str, after: TaskKey, most: int) -> None:
        partition = self.engine.partitions.get(number)

        def read() -> None:
            held = self.engine.partitions.get(number)
            until = held.horizon_us if held is not None else 0
            rows, cuts, _ = self.world.rows(
                number, lambda key: key.ordering_id == ordering_id and key > after and key.time_us <= until, most
            )
            more = ordering_id in cuts
            self.later(self.world.jitter(5, 3000), lambda: deliver(rows, more=more))

        def deliver(rows: list[ScanRow], *, more: bool) -> None:
            if self.engine.partitions.get(number) is not partition:
                return
            half = len(rows) // 2 if self.world.rng.random() < 0.5 else 0  # it may come in parts
            if half:
                self.engine.reloaded(number, ordering_id, rows[:half], self.clock(), more=more, last=False)
                self.later(self.world.jitter(1, 50), lambda: deliver(rows[half:], more=more))
            else:
                self.engine.reloaded(number, ordering_id, rows, self.clock(), more=more)

        self.later(self.world.jitter(5, 500), read)

    # -- children -------------------------------------------------------------------------------------------------------

    def submit(self, invocation: Invocation) -> None:
        """The executor: one task of a lane at a time, in the order given."""
        lane = invocation.key.ordering_id
        if (
            any(run.key.ordering_id == lane and run.ended is None for run in self.running.values())
            or lane in self.queued
        ):
            self.queued.setdefault(lane, []).append(invocation)
        else:
            self.start(invocation)

    def start(self, invocation: Invocation) -> None:
        world = self.world
        late = world.now > invocation.start_by_us and not world.broken("late_starts")
        if world.rng.random() < 0.02 or late:
            self.queued.setdefault(invocation.key.ordering_id, [])
            self.later(world.jitter(1, 50), lambda: self.hand_back(invocation))
            return
        run = Run(invocation.key, invocation.attempt, invocation.epoch, self.number, world.now)
        run.tenure = self.engine.partitions.get(int(invocation.key.ordering_id[4:]) % PARTITIONS)
        world.judge_start(run)
        world.runs.append(run)
        self.running[invocation.id] = run
        long = world.rng.random() < 0.1
        outcome = world.rng.choices([SUCCEEDED, FAILED, TIMED_OUT, YIELDED], [0.75, 0.15, 0.05, 0.05])[0]
        duration = world.jitter(500, 4000) if long else world.jitter(1, 100)

        def end() -> None:  # children run on while their parent is stopped, and die with it
            if run.ended is None:
                run.ended = world.now
            self.later(0, lambda: self.finish(invocation.id, outcome))

        world.after(duration, end)

    def hand_back(self, invocation: Invocation) -> None:
        """Not started, and so neither is what waits behind it."""
        behind = self.queued.pop(invocation.key.ordering_id, [])
        self.engine.finished([Outcome(item.id, NOT_STARTED) for item in [invocation, *behind]], self.clock())

    def kill(self, ids: list[int]) -> None:
        for lane, waiting in list(self.queued.items()):
            gone = [item for item in waiting if item.id in ids]
            self.queued[lane] = [item for item in waiting if item.id not in ids]
            self.engine.finished([Outcome(item.id, NOT_STARTED) for item in gone], self.clock())
        for number in ids:
            if number in self.running:
                self.later(self.world.jitter(1, 1200), lambda n=number: self.finish(n, TIMED_OUT))

    def finish(self, number: int, outcome: str) -> None:
        run = self.running.pop(number, None)
        if run is None:
            return
        run.ended = run.ended or self.world.now
        run.outcome = outcome if outcome == SUCCEEDED or run.attempt > RETRIES else ""
        outcomes = [Outcome(number, outcome, run.started, run.ended, after_ms=200)]
        waiting = self.queued.pop(run.key.ordering_id, [])
        if outcome != SUCCEEDED:
            outcomes += [Outcome(item.id, NOT_STARTED) for item in waiting]
        elif waiting:
            follower, *rest = waiting
            if rest:
                self.queued[run.key.ordering_id] = rest
            self.start(follower)
        self.engine.finished(outcomes, self.clock())


def simulate(seed: int, faults: Faults | None = None, *, tasks: int = 40, seconds: int = 60) -> World:
    """Plays one seed; raises Violation with the seed in its text."""
    world = World(seed, faults)
    try:
        world.play(tasks, seconds)
    except (Violation, AssertionError, KeyError) as error:
        raise Violation(f"seed {seed}: {type(error).__name__}: {error}") from error
    return world
