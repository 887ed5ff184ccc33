"""Watching tables that Spark writes: what counts agrees with what the table's history says."""

import pytest

from scylla_spark.core.plan.tables.changes import Cursor, begun, counted, ranges
from scylla_spark.core.plan.triggers.trigger import OnTable
from scylla_spark.io.delta.watched.commit_follower import WatchedTable

FROM_START = Cursor("", -1)
NOW = 2**62
LITTLE = {
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",  # else VACUUM lists by ten thousand tasks
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
}
TRACKED = "TBLPROPERTIES ('delta.enableRowTracking' = 'true')"
FEATURES = (
    "'delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name', 'delta.enableChangeDataFeed' = 'true', "
    "'delta.enableInCommitTimestamps' = 'true', 'delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '8'"
)


@pytest.fixture
def sql(spark):
    before = {name: spark.conf.get(name, None) for name in LITTLE}
    for name, value in LITTLE.items():
        spark.conf.set(name, value)
    yield spark.sql
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def change_rows(sql, table, first):
    """An update, a delete and a merge of rows with three ids from `first` on; their operations."""
    sql(f"INSERT INTO {table} (day, id, v) VALUES ('d1', {first}, 1), ('d1', {first + 1}, 2), ('d1', {first + 2}, 3)")
    sql(f"UPDATE {table} SET v = v + 1 WHERE id = {first}")
    sql(f"DELETE FROM {table} WHERE id = {first + 1}")
    source = f"SELECT * FROM VALUES ('d1', {first}L, 5D), ('d3', 9L, 1D), ('d1', {first + 2}L, 1D) AS x(day, id, v)"
    sql(
        f"MERGE INTO {table} t USING ({source}) s ON s.id = t.id WHEN MATCHED AND s.id = {first + 2} THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    return ["append", "update", "delete", "merge"]


def write_all_kinds(sql, spark, path):
    """One commit of every kind or more, on a plain table and once it has all features; operations that change rows, in order."""
    table = f"delta.`{path}`"
    sql(f"CREATE TABLE {table} (day string, id bigint, v double) USING delta PARTITIONED BY (day) {TRACKED}")
    sql(f"INSERT INTO {table} VALUES ('d1', 1, 1), ('d1', 2, 2), ('d1', 3, 3), ('d2', 4, 4)")
    operations = ["append", *change_rows(sql, table, 10)]
    sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({FEATURES})")
    operations += change_rows(sql, table, 20)
    sql(f"OPTIMIZE {table}")
    sql(f"VACUUM {table} RETAIN 0 HOURS")
    sql(f"ALTER TABLE {table} ADD COLUMNS (note string)")
    options = {"txnAppId": "app", "txnVersion": "1"}
    rows = spark.createDataFrame([("d4", 20, 1.0), ("d4", 21, 1.0)], "day string, id bigint, v double")
    for _ in range(2):  # the second time it is known and skipped
        rows.write.format("delta").mode("append").options(**options).save(str(path))
    sql(f"DELETE FROM {table} WHERE day = 'd4'")
    rows.write.format("delta").mode("overwrite").option("replaceWhere", "day = 'd4'").save(str(path))
    wider = rows.selectExpr("*", "'n' AS note", "1 AS more")
    wider.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(str(path))
    sql(f"DELETE FROM {table}")
    return [*operations, "append", "delete", "overwrite", "overwrite", "delete"]


def said_by_history(row):
    """(rows added, rows removed) as the history has them; None: it does not say."""
    metrics = {name: int(value) for name, value in row.operationMetrics.items() if value.isdigit()}
    match row.operation:
        case "WRITE" | "STREAMING UPDATE":
            return metrics["numOutputRows"], None
        case "UPDATE":
            return metrics["numUpdatedRows"], 0
        case "DELETE":
            return 0, metrics["numDeletedRows"]
        case "MERGE":
            return metrics["numTargetRowsInserted"] + metrics["numTargetRowsUpdated"], metrics["numTargetRowsDeleted"]
    return 0, 0


def test_what_counts_is_what_the_history_says(sql, spark, tmp_path):
    path = tmp_path / "orders"
    operations = write_all_kinds(sql, spark, path)
    table = WatchedTable(str(path))
    commits = table.poll(FROM_START, ["day"])
    history = sorted(sql(f"DESCRIBE HISTORY delta.`{path}`").collect(), key=lambda row: row.version)
    assert [one.operation for one in commits if one.changes_data] == operations
    assert [one.version for one in commits] == [row.version for row in history]
    for one, row in zip(commits, history, strict=True):
        added, removed = said_by_history(row)
        assert one.total.rows_added == added, row
        assert one.total.rows_removed in (removed, None) or removed is None, row
        assert one.timestamp_us // 1_000 == round(row.timestamp.timestamp() * 1_000), row
    assert {day: count.rows_added for day, count in commits[1].by["day"].items()} == {"d1": 3, "d2": 1}
    cursor = FROM_START
    for one in commits:
        cursor = cursor.after(one)
    assert table.poll(cursor) == []
    assert WatchedTable(str(path)).start(OnTable("t")) == cursor
    assert WatchedTable(str(path)).poll(cursor) == []
    assert list(path.glob("_delta_log/*.checkpoint.*-*")), "a checkpoint of version 2 was written"
    assert any('"deletionVector":{' in file.read_text() for file in path.glob("_delta_log/*.json"))


def test_a_streams_appends_count_each_once(sql, spark, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    for first in (0, 10):
        spark.range(first, first + 10).write.format("delta").mode("append").save(str(source))
    stream = spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(source)).writeStream
    stream = stream.format("delta").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = stream.trigger(availableNow=True).start(str(target))
    assert query.awaitTermination(120)
    trigger = OnTable("t", min_rows=20, operations=("append",))
    commits = WatchedTable(str(target)).poll(FROM_START)
    (found,) = ranges(trigger, counted(trigger, begun(-1), commits, NOW))
    assert (found.grown.rows, found.from_version) == (20, -1)
    assert found.to_version == commits[-1].version


def test_a_table_that_replaces_itself_goes_on_in_the_same_log(sql, tmp_path):
    name = f"delta.`{tmp_path}/orders`"
    sql(f"CREATE TABLE {name} USING delta AS SELECT 1L AS id")
    table = WatchedTable(f"{tmp_path}/orders")
    (first,) = table.poll(FROM_START)
    sql(f"CREATE OR REPLACE TABLE {name} USING delta AS SELECT id, 'x' AS more FROM range(3)")
    (second,) = table.poll(FROM_START.after(first))
    assert (first.operation, second.operation, second.total.rows_added) == ("append", "overwrite", 3)
    assert WatchedTable(f"{tmp_path}/orders").poll(FROM_START.after(first).after(second)) == []
