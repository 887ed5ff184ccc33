"""Tables that are missing are made without a JVM, with the same log that Spark would write, so that nothing waits for Spark.

A table comes into being by one atomic write of its first version, with the rows that stand there from the beginning. So any
number of processes may do this at once: one of them makes the table, the others find it. What delta-rs cannot say in a log
(`Table.clustered_by`) Spark adds before it first writes rows there.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from scylla_spark.clock import from_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.tables.progress import Mark
from scylla_spark.core.tasks.key import HOUR_US
from scylla_spark.duration import duration_us
from scylla_spark.errors import ConfigError, ConflictError
from scylla_spark.io.delta.deployment_record import check, check_version, deployment, stored_rows, stored_version
from scylla_spark.io.delta.log_place import store_options
from scylla_spark.io.delta.rows import progress_row
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.log import get_logger
from scylla_spark.schemas import DEPLOYMENT, PROGRESS, TABLES, TABLES_OF_FIRST_VERSION, VERSION, Table

if TYPE_CHECKING:
    import deltalake

log = get_logger("ingest")

PROPERTIES: Final = {
    "delta.enableDeletionVectors": "false",
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 12 hours",
    "delta.deletedFileRetentionDuration": "interval 6 hours",
    # names of appends: a batch that is repeated later than that appends its rows again, which readers tolerate
    "delta.setTransactionRetentionDuration": "interval 1 hour",
    "delta.dataSkippingNumIndexedCols": "5",
}
"""Delta properties of all tables."""
_DELTA_NAMES: Final = {"int": "integer", "bigint": "long"}


def ensure_tables(settings: Settings, topic_ids: dict[str, str], *, now: int) -> dict[str, Any]:
    """Makes what is missing, and checks the settings against what the deployment was made with. Idempotent.

    Args:
        settings: partition count, grace and retention are stored when the tables are made and compared later.
        topic_ids: topic name → id; another id means that the topic was deleted and made again.
        now: microseconds since the epoch.

    Returns:
        What is stored of the deployment; of tables of an older version, as it is before they are migrated.

    Raises:
        ConfigError: the partition count differs, a topic is not the one these tables were filled from, the tables are of
            newer code, or one of them is gone.
    """
    readers, wanted = TableReader.of(settings), deployment(settings, topic_ids)
    stored = readers.stored() if readers.exists(DEPLOYMENT) else {}
    if stored:
        check_version(stored)
        check(stored, wanted)
        _refuse_loss(readers, stored)
    first_rows = {PROGRESS: _first_marks(settings, now), DEPLOYMENT: stored_rows(wanted)}
    for table in TABLES:  # the deployment comes last: readers take it for the sign that all are there
        if not readers.exists(table):
            _make(readers, table, first_rows.get(table, []))
    return stored or _agreed(readers, wanted)


def _refuse_loss(readers: TableReader, stored: dict[str, Any]) -> None:
    """Once a deployment is stored, all tables of its version were there: an empty one in place of one that was lost would forget it."""
    first = TABLES_OF_FIRST_VERSION if stored_version(stored) < VERSION else TABLES
    gone = [table.name for table in first if not readers.exists(table)]
    if gone:
        raise ConfigError(
            f"At {readers.path} the tables {', '.join(gone)} are gone, which this deployment has filled.",
            hint="Bring them back: all tables together, from one copy. Without one, start a new deployment with new topics and tables.",
        )


def _agreed(readers: TableReader, wanted: dict[str, Any]) -> dict[str, Any]:
    """Returns what was stored a moment ago, by us or by another who made the tables at the same time."""
    stored = readers.stored()
    if not stored:
        raise ConflictError(
            f"The tables at {readers.path} were left half made by an older version.",
            hint="They hold nothing yet: remove the folder, and start again.",
        )
    check(stored, wanted)
    return stored


def fold_target_us(settings: Settings, now: int) -> int:
    """Returns how far `folded_until` should be: the first full hour that is `ingest.near` ahead; microseconds since the epoch."""
    near_us = duration_us(settings.ingest.near)
    return -(-(now + near_us) // HOUR_US) * HOUR_US


def _first_marks(settings: Settings, now: int) -> list[dict[str, Any]]:
    mark = Mark(folded_until_us=fold_target_us(settings, now))
    return [progress_row("tasks", number, mark) | {"updated_at": from_us(now)} for number in range(settings.partitions)]


def _make(readers: TableReader, table: Table, rows: list[dict[str, Any]]) -> None:
    """Writes the first version of a table, unless somebody else does so at the same time."""
    import pyarrow as pa
    from deltalake import CommitProperties, write_deltalake
    from deltalake.exceptions import DeltaError

    place = f"{readers.path}/{table.name}"
    try:
        with readers.reached():
            write_deltalake(
                place,
                pa.Table.from_pylist(rows, schema=pa.schema(delta_schema(table).to_arrow())),
                mode="error",
                partition_by=list(table.partitioned_by) or None,
                description=table.comment,
                configuration=PROPERTIES,
                storage_options=store_options(place, readers.limit),
                commit_properties=CommitProperties(
                    max_commit_retries=0
                ),  # a second try would append to another's table
            )
    except DeltaError:
        if not readers.exists(table):
            raise


def delta_schema(table: Table) -> deltalake.Schema:
    """The columns of a table as Delta stores them; all may be null, and each keeps its comment."""
    from deltalake import Schema

    fields = [_field(column.name, column.type, {"comment": column.comment}) for column in table.columns]
    return Schema.from_json(json.dumps({"type": "struct", "fields": fields}))


def _field(name: str, spark_type: str, metadata: dict[str, str]) -> dict[str, Any]:
    return {"name": name, "type": _delta_type(spark_type), "nullable": True, "metadata": metadata}


def _delta_type(spark_type: str) -> str | dict[str, Any]:
    """Delta's name of a Spark SQL type, as far as our tables use it."""
    inner = spark_type.partition("<")[2].removesuffix(">")
    if spark_type.startswith("array<"):
        return {"type": "array", "elementType": _delta_type(inner), "containsNull": True}
    if spark_type.startswith("struct<"):
        fields = (field.split(":") for field in inner.split(","))
        return {"type": "struct", "fields": [_field(name.strip(), kind.strip(), {}) for name, kind in fields]}
    return _DELTA_NAMES.get(spark_type, spark_type)
