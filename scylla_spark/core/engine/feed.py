"""The two feeds, tail and scan: offers of tasks that may come twice, late or out of order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from scylla_spark import failpoint
from scylla_spark.core.engine.cancels import Cancels
from scylla_spark.core.engine.lane import BEFORE_ALL, IDLE, Entry, Lane
from scylla_spark.core.engine.leases.book import LeaseBook
from scylla_spark.core.engine.own_defects import Defects
from scylla_spark.core.engine.ownership import Ownership
from scylla_spark.core.engine.partition import ACTIVE, Partition
from scylla_spark.core.engine.state import EngineState
from scylla_spark.core.engine.unique_names import UniqueNames
from scylla_spark.core.engine.unloading import Unloading
from scylla_spark.core.engine.waiting import Waiting
from scylla_spark.core.records.command import CANCEL, Command
from scylla_spark.core.tables.progress import Basis, Mark, Tenure
from scylla_spark.core.tasks.key import HOUR_US, TaskKey, name_of, place_of
from scylla_spark.core.tasks.stored_records import ScanRow
from scylla_spark.name_fingerprint import fingerprint

REMEMBER_US = 60_000_000  # how long ended keys are remembered at least


class Feed:
    """What is offered to the lanes.

    Args:
        state: of the engine.
        waiting: loads tasks, and settles their lanes.
        cancels: what becomes of cancels.
        ownership: a partition is taken once both feeds have come far enough.
        unloading: where memory is short.
        defects: of ours, that a record meets.
        book: of leases, which a task that is loaded may be under.
        names: which tasks are duplicates.
    """

    def __init__(
        self,
        state: EngineState,
        *,
        waiting: Waiting,
        cancels: Cancels,
        ownership: Ownership,
        unloading: Unloading,
        defects: Defects,
        book: LeaseBook,
        names: UniqueNames,
    ) -> None:
        self._state = state
        self._waiting = waiting
        self._cancels = cancels
        self._ownership = ownership
        self._unloading = unloading
        self._defects = defects
        self._book = book
        self._names = names

    def commands(self, tenure: Tenure, commands: Iterable[Command], next_offset: int, now: int) -> None:
        """The tail: commands of one partition in offset order; `next_offset` is the position after them."""
        partition = self._state.held(tenure)
        if partition is None:
            return
        for command in commands:
            try:
                if failpoint.armed:
                    failpoint.reach("engine.offer", command.key.uniqueness_key)
                if command.kind == CANCEL:
                    self._cancel_offered(partition, command, now)
                else:
                    self._offer(partition, command, now)
            except Exception as error:
                self._defects.set_aside(partition, command.key, error, now)
        partition.tasks_position = max(partition.tasks_position, next_offset)
        self._unloading.relieve(now)
        self._ownership.activate_if_loaded(partition, now)

    def _cancel_offered(self, partition: Partition, command: Command, now: int) -> None:
        if command.key.time_us > partition.horizon_us:
            partition.far_offset = command.offset
        elif command.key not in partition.ended:
            partition.remember_cancel(command.key, command.offset)
        if partition.state is ACTIVE:
            self._cancels.cancel(partition, command, now)
        else:
            partition.hold_cancel(command)

    def raise_horizon(self, tenure: Tenure, until_us: int) -> int:
        """Lets the tail keep tasks up to `until_us`; returns the offset that a scan up to there must cover (-1: none)."""
        partition = self._state.partitions[tenure.partition]
        if until_us > partition.horizon_us:
            partition.horizon_us = until_us
            partition.far_before = partition.far_offset  # what is dropped from now on lies past `until_us`
        return partition.far_before

    def rows(self, tenure: Tenure, rows: Iterable[ScanRow], basis: Basis, now: int, *, whole: bool = True) -> None:
        """Part of a scan: open tasks of one partition; `scanned` follows after the last part.

        Args:
            tenure: in which the scan was asked for.
            rows: of each lane in key order.
            basis: how far the tables were, from a progress that was read before them.
            now: microseconds since the epoch.
            whole: the scan began at the earliest task, so the rows of a lane are its first ones.
        """
        partition = self._state.held(tenure)
        if partition is None or not basis.covers(partition.floor):
            return
        partition.receiving = partition.receiving or whole
        for row in rows:
            key = row.command.key
            if key.ordering_id not in partition.lanes and partition.unloaded:
                covers = partition.unloaded.get(fingerprint(key.ordering_id), -2)
                if covers >= (basis.tasks_offset if whole else -1):
                    continue  # the tables hold, or will hold, earlier ones of the lane
                if covers >= -1:
                    partition.lanes[key.ordering_id] = Lane(key.ordering_id, partition.holding)
            self._offer_row(partition, row, now, whole=whole)

    def scanned(
        self,
        tenure: Tenure,
        until_us: int,
        cuts: Mapping[str, TaskKey],
        mark: Mark,
        now: int,
        unloaded: frozenset[int] | None = None,
    ) -> bool:
        """A scan of the tables is complete.

        Args:
            tenure: in which the scan was asked for.
            until_us: latest scheduled time that was scanned; tasks due later wait for the next scan, which may hold earlier ones.
            cuts: ordering id → last key read, for lanes of which the tables hold more.
            mark: progress that was read before the tables were.
            now: microseconds since the epoch.
            unloaded: of a whole scan: fingerprints of the ordering ids of lanes that have open tasks, of which none was read.

        Returns:
            Whether it counts; else its rows were older than what has been forgotten, and it is to be repeated.
        """
        partition = self._state.held(tenure)
        if partition is None or not mark.basis.covers(partition.floor):
            return False
        partition.scanned, partition.receiving = True, False
        if unloaded is not None:
            self._leave(partition, unloaded, mark, now)
        known_us, partition.complete_us = partition.complete_us, max(partition.complete_us, until_us)
        covered, partition.mark = partition.mark, mark
        # in closed hours all has ended, and no scan says what: a record of such a key is looked up
        partition.ended.since_us = max(partition.ended.since_us, mark.closed_hour * HOUR_US)
        partition.names.forget(mark.tasks_offset)
        for ordering_id, frontier in cuts.items():
            self._cut(partition, ordering_id, frontier, known_us, now)
        self._forget(partition, covered, mark, now)
        if partition.state is ACTIVE:
            unscanned, partition.unscanned = partition.unscanned, []
            for lane in unscanned:
                if partition.lanes.get(lane.ordering_id) is lane:
                    self._waiting.settle(partition, lane, now)
        self._unloading.relieve(now)
        self._ownership.activate_if_loaded(partition, now)
        return True

    def _cut(self, partition: Partition, ordering_id: str, frontier: TaskKey, known_us: int, now: int) -> None:
        if ordering_id not in partition.lanes and partition.is_left(ordering_id):
            return  # nothing of it was loaded, and it will be read as a whole
        lane = partition.lane(ordering_id)
        lane.missed = lane.reloading and lane.frontier is not None
        # of times past the scans before only the tail's tasks were loaded, whatever the frontier said
        if lane.frontier is None or (frontier < lane.frontier and lane.frontier.time_us > known_us):
            lane.cut(frontier)
            self._waiting.settle(partition, lane, now)

    def _leave(self, partition: Partition, unloaded: frozenset[int], mark: Mark, now: int) -> None:
        """These lanes were left in the tables by a whole scan; of those left before, some were loaded by it."""
        later = {number: offset for number, offset in partition.unloaded.items() if offset >= mark.tasks_offset}
        old = [offset for offset in partition.unloaded.values() if offset < mark.tasks_offset]
        partition.names.forgotten = max(partition.names.forgotten, *old, -1)
        partition.unloaded = dict.fromkeys(unloaded, -1) | later
        if not partition.unloaded:
            return
        for ordering_id, lane in list(partition.lanes.items()):
            covers = partition.unloaded.get(fingerprint(ordering_id))
            if covers is None:
                continue
            lane.let_pass(covers)
            # of times past the scans before only the tail's tasks were loaded, whatever the frontier said
            if lane.frontier is None or lane.frontier.time_us > partition.complete_us:
                lane.cut(BEFORE_ALL)
                self._waiting.settle(partition, lane, now)
            else:
                lane.missed = lane.reloading

    def _forget(self, partition: Partition, covered: Mark, mark: Mark, now: int) -> None:
        """Lets go of what the tables hold by now; answers of older tables are void from here on."""
        outcomes_floor = partition.ended.forget(mark.outcomes_offset, now - REMEMBER_US)
        old = [
            key
            for key, offset in partition.cancelled.items()
            if key.time_us < now - REMEMBER_US and offset < covered.tasks_offset
        ]
        if old:  # a later record of such a key is looked up
            partition.ended.since_us = max(partition.ended.since_us, max(key.time_us for key in old) + 1)
            partition.forget_cancels(old)
        if partition.state is ACTIVE:
            for key in [k for k, tried in partition.attempts.items() if tried.known.place < covered.outcomes_offset]:
                outcomes_floor = max(outcomes_floor, covered.outcomes_offset)
                partition.forget_attempt(key)
        partition.floor = partition.floor.or_later(Basis(covered.tasks_offset if old else 0, outcomes_floor))

    def reloaded(
        self,
        tenure: Tenure,
        ordering_id: str,
        rows: Sequence[ScanRow],
        basis: Basis,
        now: int,
        *,
        more: bool,
        last: bool = True,
    ) -> None:
        """The answer to `Reload`, or a part of it.

        Args:
            tenure: in which it was asked for.
            ordering_id: of the lane.
            rows: its next tasks, in key order.
            basis: how far the tables were, from a progress that was read before them.
            now: microseconds since the epoch.
            more: the tables hold further tasks of the lane.
            last: no further part comes.
        """
        partition = self._state.held(tenure)
        lane = partition.lanes.get(ordering_id) if partition is not None else None
        if partition is None or lane is None or not lane.reloading:
            return
        # it must be no older than rows that were let go of, or than what was forgotten since
        if lane.missed or not basis.covers(partition.floor):
            lane.missed = not last
            lane.reloading = not last
            if last:
                self._waiting.settle(partition, lane, now)
            return
        frontier = rows[-1].command.key if rows else lane.frontier
        lane.reloading = not last
        if last:
            partition.names.forgotten = max(partition.names.forgotten, lane.covers)
            lane.covers = -1
        lane.cut(frontier if more or not last else None)
        for row in rows:
            self._offer_row(partition, row, now, whole=False)
        self._waiting.settle(partition, lane, now)

    def _offer(self, partition: Partition, command: Command, now: int) -> None:
        key = command.key
        if key in partition.ended or key in partition.cancelled or key in partition.ending:
            self._state.counts["offers_ended"] += 1
            return
        lane = partition.lanes.get(key.ordering_id)
        entry = lane.find(key) if lane is not None else None
        if lane is not None and entry is not None:
            if command.offset > entry.data.offset:
                self._book.overwrite(lane, entry, command)
                if lane.state in IDLE:
                    self._waiting.settle(partition, lane, now)
            self._names.consider(partition, entry)  # tables may have told of it before the tail
        elif key.time_us > partition.horizon_us and (not command.unique or key in partition.lookups):
            # of what is far only names are kept that are to be decided; a key whose cancel waits for the tables ends anyway
            partition.let_far_pass(key, command.offset)
        elif lane is None and not self._ours(partition, key):
            self._state.counts["offers_misplaced"] += 1
        elif (
            self._unloading.pressed
            and not command.unique
            and self._unloading.leave_to_tables(partition, lane, command, now)
        ):
            self._state.counts["offers_left"] += 1
        else:
            if partition.cautious and partition.begins(key):
                partition.lane(key.ordering_id).untouched = True
            entry = Entry(command, verified=False)
            self._waiting.insert(partition, entry, now)
            self._book.adopt(partition, partition.lane(key.ordering_id), entry, now)
            self._names.consider(partition, entry)

    def _ours(self, partition: Partition, key: TaskKey) -> bool:
        """Whether the key's lane belongs to the partition: readers must offer nothing else, and a lane in two places runs twice."""
        return place_of(key.ordering_id, self._state.limits.partitions) == partition.number

    def _is_for_the_tail(self, partition: Partition, row: ScanRow, *, whole: bool) -> bool:
        """Returns True if a task that has not begun is left to the tail, which has not come to it yet, while the tables are ahead of it.

        Between where the tail is and this task an earlier one of its lane may stand in the log, which only a read that begins at the
        earliest task shows. And before the tail is there nobody can say that a name is a task's own: where memory is short, many
        such tasks would leave no room for the tail to come there.
        """
        if whole and not (self._unloading.crowded and row.command.unique):
            return False
        if row.attempt or row.work is not None:
            return False
        lane = partition.lanes.get(row.command.key.ordering_id)
        is_known = lane is not None and lane.find(row.command.key) is not None
        return not is_known and _first_of(row) >= partition.tasks_position

    def _offer_row(self, partition: Partition, row: ScanRow, now: int, *, whole: bool) -> None:
        try:
            if failpoint.armed:
                failpoint.reach("engine.row", row.command.key.uniqueness_key)
            self._row(partition, row, now, whole=whole)
        except Exception as error:
            self._defects.set_aside(partition, row.command.key, error, now)

    def _row(self, partition: Partition, row: ScanRow, now: int, *, whole: bool) -> None:
        key = row.command.key
        if key in partition.ended or key in partition.ending:
            return
        if key.ordering_id not in partition.lanes and not self._ours(partition, key):
            self._state.counts["offers_misplaced"] += 1
            return
        if self._is_for_the_tail(partition, row, whole=whole):
            self._state.counts["offers_early"] += 1
            return
        lane = partition.lane(key.ordering_id)
        entry = lane.find(key)
        if entry is None:
            if lane.frontier is not None and key > lane.frontier:
                lane.missed = lane.missed or lane.reloading
                return
            entry = Entry(row.command, verified=True, known=row.known)
            _note_first(entry, row)
            # of what the tail has read it is known, unless it is just being asked
            known = partition.names.settled and name_of(key) not in partition.names.pending
            entry.sole = known and entry.first < partition.tasks_position
            self._waiting.insert(partition, entry, now)
        else:
            entry.verified = True
            was_undecided = entry.undecided
            _note_first(entry, row)
            newer = row.command.offset > entry.data.offset
            if newer:
                self._book.overwrite(lane, entry, row.command)
            known = lane.note_attempt(entry, row.known)
            if (known or newer or was_undecided or entry.undecided) and lane.state in IDLE:
                self._waiting.settle(partition, lane, now)
            self._names.consider(partition, entry)  # an update may have come before what it updates was read
        self._book.adopt(partition, lane, entry, now)
        if (row.cancelled or key in partition.cancelled) and not entry.cancelled:
            self._cancels.cancel_entry(partition, lane, entry, row.command._replace(request_id=None), now)


def _note_first(entry: Entry, row: ScanRow) -> None:
    """Takes what the tables tell of the first enqueue."""
    entry.note_first(_first_of(row), unique=row.command.unique)


def _first_of(row: ScanRow) -> int:
    return row.first if row.first >= 0 else row.command.offset
