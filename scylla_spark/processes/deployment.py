"""Everything of one process: the embedded broker where none is configured, a Spark session, and the chosen services."""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Self, TypeVar

from prometheus_client import CollectorRegistry

from scylla_spark.clock import boot_us
from scylla_spark.config.settings import Metrics, Settings
from scylla_spark.errors import (
    ArgumentError,
    ClockError,
    ConfigError,
    ConflictError,
    DiskFullError,
    ExitCode,
    NotFoundError,
    SchedulerError,
    UnreachableError,
)
from scylla_spark.io.host.foreign_errors import free_bytes, full_folder, is_cut_off, no_space, outage_in
from scylla_spark.io.host.private_files import make_folder
from scylla_spark.io.host.session import (
    discard_jvm,
    end_jvm,
    is_one_machine,
    jvm_ended,
    launch_jvm,
    open_session,
    silence,
)
from scylla_spark.io.kafka.topics import LOCK_FILE, announce, broker_folder, with_broker
from scylla_spark.log import get_logger
from scylla_spark.processes.bounded_stop import LIMIT_S, Stop
from scylla_spark.processes.health import Health
from scylla_spark.processes.process_metrics import ProcessMetrics
from scylla_spark.processes.roles import ROLES, role_named
from scylla_spark.services.interpreter_pauses import InterpreterPauses
from scylla_spark.services.metrics_server import MetricsServer
from scylla_spark.services.service import Finite, Service, Serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from scylla_spark.io.host.broker_keeper import BrokerKeeper

log = get_logger("deployment")

S = TypeVar("S", bound=Service)
_PATIENCE_S = 8.0  # of a service that waits for those attached before it
_POLL_S = 0.05
_LOOK_S = 0.5
_DEATH_US = 3_000_000  # so long after its last answer a process that is killed may still be there
_AGAIN_US = 60_000_000  # a service that ended again within this time …
_AGAIN_PAUSE_S = 5.0  # … is started after this pause
_LOCKED_US = 300_000  # that a client may hold the lock of the data folder
_SILENCE_S = 5.0
_GIVEN_UP_S = 1.0  # for a part whose start does not return
_CLOSE_S = 20.0  # that Spark may take to stop; then its JVM is killed


