"""What the two logs say beyond the tables, for a client that asks or waits.

There is no thread of its own: whoever waits polls, one at a time, and all share what was read. Facts count by the fence rule
(`core.records.fact`), starting from a mark of the progress table, so that tables and memory together always hold everything.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError

from scylla_spark.clock import boot_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.records.command import Command, Rejection, Rules, validate
from scylla_spark.core.records.fact import TOO_LATE, Fact, Fence, FenceLog, Unreadable, decode, readable
from scylla_spark.core.tables.progress import Mark
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import ConflictError, UnreachableError
from scylla_spark.io.kafka import topics

SLICE_MS: Final = 100
STALE_US: Final = 10_000_000  # after a pause of this length reading begins anew, at the tables' mark
MOST_BYTES: Final = 128 * 1024 * 1024  # of facts that nobody watches, shared by all partitions that are followed
_FACT_BYTES: Final = 500  # of a fact besides its texts
FENCE_WINDOW: Final = 2_000
FENCE_WINDOWS: Final = 25

T = TypeVar("T")


class LogReader:
    """Reads both logs from the tables' marks on; thread safe.

    Args:
        settings: with the broker's address.
        rules: how records are judged.
        marks: reads the progress table.
    """

    def __init__(self, settings: Settings, rules: Rules, marks: Callable[[], dict[tuple[str, int], Mark]]) -> None:
        self._settings = settings
        self._rules = rules
        self._marks = marks
        self._lock = threading.Lock()
        self._outcomes: KafkaConsumer | None = None
        self._ranges: KafkaConsumer | None = None
        self._closed = False
        self._followed: dict[int, _ReadLog] = {}
        self._watching = threading.Lock()  # of its own: whoever has the other may wait for a broker
        self._watched: Counter[TaskKey] = Counter()
        self._silence = topics.Silence(self._lock)

    @contextmanager
    def watching(self, key: TaskKey) -> Iterator[None]:
        """As long as this lasts, facts of the key are never forgotten for want of room."""
        with self._watching:
            self._watched[key] += 1
        try:
            yield
        finally:
            with self._watching:
                self._watched[key] -= 1
                if not self._watched[key]:
                    del self._watched[key]

    def close(self) -> None:
        """Closes the connections for good: what still runs in another thread opens no others."""
        with self._lock:
            self._closed = True
            for consumer in (self._outcomes, self._ranges):
                if consumer is not None:
                    consumer.close(autocommit=False)
            self._outcomes = self._ranges = None
            self._followed.clear()

    def facts(self, partition: int, key: TaskKey) -> list[Fact]:
        """Counting facts of a key read so far, in log order; never asks the broker."""
        followed = self._followed.get(partition)
        return list(followed.facts.get(key, ())) if followed is not None else []

    def answer(self, partition: int, request_id: str) -> Fact | None:
        """The "too_late" fact that answers a request, if it was read."""
        followed = self._followed.get(partition)
        return followed.answers.get(request_id) if followed is not None else None

    def catch_up(self, partition: int, deadline: int) -> None:
        """Reads `outcomes` of a partition up to its end as of now; a table read after this misses nothing.

        Args:
            partition: which.
            deadline: on `clock.boot_us`.

        Raises:
            UnreachableError: the broker does not answer, or not before the deadline.
        """
        with self._broker():
            followed = self._follow(partition, renew=True)
            place = TopicPartition(self._settings.topics.outcomes, partition)
            end = self._consumer().end_offsets([place])[place]
            while followed.position < end:
                self._poll(SLICE_MS)
                position = self._consumer().position(place)  # what stands there may be no record
                followed.position = max(followed.position, position)
                if boot_us() > deadline and followed.position < end:
                    raise UnreachableError(
                        f"Partition {partition} of {place.topic!r} could not be read to its end in time."
                    )

    def until(self, partition: int, look: Callable[[], T | None], deadline: int) -> T | None:
        """Reads on until `look` finds something, or the deadline passes; then None.

        Args:
            partition: whose records are read.
            look: None means: not yet.
            deadline: boot clock, microseconds.
        """
        while (found := look()) is None and boot_us() < deadline:
            with self._broker():
                self._follow(partition, renew=False)
                self._poll(min(SLICE_MS, max(1, (deadline - boot_us()) // 1000)))
        return found

    def commands(self, partition: int, key: TaskKey) -> list[Command]:
        """Valid commands of a key that stand in `tasks` beyond the tables, in log order."""
        return [one for one in self.commands_of_lanes(partition, {key.ordering_id.encode()}) if one.key == key]

    def commands_of_lanes(self, partition: int, lanes: Container[bytes] | None) -> list[Command]:
        """Valid commands of some lanes (their names as UTF-8; None: all) that `tasks` has beyond the tables, in log order."""
        mark = self._marks().get(("tasks", partition), Mark())
        found = []
        with self._broker():
            scanner = self._scanner()
            place = TopicPartition(self._settings.topics.tasks, partition)
            end = scanner.end_offsets([place])[place]
            for record in _records(scanner, place, mark.tasks_offset, end):
                if lanes is not None and record.key is not None and record.key not in lanes:
                    continue
                command = validate(
                    partition, record.offset, record.timestamp * 1000, record.key, record.value, self._rules
                )
                if isinstance(command, Rejection):
                    continue
                if lanes is None or command.key.ordering_id.encode() in lanes:
                    found.append(command)
        return found

    def owner(self, partition: int) -> str:
        """Returns where the owner of a partition serves its state over HTTP; "" if none is known or it has resigned.

        Raises:
            UnreachableError: the broker does not answer.
        """
        self.catch_up(partition, boot_us() + STALE_US)
        with self._broker():
            followed = self._follow(partition, renew=False)
            if followed.log.resigned:
                return ""
            if not followed.address:
                followed.address = self._last_fence(partition, followed.log.fence, followed.start)
            return followed.address

    # -- below: the lock is held ----------------------------------------------------------------------------------------

    def _consumer(self) -> KafkaConsumer:
        """Follows `outcomes`."""
        if self._outcomes is None:
            self._outcomes = self._opened()
        return self._outcomes

    def _scanner(self) -> KafkaConsumer:
        """Reads a range of records once."""
        if self._ranges is None:
            self._ranges = self._opened()
        return self._ranges

    def _opened(self) -> KafkaConsumer:
        if self._closed:
            raise ConflictError("This reader of the logs is closed.", hint="Make another Scheduler.")
        return topics.client_consumer(self._settings)

    @contextmanager
    def _broker(self) -> Iterator[None]:
        with self._silence.turn():
            try:
                yield
            except KafkaError as error:
                self._followed.clear()
                raise self._silence.met(topics.unanswered(self._settings, error)) from error
            except UnreachableError as error:
                raise self._silence.met(error) from None

    def _follow(self, partition: int, *, renew: bool) -> _ReadLog:
        followed, now = self._followed.get(partition), boot_us()
        if followed is None or (renew and (followed.has_holes or now - followed.read_us > STALE_US)):
            mark = self._marks().get(("outcomes", partition), Mark())
            if followed is None or not followed.goes_on_from(mark):
                self._consumer()  # if it cannot be made, nothing is noted that it does not read
                followed = self._followed[partition] = _ReadLog(mark)
                self._assign()
        followed.read_us = now
        return followed

    def _assign(self) -> None:
        consumer, topic = self._consumer(), self._settings.topics.outcomes
        consumer.assign([TopicPartition(topic, number) for number in self._followed])
        for number, followed in self._followed.items():
            consumer.seek(TopicPartition(topic, number), followed.position)

    def _poll(self, timeout_ms: int) -> None:
        now = boot_us()
        for place, records in self._consumer().poll(timeout_ms=timeout_ms).items():
            followed = self._followed[place.partition]
            for record in records:
                followed.read(record.offset, record.value)
            followed.read_us = now
        for followed in self._followed.values():
            followed.trim(MOST_BYTES // len(self._followed), self._watched)

    def _last_fence(self, partition: int, fence: Fence, before: int) -> str:
        """Looks for the record of a fence, backwards from an offset; "" after some ten thousand records."""
        reader, place = self._scanner(), TopicPartition(self._settings.topics.outcomes, partition)
        first, stop = reader.beginning_offsets([place])[place], before
        for _ in range(FENCE_WINDOWS):
            start = max(first, stop - FENCE_WINDOW)
            for raw in _records(reader, place, start, stop):
                record = readable(decode(raw.value)) if b'"fence"' in (raw.value or b"")[:200] else None
                if record is not None and record.kind == "fence" and record.fence == fence:
                    return record.address
            if start <= first:
                break
            stop = start
        return ""


class _Kept(NamedTuple):
    """A fact, the offset of its record, and about how many bytes it takes."""

    offset: int
    fact: Fact
    size: int


class _ReadLog:
    """What was read of one partition of `outcomes`, from a mark on."""

    def __init__(self, mark: Mark) -> None:
        self.start = self.position = mark.outcomes_offset
        self.log = FenceLog(mark.fence)
        self.log.resigned = mark.resigned
        self.facts: dict[TaskKey, list[Fact]] = {}
        self.answers: dict[str, Fact] = {}
        self.address = ""
        self.bytes = 0
        self.floor = self._tables = mark.outcomes_offset
        self.read_us = boot_us()
        self._kept: deque[_Kept] = deque()

    @property
    def has_holes(self) -> bool:
        """Returns True if facts were forgotten that the tables did not hold when they were last asked."""
        return self.floor > self._tables

    def goes_on_from(self, mark: Mark) -> bool:
        """Whether tables at this mark and what is kept here hold everything together.

        Args:
            mark: how far the tables are now.
        """
        self._tables = mark.outcomes_offset
        return self.floor <= mark.outcomes_offset <= self.position

    def read(self, offset: int, value: bytes | None) -> None:
        """Takes the next record.

        Args:
            offset: of the record.
            value: of the record.
        """
        self.position = offset + 1
        record = decode(value)
        if isinstance(record, Unreadable) or not self.log.admit(record):
            return
        if record.kind == "fence":
            self.address = record.address
        for fact in record.facts:
            self._keep(_Kept(offset, fact, _FACT_BYTES + len(value or b"") // len(record.facts)))

    def trim(self, most_bytes: int, watched: Container[TaskKey]) -> None:
        """Forgets what was read first; where the tables do not hold it yet, the next question begins anew at their mark.

        Args:
            most_bytes: about how much may stay.
            watched: keys of which nothing is forgotten.
        """
        spared = []
        while self.bytes > most_bytes and self._kept:
            oldest = self._kept.popleft()
            if oldest.fact.key in watched:
                spared.append(oldest)
            else:
                self._forget(oldest)
        self._kept.extendleft(reversed(spared))

    def _keep(self, kept: _Kept) -> None:
        fact = kept.fact
        if fact.outcome != TOO_LATE:
            self.facts.setdefault(fact.key, []).append(fact)
        elif fact.request_id is not None:
            self.answers[fact.request_id] = fact
        else:
            return
        self._kept.append(kept)
        self.bytes += kept.size

    def _forget(self, kept: _Kept) -> None:
        fact = kept.fact
        if fact.outcome == TOO_LATE:
            self.answers.pop(fact.request_id or "", None)
        else:
            known = self.facts[fact.key]
            known.pop(0)
            if not known:
                del self.facts[fact.key]
        self.bytes -= kept.size
        self.floor = max(self.floor, kept.offset + 1)


def _records(reader: KafkaConsumer, place: TopicPartition, start: int, stop: int) -> Iterator[Any]:
    """Records of a partition from `start` up to, not including, `stop`."""
    if start >= stop:
        return
    reader.assign([place])
    reader.seek(place, start)
    heard = boot_us()
    while reader.position(place) < stop:
        records = reader.poll(timeout_ms=SLICE_MS).get(place, ())
        for record in records:
            if record.offset < stop:
                yield record
        if records:
            heard = boot_us()
        elif boot_us() - heard > STALE_US:
            raise KafkaTimeoutError(f"no records of {place} from {start} on")
