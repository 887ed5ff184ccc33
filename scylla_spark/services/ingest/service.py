"""Ingest as a duty of a process: tables and topics first, without Spark; then the two queries on its session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import structlog

from scylla_spark.clock import now_us
from scylla_spark.config.settings import Settings
from scylla_spark.io.delta.new_tables import ensure_tables
from scylla_spark.io.kafka.topics import ensure_topics
from scylla_spark.services.service import Role

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from scylla_spark.services.ingest.ingest import Ingest

log = structlog.get_logger("ingest")


class IngestService:
    """The ingest of a process.

    Args:
        settings: with the broker's address.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._topic_ids: dict[str, str] = {}
        self._ingest: Ingest | None = None
        self._runs = False

    def start(self) -> None:
        """Makes topics and tables where they are missing, and checks them.

        Raises:
            ConfigError: they do not belong together, or contradict the settings.
        """
        self._topic_ids = ensure_topics(self._settings)
        ensure_tables(self._settings, self._topic_ids, now=now_us())

    def attach(self, spark: SparkSession) -> None:
        """Becomes the one writer of the tables, and starts the queries.

        Raises:
            ConflictError: another ingest holds the tables.
            ConfigError: the log does not reach to where the tables are.
        """
        from scylla_spark.services.ingest.ingest import Ingest

        self._ingest = Ingest(spark, self._settings)
        self._ingest.prepare(self._topic_ids)
        self._ingest.start()
        self._runs = True
        log.info("ingest runs")

    def ready(self) -> bool:
        """Whether its queries were started."""
        return self._runs

    def alive(self) -> bool:
        """See `Ingest.alive`."""
        return self._ingest is None or self._ingest.alive()

    def facts(self) -> Mapping[str, str]:
        """Nothing."""
        return {}

    def stop(self) -> None:
        """See `Ingest.stop`."""
        if self._ingest is not None:
            self._ingest.stop()


INGEST: Final = Role(IngestService, lambda settings: True)
