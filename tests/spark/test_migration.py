"""Tables of an older or newer version: the writer migrates or refuses them, every reader goes on.

`tables_v1.tar.gz` holds tables as version 1 of the columns made and filled them, before there was a version.
"""

import tarfile
from pathlib import Path

import pytest

from scylla_spark import schemas
from scylla_spark.config.settings import Settings
from scylla_spark.core.tasks.filter import TaskFilter
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import ConfigError
from scylla_spark.io.delta.spark_tables import Tables
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.delta.task_pages import TaskPages
from scylla_spark.schemas import (
    DEFERRED,
    DEPLOYMENT,
    PROGRESS,
    TABLES,
    TABLES_OF_FIRST_VERSION,
    TASKS,
    Column,
)
from scylla_spark.services.ingest.ingest import Ingest
from tests.spark.batches import PARTITIONS, TOPIC_IDS, raw, rows, task

FROZEN = Path(__file__).with_name("tables_v1.tar.gz")
THEN = 1_795_000_000_000_000
ADDED = Column("added_later", "struct<a: int, b: string>", "a column that doesn't exist yet")


@pytest.fixture
def old(tmp_path):
    """The folder of tables of version 1."""
    with tarfile.open(FROZEN) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "tables"


@pytest.fixture
def grown(monkeypatch):
    """The code of a later version: every table, except that of two columns that holds the settings, has one more."""

    def grow(table):
        return table._replace(columns=(*table.columns, ADDED))

    new = {table.name: grow(table) if table is not DEPLOYMENT else table for table in TABLES}
    names = ("TASKS", "DEFERRED", "COMPLETIONS", "ATTEMPTS", "REJECTED", "PROGRESS")
    for module in (schemas, *map(_module, ("new_tables", "spark_tables", "table_reader", "task_pages", "migration"))):
        for name in names:
            if hasattr(module, name):
                monkeypatch.setattr(module, name, new[name.lower()])
        if hasattr(module, "TABLES"):
            monkeypatch.setattr(module, "TABLES", tuple(new.values()))
    return new


def _module(name):
    from importlib import import_module

    return import_module(f"scylla_spark.io.delta.{name}")


def service(spark, folder):
    return Ingest(spark, Settings(data_dir=folder, partitions=PARTITIONS))


def key(unique, due):
    return TaskKey(THEN + due * 1_000_000, "a", unique)


def seen(readers):
    """What readers without Spark find in the frozen tables."""
    listed = TaskPages(readers).page(TaskFilter(), 100, now=THEN + 1)
    return {row["uniqueness_key"]: row["state"] for row in listed}


def contents(tables):
    """Rows of the tables of tasks and facts, without what was added."""
    return {table.name: sorted(map(str, tables.read(table).drop(ADDED.name).collect())) for table in TABLES[:5]}


def test_readers_of_today_read_tables_of_version_1(old):
    readers = TableReader(str(old))
    found = seen(readers)
    assert set(found) >= {"near", "failed", "done", "far"}
    assert found["done"] == "succeeded"
    assert readers.completion(key("done", 62)).outcome == "succeeded"
    assert [fact.outcome for fact in readers.attempts(key("failed", 61))] == ["failed"]
    assert readers.task(key("near", 60)).command.retry.max_retries == 3
    assert readers.rules().partitions == PARTITIONS
    assert readers.marks()["tasks", 0].tasks_offset == 5
    assert "schema_version" not in readers.stored()


def test_ingest_takes_tables_of_version_1_over_and_writes_on(spark, old):
    before = seen(TableReader(str(old)))
    ingest = service(spark, old.parent)
    ingest.open_tables(TOPIC_IDS)
    assert TableReader(str(old)).stored()["schema_version"] == schemas.VERSION
    assert seen(TableReader(str(old))) == before
    ingest.write_tasks(raw(spark, [task("a", "new", 5), task("a", "ignored", 4)]), 0)
    assert rows(ingest, DEFERRED, "uniqueness_key") == [("far",), ("new",)]
    kept = spark.sql(f"SHOW TBLPROPERTIES delta.`{old / 'deferred'}`").collect()
    assert ("delta.setTransactionRetentionDuration", "interval 1 hour") in [tuple(row) for row in kept]


def test_a_dispatcher_of_a_later_version_reads_tables_of_an_older_ingest(spark, old, grown):
    readers, tables = TableReader(str(old)), Tables(spark, str(old))
    assert seen(readers)["done"] == "succeeded"
    assert readers.marks()["tasks", 0].tasks_offset == tables.partition_marks()[0].tasks_offset == 5
    for table in (grown[table.name] for table in TABLES_OF_FIRST_VERSION if table is not DEPLOYMENT):
        assert {row[ADDED.name] for row in tables.read(table).collect()} <= {None}
        if table.name != PROGRESS.name:  # it is read as a small table: see `marks` above
            assert set(readers.frame(table).collect().columns) == set(table.names) - set(table.partitioned_by)


def test_columns_that_are_new_are_added_and_no_row_changes(spark, old, grown):
    before = contents(Tables(spark, str(old)))
    ingest = service(spark, old.parent)
    for _ in range(2):
        ingest.open_tables(TOPIC_IDS)
    for table in TABLES[:6]:
        assert ADDED.name in TableReader(str(old)).columns(table)
    assert contents(ingest.tables) == before
    fields = {field.name: field for field in ingest.tables.read(TASKS).schema.fields}
    assert fields[ADDED.name].metadata["comment"] == ADDED.comment


def test_a_dispatcher_of_today_reads_tables_of_a_later_ingest(spark, old):
    for table in TABLES_OF_FIRST_VERSION:
        spark.sql(f"ALTER TABLE delta.`{old / table.name}` ADD COLUMNS (`{ADDED.name}` {ADDED.type})")
    readers, tables = TableReader(str(old)), Tables(spark, str(old))
    assert seen(readers)["done"] == "succeeded"
    assert tables.partition_marks()[0].tasks_offset == 5
    for table in TABLES_OF_FIRST_VERSION:
        assert tables.read(table).select(*table.names).count() > 0
        assert table is PROGRESS or readers.frame(table).collect().height > 0


@pytest.mark.promise
def test_an_ingest_that_is_older_than_the_tables_refuses_them_unchanged(spark, old):
    ingest = service(spark, old.parent)
    ingest.open_tables(TOPIC_IDS)
    ingest.tables.store(TableReader(str(old)).stored() | {"schema_version": schemas.VERSION + 7})
    versions = {table.name: TableReader(str(old)).size(table)["version"] for table in TABLES}
    said = (
        rf"made by a newer scylla-spark: .* version {schemas.VERSION + 7}, this one writes {schemas.VERSION}\. Upgrade"
    )
    with pytest.raises(ConfigError, match=said):
        service(spark, old.parent).open_tables(TOPIC_IDS)
    assert versions == {table.name: TableReader(str(old)).size(table)["version"] for table in TABLES}
    assert seen(TableReader(str(old)))["done"] == "succeeded", "readers go on"
