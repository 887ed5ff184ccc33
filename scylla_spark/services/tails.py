"""The tails: what stands on the two topics after the tables' progress, read by kafka-python and handed to the engine.

`TasksTail` is also the group member whose assignment is the ownership of partitions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol, TypeVar

import structlog
from kafka import AsyncConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.errors import KafkaError
from kafka.net.selector import KernelEvent
from kafka.structs import OffsetAndMetadata

from scylla_spark import failpoint
from scylla_spark.clock import boot_us, now_us
from scylla_spark.config import Settings
from scylla_spark.core.engine import Engine
from scylla_spark.core.fact import OutcomeRecord, decode, readable
from scylla_spark.core.partition import Mark
from scylla_spark.core.wire import Rejection, Rules, validate
from scylla_spark.io.recovering import Assignor, rejoining
from scylla_spark.io.topics import consumer
from scylla_spark.services.mailbox import Mailbox

log = structlog.get_logger("dispatch")

T = TypeVar("T")
CONFIRM_EVERY_US = 2_000_000
MARGIN_US = 3_000_000
POLL_MS = 100
RETAKE_US = 1_000_000
MOST_EXPECTED = 10_000


class Taker(Protocol):
    """Who is told of partitions given and taken."""

    def gained(self, marks: Mapping[int, Mark]) -> None:
        """The group assigned these; both tails begin at the marks."""

    def losing(self, partitions: list[int]) -> None:
        """The group takes these back; returns when they are let go of."""

    def lost(self, partitions: list[int]) -> None:
        """These belong to somebody else already."""


class TasksTail:
    """Group member and tail of `tasks`, in a thread of its own.

    Args:
        settings: with the broker's address.
        rules: how records are judged.
        mailbox: the engine's.
        engine: receives commands.
        taker: told of assignments.
        marks: reads the tables' progress.
    """

    def __init__(
        self,
        settings: Settings,
        rules: Rules,
        mailbox: Mailbox,
        engine: Engine,
        taker: Taker,
        marks: Callable[[], Mapping[int, Mark]],
    ) -> None:
        self.confirmed_us = -(1 << 62)  # boot clock
        self.failure: BaseException | None = None
        self._settings = settings
        self._rules = rules
        self._mailbox = mailbox
        self._engine = engine
        self._taker = taker
        self._marks = marks
        self._topic = settings.topics.tasks
        self._requests: SimpleQueue[int] = SimpleQueue()
        self._dropped: SimpleQueue[int] = SimpleQueue()
        self._retakes: dict[int, int] = {}  # partition → boot clock
        self._stopping = threading.Event()
        self._consumer: KafkaConsumer = None
        self._thread = threading.Thread(target=self._run, name="tasks-tail", daemon=True)

    def start(self) -> None:
        """Joins the group."""
        self._thread.start()

    def stop(self) -> None:
        """Leaves the group; partitions are drained first."""
        self._stopping.set()
        self._thread.join(timeout=60)

    def confirm(self, partition: int) -> None:
        """Asks for a confirmation of membership and the end of the partition; the engine gets `confirmed`."""
        self._requests.put(partition)

    def retake(self, partition: int) -> None:
        """Takes a dropped partition anew, a second later, if the group still assigns it to us."""
        self._dropped.put(partition)

    def certain_until_us(self) -> int:
        """Boot clock until which the partitions are certainly ours; 0 if that is past: nothing may start."""
        until = self.confirmed_us + int(self._settings.dispatch.session_timeout.total_seconds() * 1e6) - MARGIN_US
        return until if until > boot_us() else 0

    def _run(self) -> None:
        try:
            dispatch = self._settings.dispatch
            session_ms = int(dispatch.session_timeout.total_seconds() * 1000)
            self._consumer = rejoining(consumer(
                self._settings, group_id=dispatch.group_id, group_instance_id=dispatch.instance_id,
                session_timeout_ms=session_ms, heartbeat_interval_ms=max(session_ms // 5, 500),
                partition_assignment_strategy=(Assignor,), max_poll_interval_ms=120_000,
            ))  # fmt: skip
            self._consumer.subscribe([self._topic], listener=_Listener(self))
            confirmed = 0
            while not self._stopping.is_set():
                self._poll()
                self._retake()
                asked = _drained(self._requests)
                if asked or boot_us() - confirmed > CONFIRM_EVERY_US:
                    confirmed = boot_us()
                    self._confirm(asked)
            owned = [place.partition for place in self._consumer.assignment()]
            self._taker.losing(owned)
            self._consumer.close(autocommit=False)
        except BaseException as error:
            self.failure = error
            log.error("tasks tail ended", error=repr(error))

    def _poll(self) -> None:
        self._hold_back()
        for place, records in self._consumer.poll(timeout_ms=POLL_MS).items():
            number = place.partition
            commands = []
            for record in records:
                verdict = validate(
                    number, record.offset, record.timestamp * 1000, record.key, record.value, self._rules
                )
                if not isinstance(verdict, Rejection):
                    commands.append(verdict)
            end = records[-1].offset + 1
            self._mailbox.post(partial(self._engine.commands, number, commands, end))

    def _hold_back(self) -> None:
        """Reads no further while too many tasks, or too large ones, are in memory; Kafka keeps the rest."""
        partitions = list(self._engine.partitions.values())
        loaded = sum(partition.loaded + partition.payload_chars // 1024 for partition in partitions)
        most = self._settings.dispatch.max_loaded
        paused = self._consumer.paused()
        if loaded > most and not paused:
            self._consumer.pause(*self._consumer.assignment())
            log.warning("too many tasks in memory, reading stops", loaded=loaded, most=most)
        elif paused and loaded < most * 0.9:
            self._consumer.resume(*paused)
            log.info("reading goes on", loaded=loaded)

    def _retake(self) -> None:
        now = boot_us()
        self._retakes |= dict.fromkeys(_drained(self._dropped), now + RETAKE_US)
        due = [number for number, at in self._retakes.items() if at <= now]
        for number in due:
            del self._retakes[number]
        assigned = {place.partition for place in self._consumer.assignment()}
        if assigned.intersection(due):
            held = self._mailbox.ask(lambda _now: set(self._engine.partitions))
            numbers = [number for number in due if number in assigned - held]
            self._taker.gained(self._positioned(numbers, self._marks()))

    def _confirm(self, asked: list[int]) -> None:
        """A synchronous offset commit: it fails for a generation that is gone."""
        places = self._consumer.assignment()
        if not places:
            return
        sent = boot_us()
        try:
            offsets = {place: OffsetAndMetadata(self._consumer.position(place), "", -1) for place in places}
            self._consumer.commit(offsets, timeout_ms=5_000)
        except (KafkaError, AssertionError) as error:
            log.warning("membership not confirmed", error=repr(error))
            for number in asked:
                self._requests.put(number)
            return
        self.confirmed_us = sent
        failpoint.reach("dispatch.membership.confirmed")
        owned = [
            TopicPartition(self._topic, number) for number in asked if TopicPartition(self._topic, number) in places
        ]
        if owned:
            for place, end in self._consumer.end_offsets(owned).items():
                self._mailbox.post(partial(self._engine.confirmed, place.partition, end))

    async def assigned(self, numbers: list[int]) -> None:
        """Positions the consumer at the tables' progress and begins the takes."""
        chosen = self._positioned(numbers, await _in_thread(self._marks))
        await _in_thread(partial(self._taker.gained, chosen))

    def _positioned(self, numbers: list[int], marks: Mapping[int, Mark]) -> dict[int, Mark]:
        chosen = {number: marks.get(number, Mark()) for number in numbers}
        for number, mark in chosen.items():
            self._consumer.seek(TopicPartition(self._topic, number), mark.tasks_offset)
        return chosen

    async def revoked(self, numbers: list[int]) -> None:
        """Lets go of partitions in good order."""
        await _in_thread(partial(self._taker.losing, numbers))

    async def lost(self, numbers: list[int]) -> None:
        """Drops partitions that are somebody else's already."""
        await _in_thread(partial(self._taker.lost, numbers))


