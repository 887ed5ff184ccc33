"""Modelled tables of one partition whose rows come before their progress, as ingest writes them: data first, the mark some time later."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from typing import NamedTuple

from scylla_spark.core.engine.lane import BEFORE_ALL
from scylla_spark.core.records.command import CANCEL, ENQUEUE, Command
from scylla_spark.core.records.fact import Fact, FenceLog, OutcomeRecord
from scylla_spark.core.tables.progress import Mark
from scylla_spark.core.tasks.fold_commands import Folded
from scylla_spark.core.tasks.key import Name, TaskKey, name_of
from scylla_spark.core.tasks.stored_records import NOTHING, Bearer, Known, ScanRow
from scylla_spark.core.tasks.task import DUPLICATE, STARTED
from scylla_spark.name_fingerprint import fingerprint
from scylla_spark.services.dispatch.scan_rows import Slice

_DEPTH = 2  # rows of a lane that a scan loads


class Span(NamedTuple):
    """What a scan reads: times in microseconds since the epoch; without `after_us` it is a scan of all that is open."""

    mark: Mark
    after_us: int | None
    until_us: int


class LoneTables:
    """Both logs, tables that hold a beginning of them, and the progress that tells of less than they hold.

    Attributes:
        tasks: the log of commands.
        outcomes: the log of fences and facts.
        first: of each key its first enqueue in the log.
        cancelled: keys of which the log has a cancel.
        progress: as it is stored.
    """

    def __init__(self) -> None:
        self.tasks: list[Command] = []
        self.outcomes: list[OutcomeRecord] = []
        self.first: dict[TaskKey, Command] = {}
        self.cancelled: set[TaskKey] = set()
        self.progress = Mark()
        self._written = Mark()
        self._log = FenceLog()
        self._folded: dict[TaskKey, Folded] = {}
        self._attempts: dict[TaskKey, Known] = {}
        self._completed: set[TaskKey] = set()
        self._refused: list[TaskKey] = []  # that ended as duplicates

    def add_task(self, command: Command) -> None:
        """A command is acknowledged."""
        self.tasks.append(command)
        if command.kind == ENQUEUE:
            self.first.setdefault(command.key, command)
        else:
            self.cancelled.add(command.key)

    # -- ingest ---------------------------------------------------------------------------------------------------------

    def write(self, rng: random.Random) -> Mark:
        """Some more of both logs is written; the mark of it, which is to be stored later."""
        tasks_end = rng.randint(self._written.tasks_offset, len(self.tasks))
        outcomes_end = rng.randint(self._written.outcomes_offset, len(self.outcomes))
        for command in self.tasks[self._written.tasks_offset : tasks_end]:
            self._folded.setdefault(command.key, Folded()).add(command)
        for offset in range(self._written.outcomes_offset, outcomes_end):
            record = self.outcomes[offset]
            for fact in record.facts if self._log.admit(record) else ():
                self._keep(fact, offset)
        self._written = Mark(tasks_end, outcomes_end, self._log.fence, self._log.resigned)
        return self._written

    def _keep(self, fact: Fact, offset: int) -> None:
        if fact.terminal:
            self._completed.add(fact.key)
            if fact.outcome == DUPLICATE:
                self._refused.append(fact.key)
        elif fact.outcome == STARTED or fact.next_us is not None:
            told = Known(False, fact.attempt, fact.used, fact.next_us or 0, fact.work, fact.brief_error, offset)
            known = self._attempts.get(fact.key, NOTHING)
            self._attempts[fact.key] = told if _rank(told) >= _rank(known) else known  # the last word counts

    # -- what is read ---------------------------------------------------------------------------------------------------

    def known(self, keys: Iterable[TaskKey]) -> dict[TaskKey, Known]:
        """Returns what stands there of keys."""
        return {key: self._attempts.get(key, NOTHING)._replace(ended=key in self._completed) for key in keys}

    def rows(self) -> list[ScanRow]:
        """All open tasks, in key order."""
        return [self._row(key, self._folded[key]) for key in sorted(self._folded) if key not in self._completed]

    def _row(self, key: TaskKey, folded: Folded) -> ScanRow:
        data, first, cancel = folded.data, folded.first, folded.cancel
        if data is None:
            assert cancel is not None
            data = Command(CANCEL, key, cancel.offset)
        unique = first is not None and first.unique
        if data.unique != unique:
            data = data._replace(unique=unique)
        _, attempt, used, next_us, work, error, place = self._attempts.get(key, NOTHING)
        first_offset = first.offset if first is not None else -1
        return ScanRow(data, cancel is not None, attempt, used, next_us, work, error, first_offset, place)

    def lane(self, ordering_id: str, after: TaskKey, until_us: int) -> list[ScanRow]:
        """Open tasks of a lane past a key."""
        return [
            row for row in self.rows()
            if row.command.key.ordering_id == ordering_id and row.command.key > after and row.command.key.time_us <= until_us
        ]  # fmt: skip

    def ended_early(self) -> list[TaskKey]:
        """Keys of which a cancel is written, or that were refused."""
        return [*(key for key, folded in self._folded.items() if folded.cancel is not None), *self._refused]

    def bearers(self, names: Collection[Name] | None) -> list[Bearer]:
        """Open tasks of these names; None: of all that one of several wants to have alone."""
        bearers = [
            Bearer(row.command.key, row.first, row.command.unique, row.command.queue, row.command.handler)
            for row in self.rows() if row.first >= 0
        ]  # fmt: skip
        if names is None:
            asked = {name_of(each.key) for each in bearers if each.unique}
            counted = Counter(name_of(each.key) for each in bearers)
            names = {name for name in asked if counted[name] > 1}
        return [each for each in bearers if name_of(each.key) in names]

    def scan(self, span: Span, most: int, rng: random.Random) -> Slice:
        """Of so many lanes, which chance names, the first tasks; of all others only what is leased."""
        lanes: dict[str, list[ScanRow]] = defaultdict(list)
        for row in self.rows():
            if (span.after_us or 0) < row.command.key.time_us <= span.until_us:
                lanes[row.command.key.ordering_id].append(row)
        found = Slice([], {}, set())
        for place, name in enumerate(rng.sample(sorted(lanes), len(lanes))):
            _read_lane(found, lanes[name], _DEPTH if place < most else 0)
        return found


def _read_lane(found: Slice, lane: list[ScanRow], depth: int) -> None:
    name = lane[0].command.key.ordering_id
    leased = [row for row in lane if _is_leased(row)]
    others = [row for row in lane if not _is_leased(row)]
    read = [*leased, *others[: max(depth - len(leased), 0)]]
    found.rows.extend(sorted(read, key=lambda row: row.command.key))
    if not read:
        found.unloaded.add(fingerprint(name))
    elif len(read) < len(lane):
        found.cuts[name] = max(BEFORE_ALL if _is_leased(row) else row.command.key for row in read)


def _is_leased(row: ScanRow) -> bool:
    return row.work is not None and row.work.lease is not None and not row.next_us


def _rank(known: Known) -> tuple[int, bool, int, int]:
    return known.attempt, known.settled, known.used, known.next_us
