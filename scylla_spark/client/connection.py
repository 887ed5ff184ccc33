"""What a client keeps open towards one deployment: its tables, both logs, the way to send, and a session for frames."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from scylla_spark.client.tasks.enqueue_arguments import new_key
from scylla_spark.clock import now_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.key import TaskKey
from scylla_spark.core.records.command import CANCEL, Command, Rules
from scylla_spark.errors import ConflictError, UnreachableError
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.kafka.command_sender import Place, Sender

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from scylla_spark.client.tasks.read_as_arrow import TaskTables
    from scylla_spark.io.kafka.plan_requests import PlanRequests
    from scylla_spark.io.kafka.records_reader import LogReader


class Connection:
    """Everything that handles, results and commands ask a deployment through. Thread safe; each part is made when first needed.

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
        self.sender = Sender(lambda: self.located, lambda: self.rules)
        self._spark = spark
        self._lock = threading.RLock()
        self._closed = False
        self._log_reader: LogReader | None = None
        self._located: Settings | None = None
        self._plan: PlanRequests | None = None
        self._task_tables: TaskTables | None = None

    def close(self) -> None:
        """Sends what is under way and closes the connections; idempotent."""
        with self._lock:
            self._closed = True
            if self._log_reader is not None:
                self._log_reader.close()
                self._log_reader = None
            if self._plan is not None:
                self._plan.close()
                self._plan = None
        self.sender.close()

    @property
    def rules(self) -> Rules:
        """The deployment's rules."""
        return self.readers.rules()

    @property
    def located(self) -> Settings:
        """The settings with the broker's address."""
        if self._located is None:
            from scylla_spark.io.kafka.topics import located

            self._located = located(self.settings)
        return self._located

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
            return self._plan

    def _check_open(self) -> None:
        if self._closed:
            raise ConflictError("This Scheduler is closed.", hint="Make another with Scheduler.connect().")

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
        """Where the owner of a partition serves its state; "" where nobody owns it or nobody can be asked."""
        try:
            return self.log_reader.owner(partition)
        except UnreachableError:
            return ""

    def ends(self) -> dict[int, int]:
        """Partition → end of its `tasks` log now."""
        from scylla_spark.io.kafka.topics import WAIT_MS, end_offsets

        topic = self.located.topics.tasks
        return end_offsets(self.located, topic, list(range(self.rules.partitions)), WAIT_MS)
