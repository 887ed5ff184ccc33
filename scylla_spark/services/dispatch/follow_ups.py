"""Sends what handlers asked for: tasks and events, from here, because child processes have no access to the broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from scylla_spark.config.settings import Topics
from scylla_spark.core.engine import action
from scylla_spark.core.plan.commands.plan_answer import checked_command
from scylla_spark.core.records.command import SENT_WITHIN_US, Rules
from scylla_spark.core.tasks.enqueue_options import command_of
from scylla_spark.core.tasks.follow_up import TASK, FollowUp
from scylla_spark.core.tasks.task import Failure
from scylla_spark.errors import ArgumentError, SchedulerError
from scylla_spark.io.kafka.command_sender import record_of
from scylla_spark.io.kafka.send_at_once import send_at_once
from scylla_spark.log import get_logger
from scylla_spark.services.dispatch.joint_acknowledgement import Acknowledgements

log = get_logger("dispatch")

REFUSED: Final = "follow_up_refused"
UNACKNOWLEDGED: Final = "follow_up_unacknowledged"

Done = Callable[[int, Failure | None], None]


class Outgoing(NamedTuple):
    """A record as it is handed to Kafka."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes


class FollowUpSender:
    """Sends the follow-ups of attempts, and says when all of one are acknowledged.

    Args:
        topics: their names.
        rules: gives the deployment's rules.
        done: is told the id of an invocation, and why its follow-ups were not sent (None: they were); from any thread.
    """

    def __init__(self, topics: Topics, rules: Callable[[], Rules], done: Done) -> None:
        self._topics = topics
        self._rules = rules
        self._done = done

    def send(self, producer: Any, asked: action.SendFollowUps, now: int) -> None:
        """Hands all records of an attempt over, or none of them if one would be refused; does not wait.

        Args:
            producer: one that never waits, or what is like one.
            asked: what is to be sent.
            now: microseconds since the epoch.
        """
        if now - asked.decided_us > SENT_WITHIN_US:
            self._done(asked.number, Failure(UNACKNOWLEDGED, "What the handler asked for was not sent in time."))
            return
        try:
            records = [self._outgoing(one, asked, now) for one in asked.follow_ups]
        except SchedulerError as error:
            self._done(asked.number, Failure(REFUSED, f"What the handler asked for is refused: {error.message}"))
            return
        pending = Acknowledgements(len(records), partial(self._told, asked))
        try:
            for one in records:
                future = send_at_once(producer, one.topic, one.value, one.partition, one.key)
                future.add_callback(pending.acknowledged)
                future.add_errback(pending.lost)
        except Exception as error:
            pending.lost(error)

    def _told(self, asked: action.SendFollowUps, error: BaseException | None) -> None:
        if error is None:
            self._done(asked.number, None)
            return
        log.warning("follow-ups were not acknowledged", task=str(asked.key), error=repr(error))
        message = f"Kafka did not acknowledge what the handler asked for: {error!r}"
        self._done(asked.number, Failure(UNACKNOWLEDGED, message))

    def _outgoing(self, one: FollowUp, asked: action.SendFollowUps, now: int) -> Outgoing:
        if one.kind == TASK:
            record = record_of(command_of(one, asked.key, asked.decided_us), self._rules(), now)
            return Outgoing(self._topics.tasks, record.partition, record.key, record.value)
        return Outgoing(self._topics.schedules, 0, None, event_record(one))


def event_record(one: FollowUp) -> bytes:
    """The record on `schedules` of a follow-up that is an event.

    Raises:
        ArgumentError: the planner would refuse it.
    """
    try:
        told = json.loads(one.record)
        name, fields = told["name"], told["fields"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ArgumentError("The record is no event.", hint="Nothing was sent.", reason="wrong_value") from None
    return checked_command("event", name=name, fields=fields)
