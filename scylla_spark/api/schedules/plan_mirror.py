"""The state of the planner, kept between questions. Each question reads only what was written since the last one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from copy import copy, deepcopy
from typing import NamedTuple, TypeVar

from kafka import KafkaConsumer
from kafka.errors import KafkaError

from scylla_spark.client.connection import Connection
from scylla_spark.core.access.scopes import ALL_QUEUES, QueueBounds
from scylla_spark.core.plan.constraint import tags_counted
from scylla_spark.core.plan.handler_runs import runs_in
from scylla_spark.core.plan.schedule_policies import groups_asked
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.state.schedule_entry import PENDING_CONSTRAINT, Entry
from scylla_spark.defaults import DEFAULT_QUEUE
from scylla_spark.errors import SchedulerError, UnreachableError
from scylla_spark.io.kafka import topics
from scylla_spark.io.kafka.plan_log_reader import PlanLogReader

T = TypeVar("T")


class PlanMirror:
    """The state of the planner; thread safe, one question at a time.

    Args:
        connection: to the deployment.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._consumer: KafkaConsumer | None = None
        self._reader: PlanLogReader | None = None
        self._silence = topics.Silence(self._lock)

    def ask(self, question: Callable[[PlanState], T]) -> T:
        """Asks the state as it is by now; it must not be kept: the next question changes it.

        Everybody waits for the answer, also who looks up a token: what reads tables or reckons times
        takes an `excerpt` or an `outline` out first.

        Raises:
            UnreachableError: the broker does not answer.
        """
        with self._silence.turn():
            try:
                state = self._newest()
            except KafkaError as error:
                self._forget()
                raise self._silence.met(topics.unanswered(self._connection.located, error)) from error
            except UnreachableError as error:
                self._forget()
                raise self._silence.met(error) from None
            except SchedulerError:
                self._forget()
                raise
            return question(state)

    def close(self) -> None:
        """Closes the connection."""
        with self._lock:
            self._forget()

    def _newest(self) -> PlanState:
        if self._consumer is None:
            self._consumer = topics.client_consumer(self._connection.located)
        if self._reader is not None:
            first, end = self._reader.range()
            if first <= self._reader.position <= end:
                self._reader.until(end)
                return self._reader.state
        reader = PlanLogReader(self._connection.of_deployment, self._consumer)
        reader.begin()
        self._reader = reader
        return reader.state

    def _forget(self) -> None:
        if self._consumer is not None:
            self._consumer.close(autocommit=False)
        self._consumer = self._reader = None


def excerpt(plan: PlanState, name: str) -> PlanState:
    """One schedule, if it is there, what its constraints look at, and the calendars: a state of its own, which may be kept."""
    entry, found = plan.entries.get(name), PlanState(calendars=dict(plan.calendars))
    if entry is None:
        return found
    found.entries[name] = deepcopy(entry)
    if entry.handler in plan.successes:
        found.successes[entry.handler] = plan.successes[entry.handler]
    if any(job.state == PENDING_CONSTRAINT for job in entry.jobs.values()):
        found.launches = {tag: plan.launches.get(tag, ()) for tag in tags_counted(entry.schedule.constraints)}
        found.handlers, found.tags = runs_in(plan).counted(groups_asked(entry.schedule))
    return found


def outline(plan: PlanState, names: Iterable[str]) -> PlanState:
    """Some schedules with how many jobs and runs each has, and the calendars: a state of its own, which may be kept, and is soon made.

    Jobs and runs themselves are those of the planner, which go on. Schedules that are not there are left out.
    """
    there = (name for name in names if name in plan.entries)
    return PlanState(entries={name: _outlined(plan.entries[name]) for name in there}, calendars=dict(plan.calendars))


class StoredText(NamedTuple):
    """A schedule as far as it can be kept at no cost: its name, and its definition as JSON."""

    name: str
    text: str

    @classmethod
    def of(cls, entry: Entry) -> StoredText:
        """That of a schedule."""
        return cls(entry.name, entry.text)

    def is_of(self, own: QueueBounds) -> bool:
        """Returns whether the schedule sends tasks to one of these queues."""
        return own == ALL_QUEUES or own.has(json.loads(self.text).get("queue", DEFAULT_QUEUE))


def _outlined(entry: Entry) -> Entry:
    found = copy(entry)
    found.jobs, found.runs, found.backfills = dict(entry.jobs), dict(entry.runs), dict(entry.backfills)
    return found
