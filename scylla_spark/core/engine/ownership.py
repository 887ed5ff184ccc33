"""Taking and leaving partitions: read, fence, confirm, load; drain or drop."""

from __future__ import annotations

from scylla_spark.core.engine import action
from scylla_spark.core.engine.cancels import Cancels
from scylla_spark.core.engine.external_rate_limits import RateLimits
from scylla_spark.core.engine.lane import OPEN
from scylla_spark.core.engine.leases.book import LeaseBook
from scylla_spark.core.engine.partition import ACTIVE, DRAINING, DROPPED, FENCING, LOADING, READING, Partition
from scylla_spark.core.engine.queue import Gates
from scylla_spark.core.engine.runs import Runs
from scylla_spark.core.engine.state import EngineState
from scylla_spark.core.engine.unique_names import UniqueNames
from scylla_spark.core.engine.waiting import Waiting
from scylla_spark.core.records.fact import Fence, encode_fence, encode_resign
from scylla_spark.core.tables.progress import Mark, Tenure


class Ownership:
    """Ownership of partitions, fenced by epochs.

    Args:
        state: of the engine.
        gates: of the queues, whose limits are shared out by partitions.
        waiting: where the lanes of a new partition go.
        cancels: those that came before the partition was active.
        runs: what executors have.
        book: of leases.
        names: which tasks are duplicates.
        rates: rate limits that lanes wait for.
        address: where this process serves its state; stands in its fences.
    """

    def __init__(
        self,
        state: EngineState,
        gates: Gates,
        waiting: Waiting,
        cancels: Cancels,
        runs: Runs,
        book: LeaseBook,
        names: UniqueNames,
        rates: RateLimits,
        address: str = "",
    ) -> None:
        self._state = state
        self._gates = gates
        self._waiting = waiting
        self._cancels = cancels
        self._runs = runs
        self._book = book
        self._names = names
        self._rates = rates
        self._serial = 0  # of tenures
        self.address = address

    def assign(self, number: int, mark: Mark, now: int) -> Tenure:
        """The group gave us a partition; the shell begins to feed both logs from the mark, and scans it.

        Returns:
            What all feeds and answers of this time of holding it are to name.
        """
        self._discard(number)
        self._serial += 1
        tenure = Tenure(number, self._serial)
        self._state.partitions[number] = Partition(tenure, mark, now, self._state.meter)
        self._gates.share(frozenset(self._state.partitions), self._state.limits.partitions)
        return tenure

    def noted_end(self, tenure: Tenure, outcomes_end: int, now: int) -> None:
        """Where `outcomes` ended at the assignment; once read up to there, the fence is sent."""
        partition = self._state.held(tenure)
        if partition is not None:
            partition.outcomes_end = outcomes_end
            self.fence_if_read(partition, now)

    def confirmed(self, tenure: Tenure, fence: Fence, tasks_end: int, now: int) -> None:
        """Membership was confirmed after that fence stood; nothing is released before `tasks` is read up to `tasks_end`."""
        partition = self._state.held(tenure)
        if partition is not None and partition.mine == fence and partition.tasks_end is None:
            partition.tasks_end = tasks_end
            self.activate_if_loaded(partition, now)

    def revoke(self, number: int, now: int) -> None:
        """The group takes a partition away: release stops; `Left` follows when all is recorded or the time is over."""
        partition = self._state.partitions.get(number)
        if partition is None:
            self._state.ask(action.Left(Tenure(number, 0), True))
            return
        self._book.settle(partition, now)
        if partition.deciding or partition.in_flight or partition.outbox.unrecorded:
            if not partition.drain_by_us:
                partition.drain_by_us = now + self._state.limits.drain_us
            if partition.deciding:
                partition.state = DRAINING
            self.leave_if_drained(partition, now)
        else:
            self.drop(number)

    def doubt(self, now: int) -> None:
        """Something is amiss, such as a step of the clock: every partition is fenced anew before anything more starts."""
        self._book.doubt(now)
        self._rates.doubt(now)
        for partition in self._state.partitions.values():
            if partition.drain_by_us:  # was reckoned by the clock as it was
                partition.drain_by_us = now + self._state.limits.drain_us
            # a fence that was sent before tells nothing of the clock as it is now
            if partition.deciding or partition.state is FENCING:
                self._fence(partition, now)

    def fence_again(self, tenure: Tenure, fence: Fence, now: int) -> None:
        """That fence has shown nothing of the clock: if it is still the newest, one more takes its place, and it does not count."""
        partition = self._state.held(tenure)
        if partition is not None and partition.mine == fence:
            self._fence(partition, now)

    def drop(self, number: int) -> None:
        """The partition was lost: forget it at once; what runs is killed and not recorded."""
        partition = self._discard(number)
        if partition is not None:
            self._state.counts["partitions_dropped"] += 1
            self._state.ask(action.Left(partition.tenure, False))

    def _discard(self, number: int) -> Partition | None:
        partition = self._state.partitions.get(number)
        if partition is None:
            return None
        self._let_go(partition)
        self._runs.give_up(partition)
        return partition

    def _let_go(self, partition: Partition) -> None:
        del self._state.partitions[partition.number]
        partition.state = DROPPED
        self._rates.sweep()
        self._waiting.forget_left()
        self._book.give_up(partition)
        partition.holding.clear()
        self._gates.share(frozenset(self._state.partitions), self._state.limits.partitions)

    def sent(self, tenure: Tenure, fence: Fence, *, ok: bool, now: int) -> None:
        """A send under that fence was acknowledged, or its fate is unknown: then a new fence decides what stands."""
        partition = self._state.held(tenure)
        if partition is None or partition.mine != fence:
            return
        partition.outbox.sending = False
        if not ok:
            self._state.counts["ambiguous_sends"] += 1
            self._fence(partition, now)

    def fence_if_read(self, partition: Partition, now: int) -> None:
        """Fences a partition whose log of outcomes has been read up to the end noted at the assignment."""
        reading = partition.state is READING
        if reading and partition.outcomes_end is not None and partition.outcomes_position >= partition.outcomes_end:
            if partition.log.resigned:
                self._trust(partition)
            self._fence(partition, now)

    def _trust(self, partition: Partition) -> None:
        """The owner before stopped cleanly; the scan may have come before the log said so."""
        partition.cautious = False

    def _fence(self, partition: Partition, now: int) -> None:
        before = partition.mine or Fence(0, f"{self._state.rng.getrandbits(64):016x}")
        partition.state = FENCING
        partition.tasks_end = None
        # so that it holds, whether the one before lands or not
        epoch = max(partition.log.fence.epoch, before.epoch) + 1
        partition.mine = Fence(epoch, before.nonce)  # one nonce for a tenure, by which it knows all its fences
        record = encode_fence(partition.mine, self.address, now)
        self._state.ask(action.SendFence(partition.tenure, partition.mine, record))

    def fence_read(self, partition: Partition, fence: Fence, now: int) -> None:
        """A fence holds: our newest, an earlier one of ours whose send was taken for failed, or that of another owner."""
        if fence == partition.mine:
            partition.state = DRAINING if partition.drain_by_us else LOADING
            partition.tasks_end = None
            partition.outbox.again()
            self._state.ask(action.Confirm(partition.tenure, fence))
        elif partition.mine is not None and not _supersedes(partition.mine, fence):
            self._state.counts["fenced_off"] += 1
            self.drop(partition.number)

    def activate_if_loaded(self, partition: Partition, now: int) -> None:
        """Lets a partition release tasks once its scan is complete and the tail has passed the end noted after the fence."""
        if partition.state is not LOADING or not partition.scanned:
            return
        if partition.tasks_end is None or partition.tasks_position < partition.tasks_end:
            return
        partition.state, partition.taken = ACTIVE, True
        self._state.counts["partitions_taken"] += 1
        self._book.load_stubs(partition, now)
        self._names.ask_all(partition)
        for command in partition.held_cancels():
            self._cancels.cancel(partition, command, now)
        for lane in list(partition.lanes.values()):
            beyond = [entry for entry in lane.beyond.values() if entry.leased]
            for entry in [entry for entry in (*lane.entries.values(), *beyond) if entry.cancelled]:
                if entry.stage is OPEN and entry is not lane.active and entry.verified:
                    self._cancels.close(partition, entry, now)
            for entry in [entry for entry in (*lane.entries.values(), *lane.beyond.values()) if entry.leased]:
                self._book.adopt(partition, lane, entry, now)
            self._waiting.settle(partition, lane, now)

    def leave_if_drained(self, partition: Partition, now: int) -> None:
        """Leaves a revoked partition once nothing runs and everything is recorded; kills and drops it when the time is over."""
        if not partition.drain_by_us:
            return
        drained = not partition.in_flight and not partition.outbox.unrecorded
        if drained and partition.state is DRAINING:
            self._let_go(partition)
            assert partition.mine is not None
            if not partition.owes_caution:  # else the next owner must know of the unclean stop before us
                resignation = encode_resign(partition.mine)
                self._state.ask(action.Send(partition.tenure, partition.mine, [resignation]))
            self._state.ask(action.Left(partition.tenure, True))
        elif now >= partition.drain_by_us + self._state.limits.drain_us:
            self.drop(partition.number)
        elif now >= partition.drain_by_us:
            self._runs.kill(partition)


def _supersedes(mine: Fence, earlier: Fence) -> bool:
    """Returns True if that fence is an earlier one of the tenure whose newest is `mine`."""
    return earlier.nonce == mine.nonce and earlier.epoch < mine.epoch
