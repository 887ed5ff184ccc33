"""Taking and leaving partitions: read, fence, confirm, load; drain or drop."""

from __future__ import annotations

from scylla_spark.core import action
from scylla_spark.core.cancel import Canceller
from scylla_spark.core.fact import NO_FENCE, Fence, encode_fence, encode_resign
from scylla_spark.core.lane import OPEN
from scylla_spark.core.lanes import NEVER
from scylla_spark.core.partition import ACTIVE, DRAINING, DROPPED, FENCING, LOADING, READING, Mark, Partition
from scylla_spark.core.tenure import Tenure


class Taker(Canceller):
    """Ownership of partitions, fenced by epochs."""

    def assign(self, number: int, mark: Mark, now: int) -> Tenure:
        """The group gave us a partition; the shell begins to feed both logs from the mark, and scans it.

        Returns:
            What all feeds and answers of this time of holding it are to name.
        """
        self._discard(number)
        self._serial += 1
        tenure = Tenure(number, self._serial)
        self.partitions[number] = Partition(tenure, mark, now, self.meter)
        self._share_queues()
        return tenure

    def noted_end(self, tenure: Tenure, outcomes_end: int, now: int) -> None:
        """Where `outcomes` ended at the assignment; once read up to there, the fence is sent."""
        partition = self.held(tenure)
        if partition is not None:
            partition.outcomes_end = outcomes_end
            self._fence_if_read(partition, now)

    def confirmed(self, tenure: Tenure, fence: Fence, tasks_end: int, now: int) -> None:
        """Membership was confirmed after that fence stood; nothing is released before `tasks` is read up to `tasks_end`."""
        partition = self.held(tenure)
        if partition is not None and partition.mine == fence and partition.tasks_end is None:
            partition.tasks_end = tasks_end
            self._activate_if_loaded(partition, now)

    def revoke(self, number: int, now: int) -> None:
        """The group takes a partition away: release stops; `Left` follows when all is recorded or the time is over."""
        partition = self.partitions.get(number)
        if partition is None:
            self.actions.append(action.Left(Tenure(number, 0), True))
        elif partition.deciding or partition.in_flight or partition.unrecorded:
            if not partition.drain_by_us:
                partition.drain_by_us = now + self.limits.drain_us
            if partition.deciding:
                partition.state = DRAINING
            self._leave_if_drained(partition, now)
        else:
            self.drop(number)

    def doubt(self, now: int) -> None:
        """Something is amiss, such as a step of the clock: every partition is fenced anew before anything more starts."""
        for partition in self.partitions.values():
            if partition.drain_by_us:  # was reckoned by the clock as it was
                partition.drain_by_us = now + self.limits.drain_us
            # a fence that was sent before tells nothing of the clock as it is now
            if partition.deciding or partition.state is FENCING:
                self._fence(partition, now)

    def drop(self, number: int) -> None:
        """The partition was lost: forget it at once; what runs is killed and not recorded."""
        partition = self._discard(number)
        if partition is not None:
            self.counts["partitions_dropped"] += 1
            self.actions.append(action.Left(partition.tenure, False))

    def _discard(self, number: int) -> Partition | None:
        partition = self.partitions.get(number)
        if partition is None:
            return None
        self._let_go(partition)
        self._kill(partition)
        for key in [key for key, run in self.runs.items() if run.partition is partition]:
            self._end_run(self.runs.pop(key), 0)
        return partition

    def _let_go(self, partition: Partition) -> None:
        del self.partitions[partition.number]
        partition.state = DROPPED
        partition.hold_nothing()
        self._share_queues()

    def _fence_if_read(self, partition: Partition, now: int) -> None:
        reading = partition.state is READING
        if reading and partition.outcomes_end is not None and partition.outcomes_position >= partition.outcomes_end:
            if partition.log.resigned:
                self._trust(partition)
            self._fence(partition, now)

    def _trust(self, partition: Partition) -> None:
        """The owner before stopped cleanly; the scan may have come before the log said so."""
        partition.cautious = False
        partition.uncertain.clear()
        for lane in partition.lanes.values():
            lane.cautious = False

    def _fence(self, partition: Partition, now: int) -> None:
        before = partition.mine or NO_FENCE
        partition.tried.add(before)
        partition.state = FENCING
        partition.tasks_end = None
        # so that it holds, whether the one before lands or not
        epoch = max(partition.log.fence.epoch, before.epoch) + 1
        partition.mine = Fence(epoch, f"{self._rng.getrandbits(64):016x}")
        record = encode_fence(partition.mine, self.address, now)
        self.actions.append(action.SendFence(partition.tenure, partition.mine, record))

    def _fence_read(self, partition: Partition, fence: Fence, now: int) -> None:
        """A fence holds: our newest, an earlier one of ours whose send was taken for failed, or that of another owner."""
        if fence == partition.mine:
            partition.tried.clear()
            partition.state = DRAINING if partition.drain_by_us else LOADING
            partition.tasks_end = None
            partition.sending = False
            partition.outbox.clear()
            partition.outbox.extend(fact for fact, _ in partition.unrecorded.values())
            partition.send_by_us = 0 if partition.outbox else NEVER
            self.actions.append(action.Confirm(partition.tenure, fence))
        elif partition.mine is not None and fence not in partition.tried:
            self.counts["fenced_off"] += 1
            self.drop(partition.number)

    def _activate_if_loaded(self, partition: Partition, now: int) -> None:
        if partition.state is not LOADING or not partition.scanned:
            return
        if partition.tasks_end is None or partition.tasks_position < partition.tasks_end:
            return
        partition.state = ACTIVE
        self.counts["partitions_taken"] += 1
        for command in partition.held_cancels():
            self._cancel(partition, command, now)
        for lane in list(partition.lanes.values()):
            for entry in [entry for entry in lane.entries.values() if entry.cancelled]:
                if entry.stage is OPEN and entry is not lane.active and entry.verified:
                    self._close_cancelled(partition, entry, now)
            self._settle(partition, lane, now)

    def _leave_if_drained(self, partition: Partition, now: int) -> None:
        if not partition.drain_by_us:
            return
        drained = not partition.in_flight and not partition.unrecorded
        if drained and partition.state is DRAINING:
            self._let_go(partition)
            assert partition.mine is not None
            if not partition.owes_caution:  # else the next owner must know of the unclean stop before us
                resignation = encode_resign(partition.mine)
                self.actions.append(action.Send(partition.tenure, partition.mine, [resignation]))
            self.actions.append(action.Left(partition.tenure, True))
        elif now >= partition.drain_by_us + self.limits.drain_us:
            self.drop(partition.number)
        elif now >= partition.drain_by_us:
            self._kill(partition)

    def _kill(self, partition: Partition) -> None:
        for executor in {run.executor for run in self.runs.values() if run.partition is partition}:
            ids = [key for key, run in self.runs.items() if run.partition is partition and run.executor == executor]
            self.actions.append(action.Kill(executor, ids))
