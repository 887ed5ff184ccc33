"""What a client keeps open towards one deployment: its tables, both logs, the way to send, and a session for frames."""

from __future__ import annotations

import functools
import os
import threading
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Final, NoReturn

from scylla_spark.client.tasks.enqueue_arguments import new_key
from scylla_spark.clock import now_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.records.command import CANCEL, ENQUEUE, Command, Rules
from scylla_spark.core.tables.progress import Mark
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import ArgumentError, ConflictError, UnreachableError
from scylla_spark.io.delta.table_reader import AFTER_FORK, TableReader
from scylla_spark.io.host.deployment_secret import known_desk_secret
from scylla_spark.io.kafka.command_sender import CLOSED, RECONNECT, Place, Sender

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from scylla_spark.client.tasks.read_as_arrow import TaskTables
    from scylla_spark.io.kafka.plan_requests import PlanRequests
    from scylla_spark.io.kafka.records_reader import LogReader


_alive: Final[weakref.WeakSet[Connection]] = weakref.WeakSet()


class Connection:
    """Everything that handles, results and commands ask a deployment through. Thread safe; each part is made when first needed.

    One that is collected while it is open is closed, with a ResourceWarning. One that was used does not work in a forked child:
    every use raises ConflictError there.

    Args:
        settings: how to reach Kafka and the tables.
        spark: session for frames; default: the one of this process, or a new one.

    Attributes:
        settings: as given.
        readers: the tables, without a JVM.
        sender: the way to the `tasks` topic.
    """

    def __init__(self, settings: Settings, spark: SparkSession | None = None) -> None:
        self.settings = settings
        self.readers = TableReader.of(settings)
        self._located = functools.cache(functools.partial(_located, settings))
        weak = weakref.proxy(self)  # no part keeps the connection from being collected
        self.sender = Sender(self._located, lambda: weak.rules)
        self._spark = spark
        self._lock = threading.RLock()
        self._closed = False
        self._log_reader: LogReader | None = None
        self._plan: PlanRequests | None = None
        self._task_tables: TaskTables | None = None
        self._readers_of_logs: list[LogReader | PlanRequests] = []
        self._dropped = weakref.finalize(self, _close_dropped, self.sender, self._readers_of_logs)
        self._dropped.atexit = False
        _alive.add(self)

    def __reduce__(self) -> NoReturn:
        """Refuses to be pickled or copied."""
        raise ArgumentError(
            "A client cannot be pickled or copied: it holds connections and threads.",
            hint="Pass its `settings`, and call Scheduler.connect(settings) where it is needed. Handles are pickled as their keys.",
        )

    def close(self) -> None:
        """Sends what is under way and closes the connections; idempotent."""
        with self._lock:
            self._closed, self._log_reader, self._plan = True, None, None
        _close(self.sender, self._readers_of_logs)

    def abandon_in_child(self) -> None:
        """Is called in a forked child: what was opened before does not work there, and is neither used nor closed."""
        if self._spark is not None or self.readers.is_open:
            self._dropped.detach()
            _alive.discard(self)
            self.__class__ = _OfParent

    @property
    def rules(self) -> Rules:
        """The deployment's rules."""
        return self.readers.rules()

    @functools.cached_property
    def known_secret(self) -> str | None:
        """What the services of the deployment share, where this process may read it; None: it may not."""
        return known_desk_secret(self.settings)

    @property
    def located(self) -> Settings:
        """The settings with the broker's address."""
        return self._located()

    @property
    def of_deployment(self) -> Settings:
        """The settings with the broker's address and the deployment's partition count, whatever they say of it themselves."""
        return self.located.model_copy(update={"partitions": self.rules.partitions})

    @property
    def spark(self) -> SparkSession:
        """The session: given, running, or new."""
        if self._spark is None:
            from scylla_spark.io.host.session import open_session

            self._spark = open_session(self.settings, "scylla-spark")
        return self._spark

    @property
    def log_reader(self) -> LogReader:
        """Reads the logs behind the tables."""
        with self._lock:
            if self._log_reader is None:
                self._check_open()
                from scylla_spark.io.kafka.records_reader import LogReader

                self._log_reader = LogReader(self.located, self.rules, self.readers.marks)
                self._readers_of_logs.append(self._log_reader)
            return self._log_reader

    @property
    def task_tables(self) -> TaskTables:
        """Lists tasks and attempts from the tables, and remembers some of them."""
        with self._lock:
            if self._task_tables is None:
                from scylla_spark.client.tasks.read_as_arrow import TaskTables

                self._task_tables = TaskTables(self.readers)
            return self._task_tables

    @property
    def plan(self) -> PlanRequests:
        """Asks the planner."""
        with self._lock:
            if self._plan is None:
                self._check_open()
                from scylla_spark.io.kafka.plan_requests import PlanRequests

                self._plan = PlanRequests(self.of_deployment)
                self._readers_of_logs.append(self._plan)
            return self._plan

    def _check_open(self) -> None:
        if self._closed:
            raise ConflictError(CLOSED, hint=RECONNECT)

    def send(self, command: Command) -> Place:
        """Sends one command and waits for Kafka's acknowledgement: where it stands; errors as in `Scheduler.enqueue`."""
        return self.sender.send(command)

    def request_cancel(self, key: TaskKey, grace_ms: int | None = None, request_id: str | None = None) -> str:
        """Sends a cancel and returns the id by which its answer will be known.

        Args:
            key: of the task.
            grace_ms: end what a dispatcher runs, too, after so long; None: leave it alone.
            request_id: that id, if the caller made one.
        """
        request_id = request_id or new_key(now_us())
        self.send(Command(CANCEL, key, 0, enqueued_us=now_us(), request_id=request_id, grace_ms=grace_ms))
        return request_id

    def owner_address(self, partition: int) -> str:
        """Returns where the owner of a partition serves its state; "" where nobody owns it or nobody can be asked."""
        try:
            return self.log_reader.owner(partition)
        except UnreachableError:
            return ""

    def keys_beyond_tables(self, most: int = 10_000) -> set[TaskKey] | None:
        """Keys of tasks that were enqueued by records which the tables do not have yet.

        Args:
            most: records to read.

        Returns:
            None: there are more records than that.

        Raises:
            UnreachableError: no broker is known, or none answers.
        """
        ends, marks = self.ends(), self.readers.marks()
        waiting = {number: end - marks.get(("tasks", number), Mark()).tasks_offset for number, end in ends.items()}
        if sum(waiting.values()) > most:
            return None
        commands = (self.log_reader.commands_of_lanes(number, None) for number, count in waiting.items() if count > 0)
        return {one.key for some in commands for one in some if one.kind == ENQUEUE}

    def ends(self) -> dict[int, int]:
        """Partition → end of its `tasks` log now."""
        from scylla_spark.io.kafka.topics import WAIT_MS, end_offsets

        topic = self.located.topics.tasks
        return end_offsets(self.located, topic, list(range(self.rules.partitions)), WAIT_MS)


