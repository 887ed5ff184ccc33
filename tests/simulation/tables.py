"""Modelled tables and the ingest that fills them: near and far, folding, closed hours, purge. What is read without Spark, and with it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from scylla_spark.core.engine.lane import BEFORE_ALL
from scylla_spark.core.records.command import CANCEL, ENQUEUE, Command
from scylla_spark.core.records.fact import FenceLog
from scylla_spark.core.tables.progress import Mark, joined
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.fold_commands import Folded
from scylla_spark.core.tasks.key import HOUR_US, LATEST_US, Name, TaskKey, name_of
from scylla_spark.core.tasks.stored_records import Bearer, Known, ScanRow
from scylla_spark.core.tasks.task import DUPLICATE, STARTED
from scylla_spark.name_fingerprint import fingerprint
from scylla_spark.services.dispatch.scan_rows import Slice
from scylla_spark.services.ingest.progress import End, Progress

if TYPE_CHECKING:
    from tests.simulation.world import World

NEAR_US = 2 * HOUR_US
CLOSE_AFTER_US = 2 * HOUR_US
RETENTION_US = 30 * HOUR_US
HOURS_BEHIND = 3
DEPTH = 3  # rows of a lane that a scan loads
BUDGET = 2  # rows of a scan of all that is open
FEW = 5  # rows up to which a partition is read without Spark
Attempt = tuple[
    int, bool, int, int, WorkNote | None, int
]  # number, whether it ended, used, next start, who had it, its offset


NO_ATTEMPT: Attempt = (0, False, 0, 0, None, -1)


class ModelTables:
    """What ingest has written, all partitions in one; `OpenTasks` and `LargeScan` of the scanner.

    Args:
        world: its time, logs and chance.
        partitions: of the deployment.
    """

    def __init__(self, world: World, partitions: int) -> None:
        self.world = world
        self.tasks: list[dict[TaskKey, Folded]] = [{} for _ in range(partitions)]
        self.deferred: list[tuple[int, Command]] = []  # of all partitions together
        self.completed: list[set[TaskKey]] = [set() for _ in range(partitions)]
        self.refused: list[list[TaskKey]] = [[] for _ in range(partitions)]  # that ended as duplicates
        self.attempts: list[dict[TaskKey, Attempt]] = [{} for _ in range(partitions)]
        self.stored: dict[tuple[str, int], Mark] = {}
        self.progress = Progress(self)  # type: ignore[arg-type] - it only writes marks
        self._older: list[tuple[int, set[TaskKey]]] = [(0, set()) for _ in range(partitions)]
        self._busy: set[str] = set()
        self._rounds = 0  # of maintenance
        self.progress.begin({}, partitions, self._target())

    def write_marks(self, marks: Mapping[tuple[str, int], Mark]) -> None:
        """What `Progress` asks of the table."""
        self.stored = dict(marks)

    # -- ingest ---------------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """One of the things that ingest does; data is written first, progress some time later, or, after a crash, not at all."""
        job = self.world.rng.choice([self._batch, self._batch, self._facts, self._facts, self._fold, self._maintain])
        lock = "outcomes" if job == self._facts else "tasks"
        if lock in self._busy:
            return
        finish = job()
        if finish is None or (not self.world.calm and self.world.rng.random() < 0.03):
            return
        self._busy.add(lock)

        def done() -> None:
            self._busy.discard(lock)
            finish()

        self.world.after(self.world.jitter(5, 1500), done)

    def _batch(self) -> Callable[[], None] | None:
        ends: dict[int, End] = {}
        hours: set[tuple[int, int]] = set()
        border = self.progress.folded_until_us
        for number, mark in self.progress.tasks().items():
            log = self.world.tasks[number]
            end = self.world.rng.randint(mark.tasks_offset, len(log))
            for record in log[mark.tasks_offset : end]:
                if (command := record.command) is None:
                    continue
                if command.key.time_us < border:
                    self.tasks[number].setdefault(command.key, Folded()).add(command)
                    hours.add((number, command.key.hour))
                else:
                    self.deferred.append((number, command))
            if end > mark.tasks_offset:
                ends[number] = End(end, self.world.now)
        return (lambda: self.progress.tasks_written(ends, hours)) if ends else None

    def _facts(self) -> Callable[[], None] | None:
        ends: dict[int, Mark] = {}
        for number in range(len(self.tasks)):
            mark = self.progress.outcomes().get(number, Mark())
            log = FenceLog(mark.fence)
            log.resigned = mark.resigned
            end = self.world.rng.randint(mark.outcomes_offset, len(self.world.outcomes[number]))
            self._older[number] = mark.outcomes_offset, set(self.completed[number])
            for offset, record in enumerate(
                self.world.outcomes[number][mark.outcomes_offset : end], mark.outcomes_offset
            ):
                if log.admit(record) or self.world.broken("ingest_ignores_fences"):
                    for fact in record.facts:
                        self._keep(number, fact, offset)
            if end > mark.outcomes_offset:
                fence = Mark().fence if self.world.broken("bare_positions") else log.fence
                ends[number] = Mark(0, end, fence, log.resigned)
        return (lambda: self.progress.outcomes_written(ends)) if ends else None

    def _keep(self, number: int, fact: object, offset: int) -> None:
        if fact.terminal:
            self.completed[number].add(fact.key)
            if fact.outcome == DUPLICATE:
                self.refused[number].append(fact.key)
        elif fact.outcome == STARTED or fact.next_us is not None:
            row = (fact.attempt, fact.outcome != STARTED, fact.used, fact.next_us or 0, fact.work, offset)
            known = self.attempts[number].get(fact.key, row)
            self.attempts[number][fact.key] = row if row[:4] >= known[:4] else known  # the last word counts

    def _target(self) -> int:
        return -(-(self.world.now + NEAR_US) // HOUR_US) * HOUR_US

    def _fold(self) -> Callable[[], None] | None:
        border, until = self.progress.folded_until_us, self._target()
        self.deferred = [
            (number, command) for number, command in self.deferred
            if command.key.time_us >= border - HOUR_US or self.world.rng.random() < 0.5
        ]  # fmt: skip
        if border >= self.world.now + NEAR_US:
            return None
        for number, command in self.deferred:
            if border <= command.key.time_us < until:
                self.tasks[number].setdefault(command.key, Folded()).add(command)
        return lambda: self.progress.folded(until)

    def _maintain(self) -> Callable[[], None] | None:
        self._rounds += 1
        # an ingest that was started anew goes by an earlier time, until the broker has shown what time it is
        now = self.world.now - (HOURS_BEHIND * HOUR_US if self._rounds % 5 == 0 else 0)
        still: dict[int, list[int]] = {}
        upto = min(now - CLOSE_AFTER_US, self.progress.folded_until_us) // HOUR_US
        for number in self.progress.tasks():
            open_hours = {key.hour for key in self.tasks[number] if key not in self.completed[number]}
            still[number] = [hour for hour in open_hours if hour < upto]
            gone = (now - RETENTION_US) // HOUR_US
            for key in [k for k in self.tasks[number] if k.hour < gone and k.hour not in open_hours]:
                del self.tasks[number][key]  # of hours that were closed; completions go later
        return lambda: self.progress.closed(upto, still)

    # -- what is read ---------------------------------------------------------------------------------------------------

    def marks(self) -> dict[int, Mark]:
        return joined(self.stored)

    def known(self, keys: Collection[TaskKey]) -> dict[TaskKey, Known]:
        if self.world.broken("no_lookup"):
            return dict.fromkeys(keys, Known())
        found = {}
        for key in keys:
            number = self.world.place(key)
            attempt, _, used, next_us, work, place = self.attempts[number].get(key, NO_ATTEMPT)
            found[key] = Known(key in self.completed[number], attempt, used, next_us, work, place=place)
        return found

    def partition(self, number: int, mark: Mark, until_us: int, bound: object) -> list[ScanRow] | None:
        rows = [row for row in self._open(number, mark, until_us) if self._hour_is_open(mark, row.command.key)]
        return rows if len(rows) <= FEW else None

    def cancelled(self, number: int, mark: Mark, after_us: int, until_us: int) -> list[TaskKey]:
        if self.world.broken("forgets_cancelled"):
            return []
        tasks = self._tasks(number, until_us, mark.folded_until_us)
        marked = [key for key, folded in tasks.items() if folded.cancel is not None]
        refused = [] if self.world.broken("forgets_duplicates") else self.refused[number]
        return [key for key in (*marked, *refused) if after_us < key.time_us <= until_us]

    def bearers(self, number: int, names: Collection[Name] | None, mark: Mark) -> list[Bearer]:
        if self.world.broken("asks_no_tables"):
            return []
        tasks = self._tasks(number, LATEST_US, mark.folded_until_us)
        rows = [row for row in self._open(number, mark, LATEST_US) if tasks[row.command.key].data is not None]
        bearers = [
            Bearer(
                row.command.key, row.first, row.command.unique, row.command.queue, row.command.handler, row.command.tags
            )
            for row in rows
        ]
        if names is None:
            asked = {name_of(one.key) for one in bearers if one.unique}
            counted = Counter(name_of(one.key) for one in bearers)
            names = {name for name in asked if counted[name] > 1}
        return [one for one in bearers if name_of(one.key) in names]

    def lanes(
        self, partition: int, wanted: Mapping[str, tuple[TaskKey, int]], until_us: int, mark: Mark
    ) -> dict[str, tuple[list[ScanRow], bool]]:
        rows = self._open(partition, mark, until_us)
        found = {}
        for ordering_id, (after, most) in wanted.items():
            lane = [row for row in rows if row.command.key.ordering_id == ordering_id and row.command.key > after]
            found[ordering_id] = lane[:most], len(lane) > most
        return found

    def read(
        self, marks: Mapping[int, Mark], after: int | None, until: int, now: int, ended: int
    ) -> dict[int, Slice] | None:
        budget = BUDGET + ended
        lanes: dict[tuple[int, str], list[ScanRow]] = defaultdict(list)
        for number, mark in marks.items():
            for row in self._open(number, mark, until):
                key = row.command.key
                if key.time_us > after if after is not None else self._hour_is_open(mark, key):
                    lanes[number, key.ordering_id].append(row)
        if not self.world.broken("reads_leased_in_turn"):
            for lane in lanes.values():
                lane.sort(key=lambda row: not _is_leased(row))
        ranked = sorted(
            (not _is_leased(row), self._blocked(lane[0], now), rank, row.command.key, number, row)
            for (number, _), lane in lanes.items()
            for rank, row in enumerate(lane[:DEPTH])
        )
        if len(ranked) > budget and after is not None:
            return None
        found: dict[int, Slice] = {}
        for *_, number, row in sorted(ranked[:budget], key=lambda place: place[3]):
            found.setdefault(number, Slice([], {}, set())).rows.append(row)
        for (number, ordering_id), lane in lanes.items():
            part = found.setdefault(number, Slice([], {}, set()))
            loaded = [
                BEFORE_ALL if _is_leased(row) else row.command.key
                for row in part.rows
                if row.command.key.ordering_id == ordering_id
            ]
            if not loaded and not self.world.broken("forgets_left_lanes"):
                part.unloaded.add(fingerprint(ordering_id))
            elif loaded and len(loaded) < len(lane) and not self.world.broken("ignores_cuts"):
                part.cuts[ordering_id] = max(loaded)
        return found

    def _blocked(self, head: ScanRow, now: int) -> bool:
        """Returns True if a lane cannot start: its tasks come last."""
        waits = head.next_us > now or head.command.handler is None or head.command.queue == "paused"
        return waits and not head.cancelled

    def _hour_is_open(self, mark: Mark, key: TaskKey) -> bool:
        return key.hour >= mark.closed_hour or key.hour in mark.open_hours

    def _open(self, number: int, mark: Mark, until_us: int) -> list[ScanRow]:
        """Completions are read before tasks, so they may be a little older; but never older than the mark."""
        offset, older = self._older[number]
        stale = offset >= mark.outcomes_offset and self.world.rng.random() < 0.5
        completed = older if stale else self.completed[number]
        tasks = self._tasks(number, until_us, mark.folded_until_us)
        return [self._row(number, key, tasks[key]) for key in sorted(tasks) if key not in completed]

    def _tasks(self, number: int, until_us: int, folded_until_us: int) -> dict[TaskKey, Folded]:
        found = {key: folded for key, folded in self.tasks[number].items() if key.time_us <= until_us}
        if until_us >= folded_until_us:
            for place, command in self.deferred:
                foreign = self.world.broken("offers_of_other_partitions")
                if command.key.time_us <= until_us and (place == number or foreign):
                    known = found.get(command.key)
                    both = found[command.key] = Folded()
                    for part in (known.first, known.data, known.cancel) if known is not None else ():
                        if part is not None:
                            both.add(part)
                    both.add(command)
        return found

    def _row(self, number: int, key: TaskKey, folded: Folded) -> ScanRow:
        data = folded.data
        if data is None:
            assert folded.cancel is not None
            data = Command(self.world.rng.choice([CANCEL, ENQUEUE]), key, folded.cancel.offset)
        attempt, _, used, next_us, work, place = self.attempts[number].get(key, NO_ATTEMPT)
        first = folded.data if self.world.broken("forgets_the_first") else folded.first
        unique = first is not None and first.unique
        if data.unique != unique:
            data = data._replace(unique=unique)
        return ScanRow(
            data, folded.cancel is not None, attempt, used, next_us, work,
            first=first.offset if first is not None else -1, place=place,
        )  # fmt: skip


def _is_leased(row: ScanRow) -> bool:
    return row.work is not None and row.work.lease is not None and not row.next_us
