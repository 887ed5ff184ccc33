"""One time that this process plans: from the log and a fence of our own, by turns of reading, deciding and writing, until it is lost."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from uuid import uuid4

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from scylla_spark import failpoint
from scylla_spark.clock import boot_us, to_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.plan.planner import Planner
from scylla_spark.core.plan.state import plan_log
from scylla_spark.core.plan.state.plan_log import Group, Position
from scylla_spark.core.plan.state.stored_token import TOKEN
from scylla_spark.core.plan.suspect_inputs import Doubts
from scylla_spark.core.records.command import ENQUEUE, MISSING, STAMP_TRUST_US
from scylla_spark.core.records.fact import Fence, FenceLog, Unreadable, decode, encode_fence, is_facts
from scylla_spark.core.records.rejection_reason import DEFECT
from scylla_spark.core.tasks.key import TaskKey, partition_of
from scylla_spark.duration import duration_us
from scylla_spark.errors import ConfigError, ConflictError, UnreachableError
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.delta.watched.commit_follower import watchable_places
from scylla_spark.io.kafka.plan_log_reader import PlanLogReader
from scylla_spark.io.kafka.records_reader import LogReader
from scylla_spark.io.kafka.sole_table_writer import SoleHolder
from scylla_spark.io.kafka.topics import consumer, producer
from scylla_spark.log import get_logger
from scylla_spark.services.plan.handler_watcher import HandlerWatcher
from scylla_spark.services.plan.load_watcher import LoadWatcher
from scylla_spark.services.plan.metrics import PlanMetrics
from scylla_spark.services.plan.notification_channels import channels_of
from scylla_spark.services.plan.planner_clock import PlannerClock
from scylla_spark.services.plan.table_watcher import TableWatcher
from scylla_spark.services.plan.topic_watcher import TopicWatcher, watchable_topics

log = get_logger("plan")

_LONGEST_POLL_MS: Final = 100
_MOST_UNDER_WAY: Final = 64  # groups that were sent and not read back
_PATIENCE_US: Final = 20_000_000
_STAMP_BELIEVED_US: Final = STAMP_TRUST_US * 5 // 6  # well before readers stop to believe when it was decided
_SNAPSHOT_BYTES: Final = 64 * 1024 * 1024
_SNAPSHOT_EVERY_US: Final = 6 * 3_600_000_000


class PlanTenure:
    """Plans, as long as the right to do so is held.

    Args:
        settings: with the broker's address.
        holder: of the right.
        metrics: takes what is counted.
        doubts: what tenures before this one have met, and this one sets aside.
    """

    def __init__(self, settings: Settings, holder: SoleHolder, metrics: PlanMetrics, doubts: Doubts) -> None:
        self._settings = settings
        self._holder = holder
        self._metrics = metrics
        self._doubts = doubts
        self._consumer: KafkaConsumer = consumer(settings, fetch_max_wait_ms=500)
        self._producer: KafkaProducer = producer(settings)
        self._log = PlanLogReader(settings, self._consumer)
        self._commands = TopicPartition(settings.topics.schedules, 0)
        self._fences: dict[int, FenceLog] = {}
        self._unread: dict[TopicPartition, int] = {}  # what came while nobody planned → its end
        self._under_way: deque[tuple[Group, int, int]] = deque()  # group, our clock at its send, boot clock at its send
        self._acks: deque[tuple[int, list[Any]]] = deque()
        self._snapshot: list[str] | None = None
        self._snapshot_begins = -1
        self._snapshot_us = boot_us()
        self._tables = TableWatcher(settings)
        self._topics = TopicWatcher(settings)
        self._handlers = HandlerWatcher(settings)
        self._load = LoadWatcher(settings)
        self._clock = PlannerClock()
        self._now = 0
        self._failure: BaseException | None = None
        self.active = False

    def close(self) -> None:
        """Ends the connections."""
        self._tables.stop()
        self._topics.stop()
        self._handlers.stop()
        self._load.stop()
        self._producer.close(timeout=10)
        self._consumer.close(autocommit=False)

    def run(self, stop: threading.Event) -> None:
        """Plans until it is stopped.

        Raises:
            ConflictError: another planner has taken over.
            UnreachableError: a send failed, or the log is silent; begin again.
            ClockWasSet: nothing shows whether the clock is right; begin again.
            ClockIsWrong: the broker's append times differ from it; begin again later.
        """
        self._begin()
        self.active = True
        self._metrics.is_active(True, len(self.planner.state.entries))
        self._metrics.tokens(self.planner.state.tokens)
        log.info("planning", schedules=len(self.planner.state.entries), fence=self.planner.fence.epoch)
        while not stop.is_set():
            self.turn()

    # -- the beginning ----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._log.begin()
        fence = Fence(self._log.fences.fence.epoch + 1, uuid4().hex[:16])
        failpoint.reach("plan.take.fencing")
        self._take(fence)
        self._holder.check()  # after the fence: who held the right before it cannot write any more
        self._now = self._clock.now()
        queues = self._settings.queues
        ahead_us = duration_us(self._settings.plan.ahead)
        channels = channels_of(self._settings)
        places, topics = watchable_places(self._settings), watchable_topics(self._settings)
        self.planner = Planner(
            self._log.state,
            fence,
            ahead_us,
            self._now,
            queues,
            channels,
            doubts=self._doubts,
            places=places,
            topics=topics,
        )
        self._write_pauses()
        self._tail()
        self._tables.start()
        self._topics.start()
        for number, texts in sorted(self.planner.state.unsent.items()):
            self._launch(number, [text for text in texts if not self._is_too_late(text)])

    def _take(self, fence: Fence) -> None:
        """Fences off who planned before, and holds the clock against the fence's append time before anything is decided by it."""
        sent_us = self._clock.now()
        self._send(self._log.place, encode_fence(fence, "", sent_us)).get(timeout=15)
        received_us = self._clock.now()
        while self._log.fences.fence != fence:
            for read in self._log.until(self._log.range()[1]):
                if read.record is not None and read.record.fence == fence:
                    self._clock.check(read.append_ms, sent_us, received_us, proves=True)
            if self._log.fences.fence.epoch > fence.epoch:
                raise ConflictError("Another planner has fenced us out.", hint="It is tried again.")

    def _write_pauses(self) -> None:
        """What earlier tenures were in doubt about is set aside before anything else is done: another doubt must not take that back."""
        if self._doubts.schedules:
            self._write()
            self._producer.flush(timeout=15)
            self._producer_failed()
            self._doubts.are_paused()

    def _is_too_late(self, text: str) -> bool:
        """Whether a command that may not have been sent would be refused by now; its run is launched anew, if there is no such task."""
        record = json.loads(text)
        stamp_us = to_us(datetime.fromisoformat(record["enqueuedAt"]))
        if record["type"] != ENQUEUE or self._now - stamp_us < _STAMP_BELIEVED_US:
            return False
        at_us = to_us(datetime.fromisoformat(record["scheduledTime"]))
        key = TaskKey(at_us, record["orderingId"], record["uniquenessKey"])
        if not self._exists(key):
            log.warning("a launch was never sent and is too old: it is launched anew", key=str(key))
            self.planner.anew(key, record["taskData"], self._now, record.get(MISSING, ()))
        return True

    def _exists(self, key: TaskKey) -> bool:
        """Returns True if the log, or the tables, have the task; the log is read first, so that nothing moves out of sight."""
        tables = TableReader.of(self._settings)
        logs = LogReader(self._settings, tables.rules(), tables.marks)
        try:
            found = logs.commands(partition_of(key.ordering_id, self._settings.partitions), key)
            return any(command.kind == ENQUEUE for command in found) or tables.task(key) is not None
        finally:
            logs.close()

    def _tail(self) -> None:
        """Reads all feeds from where the log says."""
        state, topic = self.planner.state, self._settings.topics.outcomes
        marks = TableReader.of(self._settings).marks()
        places = {self._commands: state.commands, self._log.place: self._log.position}
        for number in range(self._settings.partitions):
            if number not in state.outcomes and ("outcomes", number) in marks:
                mark = marks["outcomes", number]
                state.outcomes[number] = (mark.outcomes_offset, *mark.fence)
            offset, epoch, nonce = state.outcomes.get(number, (0, 0, ""))
            self._fences[number] = FenceLog(Fence(epoch, nonce))
            places[TopicPartition(topic, number)] = offset
        self._check_kept(places)
        self._check_commands(state.commands)
        self._consumer.assign(list(places))
        for place, offset in places.items():
            self._consumer.seek(place, offset)
        self._unread = self._consumer.end_offsets([place for place in places if place != self._log.place])

    def _is_up_to_date(self) -> bool:
        """Whether all was read that came while nobody planned: pauses of then are obeyed, and ends are known, before anything fires."""
        for place in [place for place, end in self._unread.items() if self._consumer.position(place) >= end]:
            del self._unread[place]
        return not self._unread

    def _check_kept(self, places: Mapping[TopicPartition, int]) -> None:
        """Whether the log of outcomes still holds what was not read yet.

        Raises:
            ConfigError: it does not.
        """
        firsts = self._consumer.beginning_offsets([place for place in places if place != self._commands])
        for place, first in firsts.items():
            if places[place] < first:
                raise ConfigError(
                    f"Partition {place.partition} of {place.topic!r} begins at offset {first}; the planner has read up to {places[place]}.",
                    hint="Kafka's retention must exceed the longest stop of the planner; without those records it cannot know what ended.",
                )

    def _check_commands(self, position: int) -> None:
        first = self._consumer.beginning_offsets([self._commands])[self._commands]
        end = self._consumer.end_offsets([self._commands])[self._commands]
        if end < position or (first > position > 0):
            log.error("records of `schedules` are lost", kept=(first, end), position=position)
        if not first <= position <= end:
            self.planner.state.commands = first if position < first else end

    # -- one turn ---------------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Reads what has come, decides what is due, and writes it."""
        if not self._holder.held(_LONGEST_POLL_MS / 1e3):
            return
        records = self._consumer.poll(timeout_ms=self._wait_ms())
        self._now = self._clock.now()
        for place, found in records.items():
            if place == self._log.place:
                self._read_back(found)
            elif place == self._commands:
                for record in found:
                    self.planner.command(record.offset, record.value, record.timestamp * 1000, self._now)
            else:
                self._facts(place.partition, found)
        self._acknowledged()
        if len(self._under_way) < _MOST_UNDER_WAY:
            if self._is_up_to_date():
                self._decide()
            self._go_on_with_snapshot()
            self._write()
        self._check_under_way()
        self._tell_of_defects()

    def _tell_of_defects(self) -> None:
        for defect in self.planner.take_defects():
            self._metrics.met_defect()
            became = "the schedule is paused" if defect.name else "the step was not taken"
            log.error(
                f"a defect of scylla-spark: {became}",
                schedule=defect.name,
                error=defect.error,
                stack=defect.stack,
            )

    def _decide(self) -> None:
        self.planner.tick(self._now)
        self._tables.exchange(self.planner, self._now)
        self._topics.exchange(self.planner, self._now)
        self._handlers.exchange(self.planner, self._now)
        self._load.exchange(self.planner, self._now)

    def _wait_ms(self) -> int:
        if self._acks:
            return 1
        wake_us = self.planner.next_wake_us
        if wake_us is None or self._unread:
            return _LONGEST_POLL_MS
        return min(max((wake_us - self._clock.now()) // 1000, 0), _LONGEST_POLL_MS)

    def _facts(self, partition: int, records: list[Any]) -> None:
        fences = self._fences[partition]
        for record in records:
            idle = not (self.planner.state.runs or self.planner.wants_facts) and self.planner.state.partly is None
            if idle and is_facts(record.value):  # nothing of ours can be in it
                self.planner.outcomes(partition, record.offset, (), (record.offset + 1, *fences.fence), self._now)
                continue
            found = decode(record.value)
            if isinstance(found, Unreadable) and found.reason == DEFECT:
                self._metrics.met_defect()
                log.error(
                    "a defect of scylla-spark: a record is passed over",
                    partition=partition,
                    offset=record.offset,
                    error=found.detail,
                )
            counts = fences.admit(found)
            position: Position = (record.offset + 1, *fences.fence)
            facts = found.facts if counts and not isinstance(found, Unreadable) else ()
            self.planner.outcomes(partition, record.offset, facts, position, self._now)

    def _write(self) -> None:
        for group in self.planner.take(self._now):
            failpoint.reach("plan.group.decided")
            self._send(self._log.place, plan_log.encode(group)).add_errback(self._failed)
            self._under_way.append((group, self._clock.now(), boot_us()))
        self._producer_failed()

    def _read_back(self, records: list[Any]) -> None:
        for record in records:
            read = self._log.admit(record)
            if read is None:
                continue
            if read.group is None:
                raise ConflictError("Another planner has taken over.", hint="This one waits.")
            if self._under_way and read.group.number == self._under_way[0][0].number:
                group, sent_us, _ = self._under_way.popleft()
                self._clock.check(record.timestamp, sent_us, self._now)
                self._counts(group, record.offset)

    def _counts(self, group: Group, offset: int) -> None:
        failpoint.reach("plan.group.counts")
        self._metrics.counted(group, self._now)
        self._metrics.is_active(True, len(self.planner.state.entries))
        if any(change[0] == TOKEN for change in group.changes):
            self._metrics.tokens(self.planner.state.tokens)
        if group.begins:
            self._snapshot_begins = offset
        self._launch(group.number, [change[1] for change in group.changes if change[0] == "send"])

    def _launch(self, number: int, texts: list[str]) -> None:
        """Sends what a group asks to be sent."""
        futures = [self._command(text) for text in texts]
        self._acks.append((number, futures))
        failpoint.reach("plan.launch.sent")

    def _command(self, text: str) -> Any:
        lane = json.loads(text)["orderingId"]
        place = TopicPartition(self._settings.topics.tasks, partition_of(lane, self._settings.partitions))
        return self._send(place, text.encode(), lane.encode()).add_errback(self._failed)

    def _acknowledged(self) -> None:
        done = 0
        while self._acks and all(future.is_done for future in self._acks[0][1]):
            done, _ = self._acks.popleft()
        if done:
            self.planner.sent(done)
        self._producer_failed()

    # -- doubts -----------------------------------------------------------------------------------------------------------

    def _failed(self, error: BaseException) -> None:
        self._failure = error

    def _producer_failed(self) -> None:
        if self._failure is not None:
            raise UnreachableError(
                f"A send of the planner is in doubt ({type(self._failure).__name__}: {self._failure}).",
                hint="It begins again from its log.",
            )

    def _check_under_way(self) -> None:
        if self._under_way and boot_us() - self._under_way[0][2] > _PATIENCE_US:
            raise UnreachableError("What the planner wrote was not read back in time.", hint="It begins again.")

    # -- snapshots --------------------------------------------------------------------------------------------------------

    def _go_on_with_snapshot(self) -> None:
        if self._snapshot is None:
            due = self._log.size > _SNAPSHOT_BYTES or boot_us() - self._snapshot_us > _SNAPSHOT_EVERY_US
            if due:
                self._snapshot, self._snapshot_begins, self._snapshot_us = (
                    self.planner.begin_snapshot(self._now),
                    -1,
                    boot_us(),
                )
                self._log.size = 0
        elif self._snapshot:
            self.planner.snapshot(self._snapshot, self._now)
        elif self._snapshot_begins >= 0 and not self._under_way:
            self.planner.end_snapshot(self._snapshot_begins)
            self._snapshot = None

    def _send(self, place: TopicPartition, value: bytes, key: bytes | None = None) -> Any:
        return self._producer.send(place.topic, value, key=key, partition=place.partition)