async def _in_thread(work: Callable[[], T]) -> T:
    """Does blocking work beside kafka-python's event loop, which has heartbeats to send meanwhile."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="rebalance", daemon=True).start()
    while not done.done():
        await KernelEvent("_sleep", 0.01)  # what its loop calls sleep; it has no way to await another thread
    return done.result()


def _drained(queue: SimpleQueue[int]) -> list[int]:
    found = []
    try:
        while True:
            found.append(queue.get_nowait())
    except Empty:
        return found


class _Listener(AsyncConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, tail: TasksTail) -> None:
        self._tail = tail

    async def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        if assigned:
            await self._tail.assigned(sorted(place.partition for place in assigned))

    async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        if revoked:
            await self._tail.revoked(sorted(place.partition for place in revoked))

    async def on_partitions_lost(self, lost: list[TopicPartition]) -> None:
        if lost:
            await self._tail.lost(sorted(place.partition for place in lost))


class OutcomesTail:
    """Tail of `outcomes` for the owned partitions, in a thread of its own.

    Args:
        settings: with the broker's address.
        deliver: called with (partition, [(offset, record, append ms)], next offset).
        ended: called with (partition, end offset) once for every partition added.
    """

    def __init__(
        self,
        settings: Settings,
        deliver: Callable[[int, list[tuple[int, OutcomeRecord | None, int]], int], None],
        ended: Callable[[int, int], None],
    ) -> None:
        self.failure: BaseException | None = None
        self._settings = settings
        self._topic = settings.topics.outcomes
        self._deliver = deliver
        self._expected: dict[bytes, OutcomeRecord] = {}  # what we have written ourselves
        self._ended = ended
        self._controls: SimpleQueue[tuple[int, int | None]] = SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outcomes-tail", daemon=True)

    def start(self) -> None:
        """Begins to read."""
        self._thread.start()

    def stop(self) -> None:
        """Ends reading."""
        self._stopping.set()
        self._controls.put((-1, None))
        self._thread.join(timeout=30)

    def add(self, partition: int, offset: int) -> None:
        """Reads a partition from an offset on."""
        self._controls.put((partition, offset))

    def expect(self, value: bytes, record: OutcomeRecord) -> None:
        """We write this, so it need not be decoded when it is read."""
        if len(self._expected) >= MOST_EXPECTED:
            self._expected.clear()  # left over from sends that failed
        self._expected[value] = record

    def remove(self, partition: int) -> None:
        """Stops reading a partition."""
        self._controls.put((partition, None))

    def _run(self) -> None:
        try:
            with consumer(self._settings) as reader:
                owned: set[int] = set()
                while not self._stopping.is_set():
                    self._obey(reader, owned)
                    if owned:
                        self._poll(reader)
        except BaseException as error:
            self.failure = error
            log.error("outcomes tail ended", error=repr(error))

    def _obey(self, reader: KafkaConsumer, owned: set[int]) -> None:
        added: dict[int, int] = {}
        changed = False
        try:
            while True:
                number, offset = self._controls.get(block=not owned and not changed, timeout=1.0)
                changed = True
                if offset is None:
                    owned.discard(number)
                    added.pop(number, None)
                else:
                    owned.add(number)
                    added[number] = offset
        except Empty:
            pass
        if not changed:
            return
        reader.assign([TopicPartition(self._topic, number) for number in sorted(owned)])
        places = {TopicPartition(self._topic, number): offset for number, offset in added.items()}
        for place, offset in places.items():
            reader.seek(place, offset)
        if places:
            for place, end in reader.end_offsets(list(places)).items():
                self._ended(place.partition, end)

    def _poll(self, reader: KafkaConsumer) -> None:
        for place, records in reader.poll(timeout_ms=POLL_MS).items():
            decoded = [
                (
                    record.offset,
                    self._expected.pop(record.value, None) or readable(decode(record.value)),
                    record.timestamp,
                )
                for record in records
            ]
            self._deliver(place.partition, decoded, records[-1].offset + 1)


def clock_offset_us(append_ms: int, sent_us: int) -> int:
    """How far our clock is from the broker's, at least: 0 if the append time lies between the send and now."""
    append_us = append_ms * 1000
    if append_us + 1000 < sent_us:
        return append_us - sent_us
    return max(append_us - now_us(), 0)
