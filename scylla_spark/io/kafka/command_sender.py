"""Sends commands to the `tasks` topic, judged beforehand by the rules that ingest and dispatch will apply."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scylla_spark.clock import boot_us, now_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.records.command import (
    STAMP_TRUST_US,
    TOO_LATE,
    Command,
    Rejection,
    Rules,
    encode,
    validate,
    with_extra,
)
from scylla_spark.core.tasks.key import place_of
from scylla_spark.errors import ArgumentError, ConflictError, UnreachableError

if TYPE_CHECKING:
    from kafka import KafkaProducer

SINGLE: Final = "single"
BULK: Final = "bulk"
_OPTIONS: Final[dict[str, dict[str, Any]]] = {SINGLE: {}, BULK: {"linger_ms": 20, "batch_size": 256 * 1024}}
ACKNOWLEDGED_S: Final = 15.0  # for a connection and an acknowledgement; of a bulk, from one acknowledgement to the next
CLOSED: Final = "This Scheduler is closed."
RECONNECT: Final = "Make another with Scheduler.connect()."
_UNSENT: Final = "Nothing was sent."
_HINTS: Final = {TOO_LATE: f"{_UNSENT} If the same was enqueued in time before, that stands: look at its key."}


class Record(NamedTuple):
    """A record that will not be refused."""

    partition: int
    key: bytes
    value: bytes


class Place(NamedTuple):
    """Where a record stands in its topic."""

    partition: int
    offset: int


class Sender:
    """One producer for single records and one for bulks, made when first needed; thread safe.

    Args:
        settings: gives the settings with the broker's address.
        rules: gives the deployment's rules.

    Attributes:
        sign: changes commands before they are judged and sent, as the API does; None: nothing does.
    """

    def __init__(self, settings: Callable[[], Settings], rules: Callable[[], Rules]) -> None:
        self._settings = settings
        self._rules = rules
        self._lock = threading.Lock()
        self._producers: dict[str, KafkaProducer] = {}
        self._closed = False
        self.sign: Callable[[Command], Command] | None = None

    @property
    def is_open(self) -> bool:
        """Returns True if a connection is open."""
        return bool(self._producers)

    def close(self) -> None:
        """Sends what is under way and closes the connections; idempotent."""
        with self._lock:
            self._closed = True
            producers, self._producers = list(self._producers.values()), {}
        for producer in producers:
            producer.close(timeout=15)

    def record(self, command: Command) -> Record:
        """The record of a command.

        Raises:
            ArgumentError: it would be refused; `fields["reason"]` says why.
        """
        if self.sign is not None:
            command = self.sign(command)
        return record_of(command, self._rules(), now_us())

    def send(self, command: Command) -> Place:
        """Sends one command; returns when it is acknowledged.

        Returns:
            Where it stands.

        Raises:
            ArgumentError: it would be refused.
            UnreachableError: it was not acknowledged in time; it may exist all the same.
            ConflictError: it is acknowledged, but this machine's clock is more than an hour off.
        """
        record, deadline_us = self.record(command), _deadline_us()
        place = self._acknowledged([self._hand_over(SINGLE, record, deadline_us)], deadline_us)[0]
        drift = place.timestamp * 1000 - command.enqueued_us if place.timestamp and place.timestamp > 0 else 0
        if abs(drift) > STAMP_TRUST_US:
            raise ConflictError(
                f"This machine's clock is {drift / 1e6:.0f} s away from the broker's.",
                hint="Set it right: tasks are judged by the broker's time then, and may be refused or run at the wrong moment.",
            )
        return Place(place.partition, place.offset)

    def begin(self, record: Record) -> Any:
        """Hands a record of a bulk over without waiting; pass the answer to `finish`."""
        return self._hand_over(BULK, record, _deadline_us())

    def finish(self, futures: list[Any]) -> dict[int, int]:
        """Waits for the records of a bulk.

        Returns:
            Partition → offset after its last record.

        Raises:
            UnreachableError: some were not acknowledged; `fields["sent"]` were.
        """
        ends: dict[int, int] = {}
        for place in self._acknowledged(futures, _deadline_us()):
            ends[place.partition] = max(ends.get(place.partition, 0), place.offset + 1)
        return ends

    def _acknowledged(self, futures: list[Any], deadline_us: int) -> list[Any]:
        places, failures = [], []
        for future in futures:
            try:
                places.append(future.get(timeout=left_s(deadline_us)))
            except Exception as error:
                failures.append(error)
            else:
                deadline_us = max(deadline_us, _deadline_us())
        if failures:
            raise self._unacknowledged(failures[0], sent=len(places), unknown=len(failures))
        return places

    def _hand_over(self, kind: str, record: Record, deadline_us: int) -> Any:
        from kafka.errors import KafkaError

        producer, topic = self._producer(kind, deadline_us), self._settings().topics.tasks
        try:
            return producer.send(topic, record.value, key=record.key, partition=record.partition)
        except (KafkaError, AssertionError) as error:  # it asserts that the partition exists
            raise self._unacknowledged(error, sent=0, unknown=1) from error

    def _producer(self, kind: str, deadline_us: int) -> KafkaProducer:
        if not self._lock.acquire(timeout=left_s(deadline_us)):
            raise self._unacknowledged(TimeoutError("no connection in time; nothing was sent"), sent=0, unknown=1)
        try:
            if self._closed:
                raise ConflictError(CLOSED, hint=RECONNECT)
            known = self._producers.get(kind)
            if known is None:
                from scylla_spark.io.kafka.topics import CONNECT_MS, WAIT_MS, producer

                waits = {"bootstrap_timeout_ms": CONNECT_MS, "max_block_ms": WAIT_MS}
                known = self._producers[kind] = producer(self._settings(), **waits, **_OPTIONS[kind])
            return known
        finally:
            self._lock.release()

    def _unacknowledged(self, error: BaseException, *, sent: int, unknown: int) -> UnreachableError:
        return UnreachableError(
            f"Kafka at {self._settings().kafka.bootstrap_servers} did not acknowledge {unknown} record(s) "
            f"({type(error).__name__}: {error}).",
            hint="They may exist all the same; enqueueing them again with the same keys does no harm.",
            sent=sent,
            unknown=unknown,
        )


def left_s(deadline_us: int) -> float:
    """Seconds until an instant of the boot clock; 0 once it has passed."""
    return max(0.0, (deadline_us - boot_us()) / 1e6)


def _deadline_us() -> int:
    return boot_us() + round(ACKNOWLEDGED_S * 1e6)


def record_of(command: Command, rules: Rules, now: int) -> Record:
    """The record of a command, judged as ingest and dispatch will judge it.

    Args:
        command: what is to be sent.
        rules: of the deployment.
        now: of the send, microseconds since the epoch.

    Raises:
        ArgumentError: it would be refused; `fields["reason"]` says why.
    """
    try:
        key, value = command.key.ordering_id.encode(), with_extra(encode(command), command.extra)
        partition = place_of(command.key.ordering_id, rules.partitions)
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise ArgumentError(
            f"The task cannot be written: {error}.", hint="Nothing was sent.", reason="wrong_value"
        ) from None
    verdict = validate(partition, 0, now, key, value, rules)
    if isinstance(verdict, Rejection):
        raise ArgumentError(verdict.detail, hint=_HINTS.get(verdict.reason, _UNSENT), reason=verdict.reason)
    return Record(partition, key, value)


def line_of(command: Command) -> str:
    """A command as a line of JSON that `task import` takes."""
    return encode(command).decode()
