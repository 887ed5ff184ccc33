"""Everything of one process: the embedded broker where none is configured, a Spark session, and the chosen services."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Self, TypeVar

import structlog
from prometheus_client import CollectorRegistry

from scylla_spark.clock import boot_us
from scylla_spark.config.settings import Metrics, Settings
from scylla_spark.errors import ArgumentError, ConflictError, NotFoundError
from scylla_spark.io.host.private_files import make_folder
from scylla_spark.io.host.session import launch_jvm, open_session
from scylla_spark.io.kafka.topics import announce, broker_folder, with_broker
from scylla_spark.services.interpreter_pauses import InterpreterPauses
from scylla_spark.services.metrics_server import MetricsServer
from scylla_spark.services.roles import ROLES, role_named
from scylla_spark.services.service import Service, Serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from scylla_spark.io.host.broker import EmbeddedBroker

log = structlog.get_logger("deployment")

S = TypeVar("S", bound=Service)
_PATIENCE_S = 8.0  # of a service that waits for those attached before it
_POLL_S = 0.05


class Deployment:
    """The services of this process; a context manager, which starts them if that was not done.

    Args:
        settings: without a broker address the embedded broker is started on `data_dir`.
        roles: which services run here, by name (see `services.roles`); default: all.
        spark: session to use; default: the active one, or a new one, if any service needs one.
    """

    def __init__(self, settings: Settings, *, roles: Iterable[str] = ROLES, spark: SparkSession | None = None) -> None:
        unknown = set(roles) - set(ROLES)
        if unknown:
            raise ArgumentError(f"There is no role {sorted(unknown)}.", hint=f"Roles: {', '.join(ROLES)}.")
        self.settings = settings
        self.roles = tuple(role for role in ROLES if role in roles)
        self.spark = spark
        self.broker: EmbeddedBroker | None = None
        self._services: dict[str, Service] = {}  # in the order in which they were started
        self._server: MetricsServer | None = None
        self._own_session = False
        self._begun = False
        self._ends = ExitStack()

    def __enter__(self) -> Self:
        return self if self._begun else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, stop: threading.Event | None = None) -> Self:
        """Starts broker, services and session; returns when all services have begun with all that they do.

        Args:
            stop: once it is set, nothing more is begun.

        Raises:
            ConflictError: another process serves the same data directory.
            SchedulerError: something is missing or contradicts the stored deployment.
        """
        self._begun, stop = True, stop or threading.Event()
        try:
            for _ in self._steps(stop):
                if stop.is_set():
                    break
        except BaseException:
            self.stop()
            raise
        return self

    def _steps(self, stop: threading.Event) -> Iterator[None]:
        data_dir = self.settings.data_dir
        if make_folder(data_dir):
            log.warning("other users may enter the data folder; close it: chmod 700", data=str(data_dir))
        embedded = not self.settings.kafka.bootstrap_servers
        if embedded:
            self._ends.enter_context(_lock(data_dir / "up.lock"))
        wants_session = any(role_named(role).needs_session(self.settings) for role in self.roles)
        if wants_session and self.spark is None:
            launch_jvm(self.settings, services=True)  # it takes seconds to start: let that begin
        if embedded:
            self.broker = self._start_broker()
            yield
        self._ends.callback(self._close_session)
        server = self._server = MetricsServer(self._shown_at())
        self._ends.callback(server.stop)
        server.start()
        self._measure_pauses(server)
        for role in self.roles:
            self._start_service(role, server)
            yield
        if wants_session:
            spark = self._session()
            yield
            self._attach(spark, stop)
        if self.broker is not None:
            facts = {"kafka": self.broker.bootstrap, "auth": self.settings.broker.auth}
            announce(data_dir, facts | {"metrics": self.metrics, "pid": os.getpid()} | self.addresses)

    def _measure_pauses(self, server: MetricsServer) -> None:
        registry = CollectorRegistry()
        pauses = InterpreterPauses(registry)
        self._ends.callback(pauses.stop)
        server.show(registry)
        pauses.start()

    def _shown_at(self) -> Metrics:
        """Where metrics and state are served (see `Role.own_port`)."""
        metrics, own = self.settings.metrics, [role_named(role).own_port for role in self.roles]
        ports = [port(metrics) for port in own if port is not None]
        return metrics.model_copy(update={"port": ports[0]}) if ports and None not in own else metrics

    def _start_broker(self) -> EmbeddedBroker:
        from scylla_spark.io.host.broker import EmbeddedBroker

        data_dir = self.settings.data_dir
        log.info("starting the embedded broker", data=str(data_dir))
        broker = EmbeddedBroker(broker_folder(self.settings), auth=self.settings.broker.auth).start()
        self._ends.callback(broker.stop)
        self.settings = with_broker(self.settings, broker.bootstrap, broker.secret_file)
        if self.settings.dispatch.instance_id is None:
            # the only dispatcher of this folder: after a crash it takes its partitions back without waiting for itself
            alone = self.settings.dispatch.model_copy(update={"instance_id": "up"})
            self.settings = self.settings.model_copy(update={"dispatch": alone})
        return broker

    def _start_service(self, role: str, server: MetricsServer) -> None:
        service = self._services[role] = role_named(role).make(self.settings, server)
        self._ends.callback(service.stop)
        service.start()

    def _session(self) -> SparkSession:
        """The session of this process; one that is made here is closed at the end."""
        if self.spark is not None:
            return self.spark
        from pyspark.sql import SparkSession

        log.info("starting Spark")
        self._own_session = SparkSession.getActiveSession() is None
        self.spark = open_session(self.settings, f"scylla-spark {' '.join(self.roles)}", services=True)
        return self.spark

    def _close_session(self) -> None:
        if self.spark is not None and self._own_session:
            self.spark.stop()
            self.spark = None

    def _attach(self, spark: SparkSession, stop: threading.Event) -> None:
        """Attaches the services that need the session, the last started first, each once those before are ready or a while is over."""
        attached: list[Service] = []
        for role in reversed(self.roles):
            if role_named(role).needs_session(self.settings):
                self._await(attached, _PATIENCE_S, stop)
                if stop.is_set():
                    return
                self._services[role].attach(spark)
                attached.append(self._services[role])

    def _await(self, services: Sequence[Service], limit_s: float, stop: threading.Event | None = None) -> bool:
        """Whether all of them are ready before `stop` is set or the time is over."""
        stop, until = stop or threading.Event(), boot_us() + limit_s * 1e6
        while not stop.is_set() and boot_us() < until:
            self.check()
            if all(service.ready() for service in services):
                return True
            stop.wait(_POLL_S)
        return False

    def service(self, kind: type[S]) -> S:
        """The service of a kind that runs here.

        Raises:
            NotFoundError: none does.
        """
        for service in self._services.values():
            if isinstance(service, kind):
                return service
        raise NotFoundError(
            f"No {kind.__name__} runs here.", hint=f"The roles of this process: {', '.join(self.roles)}."
        )

    @property
    def metrics(self) -> str | None:
        """Address of metrics, and of the state of dispatch if that runs here; None before the start."""
        return self._server.address if self._server is not None else None

    @property
    def addresses(self) -> dict[str, str]:
        """Role → where its service is reached, of those that are at an address of their own."""
        found = {name: one.address for name, one in self._services.items() if isinstance(one, Serving)}
        return {name: address for name, address in found.items() if address is not None}

    def await_ready(self, *, timeout_s: float = 120.0, stop: threading.Event | None = None) -> bool:
        """Waits until tasks are accepted and run; False if `stop` was set or the time is over."""
        return self._await(list(self._services.values()), timeout_s, stop)

    def check(self) -> None:
        """Looks at every part.

        Raises:
            ConflictError: the broker or a service has ended.
            BaseException: what ended a part of a service.
        """
        if self.broker is not None and not self.broker.alive:
            raise ConflictError("The embedded broker has ended.", hint=f"See {self.broker.log_file}.")
        for role, service in self._services.items():
            if not service.alive():
                raise ConflictError(f"The service {role!r} has ended.", hint="See the log above.")

    def serve(self, stop: threading.Event) -> None:
        """Blocks until `stop` is set; a part that ends raises its error."""
        while not stop.wait(0.5):
            self.check()

    def stop(self) -> None:
        """Drains and ends everything that `start` began, in the opposite order."""
        self._ends.close()
        self._begun = False
        self._services.clear()
        self.broker = None


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
