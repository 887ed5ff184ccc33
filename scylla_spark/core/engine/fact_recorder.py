"""Writing facts: what was decided goes to `outcomes`, in groups, and counts once it is read back."""

from __future__ import annotations

from collections.abc import Iterable

from scylla_spark.core.engine import action
from scylla_spark.core.engine.outbox import NEVER
from scylla_spark.core.engine.partition import Partition
from scylla_spark.core.engine.state import EngineState
from scylla_spark.core.records.fact import TOO_LATE, Fact, OutcomeRecord, encode_facts
from scylla_spark.core.tasks.key import TaskKey

# A request costs as much as fifty tasks, so facts wait for others: after a large group for about as long as the work that it
# causes takes anyway, and where no task of the lane waits for them a little longer.
LINGER_US = 50_000
_GATHER_US = 20  # for each fact of the group before
_GATHER_MOST_US = 4_000


class Recorder:
    """Decides when facts are sent.

    Args:
        state: of the engine.
    """

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._gather_until_us = 0

    def record(self, partition: Partition, fact: Fact, now: int, by_us: int = 0) -> None:
        """Takes a decided fact; it is sent by that time at the latest, with others if there are any."""
        partition.outbox.put(fact, now, by_us)

    def answer(self, partition: Partition, key: TaskKey, request_ids: Iterable[str | None], now: int) -> None:
        """Tells the senders of cancels that something else has ended the task, or will."""
        for request_id in request_ids:
            if request_id is not None:
                self.record(partition, Fact(key, 0, TOO_LATE, finished_us=now, request_id=request_id), now)

    def flush(self, now: int) -> None:
        """Sends what was decided, one group per partition at a time."""
        pending = [partition for partition in self._state.partitions.values() if self.sends_from(partition) < NEVER]
        if any(self.sends_from(partition) <= now for partition in pending):
            decided = sum(len(partition.outbox.waiting) for partition in pending)
            self._gather_until_us = now + min(decided * _GATHER_US, _GATHER_MOST_US)
            for partition in pending:  # one request carries the groups of all
                self._send(partition)

    def sends_from(self, partition: Partition) -> int:
        """Returns when the partition's next group of facts is sent, if nothing else happens before; NEVER: there is none."""
        outbox = partition.outbox
        if not outbox.waiting or outbox.sending or not partition.deciding:
            return NEVER
        return 0 if partition.drain_by_us else max(outbox.send_by_us, self._gather_until_us)

    def next_us(self) -> int:
        """Returns when the next group of any partition is sent."""
        return min(map(self.sends_from, self._state.partitions.values()), default=NEVER)

    def _send(self, partition: Partition) -> None:
        fence = partition.mine
        assert fence is not None
        group = partition.outbox.take()
        records = encode_facts(fence, group)
        content = OutcomeRecord(fence, "facts", group) if len(records) == 1 else None
        self._state.ask(action.Send(partition.tenure, fence, records, content))
