"""Dispatch as a duty of a process: a dispatcher, its executors, what it shows over HTTP, and the engine of its scans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scylla_spark.config.settings import Settings
from scylla_spark.executors.interface import OnSession
from scylla_spark.log import get_logger
from scylla_spark.services.dispatch import executor_catalog as catalog
from scylla_spark.services.metrics_server import MetricsServer
from scylla_spark.services.service import Role

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from scylla_spark.services.dispatch.dispatcher import Dispatcher
    from scylla_spark.services.dispatch.logs_apart import LogsApart

log = get_logger("dispatch")


class DispatchService:
    """The dispatcher of a process.

    Args:
        settings: with the broker's address.
        server: shows metrics and state.
    """

    def __init__(self, settings: Settings, server: MetricsServer) -> None:
        self._settings = settings
        self._server = server
        self._begun = False
        self.dispatcher = _dispatcher(settings)
        self._logs: LogsApart | None = None

    def start(self) -> None:
        """Begins to take partitions, and to run what the executors can run by now.

        Raises:
            NotFoundError: there are no tables yet.
            ConfigError: a handler module cannot be imported, or the settings say another partition count than the tables.
        """
        from scylla_spark.services.dispatch.describe import Description

        Description(self.dispatcher, self._server)
        self._begun = True
        self._keep_logs()
        self.dispatcher.failed_attempts.start()
        self.dispatcher.start(self._server.address)
        if self._settings.dispatch.scan == "reader":
            from scylla_spark.services.dispatch.reader_scan import ReaderScan, ScanTimer

            self.dispatcher.attach(
                ReaderScan(self._settings, self.dispatcher.queues), ScanTimer(self._settings.dispatch.trigger)
            )
        log.info("dispatch runs", metrics=self._server.address)

    def attach(self, spark: SparkSession) -> None:
        """Starts what waits for Spark: its executors, and the scans if they are Spark's."""
        if self._settings.dispatch.scan == "spark":
            from scylla_spark.services.dispatch.spark_scan import ScanQuery, SparkScan

            query = ScanQuery(spark, self._settings.dispatch.trigger)
            self.dispatcher.attach(SparkScan(spark, self._settings, self.dispatcher.queues), query)
        for executor in self.dispatcher.executors.values():
            if isinstance(executor, OnSession):
                executor.attach(spark)

    def ready(self) -> bool:
        """Returns True if every partition of this process releases tasks."""
        return self.trouble() is None

    def trouble(self) -> str | None:
        """See `Dispatcher.trouble`."""
        return self.dispatcher.trouble() if self._begun else "It starts."

    def alive(self) -> bool:
        """See `Dispatcher.alive`."""
        return not self._begun or self.dispatcher.alive()

    def stop(self) -> None:
        """Drains the dispatcher, and sends the last lines of its attempts."""
        self._server.hide(self.dispatcher.measures.registry)
        self.dispatcher.stop()
        self.dispatcher.failed_attempts.stop()
        if self._logs is not None:
            self._logs.stop()

    def _keep_logs(self) -> None:
        """Sends on what handlers print and log, where that is wanted; secrets are taken out, of notes of progress in any case."""
        from scylla_spark.core.access.redaction import Redaction
        from scylla_spark.services.dispatch.attempt_logs import known_secrets
        from scylla_spark.services.dispatch.logs_apart import LogsApart

        secrets = known_secrets(self._settings)
        self.dispatcher.notes.redaction = Redaction(secrets)
        if not self._settings.logs.enabled:
            return
        self._logs = LogsApart(self._settings, secrets)
        self.dispatcher.measures.registry.register(self._logs)
        self.dispatcher.log_keeper = self._logs
        self._logs.start()


def _dispatcher(settings: Settings) -> Dispatcher:
    """Imported here, because a JVM is launched first: it starts while we import."""
    from scylla_spark.services.dispatch.dispatcher import Dispatcher

    return Dispatcher(settings, catalog.executors(settings))


def _needs_session(settings: Settings) -> bool:
    return settings.dispatch.scan == "spark" or catalog.needs_session(settings)


DISPATCH: Final = Role(DispatchService, _needs_session, own_port=None)
