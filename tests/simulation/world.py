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
from scylla_spark.core.fact import FenceLog, OutcomeRecord, decode
from scylla_spark.core.feed import ScanRow
from scylla_spark.core.fold import Folded
from scylla_spark.core.key import TaskKey
from scylla_spark.core.lanes import Limits, Terms
from scylla_spark.core.partition import Mark
from scylla_spark.core.task import FAILED, NOT_STARTED, STARTED, SUCCEEDED, TIMED_OUT, YIELDED, Outcome, Retry
from scylla_spark.core.wire import CANCEL, ENQUEUE, Command

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
PARTITIONS = 2
LANES = 5
SESSION = 10 * SECOND
MARGIN = 3 * SECOND
LOOK_AHEAD = 20 * SECOND


@dataclass
class Faults:
    """How often things go wrong, as probabilities per opportunity, and which rules are broken on purpose."""

    crash: float = 0.02
    pause: float = 0.02
    ambiguous_send: float = 0.03
    stale_scan: float = 0.3
    slow_ingest: float = 0.2
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
            Command(kind, key, offset, "h", enqueued_us=self.now, request_id="r" if kind == CANCEL else None)
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
                self.processes[owner].revoke(number, lambda n=number, t=target: self.give(n, t))
            else:
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
            counts = log.admit(record) or "ingest_ignores_fences" in self.faults.broken
            for fact in record.facts if counts else ():
                if fact.terminal:
                    table.completed.add(fact.key)
                elif fact.outcome == STARTED or fact.next_us is not None:
                    known = table.attempts.get(fact.key, (0, 0, 0))
                    table.attempts[fact.key] = max(
                        known, (fact.attempt, fact.used, fact.next_us or 0), key=lambda a: a[0]
                    )
        self.marks[number] = Mark(tasks_end, outcomes_end, log.fence, log.resigned)

    def rows(
        self, number: int, wanted: Callable[[TaskKey], bool], depth: int
    ) -> tuple[list[ScanRow], dict[str, TaskKey]]:
        table = self.tables[number]
        lanes: dict[str, list[ScanRow]] = defaultdict(list)
        cuts: dict[str, TaskKey] = {}
        for key in sorted(table.rows):
            if key in table.completed or not wanted(key):
                continue
            folded, lane = table.rows[key], lanes[key.ordering_id]
            if len(lane) >= depth:
                cuts[key.ordering_id] = lane[-1].command.key
                continue
            command = folded.data or Command(ENQUEUE, key, folded.cancel.offset if folded.cancel else 0, "h")
            lane.append(ScanRow(command, folded.cancel is not None, *table.attempts.get(key, (0, 0, 0))))
        return [row for lane in lanes.values() for row in lane], cuts

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
            ):
                raise Violation(
                    f"{key} started before {other}, which is earlier in its lane and was enqueued before it"
                )
        for earlier in self.runs:
            if earlier.ended is not None or earlier.key.ordering_id != key.ordering_id:
                continue
            process = self.processes.get(earlier.process)
            if process is not None and not process.paused and earlier.started > process.expelled_at:  # a live owner's
                raise Violation(f"{key} overlaps {earlier.key} in its lane")

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
        retry = Retry.from_ms(4, 500, 4000)
        limits = Limits(max_in_flight=50, lane_depth=3, stall_us=2 * SECOND, drain_us=3 * SECOND)
        self.engine = Engine(
            lambda command: Terms("local", 10_000, retry), limits, random.Random(world.rng.getrandbits(32))
        )
        self.reading: dict[int, list[int]] = {}  # partition → [tasks position, outcomes position]
        self.reach: dict[int, tuple[int | None, int]] = {}
        self.waiting: dict[int, Callable[[], None]] = {}
        self.backlog: list[Callable[[], None]] = []
        self.running: dict[int, Run] = {}

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
        fresh = self.member and world.now - self.confirmed < SESSION - MARGIN
        if "starts_without_membership" in world.faults.broken:
            fresh = True
        if not self.member and self.reading:
            self.lose(list(self.reading))  # what the client library tells a member that was expelled
        self.look_ahead()
        engine.tick(world.now, {"local": 4}, may_start=fresh)
        actions, engine.actions = engine.actions, []
        for item in actions:
            self.perform(item)

    # -- faults ---------------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        self.dead = True
        del self.world.processes[self.number]
        for run in self.running.values():
            run.ended = self.world.now
        self.world.after(SESSION, self.expel)

    def pause(self, length: int) -> None:
        self.paused = True
        self.world.after(SESSION, self.expel_if_paused)
        self.world.after(length, self.resume)
        self.paused_at = self.world.now

    def resume(self) -> None:
        self.paused = False
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
            self.later(self.world.jitter(10, 500), self.rejoin)

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

    # -- group ----------------------------------------------------------------------------------------------------------

    def assign(self, number: int) -> None:
        mark = self.world.marks[number]

        def begin() -> None:
            if self.world.owner[number] != self.number:
                return
            now = self.world.now
            self.engine.assign(number, mark, now)
            self.reach[number] = (None, now + LOOK_AHEAD)
            self.engine.raise_horizon(number, now + LOOK_AHEAD)
            self.reading[number] = [mark.tasks_offset, mark.outcomes_offset]
            self.engine.noted_end(number, len(self.world.outcomes[number]), now)
            self.wake_tail(number)
            self.later(self.world.jitter(50, 800), lambda: self.scan(number))

        self.later(self.world.jitter(1, 300), begin)

    def revoke(self, number: int, then: Callable[[], None]) -> None:
        def begin() -> None:
            self.waiting[number] = then
            self.engine.revoke(number, self.world.now)
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
        self.engine.commands(number, world.tasks[number][position[0] : end], end, world.now)
        position[0] = end

    def tail_outcomes(self, number: int, position: list[int]) -> None:
        world = self.world
        end = world.rng.randint(position[1], len(world.outcomes[number]))
        records = [(offset, world.outcomes[number][offset]) for offset in range(position[1], end)]
        self.engine.outcome_records(number, records, end, world.now)
        position[1] = end

    def look_ahead(self) -> None:
        for number, (scanned, horizon) in list(self.reach.items()):
            if scanned is not None and scanned == horizon and horizon - self.world.now < LOOK_AHEAD // 2:
                self.reach[number] = (scanned, self.world.now + LOOK_AHEAD)
                self.scan(number)

    def scan(self, number: int) -> None:
        """Raise the horizon, read progress, read the tables some time later, deliver some time after that."""
        if number not in self.reach or number not in self.engine.partitions:
            return
        after, until = self.reach[number]
        far = self.engine.raise_horizon(number, until)
        mark = self.world.marks[number]
        if mark.tasks_offset <= far and "scan_ignores_far_records" not in self.world.faults.broken:
            self.later(self.world.jitter(500, 1500), lambda: self.scan(number))
            return
        stale = self.world.rng.random() < self.world.faults.stale_scan
        partition = self.engine.partitions[number]

        def read() -> None:
            wanted = lambda key: key.time_us <= until and (after is None or key.time_us > after)  # noqa: E731
            rows, cuts = self.world.rows(number, wanted, 3)
            cancelled = [key for key, folded in self.world.tables[number].rows.items() if folded.cancel]
            self.later(
                self.world.jitter(200, 9000) if stale else self.world.jitter(10, 300),
                lambda: deliver(rows, cuts, cancelled),
            )

        def deliver(rows: list[ScanRow], cuts: dict[str, TaskKey], cancelled: list[TaskKey]) -> None:
            if self.engine.partitions.get(number) is not partition:
                return
            if after is None:
                self.engine.remember_cancelled(number, cancelled)
            self.engine.rows(number, rows, self.world.now)
            self.engine.scanned(number, until, cuts, mark, self.world.now)
            self.reach[number] = (until, self.reach[number][1])
            if self.reach[number][1] > until:
                self.scan(number)

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
                    self.start(invocation)
                self.engine.started([i.id for i in invocations], self.world.now)
            case action.Kill(_, ids):
                for number in ids:
                    if number in self.running:
                        self.later(self.world.jitter(1, 500), lambda n=number: self.finish(n, TIMED_OUT))
            case action.Lookup(number, keys):
                self.later(self.world.jitter(5, 500), lambda: self.look_up(number, keys))
            case action.Reload(number, ordering_id, after):
                self.reload(number, ordering_id, after)
            case action.Left(number, _):
                self.reading.pop(number, None)
                self.reach.pop(number, None)
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
        self.later(delay + world.jitter(1, 5), lambda: self.report(number, ok=True))

    def report(self, number: int, *, ok: bool) -> None:
        self.engine.sent(number, ok=ok or "trusts_failed_sends" in self.world.faults.broken, now=self.world.now)

    def confirm(self, number: int) -> None:
        if self.member and self.world.owner[number] == self.number:
            self.confirmed = self.world.now
            self.engine.confirmed(number, len(self.world.tasks[number]), self.world.now)

    def look_up(self, number: int, keys: list[TaskKey]) -> None:
        tables = self.world.tables[number]
        found = {key: Known(key in tables.completed, *tables.attempts.get(key, (0, 0, 0))) for key in keys}
        if "no_lookup" in self.world.faults.broken:
            found = {key: Known() for key in keys}
        self.later(self.world.jitter(5, 500), lambda: self.engine.looked_up(number, found, self.world.now))

    def reload(self, number: int, ordering_id: str, after: TaskKey) -> None:
        partition = self.engine.partitions.get(number)

        def read() -> None:
            rows, cuts = self.world.rows(number, lambda key: key.ordering_id == ordering_id and key > after, 3)
            more = ordering_id in cuts
            self.later(self.world.jitter(5, 3000), lambda: deliver(rows, more=more))

        def deliver(rows: list[ScanRow], *, more: bool) -> None:
            if self.engine.partitions.get(number) is partition:
                self.engine.reloaded(number, ordering_id, rows, more=more, now=self.world.now)

        self.later(self.world.jitter(5, 500), read)

    # -- children -------------------------------------------------------------------------------------------------------

    def start(self, invocation: object) -> None:
        world = self.world
        if world.rng.random() < 0.02:
            self.later(
                world.jitter(1, 50), lambda: self.engine.finished([Outcome(invocation.id, NOT_STARTED)], world.now)
            )
            return
        run = Run(invocation.key, invocation.attempt, invocation.epoch, self.number, world.now)
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

    def finish(self, number: int, outcome: str) -> None:
        run = self.running.pop(number, None)
        if run is None:
            return
        run.ended = run.ended or self.world.now
        done = Outcome(number, outcome, run.started, run.ended, after_ms=200)
        self.engine.finished([done], self.world.now)


def simulate(seed: int, faults: Faults | None = None, *, tasks: int = 40, seconds: int = 60) -> World:
    """Plays one seed; raises Violation with the seed in its text."""
    world = World(seed, faults)
    try:
        world.play(tasks, seconds)
    except (Violation, AssertionError, KeyError) as error:
        raise Violation(f"seed {seed}: {type(error).__name__}: {error}") from error
    return world
