"""The tail of `tasks`: what stands there after the tables' progress, read by kafka-python and handed to the engine.

Its consumer is also the member of the group whose assignment is the ownership of partitions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from kafka import AsyncConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.errors import KafkaError
from kafka.net.selector import KernelEvent
from kafka.structs import OffsetAndMetadata

from scylla_spark import failpoint
from scylla_spark.clock import boot_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.engine.action import Confirm
from scylla_spark.core.engine.engine import Engine
from scylla_spark.core.records.command import Command, Rejection, Rules, validate
from scylla_spark.core.records.rejection_reason import DEFECT
from scylla_spark.core.tables.progress import Mark, Tenure
from scylla_spark.duration import duration_us
from scylla_spark.io.kafka.client_patches import Assignor, rejoining
from scylla_spark.io.kafka.topics import consumer
from scylla_spark.log import get_logger
from scylla_spark.services.dispatch.mailbox import Mailbox
from scylla_spark.services.dispatch.partition_ends import PartitionEnds

log = get_logger("dispatch")

T = TypeVar("T")
CONFIRM_EVERY_US = 2_000_000
MARGIN_US = 3_000_000
POLL_MS = 100
RETAKE_US = 1_000_000
_END_S = 30.0


class Taker(Protocol):
    """Who is told of partitions given and taken."""

    def gained(self, marks: Mapping[int, Mark]) -> Mapping[int, Tenure]:
        """The group assigned these; both tails begin at the marks, and what they read belongs to these tenures."""

    def losing(self, partitions: list[int]) -> None:
        """The group takes these back; returns when they are let go of."""

    def lost(self, partitions: list[int]) -> None:
        """These belong to somebody else already."""

    def choked(self) -> bool:
        """Returns True if so much is held in memory that reading is to wait."""


class TasksTail:
    """Group member and tail of `tasks`, in a thread of its own.

    Args:
        settings: with the broker's address.
        rules: how records are judged.
        mailbox: the engine's.
        engine: receives commands.
        taker: told of assignments.
        marks: reads the tables' progress.
        clock: boot clock.
        beside: does work that may take long, beside the tail.
    """

    def __init__(
        self,
        settings: Settings,
        rules: Rules,
        mailbox: Mailbox,
        engine: Engine,
        taker: Taker,
        marks: Callable[[], Mapping[int, Mark]],
        clock: Callable[[], int] = boot_us,
        beside: Callable[[Callable[[], Any]], Future[Any]] | None = None,
    ) -> None:
        self.confirmed_us = -(1 << 62)  # boot clock
        self.failure: BaseException | None = None
        self._settings = settings
        self._rules = rules
        self._mailbox = mailbox
        self._engine = engine
        self._taker = taker
        self._marks = marks
        self._clock = clock
        self._beside = beside or _thread_of
        self._topic = settings.topics.tasks
        self._session_us = duration_us(settings.dispatch.session_timeout)
        self._max_poll_us = max_poll_us(settings)
        self._polled_us = 0
        self._asked_us = 0
        self._tenures: dict[int, Tenure] = {}
        self._told: dict[int, int] = {}  # partition → how far the engine knows us to have read
        self._requests: SimpleQueue[Confirm] = SimpleQueue()
        self._endless: list[Confirm] = []  # asked for, of partitions that did not say where they end
        self._ends = PartitionEnds(clock)
        self._dropped: SimpleQueue[Tenure] = SimpleQueue()
        self._retakes: dict[int, int] = {}  # partition → boot clock
        self._reading: tuple[list[int], Future[Mapping[int, Mark]]] | None = None  # marks for some of these
        self._stopping = threading.Event()
        self._consumer: KafkaConsumer = None
        self._thread = threading.Thread(target=self._run, name="tasks-tail", daemon=True)

    def start(self) -> None:
        """Joins the group."""
        self._thread.start()

    def stop(self) -> None:
        """Leaves the group, if it has joined; partitions are drained first."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=longest_drain_s(self._settings) + _END_S)

    def confirm(self, asked: Confirm) -> None:
        """Asks for a confirmation of membership and the end of the partition; the engine gets `confirmed`."""
        self._requests.put(asked)

    def retake(self, tenure: Tenure) -> None:
        """Takes a dropped partition anew, a second later, if the group still assigns it to us."""
        self._dropped.put(tenure)

    def certain_until_us(self) -> int:
        """Boot clock until which the partitions are certainly ours; 0 if that is past: nothing may start."""
        until = max(self.confirmed_us, self._heard_us()) + self._session_us - MARGIN_US
        return until if until > self._clock() else 0

    def _heard_us(self) -> int:
        """Returns when the last heartbeat was sent that the group answered as a member's.

        It counts as long as the group waits for us in any rebalance: a member that polls too rarely is put out at once.
        """
        heard: int = getattr(getattr(self._consumer, "_coordinator", None), "heard_us", 0)
        return heard if heard - self._polled_us < self._max_poll_us // 2 else 0

    def _run(self) -> None:
        try:
            dispatch = self._settings.dispatch
            session_ms = self._session_us // 1000
            member = rejoining(
                consumer(
                    self._settings,
                    group_id=dispatch.group_id,
                    group_instance_id=dispatch.instance_id,
                    session_timeout_ms=session_ms,
                    heartbeat_interval_ms=max(session_ms // 5, 500),
                    partition_assignment_strategy=(Assignor,),
                    max_poll_interval_ms=self._max_poll_us // 1000,
                )
            )
            member.subscribe([self._topic], listener=_Listener(self))
            self.use(member)
            while not self._stopping.is_set():
                self.turn()
            owned = [place.partition for place in self._consumer.assignment()]
            self._taker.losing(owned)
            self._consumer.close(autocommit=False)
        except BaseException as error:
            self.failure = error
            log.error("tasks tail ended", error=repr(error))

    def use(self, member: KafkaConsumer) -> None:
        """Reads by this consumer, a member of the group."""
        self._consumer = member

    def turn(self) -> None:
        """Reads what has come, takes again what was dropped, and confirms membership where that is due."""
        self._poll()
        self._retake()
        asked = _drained(self._requests)
        if asked or self._clock() - self._asked_us > CONFIRM_EVERY_US:
            self._asked_us = self._clock()
            self._confirm(asked)

    def _poll(self) -> None:
        self._hold_back()
        self._polled_us = self._clock()
        for place, records in self._consumer.poll(timeout_ms=POLL_MS).items():
            number = place.partition
            commands = [command for record in records if (command := self._judged(number, record)) is not None]
            tenure = self._tenures.get(number)
            if tenure is not None:
                self._tell(tenure, commands, records[-1].offset + 1)

    def _tell(self, tenure: Tenure, commands: list[Command], end: int) -> None:
        self._told[tenure.partition] = end
        self._mailbox.post(partial(self._engine.commands, tenure, commands, end))

    def _pass_over(self, positions: Mapping[int, int | None]) -> None:
        """Tells of offsets that hold no record to read, which may be the last ones: marks of transactions, batches that are skipped."""
        for number, end in positions.items():
            tenure = self._tenures.get(number)
            if tenure is not None and end is not None and end > self._told.get(number, end):
                self._tell(tenure, [], end)

    def _judged(self, number: int, record: Any) -> Command | None:
        """The command in a record; a refused one is written down by ingest, which judges alike."""
        verdict = validate(number, record.offset, record.timestamp * 1000, record.key, record.value, self._rules)
        if not isinstance(verdict, Rejection):
            return verdict
        if verdict.reason == DEFECT:
            log.error("a record is passed over", partition=number, offset=record.offset, error=verdict.detail[-500:])
        return None

    def _hold_back(self) -> None:
        """Reads no further while so much is held that is about to start; Kafka keeps the rest."""
        paused, choked = self._consumer.paused(), self._taker.choked()
        if choked and not paused:
            self._consumer.pause(*self._consumer.assignment())
            log.warning("too much in memory, reading stops")
        elif paused and not choked:
            self._consumer.resume(*paused)
            log.info("reading goes on")

    def _retake(self) -> None:
        now = self._clock()
        dropped = [tenure for tenure in _drained(self._dropped) if self._tenures.get(tenure.partition) == tenure]
        self._retakes |= {tenure.partition: now + RETAKE_US for tenure in dropped}
        assigned = {place.partition for place in self._consumer.assignment()}
        for number in [number for number, at in self._retakes.items() if at <= now and number not in assigned]:
            del self._retakes[number]
        due = [number for number, at in self._retakes.items() if at <= now]
        if due and self._reading is None:
            self._reading = due, self._beside(self._marks)  # the store may be slow: records are read meanwhile
        if self._reading is None or not self._reading[1].done():
            return
        (numbers, read), self._reading = self._reading, None
        ready = [number for number in numbers if number in due]
        for number in ready:
            del self._retakes[number]
        if ready:
            held = self._mailbox.ask(lambda _now: set(self._engine.partitions), timeout_s=None)
            self._take_if_readable([number for number in ready if number not in held], read.result)

    def _confirm(self, asked: list[Confirm]) -> None:
        """A synchronous offset commit: it fails for a generation that is gone."""
        places = self._consumer.assignment()
        if not places:
            return
        sent = self._clock()
        try:
            positions = {place: self._consumer.position(place) for place in places}
            self._pass_over({place.partition: position for place, position in positions.items()})
            offsets = {place: OffsetAndMetadata(position, "", -1) for place, position in positions.items()}
            self._consumer.commit(offsets, timeout_ms=5_000)
        except (KafkaError, AssertionError) as error:
            log.warning("membership not confirmed", error=repr(error))
            for request in asked:
                self._requests.put(request)
            return
        self.confirmed_us = sent
        failpoint.reach("dispatch.membership.confirmed")
        owned = {place.partition: place for place in places}
        self._tell_ends(owned, [request for request in [*self._endless, *asked] if request.tenure.partition in owned])

    def _tell_ends(self, owned: Mapping[int, TopicPartition], asked: list[Confirm]) -> None:
        """Answers requests whose partitions say where they end; the others wait for the next confirmation."""
        ends = self._ends.of(self._consumer, {owned[request.tenure.partition] for request in asked})
        self._endless = []
        for request in asked:
            end = ends.get(owned[request.tenure.partition])
            if end is None:
                self._endless.append(request)
            else:
                self._mailbox.post(partial(self._engine.confirmed, request.tenure, request.fence, end))

    def _take_or_leave(self, numbers: list[int]) -> None:
        known = [number for number in numbers if number < self._rules.partitions]
        if added := [number for number in numbers if number not in known]:
            log.error(
                "the topic has more partitions than the deployment, and nothing that stands there is run",
                topic=self._topic,
                added=added,
                partitions=self._rules.partitions,
            )
            self._consumer.seek_to_end(*(TopicPartition(self._topic, number) for number in added))
        if known:
            self._take_if_readable(known, self._marks)

    def _take_if_readable(self, numbers: list[int], read: Callable[[], Mapping[int, Mark]]) -> None:
        """Begins takes where the tables say how far they are; else a second later."""
        try:
            marks = read()
        except Exception as error:
            log.warning("a take waits for the tables", partitions=numbers, error=repr(error)[:300])
            self._consumer.seek_to_end(
                *(TopicPartition(self._topic, number) for number in numbers)
            )  # it must stand somewhere
            self._retakes |= dict.fromkeys(numbers, self._clock() + RETAKE_US)
        else:
            self.take(numbers, marks)

    def take(self, numbers: list[int], marks: Mapping[int, Mark]) -> None:
        """Positions the consumer at the tables' progress and begins the takes."""
        chosen = {number: marks.get(number, Mark()) for number in numbers}
        for number, mark in chosen.items():
            self._consumer.seek(TopicPartition(self._topic, number), mark.tasks_offset)
            self._told[number] = mark.tasks_offset
        self._tenures |= self._taker.gained(chosen)

    async def assigned(self, numbers: list[int]) -> None:
        """The group gives us partitions; of those that were added to the topic later nothing is taken."""
        await _in_thread(partial(self._take_or_leave, numbers))

    async def revoked(self, numbers: list[int]) -> None:
        """Lets go of partitions in good order."""
        await _in_thread(partial(self.let_go, numbers, self._taker.losing))

    async def lost(self, numbers: list[int]) -> None:
        """Drops partitions that are somebody else's already."""
        await _in_thread(partial(self.let_go, numbers, self._taker.lost))

    def let_go(self, numbers: list[int], how: Callable[[list[int]], None]) -> None:
        """Partitions are no longer ours."""
        how(numbers)
        for number in numbers:
            self._tenures.pop(number, None)
            self._retakes.pop(number, None)


def longest_drain_s(settings: Settings) -> float:
    """Returns how long partitions that are taken back may take to be let go of."""
    return 2 * settings.dispatch.drain.total_seconds() + 5


def max_poll_us(settings: Settings) -> int:
    """Returns how long the group waits for a member in a rebalance: far longer than the slowest drain takes."""
    dispatch = settings.dispatch
    slowest_s = longest_drain_s(settings) + dispatch.session_timeout.total_seconds()
    return int(max(120, 4 * slowest_s) * 1e6)


def _thread_of(work: Callable[[], T]) -> Future[T]:
    """Does blocking work in a thread of its own, which does not keep the process alive."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="beside-tail", daemon=True).start()
    return done


async def _in_thread(work: Callable[[], T]) -> T:
    """Does blocking work beside kafka-python's event loop, which has heartbeats to send meanwhile."""
    done = _thread_of(work)
    while not done.done():
        await KernelEvent("_sleep", 0.01)  # what its loop calls sleep; it has no way to await another thread
    return done.result()


def _drained(queue: SimpleQueue[T]) -> list[T]:
    found: list[T] = []
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
