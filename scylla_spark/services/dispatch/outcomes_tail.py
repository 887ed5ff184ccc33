"""The tail of `outcomes`: facts of the owned partitions, read back by kafka-python and handed to the engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from kafka import KafkaConsumer, TopicPartition

from scylla_spark.clock import boot_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.records.fact import OutcomeRecord, Unreadable, decode
from scylla_spark.core.tables.progress import Tenure
from scylla_spark.io.kafka.fetch_pace import pace_of
from scylla_spark.io.kafka.topics import consumer
from scylla_spark.log import get_logger
from scylla_spark.services.dispatch.partition_ends import PartitionEnds

log = get_logger("dispatch")

POLL_MS = 100
MOST_EXPECTED = 10_000


class Delivered(NamedTuple):
    """Records of `outcomes` as they were read: offset, content, and the broker's append time in milliseconds."""

    offset: int
    record: OutcomeRecord | Unreadable
    append_ms: int


class OutcomesTail:
    """Tail of `outcomes` for the owned partitions, in a thread of its own.

    Args:
        settings: with the broker's address.
        deliver: called with (tenure, records in offset order, next offset).
        ended: called with (tenure, end offset) once for every tenure added, as soon as its partition says where it ends.
        clock: boot clock.
    """

    def __init__(
        self,
        settings: Settings,
        deliver: Callable[[Tenure, list[Delivered], int], None],
        ended: Callable[[Tenure, int], None],
        clock: Callable[[], int] = boot_us,
    ) -> None:
        self.failure: BaseException | None = None
        self._settings = settings
        self._topic = settings.topics.outcomes
        self._deliver = deliver
        self._expected: dict[bytes, OutcomeRecord] = {}  # what we have written ourselves
        self._ended = ended
        self._owned: dict[int, Tenure] = {}
        self._endless: dict[TopicPartition, Tenure] = {}  # whose end is not told yet
        self._ends = PartitionEnds(clock)
        self._unread: dict[TopicPartition, int] = {}  # partitions not yet read up to the end that was told
        self._controls: SimpleQueue[tuple[Tenure | None, int | None]] = SimpleQueue()
        self._stopping = threading.Event()
        self._reader: KafkaConsumer = None
        self._pace: Callable[[bool], None] = lambda _hurries: None
        self._only_own = True  # what was read in this turn
        self._thread = threading.Thread(target=self._run, name="outcomes-tail", daemon=True)

    def start(self) -> None:
        """Begins to read."""
        self._thread.start()

    def stop(self) -> None:
        """Ends reading, if it has begun."""
        self._stopping.set()
        self._controls.put((None, None))
        if self._thread.ident is not None:
            self._thread.join(timeout=30)

    def add(self, tenure: Tenure, offset: int) -> None:
        """Reads a partition from an offset on."""
        self._controls.put((tenure, offset))

    def expect(self, value: bytes, record: OutcomeRecord) -> None:
        """We write this, so it need not be decoded when it is read."""
        if len(self._expected) >= MOST_EXPECTED:
            self._expected.clear()  # left over from sends that failed
        self._expected[value] = record

    def remove(self, tenure: Tenure) -> None:
        """Stops reading a partition."""
        self._controls.put((tenure, None))

    def _run(self) -> None:
        try:
            with consumer(self._settings) as reader:
                self.use(reader, pace_of(reader))
                while not self._stopping.is_set():
                    self.turn(wait_s=1.0)
        except BaseException as error:
            self.failure = error
            log.error("outcomes tail ended", error=repr(error))

    def use(self, reader: KafkaConsumer, pace: Callable[[bool], None] = lambda _hurries: None) -> None:
        """Reads by this consumer.

        Args:
            reader: a consumer, or what is like one.
            pace: says whether it is to be told at once of what comes.
        """
        self._reader, self._pace = reader, pace

    def turn(self, *, wait_s: float) -> None:
        """Begins or ends to read partitions as asked for, and reads what has come; waits for either, some time at most."""
        self._obey(wait_s)
        if self._endless:
            self._tell_ends()
        if self._owned:
            self._poll()

    def _obey(self, wait_s: float) -> None:
        added: dict[int, int] = {}
        changed = False
        try:
            while True:
                tenure, offset = self._controls.get(block=not self._owned and not changed, timeout=wait_s)
                changed = True
                if tenure is None:
                    continue
                if offset is not None:
                    self._owned[tenure.partition], added[tenure.partition] = tenure, offset
                elif self._owned.get(tenure.partition) == tenure:
                    del self._owned[tenure.partition]
                    added.pop(tenure.partition, None)
        except Empty:
            pass
        if changed:
            self._begin(added)

    def _begin(self, added: Mapping[int, int]) -> None:
        self._reader.assign([TopicPartition(self._topic, number) for number in sorted(self._owned)])
        for number, offset in added.items():
            place = TopicPartition(self._topic, number)
            self._reader.seek(place, offset)
            self._endless[place] = self._owned[number]
            self._unread.pop(place, None)  # of a tenure before this one

    def _tell_ends(self) -> None:
        """Tells where partitions end; one without a leader does so later, and only its own take waits for that."""
        self._endless = {place: one for place, one in self._endless.items() if self._owned.get(place.partition) == one}
        for place, end in self._ends.of(self._reader, self._endless).items():
            self._unread[place] = end
            self._ended(self._endless.pop(place), end)

    def _poll(self) -> None:
        """Reads what has come. Nobody waits for what we have written ourselves: that counts as soon as it is acknowledged."""
        self._only_own = True
        found = self._reader.poll(timeout_ms=POLL_MS)
        for place, records in found.items():
            tenure = self._owned.get(place.partition)
            if tenure is not None:
                read = [Delivered(record.offset, self._decoded(record.value), record.timestamp) for record in records]
                self._deliver(tenure, read, records[-1].offset + 1)
        for place, end in list(self._unread.items()):
            self._pass_over(place, end, found.get(place))
        self._pace(not (found and self._only_own))

    def _pass_over(self, place: TopicPartition, end: int, records: Sequence[Any] | None) -> None:
        """Tells it where a partition has been read to its end though no record stood there to say so: a mark of a transaction, perhaps."""
        tenure = self._owned.get(place.partition)
        position = self._reader.position(place) if tenure is not None else end
        if position is None or position < end:
            return
        del self._unread[place]
        if tenure is not None and (not records or records[-1].offset + 1 < position):
            self._deliver(tenure, [], position)

    def _decoded(self, value: bytes | None) -> OutcomeRecord | Unreadable:
        own = self._expected.pop(value, None) if value is not None else None
        if own is not None:
            return own
        self._only_own = False
        return decode(value)
