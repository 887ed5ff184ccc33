"""Ingest as a duty of a process: tables and topics first, without Spark; then the two queries on its session."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from scylla_spark.clock import boot_us, now_us
from scylla_spark.config.settings import Settings
from scylla_spark.errors import UnreachableError
from scylla_spark.io.host.foreign_errors import outage_in
from scylla_spark.io.kafka.topic_setup import ensure_topics
from scylla_spark.log import get_logger
from scylla_spark.services.metrics_server import MetricsServer
from scylla_spark.services.service import Role

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from scylla_spark.services.ingest.ingest import Ingest

log = get_logger("ingest")

_AWAY_US: Final = 60_000_000  # so long a broker may be away while the queries start
_AGAIN_S: Final = 1.0
_START_S: Final = 60.0  # that starting queries may take before a stop gives them up


class IngestService:
    """The ingest of a process.

    Args:
        settings: with the broker's address.
        server: shows metrics.
    """

    def __init__(self, settings: Settings, server: MetricsServer) -> None:
        self._settings = settings
        self._server = server
        self._topic_ids: dict[str, str] = {}
        self._ingest: Ingest | None = None
        self._starting = threading.Thread(target=self._start_queries, name="ingest-start", daemon=True)
        self._stopping = threading.Event()
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Makes topics and tables where they are missing, and checks them.

        Raises:
            ConfigError: they do not belong together, or contradict the settings.
        """
        from scylla_spark.io.delta.new_tables import ensure_tables

        self._topic_ids = ensure_topics(self._settings)
        ensure_tables(self._settings, self._topic_ids, now=now_us())

    def attach(self, spark: SparkSession) -> None:
        """Becomes the one writer of the tables. Its queries start meanwhile: Spark's first ones take seconds, and nobody waits for them.

        Raises:
            ConflictError: another ingest holds the tables.
            ConfigError: the log does not reach to where the tables are.
        """
        from scylla_spark.services.ingest.ingest import Ingest

        self._ingest = Ingest(spark, self._settings)
        self._server.show(self._ingest.metrics.registry())
        self._ingest.prepare(self._topic_ids)
        self._starting.start()

    def ready(self) -> bool:
        """Returns True if it holds the tables."""
        return self._starting.ident is not None

    def trouble(self) -> str | None:
        """Returns a sentence that says why nothing reaches the tables just now; None: it does."""
        if self._ingest is None:
            return "It waits for Spark."
        if not self.ready():
            return "It is not the one writer of the tables yet: another process holds them, or tables and topics are being checked."
        if self._starting.is_alive():
            return "Its queries start."
        if self._ingest.kafka_is_silent:
            return "Kafka does not tell where its logs end."
        return None

    def alive(self) -> bool:
        """Returns True if its queries start or run.

        Raises:
            Exception: what kept them from starting, or ended one.
        """
        if self._failure is not None:
            raise self._failure
        return self._ingest is None or self._starting.is_alive() or self._ingest.alive()

    def finished(self) -> bool:
        """Returns True once everything is written that was to be (`ingest.available_now`)."""
        return self._ingest is not None and self._ingest.finished

    def stop(self) -> None:
        """See `Ingest.stop`."""
        self._stopping.set()
        if self._starting.ident is not None:
            self._starting.join(_START_S)
        if self._ingest is not None:
            self._ingest.stop()

    def _start_queries(self) -> None:
        assert self._ingest is not None
        until_us = boot_us() + _AWAY_US
        while True:
            try:
                self._ingest.start()
            except Exception as error:
                away = type(outage_in(error)) is UnreachableError and boot_us() < until_us
                if not away or self._stopping.wait(_AGAIN_S):
                    self._failure = error
                    return
                log.warning("ingest cannot start yet; tried again", why=str(error)[:300])
            else:
                log.info("ingest runs")
                return


INGEST: Final = Role(IngestService, lambda settings: True, lambda metrics: metrics.ingest_port)
