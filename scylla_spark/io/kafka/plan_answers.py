"""The planner's answers: whoever waits for one reads its log for all who wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from kafka import KafkaConsumer

from scylla_spark.clock import boot_us
from scylla_spark.config.settings import Settings
from scylla_spark.errors import UnreachableError
from scylla_spark.io.kafka.plan_log_reader import PlanLogReader
from scylla_spark.io.kafka.topics import waiting_out

_POLL_MS: Final = 100


class Told(NamedTuple):
    """An answer, as the log has it.

    Attributes:
        change: of the planner's state.
        offset: where its group stands.
    """

    change: Any
    offset: int


class PlanAnswers:
    """Follows the planner's log while somebody waits for an answer; thread safe.

    One thread at a time has the consumer, for one poll or to begin; what it finds it hands to whoever waits for it.

    Args:
        settings: with the broker's address.
        connect: makes the consumer.
    """

    def __init__(self, settings: Settings, connect: Callable[[], KafkaConsumer]) -> None:
        self._settings = settings
        self._connect = connect
        self._changed = threading.Condition()
        self._taken = False  # a thread has the consumer
        self._consumer: KafkaConsumer | None = None
        self._reader: PlanLogReader | None = None  # None: the log is not followed
        self._wanted: dict[str, Told | None] = {}

    def expect(self, name: str, deadline_us: int) -> bool:
        """Follows the log from here on at the latest, for an answer of that name; whether it did so in time.

        Whoever is told so says `forget` in the end.

        Args:
            name: of the question.
            deadline_us: boot clock.

        Raises:
            KafkaError: the broker does not answer. UnreachableError: likewise.
        """
        with self._changed:
            while self._reader is None and self._taken:
                if not self._wait(deadline_us):
                    return False
            if self._reader is None:
                self._reader = self._alone(self._begin)
            self._wanted[name] = None
            return True

    def wait(self, name: str, deadline_us: int) -> Told | None:
        """The answer; None: it did not come in time.

        Args:
            name: of the question.
            deadline_us: boot clock.

        Raises:
            KafkaError: the broker does not answer when the time is over; until then a broker that is started again is waited for.
            UnreachableError: the connections were closed.
        """
        with self._changed:
            while (found := self._wanted[name]) is None and boot_us() < deadline_us:
                if self._reader is None:
                    raise UnreachableError("The connection to Kafka was closed.", hint="Ask again.")
                if self._taken:
                    self._wait(deadline_us)
                else:
                    self._hand_out(
                        self._alone(waiting_out, self._settings, partial(self._poll, self._reader), deadline_us)
                    )
            return found

    def forget(self, name: str) -> None:
        """Nobody waits for that answer any more; the log is followed no longer than somebody waits."""
        with self._changed:
            self._wanted.pop(name, None)
            if not self._wanted:
                self._reader = None
            self._changed.notify_all()

    def close(self) -> None:
        """Closes the connection; whoever waits hears of it."""
        with self._changed:
            self._changed.wait_for(self._given_back)
            consumer, self._consumer = self._consumer, None
            self._changed.notify_all()
        if consumer is not None:
            consumer.close()

    # -- below: `_changed` is held on entry, and on return ----------------------------------------------------------------

    def _wait(self, deadline_us: int) -> bool:
        """Waits until something has changed; whether there is time left."""
        left = deadline_us - boot_us()
        return left > 0 and (self._changed.wait(left / 1e6) or boot_us() < deadline_us)

    def _alone(self, use: Callable[..., Any], *args: Any) -> Any:
        """Has the consumer while it lets others go on."""
        self._taken = True
        self._changed.release()
        try:
            return use(*args)
        finally:
            self._changed.acquire()
            self._taken = False
            self._changed.notify_all()

    def _given_back(self) -> bool:
        """Returns True if nobody has the consumer; whoever does takes it no second time."""
        self._reader = None
        return not self._taken

    def _hand_out(self, answers: dict[str, Told]) -> None:
        for name in answers.keys() & self._wanted.keys():
            self._wanted[name] = answers[name]

    # -- below: in the thread that has the consumer -----------------------------------------------------------------------

    def _begin(self) -> PlanLogReader:
        if self._consumer is None:
            self._consumer = self._connect()
        reader = PlanLogReader(self._settings, self._consumer)
        reader.tail()
        return reader

    def _poll(self, reader: PlanLogReader) -> dict[str, Told]:
        """The answers that have come, by the names of their questions."""
        if self._reader is not reader:  # `close` waits until nobody has the consumer
            return {}
        assert self._consumer is not None
        answers = {}
        for record in self._consumer.poll(timeout_ms=_POLL_MS).get(reader.place, ()):
            read = reader.admit(record)
            for change in read.group.changes if read is not None and read.group is not None else ():
                if change[0] == "answer":
                    answers[change[1]] = Told(change, record.offset)
        return answers
