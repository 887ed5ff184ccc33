"""The Delta tables as Spark sees them: made, checked, read. What each column means stands in `schemas`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from scylla_spark.clock import from_us, now_us
from scylla_spark.config import Settings
from scylla_spark.core.partition import Mark, stored_mark
from scylla_spark.core.wire import Rules
from scylla_spark.errors import ConfigError, NotFoundError
from scylla_spark.schemas import DEPLOYMENT, PROGRESS, TABLES, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Tables:
    """All tables of one deployment.

    Args:
        spark: the session.
        path: folder or URI under which they lie.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.spark = spark
        self.path = path.rstrip("/")

    def location(self, table: Table) -> str:
        """Folder or URI of one table."""
        return f"{self.path}/{table.name}"

    def read(self, table: Table) -> DataFrame:
        """The newest version of a table, lazily; grain and columns as in `schemas`."""
        return self.spark.read.format("delta").load(self.location(table))

    def empty(self, table: Table) -> DataFrame:
        """A frame of the table's schema without rows."""
        return self.spark.createDataFrame([], table.ddl)

    def append(self, frame: DataFrame, table: Table, *, app_id: str, version: int) -> None:
        """Appends rows once per (app_id, version): a repeat is skipped by the table itself."""
        options = {"txnAppId": f"{app_id}/{table.name}", "txnVersion": str(version)}
        frame.select(*table.names).write.format("delta").mode("append").options(**options).save(self.location(table))

    def create(self, settings: Settings, topic_ids: dict[str, str]) -> Rules:
        """Makes what is missing and checks the settings against what the deployment was made with.

        Args:
            settings: partition count, grace and retention are stored at the first call and compared at later ones.
            topic_ids: topic name → id; another id means that the topic was deleted and made again.

        Returns:
            The rules by which records are judged.

        Raises:
            ConfigError: the partition count differs, or a topic is not the one these tables were filled from.
        """
        for table in TABLES:
            if not self._exists(table):
                self._create(table)
        wanted = _deployment(settings, topic_ids)
        stored = self.stored()
        if not stored:
            rows = [(name, json.dumps(value)) for name, value in wanted.items()]
            self.spark.createDataFrame(rows, DEPLOYMENT.ddl).coalesce(1).write.format("delta").mode("overwrite").save(
                self.location(DEPLOYMENT)
            )
            stored = wanted
        check_deployment(stored, wanted)
        return stored_rules(stored)

    def stored(self) -> dict[str, Any]:
        """The settings that the deployment was made with; empty before `init`."""
        if not self._exists(DEPLOYMENT):
            return {}
        return {row["name"]: json.loads(row["value"]) for row in self.read(DEPLOYMENT).collect()}

    def rules(self) -> Rules:
        """The rules by which records are judged.

        Raises:
            NotFoundError: there are no tables yet.
        """
        stored = self.stored()
        if not stored:
            raise NotFoundError(f"There are no tables at {self.path}.", hint="Run `scylla-spark init` first.")
        return stored_rules(stored)

    def marks(self) -> dict[tuple[str, int], Mark]:
        """How far the tables are: ("tasks" | "outcomes", partition) → mark; the offset of its own topic is set in it."""
        rows = self.read(PROGRESS).collect()
        return {(row["topic"], row["partition_id"]): stored_mark(row.asDict()) for row in rows}

    def partition_marks(self) -> dict[int, Mark]:
        """The marks of both topics joined: partition → mark."""
        found: dict[int, Mark] = {}
        for (topic, number), mark in self.marks().items():
            known = found.get(number, Mark())
            if topic == "tasks":
                found[number] = known._replace(tasks_offset=mark.tasks_offset)
            else:
                found[number] = mark._replace(tasks_offset=known.tasks_offset)
        return found

    def write_marks(self, marks: dict[tuple[str, int], Mark]) -> None:
        """Replaces the progress table; the caller serialises its calls and never lets a mark fall."""
        stamp = from_us(now_us())
        rows = []
        for (topic, partition), mark in sorted(marks.items()):
            offset = mark.tasks_offset if topic == "tasks" else mark.outcomes_offset
            rows.append((topic, partition, offset, mark.fence.epoch, mark.fence.nonce, mark.resigned, stamp))
        frame = self.spark.createDataFrame(rows, PROGRESS.ddl).coalesce(1)
        frame.write.format("delta").mode("overwrite").save(self.location(PROGRESS))

    def _exists(self, table: Table) -> bool:
        from delta.tables import DeltaTable

        return DeltaTable.isDeltaTable(self.spark, self.location(table))

    def _create(self, table: Table) -> None:
        from delta.tables import DeltaTable

        builder = DeltaTable.createIfNotExists(self.spark).location(self.location(table)).comment(table.comment)
        for column in table.columns:
            builder = builder.addColumn(column.name, column.type, comment=column.comment)
        if table.partitioned_by:
            builder = builder.partitionedBy(*table.partitioned_by)
        properties = {
            "delta.enableDeletionVectors": "false",
            "delta.checkpointInterval": "100",
            "delta.logRetentionDuration": "interval 2 days",
            "delta.deletedFileRetentionDuration": "interval 1 days",
            "delta.dataSkippingNumIndexedCols": "5",
        }
        for name, value in properties.items():
            builder = builder.property(name, value)
        builder.execute()


def stored_rules(stored: dict[str, Any]) -> Rules:
    """The rules in a deployment's stored settings."""
    return Rules(stored["partitions"], stored["grace_ms"], stored["retention_ms"], stored["default_handler"])


def check_deployment(stored: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Compares what must not change.

    Raises:
        ConfigError: the partition count differs, or a topic was deleted and made again.
    """
    if stored["partitions"] != wanted["partitions"]:
        raise ConfigError(
            f"These tables were made with {stored['partitions']} partitions; the settings say {wanted['partitions']}.",
            hint=f"The count is fixed for the life of a deployment: set partitions = {stored['partitions']}.",
        )
    for name, identity in wanted["topic_ids"].items():
        if stored["topic_ids"].get(name) != identity:
            raise ConfigError(
                f"Topic {name!r} is not the one these tables were filled from: it was deleted and made again, or is of another cluster.",
                hint="Point the settings at the old cluster, or at a new folder for the tables.",
            )
    for name in ("grace_ms", "retention_ms", "default_handler"):
        if stored[name] != wanted[name]:
            raise ConfigError(
                f"These tables were made with {name} = {stored[name]!r}; the settings say {wanted[name]!r}.",
                hint="All parts must judge records alike, so it is fixed when the tables are made.",
            )


def _deployment(settings: Settings, topic_ids: dict[str, str]) -> dict[str, Any]:
    return {
        "partitions": settings.partitions,
        "grace_ms": int(settings.ingest.grace.total_seconds() * 1000),
        "retention_ms": int(settings.ingest.retention.total_seconds() * 1000),
        "default_handler": settings.ingest.default_handler,
        "topic_ids": topic_ids,
    }
