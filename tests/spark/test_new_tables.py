"""Tables that were made without a JVM are to Spark what it would have made itself."""

import json
from pathlib import Path

import pytest
from delta.tables import DeltaTable

from scylla_spark.config.settings import Settings
from scylla_spark.io.delta.new_tables import PROPERTIES, ensure_tables
from scylla_spark.schemas import DEFERRED, TABLES, TASKS
from tests.spark.batches import HOUR, NOW, PARTITIONS, TOPIC_IDS, raw, rows, task

FAR = 9 * HOUR


def actions(folder, table):
    """What the log of a table says of it: action → the newest of its kind."""
    files = sorted((Path(folder) / table.name / "_delta_log").glob("*.json"))
    return {
        name: body
        for file in files
        for line in file.read_text().splitlines()
        for name, body in json.loads(line).items()
    }


def described(folder, table):
    """Columns with types, nullability and comments, partitioning, properties and protocol."""
    found = actions(folder, table)
    meta = found["metaData"]
    kept = {name: meta[name] for name in ("description", "format", "partitionColumns", "configuration")}
    features = sorted(found["protocol"].pop("writerFeatures", []))
    return kept | {"schema": json.loads(meta["schemaString"]), "protocol": found["protocol"], "features": features}


def made_by_spark(spark, folder, table):
    builder = DeltaTable.create(spark).location(str(folder / table.name)).comment(table.comment)
    for column in table.columns:
        builder = builder.addColumn(column.name, column.type, comment=column.comment)
    if table.partitioned_by:
        builder = builder.partitionedBy(*table.partitioned_by)
    if table.clustered_by:
        builder = builder.clusterBy(*table.clustered_by)
    for name, value in PROPERTIES.items():
        builder = builder.property(name, value)
    builder.execute()


@pytest.fixture
def plain(tmp_path):
    settings = Settings(data_dir=tmp_path, partitions=PARTITIONS)
    ensure_tables(settings, TOPIC_IDS, now=NOW)
    return tmp_path / "tables"


@pytest.mark.parametrize("table", [table for table in TABLES if not table.clustered_by], ids=lambda table: table.name)
def test_a_table_made_without_a_jvm_has_the_log_that_spark_writes(spark, plain, tmp_path, table):
    made_by_spark(spark, tmp_path / "spark", table)
    assert described(plain, table) == described(tmp_path / "spark", table)


def test_the_clustering_of_deferred_is_said_when_rows_first_come(spark, ingest, tmp_path):
    made_by_spark(spark, tmp_path / "spark", DEFERRED)
    assert "domainMetadata" not in actions(ingest.tables.path, DEFERRED)
    for number in range(2):
        ingest.write_tasks(raw(spark, [task("a", str(number), number, due=FAR)]), number)
    assert described(ingest.tables.path, DEFERRED) == described(tmp_path / "spark", DEFERRED)
    clustering = actions(ingest.tables.path, DEFERRED)["domainMetadata"]
    assert clustering == actions(tmp_path / "spark", DEFERRED)["domainMetadata"]
    log = sorted((Path(ingest.tables.path) / DEFERRED.name / "_delta_log").glob("*.json"))
    assert len(log) == 4, "made, clustered once, and two appends"


def test_spark_keeps_the_checksums_of_a_table_that_it_did_not_make(ingest):
    for number in range(3):
        ingest.write_tasks(raw(ingest.spark, [task("a", str(number), number, due=60)]), number)
    assert rows(ingest, TASKS, "uniqueness_key") == [("0",), ("1",), ("2",)]
    log = Path(ingest.tables.path) / TASKS.name / "_delta_log"
    assert {file.name for file in log.glob("*.crc") if file.name[0] != "."} >= {f"{n:020}.crc" for n in (2, 3)}
