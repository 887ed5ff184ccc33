"""Everything of one process: the embedded broker where none is configured, a Spark session, and the chosen services."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Self

import structlog

from scylla_spark.clock import boot_us
from scylla_spark.config.settings import Settings
from scylla_spark.errors import ArgumentError, ConflictError
from scylla_spark.io.delta import deployment_record
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.host.private_files import make_folder
from scylla_spark.io.host.session import launch_jvm, open_session
from scylla_spark.io.kafka.topics import announce, broker_folder, ensure_topics, with_broker
from scylla_spark.schemas import DEPLOYMENT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from scylla_spark.executors.spark.pool import SparkPool
    from scylla_spark.io.host.broker import EmbeddedBroker
    from scylla_spark.services.dispatch.describe import DescribeServer
    from scylla_spark.services.dispatch.dispatcher import Dispatcher
    from scylla_spark.services.ingest.ingest import Ingest
    from scylla_spark.services.metrics_server import MetricsServer

log = structlog.get_logger("deployment")

ROLES = ("ingest", "dispatch")
_INGEST_WAITS_S = 8.0


class Deployment:
    """The services of this process; a context manager.

    Args:
        settings: without a broker address the embedded broker is started on `data_dir`.
        roles: which services run here.
        spark: session to use; default: the active one, or a new one.
    """

    def __init__(self, settings: Settings, *, roles: Sequence[str] = ROLES, spark: SparkSession | None = None) -> None:
        unknown = set(roles) - set(ROLES)
        if unknown:
            raise ArgumentError(f"There is no role {sorted(unknown)}.", hint=f"Roles: {', '.join(ROLES)}.")
        self.settings = settings
        self.roles = tuple(roles)
        self.spark = spark
        self.broker: EmbeddedBroker | None = None
        self.ingest: Ingest | None = None
        self.dispatcher: Dispatcher | None = None
        self.state: DescribeServer | MetricsServer | None = None
        self._pool: SparkPool | None = None
        self._lock: IO[str] | None = None
        self._own_session = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> Self:
        """Starts broker, session and services; returns when ingest runs and dispatch has begun to take partitions.

        Raises:
            ConflictError: another process serves the same data directory.
            SchedulerError: something is missing or contradicts the stored deployment.
        """
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self) -> None:
        data_dir = self.settings.data_dir
        if make_folder(data_dir):
            log.warning("other users may enter the data folder; close it: chmod 700", data=str(data_dir))
        if not self.settings.kafka.bootstrap_servers:
            self._lock = _lock(data_dir / "up.lock")
        if self.spark is None:
            launch_jvm(self.settings, services=True)  # it takes seconds to start: let that begin
        if not self.settings.kafka.bootstrap_servers:
            self._start_broker()
        if "dispatch" in self.roles and ("ingest" not in self.roles or self._agrees()):
            self._start_dispatch()
        spark = self._open_session()
        if "ingest" in self.roles:
            from scylla_spark.services.ingest.ingest import Ingest

            self.ingest = Ingest(spark, self.settings)
            self.ingest.prepare()
        if "dispatch" in self.roles and self.dispatcher is None:
            self._start_dispatch()
        if self.dispatcher is not None:
            self.dispatcher.attach(spark)
            if self._pool is not None:
                self._pool.attach(spark)
        if self.ingest is not None:
            self._show(self.ingest)
            if self.dispatcher is not None:  # what is due starts sooner while ingest does not compete for the cores
                self._await_dispatch(_INGEST_WAITS_S)
            self.ingest.start()
            log.info("ingest runs")
        if self.broker is not None:
            facts = {"kafka": self.broker.bootstrap, "auth": self.settings.broker.auth}
            announce(data_dir, facts | {"metrics": self.metrics, "pid": os.getpid()})

    def _start_broker(self) -> None:
        data_dir = self.settings.data_dir
        from scylla_spark.io.host.broker import EmbeddedBroker

        log.info("starting the embedded broker", data=str(data_dir))
        self.broker = EmbeddedBroker(broker_folder(self.settings), auth=self.settings.broker.auth).start()
        self.settings = with_broker(self.settings, self.broker.bootstrap, self.broker.secret_file)
        if "dispatch" in self.roles and self.settings.dispatch.instance_id is None:
            # the only dispatcher of this folder: after a crash it takes its partitions back without waiting for itself
            alone = self.settings.dispatch.model_copy(update={"instance_id": "up"})
            self.settings = self.settings.model_copy(update={"dispatch": alone})

    def _agrees(self) -> bool:
        """Whether there are topics and tables that belong together, so that dispatch need not wait for ingest to make them.

        Raises:
            ConfigError: there are, but they do not belong together or contradict the settings.
        """
        readers = TableReader(self.settings.tables_path)
        if not readers.exists(DEPLOYMENT) or not (stored := readers.stored()):
            return False
        deployment_record.check(stored, deployment_record.deployment(self.settings, ensure_topics(self.settings)))
        return True

    def _open_session(self) -> SparkSession:
        if self.spark is not None:
            return self.spark
        from pyspark.sql import SparkSession

        log.info("starting Spark")
        self._own_session = SparkSession.getActiveSession() is None
        self.spark = open_session(self.settings, f"scylla-spark {' '.join(self.roles)}", services=True)
        return self.spark

    def _await_dispatch(self, limit_s: float) -> None:
        pause, until = threading.Event(), boot_us() + limit_s * 1e6
        while self.dispatcher is not None and boot_us() < until and not self.dispatcher.ready():
            self.check()
            pause.wait(0.05)

    def _start_dispatch(self) -> None:
        from scylla_spark.executors.interface import Executor
        from scylla_spark.executors.local.pool import LocalPool
        from scylla_spark.services.dispatch.describe import DescribeServer
        from scylla_spark.services.dispatch.dispatcher import Dispatcher

        dispatch = self.settings.dispatch
        executors: dict[str, Executor] = {
            "local": LocalPool(
                self.settings.handlers,
                min_children=dispatch.min_children,
                max_children=dispatch.max_children,
                pass_environment=dispatch.pass_environment,
            )
        }
        if dispatch.spark_slots:
            from scylla_spark.executors.spark.pool import SparkPool

            executors["spark"] = self._pool = SparkPool(
                self.settings.handlers, slots=dispatch.spark_slots, pass_environment=dispatch.pass_environment
            )
        self.dispatcher = Dispatcher(self.settings, executors)
        self.state = DescribeServer(self.dispatcher, self.settings.metrics)
        self.state.start()
        self.dispatcher.start(self.state.address)
        log.info("dispatch runs", metrics=self.state.address)

    def _show(self, ingest: Ingest) -> None:
        """Shows what ingest counts: beside what dispatch does, or alone."""
        from scylla_spark.services.metrics_server import MetricsServer

        if self.dispatcher is not None:
            self.dispatcher.measures.registry.register(ingest.metrics)
        else:
            metrics = self.settings.metrics
            own = metrics.model_copy(update={"port": metrics.ingest_port})
            self.state = MetricsServer(own, ingest.metrics.registry())
            self.state.start()

    @property
    def metrics(self) -> str | None:
        """Address of metrics, and of the state of dispatch if that runs here."""
        return self.state.address if self.state is not None else None

    def await_ready(self, *, timeout_s: float = 120.0, stop: threading.Event | None = None) -> bool:
        """Waits until tasks are accepted and run; False if `stop` was set or the time is over."""
        stop = stop or threading.Event()
        waited = 0.0
        while waited < timeout_s and not stop.is_set():
            self.check()
            if self.dispatcher is None or self.dispatcher.ready():
                return True
            stop.wait(0.1)
            waited += 0.1
        return False

    def check(self) -> None:
        """Looks at every part.

        Raises:
            BaseException: what ended one.
        """
        if self.broker is not None and not self.broker.alive:
            raise ConflictError("The embedded broker has ended.", hint=f"See {self.broker.log_file}.")
        for service in (self.ingest, self.dispatcher):
            if service is not None and not service.alive():
                raise ConflictError(f"{type(service).__name__} has ended.", hint="See the log above.")

    def serve(self, stop: threading.Event) -> None:
        """Blocks until `stop` is set; a part that ends raises its error."""
        while not stop.wait(0.5):
            self.check()

    def stop(self) -> None:
        """Drains and ends everything that `start` began, in the opposite order."""
        if self.dispatcher is not None:
            self.dispatcher.stop()
            self.dispatcher = None
        if self.state is not None:
            self.state.stop()
            self.state = None
        if self.ingest is not None:
            self.ingest.stop()
            self.ingest = None
        if self.spark is not None and self._own_session:
            self.spark.stop()
            self.spark = None
        if self.broker is not None:
            self.broker.stop()
            self.broker = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _lock(path: Path) -> IO[str]:
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise ConflictError(
            f"Another process serves {path.parent}.", hint="Stop it first, or choose another --data directory."
        ) from None
    return file