class Deployment:
    """The services of this process; a context manager, which starts them if that was not done.

    Args:
        settings: without a broker address the embedded broker is started on `data_dir`.
        roles: which services run here, by name (see `processes.roles`); default: all.
        spark: session to use; default: the active one, or a new one, if any service needs one.
    """

    def __init__(self, settings: Settings, *, roles: Iterable[str] = ROLES, spark: SparkSession | None = None) -> None:
        unknown = set(roles) - set(ROLES)
        if unknown:
            raise ArgumentError(f"There is no role {sorted(unknown)}.", hint=f"Roles: {', '.join(ROLES)}.")
        self.settings = settings
        self.roles = tuple(role for role in ROLES if role in roles)
        if settings.ingest.available_now and self.roles != ("ingest",):
            raise ConfigError(
                "ingest.available_now ends a process, and this one does more than ingest.",
                hint="Use it with `scylla-spark run ingest` or jobs/ingest.py, and leave it out elsewhere.",
            )
        self.spark = spark
        self.broker: BrokerKeeper | None = None
        self._services: dict[str, Service] = {}  # in the order in which they were started
        self._health = Health(self.roles, self._services)
        self._server: MetricsServer | None = None
        self._own_session = self._had_session = False
        self._uses_jvm = False
        self._started_again: dict[str, int] = {}  # role → boot clock
        self._begun = False
        self._ends: list[Stop] = []  # in the order in which the parts began

    def __enter__(self) -> Self:
        return self if self._begun else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        else:
            self._stop_after(error)

    def start(self, stop: threading.Event | None = None) -> Self:
        """Starts broker, services and session; returns when all services have begun with all that they do.

        Args:
            stop: once it is set, nothing more is begun.

        Raises:
            ConflictError: another process serves the same data directory.
            DiskFullError: a folder that is needed takes nothing more.
            SchedulerError: something is missing or contradicts the stored deployment.
        """
        self._begun, stop = True, stop or threading.Event()
        self._health.stopping = False
        try:
            for _ in self._steps(stop):
                if stop.is_set():
                    break
        except BaseException as error:
            cause = self._first_cause(error)
            self._stop_after(cause)
            if cause is error:
                raise
            raise cause from error
        return self

    def _steps(self, stop: threading.Event) -> Iterator[None]:
        data_dir = self.settings.data_dir
        if folder := full_folder(self._folders().values()):
            raise no_space(folder)
        if make_folder(data_dir):
            log.warning("other users may enter the data folder; close it: chmod 700", data=str(data_dir))
        embedded = not self.settings.kafka.bootstrap_servers
        if embedded:
            self._ends.append(Stop("lock", _lock(data_dir / LOCK_FILE).close))
        wants_session = any(role_named(role).needs_session(self.settings) for role in self.roles)
        self._uses_jvm = wants_session
        if wants_session and self.spark is None:
            launch_jvm(self.settings, services=True)  # it takes seconds to start: let that begin
            self._ends.append(Stop("jvm without a session", self._discard_jvm))
        if embedded:
            self.broker = self._start_broker()
            yield
        self._ends.append(Stop("spark", self._close_session, _CLOSE_S, partial(end_jvm, ExitCode.OUTAGE)))
        server = self._server = MetricsServer(self._shown_at())
        self._ends.append(Stop("metrics", server.stop))
        server.answer(self._health.routes())
        server.start()
        self._measure(server)
        for role in self.roles:
            self._start_service(role, server)
            yield
        if wants_session:
            spark = self._session()
            yield
            if not is_one_machine(spark.sparkContext.master):
                from scylla_spark.executors.spark.probe import check_executors

                check_executors(spark, stop)
                yield
            self._attach(spark, stop)
        self._announce()

    def _announce(self) -> None:
        """Writes down where the processes of an embedded broker are to be found, and how often that was started again."""
        if self.broker is not None:
            facts = {"kafka": self.settings.kafka.bootstrap_servers, "auth": self.settings.broker.auth}
            facts |= {"metrics": self.metrics, "pid": os.getpid(), "broker_restarts": self.broker.restarts._asdict()}
            announce(self.settings.data_dir, facts | self.addresses)

    def _measure(self, server: MetricsServer) -> None:
        registry = CollectorRegistry()
        pauses = InterpreterPauses(registry)
        kafka = self.settings.kafka
        named = {"kafka.ca_file": kafka.ca_file, "kafka.client_cert_file": kafka.client_cert_file}
        certificates = {name: file for name, file in named.items() if file is not None}
        registry.register(ProcessMetrics(self._folders(), certificates))
        self._ends.append(Stop("interpreter pauses", pauses.stop))
        server.show(registry)
        pauses.start()

    def _shown_at(self) -> Metrics:
        """Returns where metrics and state are served (see `Role.own_port`)."""
        metrics, own = self.settings.metrics, [role_named(role).own_port for role in self.roles]
        ports = [port(metrics) for port in own if port is not None]
        return metrics.model_copy(update={"port": ports[0]}) if ports and None not in own else metrics

    def _start_broker(self) -> BrokerKeeper:
        from scylla_spark.io.host.broker import EmbeddedBroker
        from scylla_spark.io.host.broker_keeper import BrokerKeeper

        data_dir = self.settings.data_dir
        log.info("starting the embedded broker", data=str(data_dir))
        broker = EmbeddedBroker(broker_folder(self.settings), auth=self.settings.broker.auth).start()
        keeper = BrokerKeeper(broker, self._announce)
        self._ends.append(Stop("broker", keeper.stop))
        keeper.start()
        self.settings = with_broker(self.settings, broker.bootstrap, broker.secret_file)
        if self.settings.dispatch.instance_id is None:
            # the only dispatcher of this folder: after a crash it takes its partitions back without waiting for itself
            alone = self.settings.dispatch.model_copy(update={"instance_id": "up"})
            self.settings = self.settings.model_copy(update={"dispatch": alone})
        return keeper

    def _start_service(self, role: str, server: MetricsServer) -> None:
        service = self._services[role] = role_named(role).make(self.settings, server)
        dispatch = self.settings.dispatch
        limit_s = LIMIT_S + 2 * dispatch.drain.total_seconds()
        if self.settings.has_spark_workers:  # handlers of one that is silent run until its lease ends, half of this
            limit_s += dispatch.session_timeout.total_seconds()
        self._ends.append(Stop(role, lambda: self._services[role].stop(), limit_s))
        service.start()

    def _start_again(self, role: str, why: ClockError) -> None:
        """Replaces a service that cannot go on by the time that it knows; the others go on meanwhile."""
        log.error("a service ended and is started again", role=role, why=why.message)
        assert self._server is not None
        if boot_us() - self._started_again.get(role, -_AGAIN_US) < _AGAIN_US:
            threading.Event().wait(_AGAIN_PAUSE_S)
        self._started_again[role] = boot_us()
        Stop(role, self._services[role].stop).carry_out()
        service = self._services[role] = role_named(role).make(self.settings, self._server)
        service.start()
        if self.spark is not None and role_named(role).needs_session(self.settings):
            service.attach(self.spark)

    def _session(self) -> SparkSession:
        """The session of this process; one that is made here is closed at the end."""
        if self.spark is not None:
            return self.spark
        from pyspark.sql import SparkSession

        log.info("starting Spark")
        self._own_session = SparkSession.getActiveSession() is None
        self.spark = open_session(self.settings, f"scylla-spark {' '.join(self.roles)}", services=True)
        self._had_session = True
        return self.spark

    def _close_session(self) -> None:
        if self.spark is not None and self._own_session:
            spark, self.spark = self.spark, None
            if jvm_ended() is None:
                spark.stop()

    def _discard_jvm(self) -> None:
        if not self._had_session:  # the start failed before, or in the midst of it
            discard_jvm()

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
        """Returns True if all of them are ready before `stop` is set or the time is over."""
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
        """Looks at every part; a service whose clock was set back is started again.

        Raises:
            SchedulerError: the broker cannot be started again, Spark's JVM has ended, or a service has.
            BaseException: what ended a part of a service.
        """
        self._check_processes()
        for role, service in list(self._services.items()):
            try:
                alive = service.alive()
            except ClockError as error:
                self._start_again(role, error)
                continue
            except BaseException as error:
                cause = self._first_cause(error)
                if cause is error:
                    raise
                raise cause from error
            if not alive:
                raise ConflictError(f"The service {role!r} has ended.", hint="See the log above.")

    def _check_processes(self) -> None:
        """Looks at the processes that all services need; asks none of them anything.

        Raises:
            SchedulerError: one has ended for good.
        """
        if self.broker is not None and self.broker.failure is not None:
            raise self.broker.failure
        ended = jvm_ended() if self._uses_jvm else None
        if ended is not None:
            raise UnreachableError(
                f"Spark's JVM has ended ({ended}).",
                hint="Start this process again; nothing is lost. If memory was short, the kernel's log says so: dmesg.",
            )

    def _first_cause(self, error: BaseException) -> BaseException:
        """Returns what an error comes from: a full disk, or a process that has ended."""
        if not isinstance(error, Exception):
            return error
        if folder := full_folder(self._folders().values()):
            return no_space(folder)
        until_us = boot_us() + (_DEATH_US if is_cut_off(error) else 0)
        while True:
            try:
                self._check_processes()
            except SchedulerError as cause:
                return cause
            if boot_us() >= until_us:
                known = outage_in(error)
                if isinstance(known, DiskFullError) and known.fields.get("place") is None:
                    return no_space(min(self._folders().values(), key=free_bytes))  # which disk, the error does not say
                return known or error
            threading.Event().wait(_POLL_S)

    def _folders(self) -> dict[str, Path]:
        """Returns where processes of ours write on this machine."""
        tables = self.settings.tables_folder
        found = {"data": self.settings.data_dir} | ({} if tables is None else {"tables": tables})
        return found | {"temporary": Path(tempfile.gettempdir())}

    def serve(self, stop: threading.Event) -> None:
        """Blocks until `stop` is set or a service has done all that it was to do; a part that ends raises its error.

        Parts are looked at in a thread of its own: asking a JVM that stands still takes as long as it does.
        """
        done = threading.Event()

        def watch() -> None:
            try:
                while not done.wait(_LOOK_S):
                    self._health.looked_us = boot_us()
                    self.check()
                    if any(isinstance(one, Finite) and one.finished() for one in self._services.values()):
                        stop.set()
            except BaseException as error:
                self._health.failure = error

        watcher = threading.Thread(target=watch, name="watch-services", daemon=True)
        watcher.start()
        while not stop.wait(_LOOK_S):
            if self._health.failure is not None:
                raise self._health.failure
            self._check_processes()
        done.set()
        watcher.join(LIMIT_S)

    def stop(self) -> None:
        """Drains and ends everything that `start` began, in the opposite order; each part within its own limit.

        Raises:
            Exception: the first one that a part failed with; the others are ended all the same.
        """
        failures = []
        self._health.stopping, self._health.looked_us = True, None
        if self.spark is not None and self._own_session and jvm_ended() is None:
            self._ends.append(Stop("log of spark", partial(silence, self.spark), _SILENCE_S))
        while self._ends:
            try:
                self._ends.pop().carry_out()
            except Exception as error:
                failures.append(error)
        self._begun = False
        self._services.clear()
        self.broker = None
        if failures:
            raise failures[0]

    def give_up(self) -> None:
        """Ends what has begun while a step of `start` does not return; the part of that step is given little time."""
        if self._ends:
            self._ends[-1] = self._ends[-1]._replace(limit_s=_GIVEN_UP_S)
        self.stop()

    def _stop_after(self, error: BaseException) -> None:
        """Ends everything after an error, which is what is to be reported."""
        try:
            self.stop()
        except Exception as later:
            log.warning("the stop failed, too", error=repr(later)[:500], first=repr(error)[:500])


def _lock(path: Path) -> IO[str]:
    file, until_us = path.open("a"), boot_us() + _LOCKED_US
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if boot_us() < until_us:  # a client looks for a moment whether anybody holds it
                threading.Event().wait(_POLL_S)
                continue
            file.close()
            raise ConflictError(
                f"Another process serves {path.parent}.", hint="Stop it first, or choose another --data directory."
            ) from None
        return file
