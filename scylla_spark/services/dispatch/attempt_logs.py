"""The way of log lines to the topic `logs`: one thread, which nobody waits for.

It looks at the memory of every child some times a second, takes what is there in small slices, so that the engine's thread gets its
turn, and hands records to a producer of its own. Without Kafka lines wait in a bounded queue, then are dropped and counted, while
children go on writing into memory that never grows.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from scylla_spark.clock import boot_us
from scylla_spark.config.secret_values import secrets_in
from scylla_spark.config.settings import Logs, Settings
from scylla_spark.core.access.redaction import Redaction
from scylla_spark.core.records.log_record import LogLine
from scylla_spark.core.tasks.key import place_of
from scylla_spark.executors.interface import LogTerms
from scylla_spark.handlers.log_ring import LogMemory
from scylla_spark.io.kafka.topics import producer
from scylla_spark.log import get_logger
from scylla_spark.services.dispatch.attempt_lines import AttemptLines, AttemptName, LeasedRows
from scylla_spark.services.dispatch.log_queue import LogQueue, Waiting
from scylla_spark.services.metrics_server import PREFIX

log = get_logger("dispatch")

_SLICE: Final = 32  # frames of a child that are read in one go: a fraction of a millisecond
_LARGE_SLICE: Final = (
    256  # the same where its memory fills up: where cores are taken, the pauses between slices are long
)
_GATHER_US: Final = 50_000  # what an attempt writes meanwhile is one record: each costs as much as ten lines
_MOST_GATHERED: Final = 256 * 1024
_QUIET_S: Final = 0.05
_BUSY_S: Final = 0.002
_RETRY_US: Final = 5_000_000
_SAID_AGAIN_US: Final = 60_000_000
_STOP_US: Final = 5_000_000
_JOIN_S: Final = 30.0
_MOST_UNDER_WAY: Final = 4 * 1024 * 1024
_OPTIONS: Final[dict[str, Any]] = {
    "linger_ms": 5,
    "max_block_ms": 1_000,
    "bootstrap_timeout_ms": 3_000,
    "delivery_timeout_ms": 30_000,
}


@runtime_checkable
class TakesLines(Protocol):
    """What keeps lines of leased attempts."""

    def take(self, name: AttemptName, told: LeasedRows) -> None:
        """Lines of an attempt; never waits."""


class _Source(NamedTuple):
    """A child, its memory, and the reader of its frames."""

    child: Hashable
    memory: LogMemory
    lines: AttemptLines


class _Heard(NamedTuple):
    """What a child on another machine has written, and its reader."""

    lines: AttemptLines
    frames: Iterator[bytes]
    size: int


class _Gathered:
    """Lines by attempt, until they are enough for records or have waited long enough."""

    def __init__(self) -> None:
        self._lines: dict[AttemptName, list[LogLine]] = {}
        self._bytes = self._since_us = 0

    def add(self, name: AttemptName, lines: list[LogLine], size: int) -> None:
        if not self._lines:
            self._since_us = boot_us()
        self._lines.setdefault(name, []).extend(lines)
        self._bytes += size

    def is_enough(self) -> bool:
        return self._bytes >= _MOST_GATHERED or boot_us() - self._since_us >= _GATHER_US

    def take(self) -> dict[AttemptName, list[LogLine]]:
        taken, self._lines, self._bytes = self._lines, {}, 0
        return taken


class AttemptLogs(Collector):
    """A LogKeeper, and what it counts in Prometheus form.

    Args:
        settings: with the broker's address.
        secrets: values that must not appear in lines.
        let_go: is told of each dead child of which nothing is left to read.

    Attributes:
        sent: lines that Kafka has acknowledged.
    """

    def __init__(
        self,
        settings: Settings,
        secrets: Iterable[str] = (),
        let_go: Callable[[Hashable], None] = lambda child: None,
    ) -> None:
        self._settings = settings
        self._let_go = let_go
        self._bounds = settings.logs
        self._redaction = Redaction(secrets)
        self._queue = LogQueue(settings.logs.buffer)
        self._lock = threading.Lock()
        self._gathered = _Gathered()
        self._sources: dict[Hashable, _Source] = {}
        self._dead: list[_Source] = []
        self._told: list[tuple[AttemptName, list[Any]]] = []
        self._told_size = 0
        self._leased = self._reader()
        self._heard: deque[_Heard] = deque()
        self._heard_size = 0
        self._producer: Any = None
        self._retry_us = 0
        self._quiet_until_us = 0
        self._under_way = 0
        self.sent = self._missing = self._failed = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="attempt-logs", daemon=True)

    def start(self) -> None:
        """Begins to read and to send."""
        self._thread.start()

    def open(self, child: Hashable) -> int:
        """A descriptor of the memory for the lines of a child, which the caller closes."""
        fd = memory_fd(self._bounds)
        try:
            self.read(child, fd)
        except OSError:
            os.close(fd)
            raise
        return fd

    def read(self, child: Hashable, fd: int) -> None:
        """Reads the memory of a child; the descriptor stays the caller's."""
        source = _Source(child, LogMemory(fd), self._reader())
        with self._lock:
            self._sources[child] = source

    def close(self, child: Hashable) -> None:
        """The child is dead: what it has left is read, and then let go of."""
        with self._lock:
            source = self._sources.pop(child, None)
            if source is not None:
                self._dead.append(source)

    def terms(self) -> LogTerms:
        """Returns how much of an attempt is kept."""
        return LogTerms(self._bounds.head, self._bounds.tail, self._bounds.line)

    def hear(self, children: Sequence[Sequence[bytes]]) -> None:
        """What children on other machines have written; more than may wait for Kafka is dropped, and counted.

        Args:
            children: of each the frames of its memory, in order.
        """
        with self._lock:
            for frames in children:
                size = sum(map(len, frames))
                if self._heard_size + size > self._bounds.buffer:
                    self._missing += len(frames)
                else:
                    self._heard.append(_Heard(self._reader(), iter(frames), size))
                    self._heard_size += size

    def take(self, name: AttemptName, told: LeasedRows) -> None:
        """Lines of a leased attempt; more than may wait for Kafka are dropped, and counted.

        Args:
            name: of the attempt.
            told: they.
        """
        with self._lock:
            if self._told_size + told.size > self._bounds.buffer:
                self._missing += len(told.rows)
                return
            self._told.append((name, told.rows))
            self._told_size += told.size

    def stop(self) -> None:
        """Reads what is left, sends it as far as that takes some seconds at most, and ends."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The counts, when Prometheus asks."""
        return counters(self.sent, self.dropped)

    @property
    def dropped(self) -> int:
        """Lines that were left out: beyond a bound, or not sent in time."""
        return self._missing + self._queue.dropped + self._failed

    def describe(self) -> list[CounterMetricFamily]:
        """Nothing before it is asked."""
        return []

    def _reader(self) -> AttemptLines:
        return AttemptLines(self._redaction, most_line=self._bounds.line, most_attempt=self.terms().most)

    # -- below: the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = _QUIET_S
        while not self._stopping.wait(pause):
            try:
                pause = _BUSY_S if self._turn() else _QUIET_S
            except Exception:
                log.exception("lines of attempts could not be read or sent; others go on")
                pause = _QUIET_S
        try:
            self._finish()
        except Exception:
            log.exception("the last lines of attempts could not be sent")

    def _turn(self) -> bool:
        """Reads a slice of every memory and sends what waits; returns whether there is more."""
        with self._lock:
            living, dead, self._dead = list(self._sources.values()), self._dead, []
            told, self._told, self._told_size = self._told, [], 0
        more = False
        for source in living:
            if source.memory.waiting:
                self._read(source.lines, source.memory.take(_LARGE_SLICE if source.memory.fills_up else _SLICE))
                more = more or source.memory.waiting
        for source in dead:
            self._bury(source)
        more = self._read_heard() or more
        if not more:
            self._put_gathered()
        self._read_leased(told)
        self._send()
        return more or bool(dead)

    def _bury(self, source: _Source) -> None:
        """Reads what a dead child has left: no more than fits, as something that it left behind may go on writing."""
        left = source.memory.room
        while left > 0 and (frames := source.memory.take(_SLICE)):
            left -= sum(map(len, frames))
            self._read(source.lines, frames)
            self._stopping.wait(0 if self._stopping.is_set() else _BUSY_S / 4)
        self._read(source.lines, source.memory.take_rest())
        source.memory.close()
        self._let_go(source.child)

    def _read_heard(self) -> bool:
        """Reads a slice of what has come from another machine; returns whether there was any."""
        if not self._heard:
            return False
        source = self._heard[0]
        if frames := list(islice(source.frames, _SLICE)):
            self._read(source.lines, frames)
        else:
            with self._lock:
                self._heard.popleft()
                self._heard_size -= source.size
        return True

    def _read(self, lines: AttemptLines, frames: list[bytes]) -> None:
        before = lines.missing
        for frame in frames:
            read = lines.read(frame)
            if read is not None and read[1]:
                self._gathered.add(read[0], read[1], len(frame))
        if self._gathered.is_enough():
            self._put_gathered()
        self._missing += lines.missing - before

    def _put_gathered(self) -> None:
        for name, lines in self._gathered.take().items():
            self._queue.add(name, lines)

    def _read_leased(self, told: list[tuple[AttemptName, list[Any]]]) -> None:
        before = self._leased.missing
        for name, rows in told:
            if lines := self._leased.of_attempt(name, rows):
                self._queue.add(name, lines)
        self._missing += self._leased.missing - before

    def _send(self) -> None:
        if not self._queue or boot_us() < self._retry_us:
            return
        try:
            if self._producer is None:
                self._producer = producer(self._settings, **_OPTIONS)
        except Exception as error:
            self._postpone(error)
            return
        while self._queue and self._under_way < _MOST_UNDER_WAY:
            record = self._queue.take()
            try:
                self._hand_over(record)
            except Exception as error:
                self._queue.put_back(record)
                self._postpone(error)
                return

    def _hand_over(self, record: Waiting) -> None:
        name, size = record.name, len(record.value)
        partition = place_of(name.key.ordering_id, self._settings.partitions)
        future = self._producer.send(
            self._settings.topics.logs, record.value, key=name.key.ordering_id.encode(), partition=partition
        )
        with self._lock:
            self._under_way += size
        future.add_callback(lambda _place: self._arrived(record.lines, size, failed=False))
        future.add_errback(lambda _error: self._arrived(record.lines, size, failed=True))

    def _arrived(self, lines: int, size: int, *, failed: bool) -> None:
        with self._lock:
            self._under_way -= size
            if failed:
                self._failed += lines
            else:
                self.sent += lines

    def _postpone(self, error: Exception) -> None:
        now = boot_us()
        self._retry_us = now + _RETRY_US
        if now < self._quiet_until_us:
            return
        self._quiet_until_us = now + _SAID_AGAIN_US
        log.warning("lines of attempts wait, since Kafka does not take them", why=f"{type(error).__name__}: {error}")

    def _finish(self) -> None:
        until, self._retry_us = boot_us() + _STOP_US, 0
        while boot_us() < until and (self._turn() or (self._queue and not self._retry_us)):
            threading.Event().wait(_BUSY_S)
        self._put_gathered()
        if self._producer is not None:
            self._producer.close(timeout=_STOP_US / 1e6)
        with self._lock:
            self._failed += sum(self._queue.take().lines for _ in range(len(self._queue)))


