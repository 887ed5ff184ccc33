"""Reads the planner's log: the last partition of `outcomes`, from where its last snapshot begins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from kafka import KafkaConsumer, TopicPartition

from scylla_spark.clock import boot_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.plan.state import plan_log
from scylla_spark.core.plan.state.plan_log import Group
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.records.fact import FenceLog, OutcomeRecord, Unreadable, decode
from scylla_spark.errors import ConfigError, UnreachableError

_WINDOW: Final = 200
_POLL_MS: Final = 200
_PATIENCE_US: Final = 30_000_000


class Read(NamedTuple):
    """One record of the log that holds or counts.

    Attributes:
        offset: of it.
        append_ms: the broker's time of it.
        group: what it says; None: a fence.
        record: the fence; None: a group.
    """

    offset: int
    append_ms: int
    group: Group | None
    record: OutcomeRecord | None


class PlanLogReader:
    """Follows the planner's log, and folds it.

    Args:
        settings: with the broker's address.
        consumer: to read with; it may be assigned other partitions later.

    Attributes:
        state: fold of what was read.
        fences: which fence is in force.
        position: next offset.
        size: bytes of the records that were read since the last snapshot began.
    """

    def __init__(self, settings: Settings, consumer: KafkaConsumer) -> None:
        self.place = TopicPartition(settings.topics.outcomes, settings.partitions)
        self._consumer = consumer
        self.state = PlanState()
        self.fences = FenceLog()
        self.position = 0
        self.size = 0

    def begin(self) -> None:
        """Reads what stands in the log by now, from the last snapshot on.

        Raises:
            ConfigError: the log begins after its last snapshot: too much of it was deleted.
            UnreachableError: the broker does not answer.
        """
        first, end = self.range()
        start = self._snapshot(first, end)
        if start < first:
            raise ConfigError(
                f"The planner's log ({self.place.topic!r}, partition {self.place.partition}) begins at offset {first}, but what it "
                f"needs begins at {start}: schedules were lost.",
                hint="Kafka's retention must exceed the longest stop of the planner. Put the schedules again.",
            )
        self.position = start
        self.until(end)

    def tail(self) -> None:
        """Begins to follow the log at its end, without its state."""
        first, end = self.range()
        for record in self._records(max(first, end - _WINDOW), end):  # the fence in force is the highest of late
            value = record.value
            found = plan_log.decode(value) if plan_log.is_plan(value) else decode(value)
            if not isinstance(found, Unreadable) and found.fence.epoch > self.fences.fence.epoch:
                self.fences = FenceLog(found.fence)
        self.position = end
        self.size = 1
        self._consumer.assign([self.place])
        self._consumer.seek(self.place, end)

    def range(self) -> tuple[int, int]:
        """First offset that is kept, and end."""
        first = self._consumer.beginning_offsets([self.place])[self.place]
        end = self._consumer.end_offsets([self.place])[self.place]
        return first, end

    def until(self, end: int) -> list[Read]:
        """Reads up to an offset; what holds or counts, in order.

        Raises:
            UnreachableError: the broker does not answer.
        """
        found = [read for record in self._records(self.position, end) if (read := self.admit(record)) is not None]
        for read in found:
            if read.group is not None:
                self.state.fold(read.group)
        return found

    def admit(self, record: Any) -> Read | None:
        """Judges the next record of the log, and folds nothing; None: it does not count, or cannot be read."""
        value = record.value
        self.position = record.offset + 1
        if not plan_log.is_plan(value):
            fence = decode(value)
            if isinstance(fence, Unreadable) or not self.fences.admit(fence):
                return None
            return Read(record.offset, record.timestamp, None, fence)
        group = plan_log.decode(value)
        if isinstance(group, Unreadable):
            return None
        if group.begins and self.size == 0:
            self.fences = FenceLog(group.fence)  # it is where reading begins, so it counted
        if group.fence != self.fences.fence:
            return None
        self.size = len(value) if group.begins else self.size + len(value)
        return Read(record.offset, record.timestamp, group, None)

    def _snapshot(self, first: int, end: int) -> int:
        """Returns where the last complete snapshot begins; looked for from the end backwards."""
        window = _WINDOW
        while True:
            start = max(first, end - window)
            found = [
                group.snapshot
                for record in self._records(start, end)
                if plan_log.is_plan(record.value) and not isinstance(group := plan_log.decode(record.value), Unreadable)
            ]
            if found:
                return max([*found, 0])
            if start <= first:
                return first
            window *= 8

    def _records(self, start: int, end: int) -> Iterator[Any]:
        if start >= end:
            return
        self._consumer.assign([self.place])
        self._consumer.seek(self.place, start)
        heard_us = boot_us()
        while self._consumer.position(self.place) < end:
            for record in self._consumer.poll(timeout_ms=_POLL_MS).get(self.place, ()):
                heard_us = boot_us()
                if record.offset < end:
                    yield record
            if boot_us() - heard_us > _PATIENCE_US:
                raise UnreachableError(
                    f"The planner's log could not be read to its end at offset {end} in time.",
                    hint="Check that the broker runs; `scylla-spark doctor kafka` looks closer.",
                )
