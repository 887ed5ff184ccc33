"""Asks the planner: sends a record to `schedules`, and waits until its answer counts in the planner's log."""

from __future__ import annotations

import threading
from typing import Any, Final
from uuid import uuid4

from kafka.errors import KafkaError

from scylla_spark.clock import boot_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.plan.commands.plan_answer import Answer, checked_command, refusal
from scylla_spark.core.plan.state.plan_log import Group
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.records.fact import FenceLog
from scylla_spark.core.table_progress import Mark
from scylla_spark.errors import UnreachableError
from scylla_spark.io.kafka.plan_log_reader import PlanLogReader
from scylla_spark.io.kafka.topics import consumer, producer

_POLL_MS: Final = 100


class PlanRequests:
    """Asks one deployment's planner; thread safe, connections are made when first needed.

    Args:
        settings: with the broker's address.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._producer: Any = None
        self._consumer: Any = None

    def close(self) -> None:
        """Closes the connections."""
        with self._lock:
            for client in (self._producer, self._consumer):
                if client is not None:
                    client.close()
            self._producer = self._consumer = None

    def tell(self, kind: str, **fields: Any) -> None:
        """Sends a command; returns when it is acknowledged, and will be obeyed.

        Raises:
            ArgumentError: the planner would refuse it; nothing was sent.
            UnreachableError: it was not acknowledged; it may be obeyed all the same.
        """
        value = checked_command(kind, **fields)
        with self._lock:
            self._send(value)

    def ask(self, kind: str, *, timeout_s: float = 30.0, **fields: Any) -> Answer:
        """Sends a command, and waits until the planner has obeyed or refused it.

        Raises:
            ArgumentError: it was refused; nothing was changed. ConflictError, NotFoundError: likewise.
            WaitTimeoutError: it is done, but what was launched ahead of its time is not known to be taken back.
            UnreachableError: nobody answered in time; it stands in the topic, and is obeyed when a planner runs.
        """
        name = uuid4().hex
        value = checked_command(kind, id=name, **fields)
        with self._lock:
            reader = self._reader()
            reader.tail()
            self._send(value)
            found = self._await(reader, name, boot_us() + round(timeout_s * 1e6))
        if found is None:
            raise UnreachableError(
                f"No planner answered within {timeout_s:g} s.",
                hint="What was asked is kept, and done when a planner runs: `scylla-spark up`, or `run plan`.",
            )
        (_, _, code, message, hint, done), offset = found
        error = refusal(code, message, hint)
        if error is not None:
            raise error
        return Answer(done, offset)

    def state(self) -> PlanState:
        """All that the planner knows, as its log says by now.

        Raises:
            UnreachableError: the broker does not answer.
        """
        with self._lock:
            reader = self._reader()
            try:
                reader.begin()
            except KafkaError as error:
                raise self._unreachable(error) from error
            return reader.state

    def groups(self, mark: Mark | None) -> list[tuple[int, Group]]:
        """What the planner has recorded beyond the tables: offsets, and the groups that count, in order.

        Args:
            mark: how far the tables are with the planner's partition of `outcomes`; None: they hold nothing of it.

        Raises:
            UnreachableError: the broker does not answer.
        """
        with self._lock:
            try:
                reader = self._reader()
                first, end = reader.range()
                reader.position, reader.size = first, 1
                if mark is not None:
                    reader.position, reader.fences = max(mark.outcomes_offset, first), FenceLog(mark.fence)
                return [(read.offset, read.group) for read in reader.until(end) if read.group is not None]
            except KafkaError as error:
                raise self._unreachable(error) from error

    # -- below: the lock is held ----------------------------------------------------------------------------------------

    def _reader(self) -> PlanLogReader:
        if self._consumer is None:
            self._consumer = consumer(self._settings, bootstrap_timeout_ms=10_000)
        return PlanLogReader(self._settings, self._consumer)

    def _send(self, value: bytes) -> None:
        try:
            if self._producer is None:
                self._producer = producer(self._settings, bootstrap_timeout_ms=10_000)
            self._producer.send(self._settings.topics.schedules, value, partition=0).get(timeout=30)
        except (KafkaError, AssertionError) as error:
            raise self._unreachable(error) from error

    def _await(self, reader: PlanLogReader, name: str, deadline: int) -> tuple[Any, int] | None:
        while boot_us() < deadline:
            try:
                records = self._consumer.poll(timeout_ms=_POLL_MS).get(reader.place, ())
            except KafkaError as error:
                raise self._unreachable(error) from error
            for record in records:
                read = reader.admit(record)
                for change in read.group.changes if read is not None and read.group is not None else ():
                    if change[0] == "answer" and change[1] == name:
                        return change, record.offset
        return None

    def _unreachable(self, error: BaseException) -> UnreachableError:
        return UnreachableError(
            f"Kafka at {self._settings.kafka.bootstrap_servers} did not answer ({type(error).__name__}: {error}).",
            hint="Check that the broker runs; `scylla-spark doctor kafka` looks closer.",
        )
