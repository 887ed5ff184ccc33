"""Asks the planner: sends a record to `schedules`, and waits until its answer counts in the planner's log."""

from __future__ import annotations

import threading
from typing import Any
from uuid import uuid4

from kafka.errors import KafkaError, KafkaTimeoutError

from scylla_spark.clock import boot_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.plan.commands.plan_answer import Answer, checked_command, refusal
from scylla_spark.core.plan.state.plan_log import Group
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.records.fact import FenceLog
from scylla_spark.core.tables.progress import Mark
from scylla_spark.errors import ConflictError, UnreachableError
from scylla_spark.io.kafka.command_sender import CLOSED, RECONNECT
from scylla_spark.io.kafka.plan_answers import PlanAnswers, Told
from scylla_spark.io.kafka.plan_log_reader import PlanLogReader
from scylla_spark.io.kafka.topics import CONNECT_MS, WAIT_MS, client_consumer, producer, unanswered, waiting_out

_ACKNOWLEDGED_S = 15.0


class PlanRequests:
    """Asks one deployment's planner; thread safe, connections are made when first needed.

    Args:
        settings: with the broker's address.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._answers = PlanAnswers(settings, self._connect)
        self._reading = threading.Lock()  # held while the whole log, or much of it, is read
        self._consumer: Any = None
        self._sending = threading.Lock()  # held while the producer is made or closed
        self._producer: Any = None
        self._closed = False

    def close(self) -> None:
        """Closes the connections for good: what still runs in another thread opens no others."""
        self._closed = True
        self._answers.close()
        with self._reading, self._sending:
            for client in (self._producer, self._consumer):
                if client is not None:
                    client.close()
            self._producer = self._consumer = None

    def tell(self, kind: str, **fields: Any) -> None:
        """Sends a command; returns when it is acknowledged, and will be obeyed.

        Raises:
            ArgumentError: the planner would refuse it; nothing was sent.
            UnreachableError: it was not acknowledged within 15 s; it may be obeyed all the same.
        """
        value = checked_command(kind, **fields)
        self._send(value, boot_us() + round(_ACKNOWLEDGED_S * 1e6), _ACKNOWLEDGED_S)

    def ask(self, kind: str, *, timeout_s: float = 30.0, **fields: Any) -> Answer:
        """Sends a command, and waits until the planner has obeyed or refused it. A broker that is started again is waited for, too.

        Raises:
            ArgumentError: it was refused; nothing was changed. ConflictError, NotFoundError: likewise.
            WaitTimeoutError: it is done, but what was launched ahead of its time is not known to be taken back.
            UnreachableError: nobody answered in time; it stands in the topic, and is obeyed when a planner runs.
        """
        deadline_us = boot_us() + round(timeout_s * 1e6)
        name = uuid4().hex
        value = checked_command(kind, id=name, **fields)
        try:
            found = self._asked(name, value, deadline_us, timeout_s)
        except KafkaError as cause:
            raise unanswered(self._settings, cause, within_s=timeout_s) from cause
        if found is None:
            raise UnreachableError(
                f"No planner answered within {timeout_s:g} s.",
                hint="What was asked is kept, and done when a planner runs: `scylla-spark up`, or `run plan`.",
            )
        _, _, code, message, hint, done = found.change
        error = refusal(code, message, hint)
        if error is not None:
            raise error
        return Answer(done, found.offset)

    def state(self) -> PlanState:
        """All that the planner knows, as its log says by now.

        Raises:
            UnreachableError: the broker does not answer.
        """
        with self._reading:
            reader = self._reader()
            try:
                reader.begin()
            except KafkaError as error:
                raise unanswered(self._settings, error) from error
            return reader.state

    def groups(self, mark: Mark | None) -> list[tuple[int, Group]]:
        """Returns what the planner has recorded beyond the tables: offsets, and the groups that count, in order.

        Args:
            mark: how far the tables are with the planner's partition of `outcomes`; None: they hold nothing of it.

        Raises:
            UnreachableError: the broker does not answer.
        """
        with self._reading:
            try:
                reader = self._reader()
                first, end = reader.range()
                reader.position, reader.size = first, 1
                if mark is not None:
                    reader.position, reader.fences = max(mark.outcomes_offset, first), FenceLog(mark.fence)
                return [(read.offset, read.group) for read in reader.until(end) if read.group is not None]
            except KafkaError as error:
                raise unanswered(self._settings, error) from error

    def _asked(self, name: str, value: bytes, deadline_us: int, timeout_s: float) -> Told | None:
        """Sends a command, and waits for its answer; others ask, tell and read meanwhile."""
        if not waiting_out(self._settings, lambda: self._answers.expect(name, deadline_us), deadline_us):
            raise KafkaTimeoutError("another request has not begun to read; nothing was sent")
        try:
            self._send(value, deadline_us, timeout_s)
            return self._answers.wait(name, deadline_us)
        finally:
            self._answers.forget(name)

    def _check_open(self) -> None:
        if self._closed:
            raise ConflictError(CLOSED, hint=RECONNECT)

    def _connect(self) -> Any:
        self._check_open()
        return client_consumer(self._settings)

    def _reader(self) -> PlanLogReader:
        """To read the log with; `_reading` is held."""
        if self._consumer is None:
            self._consumer = self._connect()
        return PlanLogReader(self._settings, self._consumer)

    def _sender(self) -> Any:
        with self._sending:
            if self._producer is None:
                self._check_open()
                self._producer = producer(self._settings, bootstrap_timeout_ms=CONNECT_MS, max_block_ms=WAIT_MS)
            return self._producer

    def _send(self, value: bytes, deadline_us: int, timeout_s: float) -> None:
        def hand_over() -> Any:  # once it is handed over, it may land
            return self._sender().send(self._settings.topics.schedules, value, partition=0)

        limit_s = timeout_s
        try:
            sent = waiting_out(self._settings, hand_over, deadline_us)
            limit_s = round(min(max(deadline_us - boot_us(), 0) / 1e6, _ACKNOWLEDGED_S), 1)
            sent.get(timeout=limit_s)
        except (KafkaError, AssertionError) as error:
            raise unanswered(self._settings, error, within_s=limit_s) from error
