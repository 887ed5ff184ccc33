"""Follows both logs beyond the tables, in one thread for all requests: who waits is told, and nobody else asks the broker.

It follows only while somebody asks: where nobody has for some minutes, it lets go of everything.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from scylla_spark.api.follow.recent_records import Beyond, BeyondTables, OutcomeEvent, Raw, Standing
from scylla_spark.client.connection import Connection
from scylla_spark.clock import boot_us
from scylla_spark.core.records.fact import TOO_LATE, Fact
from scylla_spark.core.tables.progress import Mark, joined
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import SchedulerError
from scylla_spark.io.kafka import topics
from scylla_spark.log import get_logger
from scylla_spark.services.daemon_threads import DaemonThreads

log = get_logger("api")

Listener = Callable[[OutcomeEvent], None]
Missed = Callable[[], None]
_POLL_MS: Final = 200
_TIDY_US: Final = 2_000_000
_KEEP_US: Final = 10_000_000  # what the tables hold is kept for so long, for those who read them a moment ago
_IDLE_US: Final = 300_000_000
_DOUBT_US: Final = 10_000_000  # a broker that was not heard of for so long may be gone
_AGAIN_S: Final = 1.0
_OPTIONS: Final = {"bootstrap_timeout_ms": 5_000, "max_poll_records": 500}  # nobody waits for this thread


class Since(NamedTuple):
    """The state of the tail for a new listener.

    Attributes:
        floors: partition → first offset of `outcomes` that is here.
        happened: from where it begins on, or from there on.
    """

    floors: dict[int, int]
    happened: list[OutcomeEvent]


class LogTail:
    """The logs beyond the tables; thread safe.

    Args:
        connection: to the deployment.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Condition()
        self._memory: BeyondTables | None = None
        self._caught_up = False
        self._heard_us = 0
        self._asked_us = 0
        self._listeners: dict[Listener, Missed] = {}
        self._told: dict[int, int] = {}  # partition → next offset of `outcomes` for listeners; the thread's alone
        self._marks: dict[int, Mark] = {}
        self._stop = threading.Event()
        self._wanted = threading.Event()
        self._looks = DaemonThreads("table-marks")
        self._looked: SimpleQueue[dict[int, Mark] | None] = SimpleQueue()  # None: the tables did not answer
        self._thread = threading.Thread(target=self._run, name="log-tail", daemon=True)

    def start(self) -> None:
        """Begins to follow, as soon as somebody asks."""
        self._thread.start()

    def stop(self) -> None:
        """Ends it."""
        self._stop.set()
        self._wanted.set()
        self._looks.stop()
        if self._thread.ident is not None:
            self._thread.join(timeout=10)

    # -- questions --------------------------------------------------------------------------------------------------------

    def beyond(self, key: TaskKey, partition: int, mark: Mark) -> Beyond | None:
        """Returns the records of a key beyond the tables. None: they are not complete here.

        Args:
            key: of the task.
            partition: of its records.
            mark: how far the tables are.
        """
        with self._lock:
            memory = self._asked()
            return memory.beyond(key, partition, mark) if memory is not None else None

    def ended(self, key: TaskKey, partition: int) -> Fact | None:
        """The completion of a key, if it is known here."""
        with self._lock:
            memory = self._asked()
            found = memory.facts(key, partition) if memory is not None else []
        return next((fact for fact in found if fact.terminal), None)

    def owner(self, partition: int) -> str:
        """Returns the address of the owner of a partition, if it took the partition since the tables were written; "" otherwise."""
        with self._lock:
            memory = self._asked()
            return memory.address(partition) if memory is not None else ""

    def marks(self) -> dict[int, Mark]:
        """Returns how far the tables were a moment ago: partition → mark."""
        with self._lock:
            self._asked()
            return self._marks

    def passes(self, partition: int, offset: int, timeout_s: float) -> bool:
        """Waits until the record of `tasks` at an offset was read; whether it was in time.

        Args:
            partition: of the record.
            offset: of the record.
            timeout_s: how long, at most.
        """

        def read() -> bool:
            return self._memory is not None and self._memory.positions()[partition][0] > offset

        with self._lock:
            self._asked()
            return self._lock.wait_for(read, timeout_s)

    def listen(self, listener: Listener, missed: Missed) -> None:
        """Has every record that counts told, in the tail's thread, from now on; again, where the logs are read anew.

        Args:
            listener: is told.
            missed: is called instead where some of them will never be told: the logs were not followed while the tables went on.
        """
        with self._lock:
            self._asked()
            self._listeners[listener] = missed

    def leave(self, listener: Listener) -> None:
        """Ends that."""
        with self._lock:
            self._listeners.pop(listener, None)

    def since(self, positions: Mapping[int, int], listener: Listener, missed: Missed) -> Since | None:
        """Returns the outcomes from these offsets on, and subscribes to later ones. None: the logs are not followed yet.

        Args:
            positions: partition → offset; what is below the floors is not here.
            listener: as of `listen`.
            missed: likewise.
        """
        with self._lock:
            memory = self._asked()
            if memory is None:
                return None
            self._listeners[listener] = missed
            return Since(memory.floors(), memory.since(positions))

    def places(self) -> dict[int, tuple[int, int]]:
        """Partition → next offset of `outcomes`, and the epoch of the fence in force there; empty while nothing is followed."""
        with self._lock:
            memory = self._asked()
            return memory.places() if memory is not None else {}

    def standing(self) -> dict[int, Standing]:
        """Partition → how the logs and the tables stand; empty while nothing is followed."""
        with self._lock:
            memory = self._asked()
            return memory.standing(self._marks) if memory is not None else {}

    def _asked(self) -> BeyondTables | None:
        """The memory, if it can be relied on; the lock is held."""
        self._asked_us = boot_us()
        self._wanted.set()
        fresh = self._caught_up and boot_us() - self._heard_us < _DOUBT_US
        return self._memory if fresh else None

    # -- the thread -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._wanted.wait() and not self._stop.is_set():
            try:
                self._follow()
            except (KafkaError, SchedulerError, OSError) as error:
                log.warning("the logs are read anew", why=str(error))
                self._stop.wait(_AGAIN_S)
            except Exception as error:
                log.exception("the logs are read anew", why=str(error))
                self._stop.wait(_AGAIN_S)
            finally:
                with self._lock:
                    self._memory, self._caught_up = None, False

    def _follow(self) -> None:
        """Reads until nobody asks any more."""
        rules, marks = self._connection.rules, joined(self._connection.readers.marks())
        consumer = topics.client_consumer(self._connection.located, **_OPTIONS)
        try:
            memory = BeyondTables(marks, rules)
            ends = self._begin(consumer, memory)
            self._tell_of_gaps({number: place[0] for number, place in memory.places().items()})
            with self._lock:
                self._memory, self._marks = memory, marks
            self._read(consumer, memory, ends)
        finally:
            consumer.close(autocommit=False)

    def _tell_of_gaps(self, starts: Mapping[int, int]) -> None:
        """Tells listeners where reading begins beyond what they were told."""
        gap = any(start > self._told.get(number, start) for number, start in starts.items())
        self._told = {number: max(start, self._told.get(number, start)) for number, start in starts.items()}
        with self._lock:
            missed = list(self._listeners.values()) if gap else []
        for one in missed:
            one()

    def _begin(self, consumer: KafkaConsumer, memory: BeyondTables) -> dict[TopicPartition, int]:
        """Goes to where the tables are; the ends of now."""
        names = self._connection.located.topics
        numbers = memory.positions()
        places = [TopicPartition(topic, number) for topic in (names.tasks, names.outcomes) for number in numbers]
        consumer.assign(places)
        firsts = consumer.beginning_offsets(places)
        for number in numbers:
            memory.skip(
                number, firsts[TopicPartition(names.tasks, number)], firsts[TopicPartition(names.outcomes, number)]
            )
        for number, starts in memory.positions().items():
            for topic, start in zip((names.tasks, names.outcomes), starts, strict=True):
                consumer.seek(TopicPartition(topic, number), start)
        return dict(consumer.end_offsets(places))

    def _read(self, consumer: KafkaConsumer, memory: BeyondTables, ends: dict[TopicPartition, int]) -> None:
        tidied_us = self._heard_us = boot_us()
        held: list[tuple[int, dict[int, Mark]]] = []  # marks and when they were read
        is_looking = False
        while not self._stop.is_set():
            self._take(consumer.poll(timeout_ms=_POLL_MS), memory)
            if not self._caught_up and all(consumer.position(place) >= end for place, end in ends.items()):
                with self._lock:
                    self._caught_up = True
            now = boot_us()
            with suppress(Empty):
                if (marks := self._looked.get_nowait()) is not None:
                    held.append((now, marks))
                    self._let_go(memory, held, now - _KEEP_US)
                is_looking = False
            if now - tidied_us < _TIDY_US:
                continue
            with self._lock:
                if now - self._asked_us > _IDLE_US and not self._listeners:
                    self._wanted.clear()
                    self._memory, self._caught_up = None, False  # who comes now waits until it is followed again
                    self._told.clear()
                    return
            consumer.end_offsets(list(ends)[:1])  # raises where the broker is away, which a poll does not
            if not is_looking:
                self._looks.do(self._look_at_tables)
                is_looking = True
            with self._lock:
                self._heard_us = now
            tidied_us = now

    def _let_go(self, memory: BeyondTables, held: list[tuple[int, dict[int, Mark]]], until_us: int) -> None:
        """Drops what the tables held until then, by marks and when they were read; the newest are those of now."""
        with self._lock:
            self._marks = held[-1][1]
            while held and held[0][0] < until_us:
                memory.let_go(held.pop(0)[1])

    def _look_at_tables(self) -> None:
        """Reads how far the tables are, beside the logs: a store that does not answer makes nobody wait for what stands in Kafka."""
        try:
            self._looked.put(joined(self._connection.readers.marks()))
        except Exception as error:
            log.warning("the tables cannot be read, the logs are followed on", why=str(error)[:500])
            self._looked.put(None)

    def _take(self, found: Mapping[TopicPartition, list[object]], memory: BeyondTables) -> None:
        if not found:
            return
        tasks = self._connection.located.topics.tasks
        told: list[OutcomeEvent] = []
        with self._lock:
            for place, records in found.items():
                for record in records:
                    if place.topic == tasks:
                        memory.read_task(place.partition, _raw(record))
                    elif (one := memory.read_outcome(place.partition, record.offset, record.value)) is not None:  # type: ignore[attr-defined]
                        told.append(one)
            self._heard_us = boot_us()
            self._lock.notify_all()
            listeners = list(self._listeners)
        for one in told:
            for listener in listeners:
                listener(one)
        for place, records in found.items():
            if place.topic != tasks and records:
                self._told[place.partition] = max(self._told[place.partition], records[-1].offset + 1)  # type: ignore[attr-defined]


def _raw(record: object) -> Raw:
    found: Raw = Raw(record.offset, record.timestamp * 1000, record.key, record.value)  # type: ignore[attr-defined]
    return found


def answers(happened: OutcomeEvent) -> list[Fact]:
    """The facts of a record that answer a cancel as too late."""
    return [fact for fact in happened.facts if fact.outcome == TOO_LATE]
