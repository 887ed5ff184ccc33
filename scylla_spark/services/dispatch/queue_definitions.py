"""How a dispatcher learns which definitions of queues were put and deleted: from the table, and then from the planner's log."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from typing import Final

from kafka import KafkaConsumer
from kafka.errors import KafkaError

from scylla_spark.config.settings import Settings
from scylla_spark.core.plan.state.plan_log import Group
from scylla_spark.core.plan.state.stored_definition import QUEUE, read_definition_change
from scylla_spark.core.queues.in_force import Changes
from scylla_spark.core.records.fact import FenceLog
from scylla_spark.core.tables.progress import Mark
from scylla_spark.definitions.queue import Queue
from scylla_spark.errors import SchedulerError
from scylla_spark.io.delta.passing_errors import is_passing
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.kafka.plan_log_reader import PlanLogReader
from scylla_spark.io.kafka.topics import consumer
from scylla_spark.log import get_logger

log = get_logger("dispatch")

_POLL_MS: Final = 200  # a poll returns at once when something comes
_AGAIN_S: Final = 1.0
_END_S: Final = 30.0


class QueueFollower:
    """Follows what the planner records of queues, in a thread of its own.

    It begins with the table, and reads on in the planner's log from where the tables are; so it needs no planner that runs. After any
    trouble it begins again.

    Args:
        settings: with the broker's address, and the partition count of the deployment.
        readers: the tables.
        put: is told what was put and deleted since the last time; first of all that is stored, be it nothing.

    Attributes:
        failure: what ended it.
    """

    def __init__(self, settings: Settings, readers: TableReader, put: Callable[[Changes], None]) -> None:
        self.failure: BaseException | None = None
        self._settings = settings
        self._readers = readers
        self._put = put
        self._revisions: dict[str, int] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="queues", daemon=True)

    def start(self) -> None:
        """Begins to read."""
        self._thread.start()

    def stop(self) -> None:
        """Ends reading."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=_END_S)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    with consumer(self._settings) as reader:
                        self.follow(reader)
                except Exception as error:
                    if not (isinstance(error, KafkaError | SchedulerError) or is_passing(error)):
                        raise
                    log.warning("definitions of queues are read again", why=repr(error)[:500])
                    self._stopping.wait(_AGAIN_S)
        except BaseException as error:
            self.failure = error
            log.exception("following queues ended")

    def follow(self, reader: KafkaConsumer) -> None:
        """Tells all that is stored, and then each change as it comes, until it is stopped.

        What it was about to tell when it was broken off, it tells the next time: then it tells all again.
        """
        self._revisions.clear()
        mark = self._readers.marks().get(("outcomes", self._settings.partitions), Mark())
        found = self._changed(self._readers.queue_definitions().items())  # read after the mark: it is as far, at least
        plan = PlanLogReader(self._settings, reader)
        first, end = plan.range()
        plan.position, plan.size, plan.fences = max(mark.outcomes_offset, first), 1, FenceLog(mark.fence)
        for read in plan.until(end):
            found |= self._recorded(read.group)
        self._put(found)
        reader.assign([plan.place])
        reader.seek(plan.place, plan.position)
        while not self._stopping.is_set():
            for record in reader.poll(timeout_ms=_POLL_MS).get(plan.place, ()):
                counted = plan.admit(record)
                if counted is not None and (changes := self._recorded(counted.group)):
                    self._put(changes)

    def _recorded(self, group: Group | None) -> dict[str, Queue | None]:
        """Returns what a record of the planner says of queues."""
        changes = []
        for change in group.changes if group is not None else ():
            if change[:1] == [QUEUE]:
                read = read_definition_change(change)
                changes.append((read.name, (read.revision, read.stored.text if read.stored is not None else None)))
        return self._changed(changes)

    def _changed(self, stored: Iterable[tuple[str, tuple[int, str | None]]]) -> dict[str, Queue | None]:
        """Returns what is newer than what was told before; definitions that cannot be read change nothing."""
        found: dict[str, Queue | None] = {}
        for name, (revision, text) in stored:
            if revision <= self._revisions.get(name, 0):
                continue
            self._revisions[name] = revision
            try:
                found[name] = Queue.of(json.loads(text)) if text is not None else None
            except ValueError as error:
                log.error(
                    "the definition of a queue cannot be read: what was in force stays", queue=name, why=str(error)
                )
        return found