def known_secrets(settings: Settings) -> set[str]:
    """Values that must not appear in lines: the secrets of the settings, and variables of our environment with telling names.

    Args:
        settings: with the broker's address.
    """
    from scylla_spark.core.access.redaction import is_telling
    from scylla_spark.io.host.deployment_secret import desk_secret
    from scylla_spark.io.kafka.access import password

    kafka = settings.kafka
    found = {value for name, value in os.environ.items() if is_telling(name)}
    found |= set(secrets_in(settings))
    if kafka.password is not None or kafka.password_file is not None:
        found.add(password(kafka))
    found.add(desk_secret(settings))
    return found


def memory_fd(bounds: Logs) -> int:
    """A descriptor of a new memory for the lines of a child."""
    return LogMemory.create_fd(head=bounds.head, rest=bounds.tail, line=bounds.line)


def counters(sent: int, dropped: int) -> Iterator[CounterMetricFamily]:
    """The counts of lines, in Prometheus form."""
    yield _counter("log_lines", "Lines of attempts that stand on the topic `logs`", sent)
    yield _counter("log_lines_dropped", "Lines that were left out: beyond a bound, or not sent in time", dropped)


def _counter(name: str, text: str, value: int) -> CounterMetricFamily:
    family = CounterMetricFamily(PREFIX + name, text)
    family.add_metric([], value)
    return family
