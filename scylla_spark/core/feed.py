"""The two feeds, tail and scan: offers of tasks that may come twice, late or out of order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from scylla_spark.core.key import TaskKey
from scylla_spark.core.lane import IDLE, Entry, Lane
from scylla_spark.core.partition import ACTIVE, BEFORE_ALL, Mark, Partition
from scylla_spark.core.take import Taker
from scylla_spark.core.wire import CANCEL, Command

REMEMBER_US = 60_000_000  # how long ended keys are remembered at least


class ScanRow(NamedTuple):
    """One open task as read from the tables.

    Attributes:
        cancelled: a cancel stands, but no completion yet.
        attempt: last recorded attempt; 0 if none.
        used: recorded attempts that count against the retry policy.
        next_us: earliest next start; 0 if none was recorded.
    """

    command: Command
    cancelled: bool = False
    attempt: int = 0
    used: int = 0
    next_us: int = 0


class Feeder(Taker):
    """What is offered to the lanes."""

    def commands(self, number: int, commands: Iterable[Command], next_offset: int, now: int) -> None:
        """The tail: commands of one partition in offset order; `next_offset` is the position after them."""
        partition = self.partitions.get(number)
        if partition is None:
            return
        for command in commands:
            if command.kind == CANCEL:
                if command.key.time_us > partition.horizon_us:
                    partition.far_offset = command.offset
                else:
                    partition.cancelled[command.key] = command.offset
                if partition.state is ACTIVE:
                    self._cancel(partition, command, now)
                else:
                    partition.early_cancels.append(command)
            else:
                self._offer(partition, command, now)
        partition.tasks_position = max(partition.tasks_position, next_offset)
        self._activate_if_loaded(partition, now)

    def raise_horizon(self, number: int, until_us: int) -> int:
        """Lets the tail keep tasks up to `until_us`; returns the offset that a scan up to there must cover (-1: none)."""
        partition = self.partitions[number]
        if until_us > partition.horizon_us:
            partition.horizon_us = until_us
            partition.far_before = partition.far_offset  # what is dropped from now on lies past `until_us`
        return partition.far_before

    def rows(self, number: int, rows: Iterable[ScanRow], now: int, *, whole: bool = True) -> None:
        """Part of a scan: open tasks of one partition; `scanned` follows after the last part.

        Args:
            number: partition.
            rows: of each lane in key order.
            now: microseconds since the epoch.
            whole: the scan began at the earliest task, so the rows of a lane are its first ones.
        """
        partition = self.partitions.get(number)
        if partition is not None:
            cautious = partition.cautious and not partition.scanned
            for row in rows:
                if whole or row.command.key.ordering_id in partition.lanes or not partition.left(row.command.key):
                    self._offer_row(partition, row, now, cautious=cautious)

    def scanned(
        self,
        number: int,
        until_us: int,
        cuts: Mapping[str, TaskKey],
        mark: Mark,
        now: int,
        unloaded: frozenset[int] | None = None,
    ) -> None:
        """A scan of the tables is complete.

        Args:
            number: partition.
            until_us: latest scheduled time that was scanned; tasks due later wait for the next scan, which may hold earlier ones.
            cuts: ordering id → last key read, for lanes of which the tables hold more.
            mark: progress that was read before the tables were.
            now: microseconds since the epoch.
            unloaded: of a whole scan: hashes of the ordering ids of lanes that have open tasks, of which none was read.
        """
        partition = self.partitions.get(number)
        if partition is None:
            return
        partition.scanned = True
        if unloaded is not None:
            self._leave(partition, unloaded, now)
        partition.complete_us = max(partition.complete_us, until_us)
        covered, partition.mark = partition.mark, mark
        for ordering_id, frontier in cuts.items():
            lane = partition.lane(ordering_id)
            if lane.frontier is None:
                lane.cut(frontier)
                self._settle(partition, lane, now)
            else:
                lane.missed = lane.reloading
        partition.ended.forget(mark.outcomes_offset, now - REMEMBER_US)
        old = [
            key
            for key, offset in partition.cancelled.items()
            if key.time_us < now - REMEMBER_US and offset < covered.tasks_offset
        ]
        for key in old:
            del partition.cancelled[key]
            partition.told.pop(key, None)
        if partition.state is ACTIVE:
            if not any(lane.reloading for lane in partition.lanes.values()):  # its rows may be older than any mark
                partition.early_facts = {
                    key: known for key, known in partition.early_facts.items() if known[0] >= covered.outcomes_offset
                }
            unscanned, partition.unscanned = partition.unscanned, []
            for lane in unscanned:
                self._settle(partition, lane, now)
        self._activate_if_loaded(partition, now)

    def _leave(self, partition: Partition, unloaded: frozenset[int], now: int) -> None:
        partition.unloaded = unloaded
        if unloaded:
            for ordering_id, lane in list(partition.lanes.items()):
                if hash(ordering_id) not in unloaded:
                    continue
                if lane.frontier is None:
                    lane.cut(BEFORE_ALL)
                    self._settle(partition, lane, now)
                else:
                    lane.missed = lane.reloading

    def reloaded(
        self, number: int, ordering_id: str, rows: Sequence[ScanRow], now: int, *, more: bool, last: bool = True
    ) -> None:
        """The answer to `Reload`, or a part of it.

        Args:
            number: partition.
            ordering_id: of the lane.
            rows: its next tasks, in key order.
            now: microseconds since the epoch.
            more: the tables hold further tasks of the lane.
            last: no further part comes.
        """
        partition = self.partitions.get(number)
        lane = partition.lanes.get(ordering_id) if partition is not None else None
        if partition is None or lane is None or not lane.reloading:
            return
        if lane.missed:  # it may be older than rows that were dropped, and must not set the frontier past them
            if last:
                lane.reloading = lane.missed = False
                self._settle(partition, lane, now)
            return
        frontier = rows[-1].command.key if rows else lane.frontier
        lane.reloading = not last
        lane.cut(frontier if more or not last else None)
        for row in rows:
            self._offer_row(partition, row, now, cautious=False)
        self._settle(partition, lane, now)

    def _offer(self, partition: Partition, command: Command, now: int) -> None:
        key = command.key
        if key in partition.ended or key in partition.cancelled or key in partition.ending:
            self.counts["offers_ended"] += 1
            return
        lane = partition.lanes.get(key.ordering_id)
        entry = lane.find(key) if lane is not None else None
        if lane is not None and entry is not None:
            if command.offset > entry.data.offset:
                lane.overwrite(entry, command)
                if lane.state in IDLE:
                    self._settle(partition, lane, now)
        elif key.time_us > partition.horizon_us:
            partition.far_offset = command.offset
        else:
            self._insert(partition, Entry(command, verified=False), now)

    def _offer_row(self, partition: Partition, row: ScanRow, now: int, *, cautious: bool) -> None:
        key = row.command.key
        if key in partition.ended or key in partition.ending:
            return
        lane = partition.lanes.get(key.ordering_id)
        if lane is None:
            lane = partition.lanes[key.ordering_id] = Lane(partition, key.ordering_id)
        lane.cautious = lane.cautious or (cautious and key.time_us <= now)
        entry = lane.find(key)
        if entry is None:
            if lane.frontier is not None and key > lane.frontier:
                lane.missed = lane.missed or lane.reloading
                return
            entry = Entry(row.command, verified=True, attempt=row.attempt, used=row.used, next_us=row.next_us)
            self._insert(partition, entry, now)
        else:
            entry.verified = True
            if row.command.offset > entry.data.offset:
                lane.overwrite(entry, row.command)
            if row.attempt > entry.attempt:
                entry.attempt, entry.used, entry.next_us = row.attempt, row.used, max(row.next_us, key.time_us)
                if lane.state in IDLE:
                    self._settle(partition, lane, now)
        if (row.cancelled or key in partition.cancelled) and not entry.cancelled:
            self._cancel_entry(partition, lane, entry, row.command._replace(request_id=None), now)