class _OfParent(Connection):
    """What a used connection becomes in a forked child. Its threads are gone there, and a question would wait in vain."""

    def __getattribute__(self, name: str) -> Any:
        if name == "close":
            return lambda: None
        if name.startswith("__"):
            return super().__getattribute__(name)
        raise ConflictError(
            "This client was used before this process was forked. Its connections and threads are only in the parent.",
            hint=AFTER_FORK,
        )


def _located(settings: Settings) -> Settings:
    from scylla_spark.io.kafka.topics import located

    return located(settings)


def _close(sender: Sender, readers_of_logs: list[LogReader | PlanRequests]) -> None:
    while readers_of_logs:
        readers_of_logs.pop().close()
    sender.close()


def _close_dropped(sender: Sender, readers_of_logs: list[LogReader | PlanRequests]) -> None:
    """Closes what a collected connection has left open, in a thread, because that may wait for Kafka."""
    if not (sender.is_open or readers_of_logs):
        return
    threading.Thread(target=_close, args=(sender, readers_of_logs), name="close-dropped-client", daemon=True).start()
    warnings.warn(
        "A Scheduler was dropped without close(). Use it in a `with` statement.", ResourceWarning, stacklevel=2
    )


def _abandon_all() -> None:
    for connection in list(_alive):
        connection.abandon_in_child()


os.register_at_fork(after_in_child=_abandon_all)
