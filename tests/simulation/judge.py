"""What is promised, checked as it happens and at the end."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scylla_spark.core.engine.partition import Partition
from scylla_spark.core.records.command import ENQUEUE, Command
from scylla_spark.core.records.fact import TOO_LATE, Fact, Fence, FenceLog, OutcomeRecord, Unreadable
from scylla_spark.core.tables.progress import Tenure
from scylla_spark.core.tasks.follow_up import unique_key
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import CANCELLED, DUPLICATE, EXPIRED, FAILED, STARTED, SUCCEEDED, YIELDED, Invocation
from tests.simulation.lease_judge import LeaseJudge
from tests.simulation.memory_recount import excess, held_bytes
from tests.simulation.name_judge import NameJudge
from tests.simulation.records import read_outcome
from tests.simulation.sleeping_lanes import sleepers

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

RETRIES = 4
_MOST_RECORD_BYTES = 1024 * 1024
_ONE_MOMENT_US = 2_900_000_000  # a little less than moments are counted from
_PUNCTUAL_US = 10_000  # clocks are right where tasks expire
_PATIENCE_US = 3_000_000  # within which a process lets go of what it need not hold
_NOTHING: tuple[dict[str, Any], dict[str, dict[str, int]]] = ({}, {})


class Violation(AssertionError):
    """A promise was broken."""


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
class Holding:
    """A fence that holds, and what its owner has to respect.

    Attributes:
        process: whose fence it is.
        tenure: in which it was sent.
        tasks_end: end of `tasks` when it landed: all before is known to the owner before it starts anything.
        announced: lanes in which a start was written before it happened, out of caution.
    """

    process: int
    tenure: Tenure | None
    tasks_end: int
    announced: set[str] = field(default_factory=set)


@dataclass
class Sent:
    """What clients were promised of one key, by the offsets of its records."""

    enqueues: list[int] = field(default_factory=list)
    cancels: list[int] = field(default_factory=list)


def _is_ending(tenure: Partition | None, key: TaskKey) -> bool:
    """Whether an owner has seen the cancel of a task, so that it never starts: its end is being written, or will be when more is read."""
    if tenure is None:
        return False
    lane = tenure.lanes.get(key.ordering_id)
    is_loaded = lane is not None and lane.find(key) is not None
    return key in tenure.ending or (key in tenure.cancelled and (not is_loaded or bool(tenure.lookups.get(key))))


class Judge:
    """Knows the truth: the whole logs, and all that children did.

    Args:
        world: that is judged.
        partitions: how many there are.
    """

    def __init__(self, world: World, partitions: int) -> None:
        self._world = world
        self._truth = [FenceLog() for _ in range(partitions)]  # the fence rule applied to the whole log as it grows
        self.holdings: list[list[Holding]] = [[] for _ in range(partitions)]
        self._by_epoch: dict[tuple[int, int], Holding] = {}
        self._senders: dict[tuple[int, Fence], tuple[int, Tenure | None]] = {}
        self._taken: dict[tuple[int, Tenure], int] = {}  # how many fences held when a take began
        self.sent: dict[TaskKey, Sent] = defaultdict(Sent)
        self._expires: dict[TaskKey, dict[int, int]] = defaultdict(dict)  # offset of an enqueue → when its task expires
        self._lanes: dict[str, dict[TaskKey, int]] = defaultdict(dict)  # open tasks: key → first offset
        self.ended: dict[TaskKey, tuple[str, int]] = {}
        self._recorded: dict[TaskKey, int] = defaultdict(int)
        self._outcomes: set[tuple[TaskKey, int]] = set()  # attempts whose end is recorded
        self._begun: set[tuple[TaskKey, int]] = set()  # attempts whose start is recorded
        self._announced: set[tuple[TaskKey, int]] = set()  # … before it happened, out of caution
        self._cut_off: dict[TaskKey, int] = {}  # tasks that ran when their owner died → epoch
        self._not_before: dict[TaskKey, int] = {}
        self._runs_of: dict[TaskKey, list[Run]] = defaultdict(list)
        self._runs_in: dict[str, list[Run]] = defaultdict(list)
        self.requests: dict[str, TaskKey] = {}
        self._asked: dict[str, tuple[int, int]] = {}  # request → partition and offset of its record
        self._first_read: dict[int, int] = {}  # partition → where its first owner began to read `tasks`
        self._answered: set[str] = set()
        # of each process at its last step: limits of all queues, and how many ran of those of which any did, by group
        self._before: dict[int, tuple[dict[str, Any], dict[str, dict[str, int]]]] = {}
        self.leases = LeaseJudge(Violation)
        self.names = NameJudge(world, self.ended, Violation)
        self.follow_ups: dict[str, list[TaskKey]] = defaultdict(
            list
        )  # uniqueness key → keys that were enqueued under it

    # -- what clients were promised -------------------------------------------------------------------------------------

    def accepted(self, command: Command) -> None:
        """A record of `tasks` was acknowledged."""
        key = command.key
        if command.kind == ENQUEUE:
            self._note_follow_up(key)
            self.sent[key].enqueues.append(command.offset)
            self.names.accepted(command)
            if command.expires_us is not None:
                self._expires[key][command.offset] = command.expires_us
            if key not in self.ended:
                self._lanes[key.ordering_id].setdefault(key, command.offset)
            return
        self.sent[key].cancels.append(command.offset)
        if command.request_id is not None:
            self.requests[command.request_id] = key
            self._asked[command.request_id] = self._world.place(key), command.offset

    # -- what handlers ask for ------------------------------------------------------------------------------------------

    def asks(self, key: TaskKey) -> bool:
        """Returns True if a task asks for a follow-up; what is one itself does not."""
        name = key.uniqueness_key
        return name[1:].isdigit() and int(name[1:]) % 100 < 100 * self._world.profile.load.asks

    def _note_follow_up(self, key: TaskKey) -> None:
        """A task is enqueued: of each parent it is the only one, unless hours have passed."""
        if "/" not in key.uniqueness_key:
            return
        others = [other for other in self.follow_ups[key.uniqueness_key] if other != key]
        if any(abs(other.time_us - key.time_us) < _ONE_MOMENT_US for other in others):
            raise Violation(f"{key} is a second follow-up beside {others}")
        self.follow_ups[key.uniqueness_key].append(key)

    def _judge_follow_up(self, fact: Fact) -> None:
        """A task that has succeeded has its follow-up."""
        if self.asks(fact.key) and fact.outcome == SUCCEEDED and not self.follow_ups.get(unique_key(fact.key, "child")):
            raise Violation(f"{fact.key} has succeeded before its follow-up was there")

    def unended(self) -> list[TaskKey]:
        """Tasks that must still end."""
        return [key for lane, tasks in self._lanes.items() if not self._world.is_stuck(lane) for key in tasks]

    # -- the log of outcomes --------------------------------------------------------------------------------------------

    def takes(self, process: Process, tenure: Tenure, tasks_offset: int) -> None:
        """A process begins to take a partition, and reads its log from that offset."""
        self._first_read.setdefault(tenure.partition, tasks_offset)
        self._taken[process.number, tenure] = len(self.holdings[tenure.partition])

    def sends(self, process: Process, number: int, value: bytes) -> None:
        """A process sends a record of `outcomes`."""
        record = read_outcome(value)
        if isinstance(record, OutcomeRecord) and record.kind == "fence":
            partition = process.engine.partitions.get(number)
            self._senders[number, record.fence] = process.number, partition.tenure if partition is not None else None

    def judge_record(self, record: OutcomeRecord | Unreadable, size: int) -> None:
        """Owners write what everybody can read."""
        if isinstance(record, Unreadable):
            raise Violation(f"an owner wrote what nobody can read: {record}")
        if size > _MOST_RECORD_BYTES:
            raise Violation(f"a record of {size} bytes")

    def landed(self, number: int, record: OutcomeRecord) -> None:
        """A record stands in `outcomes`."""
        if not self._truth[number].admit(record):
            return
        if record.kind == "fence":
            self._note_fence(number, record.fence)
        for fact in record.facts:
            self._judge_fact(number, fact)

    def _note_fence(self, number: int, fence: Fence) -> None:
        process, tenure = self._senders[number, fence]
        holding = Holding(process, tenure, len(self._world.tasks[number]))
        before = self.holdings[number][-1] if self.holdings[number] else None
        if before is not None and (before.process, before.tenure) == (process, tenure):
            holding.announced = before.announced
        self.holdings[number].append(holding)
        self._by_epoch[number, fence.epoch] = holding

    def fenced_off(self, process: Process, dropped: set[Tenure]) -> None:
        """A process has dropped partitions because of fences that it read: of another owner at least one must stand there."""
        for tenure in dropped:
            later = self.holdings[tenure.partition][self._taken[process.number, tenure] :]
            if any((holding.process, holding.tenure) != (process.number, tenure) for holding in later):
                return
        raise Violation(f"process {process.number} was fenced off by nobody: {sorted(dropped)}")

    def _judge_fact(self, number: int, fact: Fact) -> None:
        """A fact counts: numbers grow, a task ends once, and as failed only after as many runs as its policy says."""
        if fact.request_id is not None:
            self._answered.add(fact.request_id)
        if fact.outcome == TOO_LATE:
            return
        key, attempt = fact.key, fact.attempt
        if self._world.place(key) != number:
            raise Violation(f"{key} stands in partition {number}")
        leased = fact.work is not None and fact.work.lease is not None
        if leased or fact.terminal:
            self.leases.note(fact)
        if fact.outcome == STARTED and leased:
            self._judge_lease(number, fact)
        elif fact.outcome == STARTED:
            self._judge_begin(number, fact)
        elif attempt:
            known = self._recorded[key]
            if attempt < known or (attempt == known and not fact.terminal):
                raise Violation(f"attempt numbers of {key} do not increase: {known} then {attempt}")
            self._recorded[key] = attempt
            self._outcomes.add((key, attempt))
        if fact.used > self._begun_attempts(key):
            raise Violation(f"{key} is said to have used {fact.used} attempts; begun were {self._begun_attempts(key)}")
        if fact.next_us is not None:
            self._not_before[key] = fact.next_us
        if fact.terminal:
            self._judge_end(fact)

    def _begun_attempts(self, key: TaskKey) -> int:
        """Returns how many attempts of a task may count against its policy."""
        announced = sum(1 for known, _ in self._announced if known == key) if self._announced else 0
        return announced + len(self._runs_of[key])

    def _judge_begin(self, number: int, fact: Fact) -> None:
        """A start counts: of what a child has begun, or, after an unclean stop, of the first task of a lane."""
        key, holding = fact.key, self.holdings[number][-1]
        self._begun.add((key, fact.attempt))
        if any(run.attempt == fact.attempt and run.process == holding.process for run in self._runs_of[key]):
            return
        owner = self._world.processes.get(holding.process)
        partition = owner.engine.partitions.get(number) if owner is not None else None
        cautious = partition is None or partition.cautious
        if not cautious or key.ordering_id in holding.announced:
            raise Violation(f"{key} is said to have started, and no child has begun it")
        holding.announced.add(key.ordering_id)
        self._announced.add((key, fact.attempt))
        for other in [other for other in self._cut_off if other.ordering_id == key.ordering_id]:
            del self._cut_off[other]  # of a lane one start is announced

    def _first_of_owner(self, number: int) -> Holding:
        """The first fence of the present owner's tenure."""
        found = self.holdings[number]
        place = len(found) - 1
        while place and (found[place - 1].process, found[place - 1].tenure) == (
            found[place].process,
            found[place].tenure,
        ):
            place -= 1
        return found[place]

    def _judge_lease(self, number: int, fact: Fact) -> None:
        """A lease counts: it is an attempt like any other, in its turn and in its time."""
        holding = self._first_of_owner(number)  # it may have been decided under an earlier fence, and sent again
        key = fact.key
        if any(run.attempt == fact.attempt for run in self._runs_of[key]):
            return  # the same again, with a checkpoint
        run = Run(key, fact.attempt, 0, holding.process, self._world.now)
        owner = self._world.processes.get(holding.process)
        run.tenure = owner.engine.partitions.get(number) if owner is not None else None
        self._judge_time(run)
        if run.tenure is not None:
            self._judge_order(run, holding)
        self.names.judge_start(key)
        if any(offset < holding.tasks_end for offset in self.sent[key].cancels):
            raise Violation(f"{key} was leased though it was cancelled before its partition was taken")
        self._begun.add((key, fact.attempt))
        self._cut_off.pop(key, None)
        self._runs_of[key].append(run)

    def _judge_end(self, fact: Fact) -> None:
        """A completion counts."""
        key = fact.key
        if key in self.ended:
            raise Violation(f"{key} completed twice: {self.ended[key]} and {fact.outcome}")
        if fact.outcome == FAILED:
            if fact.failure is not None and fact.failure.kind == "defect":
                raise Violation(f"a defect: {fact.failure}")
            known = (
                self._outcomes
            )  # a yield that does not count was an attempt, also where its next owner ends the task for it
            begun = {
                run.attempt
                for run in self._runs_of[key]
                if run.outcome != YIELDED or (key, run.attempt) not in known or run.attempt == fact.attempt
            }
            begun |= {attempt for known, attempt in self._announced if known == key}
            if len(begun) < RETRIES + 1:
                raise Violation(f"{key} failed after attempts {sorted(begun)} only")
        if fact.outcome == EXPIRED:
            self._judge_expiry(fact)
        if fact.outcome == DUPLICATE:
            self.names.judge_end(fact, begun=len(self._runs_of[key]))
        self._judge_follow_up(fact)
        self.ended[key] = (fact.outcome, self._world.now)
        self.names.ended(key)
        self._lanes[key.ordering_id].pop(key, None)
        self._cut_off.pop(key, None)

    def _judge_expiry(self, fact: Fact) -> None:
        """A task expires once it should, and unless it is known to have begun."""
        key = fact.key
        earliest = min(self._expires[key].values(), default=None)
        if earliest is None or fact.finished_us < earliest:
            raise Violation(f"{key} expired at {fact.finished_us}; nobody asked for that before {earliest}")
        begun = {attempt for known, attempt in self._begun - self._announced if known == key}
        begun |= {attempt for known, attempt in self._outcomes if known == key and attempt != fact.attempt}
        if begun or (fact.attempt and (key, fact.attempt) not in self._announced):
            raise Violation(f"{key} expired in attempt {fact.attempt} after it had begun: {sorted(begun)}")

    def _judge_in_time(self, run: Run, payload: str) -> None:
        """What has expired does not begin any more; which enqueue the owner knows stands in the payload."""
        expires_us = self._expires[run.key].get(json.loads(payload)["at"]) if run.key in self._expires else None
        if expires_us is not None and run.attempt == 1 and self._world.now > expires_us + _PUNCTUAL_US:
            raise Violation(f"{run.key} began {(self._world.now - expires_us) / 1e6} s after it had expired")

    # -- what children do -----------------------------------------------------------------------------------------------

    def begin_run(self, process: Process, item: Invocation) -> Run:
        """A child begins a task."""
        run = Run(item.key, item.attempt, item.epoch, process.number, self._world.now)
        number = self._world.place(item.key)
        run.tenure = process.engine.partitions.get(number)
        holding = self._by_epoch.get((number, item.epoch))
        if not process.member:
            raise Violation(f"{run.key} started in process {process.number}, which the group has put out")
        self._judge_time(run)
        self.names.judge_start(run.key)
        self._judge_in_time(run, item.payload)
        self._judge_order(run, holding)
        self._judge_overlap(run)
        if holding is not None:
            self._judge_knowledge(run, item, holding)
        self._judge_caution(run)
        self._runs_of[run.key].append(run)
        self._runs_in[run.key.ordering_id].append(run)
        return run

    def crashes(self, process: Process) -> None:
        """A process dies, and with it what its children do; what they had begun is begun again with caution."""
        for item, _ in process.executor.under_way.values():
            ours = self._truth[self._world.place(item.key)].fence.epoch == item.epoch
            if ours and item.key not in self.ended:
                self._cut_off[item.key] = item.epoch

    def _judge_time(self, run: Run) -> None:
        """Nothing starts early, after its end, or before its back-off is over."""
        key, now = run.key, self._world.now
        if now < key.time_us:
            raise Violation(f"{key} started {key.time_us - now} µs early")
        if key in self.ended:
            raise Violation(f"{key} started after its completion {self.ended[key]}")
        if now < self._not_before.get(key, 0):
            raise Violation(f"{key} started {self._not_before[key] - now} µs before its back-off was over")

    def _judge_order(self, run: Run, holding: Holding | None) -> None:
        """Nothing starts before an earlier task of its lane that was enqueued before it, or before the partition was taken."""
        key = run.key
        open_tasks = self._lanes[key.ordering_id]
        known = max(open_tasks.get(key, -1), holding.tasks_end - 1 if holding is not None else -1)
        for other, offset in open_tasks.items():
            if (
                other < key
                and offset <= known
                and not _is_ending(run.tenure, other)
                and not (self._goes_ahead(key.ordering_id) and self._has_ended(other, run))
            ):
                raise Violation(
                    f"{key} started before {other}, which is earlier in its lane and was enqueued before it, or before the take"
                )

    def _judge_overlap(self, run: Run) -> None:
        """Of a lane one task runs at a time; what the children of a frozen owner go on with is excused."""
        runs = self._runs_in[run.key.ordering_id]
        runs[:] = [earlier for earlier in runs if earlier.ended is None]
        for earlier in runs:
            process = self._world.processes.get(earlier.process)
            if process is None or (not process.paused and earlier.started > process.expelled_at):
                raise Violation(f"{run.key} overlaps {earlier.key} in its lane")

    def _judge_knowledge(self, run: Run, item: Invocation, holding: Holding) -> None:
        """What was acknowledged before the partition was taken is respected: cancels, and newer data."""
        sent = self.sent[run.key]
        if any(offset < holding.tasks_end for offset in sent.cancels):
            raise Violation(f"{run.key} started though it was cancelled before its partition was taken")
        newest = max((offset for offset in sent.enqueues if offset < holding.tasks_end), default=-1)
        if int(item.payload.removeprefix('{"at":').rstrip("}")) < newest:
            raise Violation(f"{run.key} started with {item.payload}, older than the record {newest}")

    def _judge_caution(self, run: Run) -> None:
        """What was cut off by a crash starts again only with a record of it, unless another task of the lane did so before it."""
        epoch = self._cut_off.get(run.key)
        if epoch is None or run.epoch <= epoch:
            return
        del self._cut_off[run.key]
        if (run.key, run.attempt) not in self._begun:
            raise Violation(f"{run.key} was cut off by a crash, and started again without a record of that")

    def _has_ended(self, key: TaskKey, by: Run) -> bool:
        """Returns True if a cancel, its expiry or an attempt of the same owner ended it, though that may not be recorded yet."""
        expired = any(at <= self._world.now for at in self._expires[key].values()) if key in self._expires else False
        return (
            expired
            or self.names.may_be_refused(key)
            or bool(self.sent[key].cancels)
            or any(
                run.outcome and (run.outcome == SUCCEEDED or run.attempt > RETRIES) and run.tenure is by.tenure
                for run in self._runs_of[key]
            )
        )

    def _goes_ahead(self, lane: str) -> bool:
        """Returns True if tasks of the lane may start before the completion of the one before is recorded."""
        return self._world.queue_of[lane] in ("replay", "grouped") or self._world.handler_of[lane] == "batch"

    # -- what a process holds -------------------------------------------------------------------------------------------

    def judge_engine(self, process: Process) -> None:
        """Limits hold, memory stays within its bound, and every lane will be woken."""
        engine = process.engine
        self._judge_limits(process)
        self._judge_memory(process)
        if process.looks:
            if asleep := list(sleepers(engine)):
                raise Violation(f"process {process.number}: {'; '.join(asleep)}")
            for partition in engine.partitions.values():
                if (held := held_bytes(partition)) != partition.holding.bytes:
                    raise Violation(
                        f"partition {partition.number} counts {partition.holding.bytes} bytes and holds {held}"
                    )

    def _judge_limits(self, process: Process) -> None:
        """No more run than limits allow; where these were lowered, no more than before."""
        engine, gates = process.engine, process.engine._gates
        counted: dict[str, int] = {}
        for run in (*engine.runs.values(), *[lease.run for lease in engine.leases]):
            name = gates.name_of(run.invocation.queue)
            counted[name] = counted.get(name, 0) + 1
        limits_before, ran_before = self._before.get(process.number, _NOTHING)
        ran: dict[str, dict[str, int]] = {}
        self._before[process.number] = {name: gate.limits for name, gate in gates._gates.items()}, ran
        for name, gate in gates._gates.items():
            if not gate.running and name not in counted and name not in ran_before:
                continue  # as of most queues at most times
            if gate.running != counted.get(name, 0):
                raise Violation(f"queue {name!r} counts {gate.running} tasks, and {counted.get(name, 0)} run")
            running = {"": gate.running} | {text: group.running for text, group in gate._groups.items()}
            if any(running.values()):
                ran[name] = running
            if limits_before.get(name) is not gate.limits:
                continue  # they were changed in this step
            if gate.limits.pull and engine.counts["leases_adopted"]:
                continue  # leases of an earlier owner hold, whatever our share is
            known = ran_before.get(name, {})
            most = {"": gate._slots} | dict.fromkeys(gate._groups, gate.limits.group_concurrency)
            for group, number in running.items():
                allowed = most[group]
                if allowed is not None and number > max(allowed, known.get(group, 0)):
                    raise Violation(f"{number} tasks of queue {name} {group} run where {allowed} may")

    def _judge_memory(self, process: Process) -> None:
        """Above the limit nothing is held for long that could be left to the tables."""
        engine, now = process.engine, self._world.now
        limit, held = engine.limits.max_held_bytes, engine.held_bytes
        if held > 2 * limit + 60 * 1024:
            raise Violation(f"process {process.number} holds {held} bytes where {limit} are the limit")
        lanes = [name for partition in engine.partitions.values() for name in excess(partition, self._world)]
        if held <= limit or process.skew or not lanes:
            process.excess_since = now
        elif now - process.excess_since > _PATIENCE_US:
            raise Violation(f"process {process.number} holds more than heads of lanes that cannot start: {lanes}")

    # -- the end --------------------------------------------------------------------------------------------------------

    def judge_rest(self) -> None:
        """Everything has ended, rightly, and who asked was answered."""
        for key in self.unended():
            where = [process.describe(key) for process in self._world.processes.values()]
            raise Violation(f"{key} was lost; held by {where}")
        for key, (outcome, at) in self.ended.items():
            if outcome == CANCELLED and not self.sent[key].cancels:
                raise Violation(f"{key} was cancelled by nobody")
            if any(run.started > at for run in self._runs_of[key]):
                raise Violation(f"{key} ran after its end")
        if self._world.profile.faultless:
            self._judge_faultless()

    def _judge_faultless(self) -> None:
        """Where nothing failed, no work is done twice; and where no partition moved, every cancel was answered that its owner has read.

        Of one that stands in the tables before anybody took the partition only the key is known.
        """
        for runs in self._runs_of.values():
            for run in runs:
                if (run.key, run.attempt) not in self._outcomes:
                    raise Violation(f"attempt {run.attempt} of {run.key} was not recorded, though nothing had failed")
        if silent := self.unanswered():
            raise Violation(f"cancels {silent} were never answered")

    def unanswered(self) -> list[str]:
        """Requests of cancels that are still to be answered, where nothing may keep them from it."""
        if not self._world.profile.faultless or self._world.begun_processes != 2:
            return []
        return [
            request
            for request, (number, offset) in self._asked.items()
            if offset >= self._first_read.get(number, 0) and request not in self._answered
        ]
