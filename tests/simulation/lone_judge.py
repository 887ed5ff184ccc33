"""What is promised of a lone engine, by the log that its facts come to and by what it holds, counted anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain

from scylla_spark.core.engine.engine import Engine
from scylla_spark.core.engine.queue import Gate
from scylla_spark.core.engine.runs import Run
from scylla_spark.core.records.fact import TOO_LATE, Fact, FenceLog, OutcomeRecord
from scylla_spark.core.tasks.key import TaskKey, name_of
from scylla_spark.core.tasks.task import CANCELLED, DUPLICATE, STARTED
from tests.simulation.judge import Violation
from tests.simulation.lone_tables import LoneTables
from tests.simulation.memory_recount import held_bytes

_BEGUN, _OVER, _ENDED = range(3)  # how far an attempt is: it began, it ended without ending the task, it ended it


class LoneJudge:
    """Knows what the log says of each task.

    Args:
        tables: whose logs are judged.
    """

    def __init__(self, tables: LoneTables) -> None:
        self._tables = tables
        self.log = FenceLog()
        self.ended: set[TaskKey] = set()
        self._last: dict[TaskKey, tuple[int, int]] = {}
        self._next_us: dict[TaskKey, int] = {}

    def starts(self, key: TaskKey, attempt: int, now: int) -> None:
        """An attempt starts, or is said to."""
        last, phase = self._last.get(key, (0, _BEGUN))
        if key in self.ended:
            raise Violation(f"{key} started after its completion")
        if attempt < last or (attempt == last and phase > _BEGUN):
            raise Violation(f"{key} starts attempt {attempt}, and attempt numbers do not increase: {last} is over")
        if now < self._next_us.get(key, 0):
            raise Violation(f"{key} started {self._next_us[key] - now} us before its back-off was over")
        if attempt == 1:
            self._has_its_name(key)

    def in_order(self, key: TaskKey, tasks_read: int) -> None:
        """What starts is the first open task of its lane, by what was read of `tasks`; of what was cancelled the end may be under way."""
        for other, command in self._tables.first.items():
            known = command.offset < tasks_read and other not in self._tables.cancelled
            if other.ordering_id == key.ordering_id and other < key and known and other not in self.ended:
                raise Violation(f"{key} started before an earlier one of its lane, {other}")

    def _has_its_name(self, key: TaskKey) -> None:
        first, name = self._tables.first, name_of(key)
        if not first[key].unique:
            return
        for other, command in first.items():
            if name_of(other) == name and command.offset < first[key].offset and other not in self.ended:
                raise Violation(f"{key} started although {other} has its name")

    def lands(self, record: OutcomeRecord, now: int) -> None:
        """A record comes to stand in the log."""
        if self.log.admit(record):
            for fact in record.facts:
                if fact.outcome != TOO_LATE:
                    self._fact(fact, now)

    def _fact(self, fact: Fact, now: int) -> None:
        key, last = fact.key, self._last.get(fact.key, (0, _BEGUN))
        told = fact.attempt, _phase(fact)
        if key in self.ended:
            raise Violation(f"{key} is {fact.outcome} after its completion")
        if fact.outcome == DUPLICATE and last[0]:
            raise Violation(f"{key} has begun, and ends as a duplicate")
        untold = fact.outcome == CANCELLED and not fact.attempt  # of what is not loaded it need not be known
        if not untold and (told < last or told == last == (fact.attempt, _OVER)):
            raise Violation(f"{key}: attempt numbers do not increase: {fact.outcome} {told} after {last}")
        if fact.outcome == STARTED and fact.attempt > last[0]:
            self.starts(key, fact.attempt, now)
        self._last[key] = max(told, last)
        if fact.terminal:
            self.ended.add(key)
        elif fact.next_us is not None:
            self._next_us[key] = fact.next_us


def _phase(fact: Fact) -> int:
    if fact.terminal:
        return _ENDED
    return _BEGUN if fact.outcome == STARTED else _OVER


def recount(engine: Engine, *, one_by_one: bool) -> None:
    """What the engine counts is what it holds.

    Args:
        engine: that is looked at.
        one_by_one: of a lane one task is under way at a time, in queues that are not in replay order.
    """
    for partition in engine.partitions.values():
        lanes = partition.lanes.values()
        _same("bytes", partition.holding.bytes, held_bytes(partition))
        _same("tasks", partition.holding.tasks, sum(len(lane.entries) + len(lane.beyond) for lane in lanes))
    _same("bytes of all", engine.held_bytes, sum(map(held_bytes, engine.partitions.values())))
    under_way = list(_under_way(engine))
    for gate in engine._gates.all():
        _recount_gate(gate, [run for run in under_way if run.gate is gate])
    lanes_out = Counter(run.lane.ordering_id for run in under_way if not run.gate.limits.replay)
    if one_by_one and (several := [lane for lane, out in lanes_out.items() if out > 1]):
        raise Violation(f"several tasks of {several} are under way")


def _under_way(engine: Engine) -> Iterator[Run]:
    return chain(engine.runs.values(), (lease.run for lease in engine.leases))


def _recount_gate(gate: Gate, under_way: list[Run]) -> None:
    _same(f"running of {gate.limits}", gate.running, len(under_way))
    groups = Counter(gate.group_of(run.lane.ordering_id) for run in under_way)
    for name, group in gate._groups.items():
        _same(f"running of group {name}", group.running, groups[name])


def _same(what: str, counted: int, found: int) -> None:
    if counted != found:
        raise Violation(f"{what}: {counted} are counted, {found} are there")
