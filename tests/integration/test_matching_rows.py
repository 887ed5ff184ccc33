"""Conditions of table triggers: only new or changed rows that meet them count, whichever way the files were written."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake

from scylla_spark.core.plan.tables.changes import Cursor
from scylla_spark.core.plan.triggers.trigger import Condition, OnTable
from scylla_spark.errors import ArgumentError
from scylla_spark.io.delta.watched.commit_follower import TableTrouble, WatchedTable

FROM_START = Cursor("", -1)
SCHEMA = pa.schema(
    [("day", pa.date32()), ("id", pa.int64()), ("region", pa.string()), ("at", pa.timestamp("us", "UTC")),
     ("price", pa.decimal128(10, 2)), ("tags", pa.list_(pa.string())), ("ok", pa.bool_())]
)  # fmt: skip


def row(number, region, day=1):
    return {
        "day": date(2026, 1, day), "id": number, "region": region, "at": datetime(2026, 1, day, tzinfo=UTC),
        "price": number, "tags": [region or ""], "ok": number % 2 == 0,
    }  # fmt: skip


def write(path, *rows, mode="append", **more):
    write_deltalake(path, pa.Table.from_pylist(list(rows), schema=SCHEMA), mode=mode, partition_by=["day"], **more)


@pytest.fixture
def path(tmp_path):
    path = f"{tmp_path}/orders"
    write(path, row(1, "eu"), row(2, "us"), row(3, "eu"), row(4, None), row(5, "eu", day=2))
    return path


def narrowed(path, *where, per="", after=-1):
    """(operation, rows added, rows removed) of the commits after a version, as conditions leave them."""
    table = WatchedTable(path)
    commits = table.poll(FROM_START, [per] if per else [])
    found = table.narrow(commits, OnTable("t", where=where, per=per))
    return found if isinstance(found, TableTrouble) else [one for one in found if one.version > after]


def short(commits):
    return [(one.operation, one.total.rows_added, one.total.rows_removed) for one in commits]


EU = Condition("region", "=", "eu")


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ([EU], 3),
        ([Condition("region", "!=", "eu")], 1),
        ([Condition("id", ">", 2)], 3),
        ([Condition("id", ">=", 2.5)], 3),
        ([Condition("price", "<=", 2)], 2),
        ([Condition("price", "<", "2.50")], 2),
        ([Condition("ok", "=", True)], 2),
        ([Condition("at", ">", "2026-01-01T12:00:00Z")], 1),
        ([Condition("day", "=", "2026-01-02")], 1),
        ([Condition("day", "<", "2026-01-02"), EU], 2),
        ([Condition("day", ">", "2026-01-02")], 0),
        ([EU, Condition("id", "<", 2)], 1),
    ],
)
def test_rows_that_meet_all_conditions_are_counted(path, where, rows):
    (commit,) = narrowed(path, *where)
    assert (commit.total.rows_added, commit.changes_data) == (rows, rows > 0)


def test_without_conditions_nothing_is_read(path):
    for file in Path(path).rglob("*.parquet"):
        file.unlink()
    assert short(narrowed(path)) == [("append", 5, 0)]


def test_of_rewritten_files_only_what_is_new_or_changed_counts(path):
    table = DeltaTable(path)
    table.update(updates={"ok": "true"}, predicate="id = 1")
    table.update(updates={"ok": "true"}, predicate="id = 2")
    table.delete("id = 3")
    more = pa.Table.from_pylist([row(1, "us"), row(7, "eu"), row(5, "eu", day=2)], schema=SCHEMA)
    merge = table.merge(more, "s.id = t.id", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    expected = [("update", 1, 0), ("", 0, 0), ("delete", 0, 1), ("merge", 1, 0)]
    assert short(narrowed(path, EU, after=0)) == expected
    by = narrowed(path, EU, per="day", after=0)[-1].by["day"]
    assert {day: count.rows_added for day, count in by.items()} == {"2026-01-01": 1}


def test_what_an_overwrite_brings_counts_and_what_it_takes_does_not(path):
    write(path, row(8, "eu"), row(9, "us"), mode="overwrite")
    write(path, row(8, "eu"), mode="overwrite")
    write(path, row(9, "us"), mode="overwrite")
    assert short(narrowed(path, EU, after=0)) == [("overwrite", 1, 0), ("overwrite", 1, 0), ("", 0, 0)]


def test_of_an_overwrite_with_a_predicate_only_what_is_new_counts(tmp_path):
    path = f"{tmp_path}/numbers"
    write_deltalake(path, pa.table({"id": pa.array(range(1_000), pa.int64()), "v": pa.array([0] * 1_000, pa.int64())}))
    more = pa.table({"id": pa.array([7], pa.int64()), "v": pa.array([1], pa.int64())})
    write_deltalake(path, more, mode="overwrite", predicate="id = 7")
    expected = {(): 1, (Condition("v", "=", 1),): 1, (Condition("v", "=", 0),): 0, (Condition("id", ">", 500),): 0}
    for where, rows in expected.items():
        assert [one.total.rows_added for one in narrowed(path, *where, after=0)] == [rows], where


def test_commits_that_only_move_rows_are_not_read(path):
    write(path, row(6, "eu"))
    DeltaTable(path).optimize.compact()
    assert short(narrowed(path, EU, after=1)) == [("", 0, 0)]


def test_partitions_are_counted_apart(path):
    (commit,) = narrowed(path, EU, per="day")
    assert {day: count.rows_added for day, count in commit.by["day"].items()} == {"2026-01-01": 2, "2026-01-02": 1}
    (commit,) = narrowed(path, EU, Condition("id", ">", 4), per="day")
    assert {day: count.rows_added for day, count in commit.by["day"].items()} == {"2026-01-02": 1}


@pytest.mark.parametrize(
    ("kind", "values", "where", "rows"),
    [
        (
            pa.timestamp("us", "UTC"),
            [datetime(2026, 1, day, 9, tzinfo=UTC) for day in (1, 2, 3)],
            (">", "2026-01-01T12:00:00Z"),
            2,
        ),
        (pa.timestamp("us"), [datetime(2026, 1, day, 9) for day in (1, 2, 3)], ("<=", "2026-01-02T09:00:00"), 2),  # noqa: DTZ001
        (pa.decimal128(10, 2), [Decimal("1.10"), Decimal("2.50"), Decimal("-3.00")], (">=", "2.5"), 1),
        (pa.decimal128(10, 2), [Decimal("1.10"), Decimal("2.50"), Decimal("-3.00")], ("=", 1.1), 1),
    ],
)
def test_partitions_of_timestamps_and_decimals_are_compared(tmp_path, kind, values, where, rows):
    path = f"{tmp_path}/parts"
    write_deltalake(path, pa.table({"p": pa.array(values, kind), "n": [1, 2, 3]}), partition_by=["p"])
    (commit,) = narrowed(path, Condition("p", *where))
    assert commit.total.rows_added == rows


def test_conditions_use_the_names_of_people_where_columns_are_mapped(tmp_path):
    path = f"{tmp_path}/mapped"
    stored = pa.table({"col-1": pa.array([1, 2, 3], pa.int64()), "col-2": ["a", "b", "b"]})
    write_deltalake(path, stored, partition_by=["col-2"])
    table = DeltaTable(path)
    table.update(updates={'"col-1"': '"col-1" + 10'}, predicate='"col-1" = 3')
    log = Path(path, "_delta_log", f"{0:020d}.json")
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    (meta,) = (one["metaData"] for one in actions if "metaData" in one)
    fields = [
        {"name": name, "type": kind, "nullable": True,
         "metadata": {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"col-{number}"}}
        for number, (name, kind) in enumerate([("v", "long"), ("part", "string")], start=1)
    ]  # fmt: skip
    meta |= {
        "schemaString": json.dumps({"type": "struct", "fields": fields}), "partitionColumns": ["part"],
        "configuration": {"delta.columnMapping.mode": "name"},
    }  # fmt: skip
    log.write_text("".join(json.dumps(one) + "\n" for one in actions))
    assert short(narrowed(path, Condition("v", ">", 1))) == [("append", 2, 0), ("update", 1, 0)]
    assert short(narrowed(path, Condition("part", "=", "a"))) == [("append", 1, 0), ("", 0, 0)]
    (commit, _) = narrowed(path, Condition("v", ">", 1), per="part")
    assert {part: count.rows_added for part, count in commit.by["part"].items()} == {"b": 2}
    assert "no column 'col-1'" in narrowed(path, Condition("col-1", ">", 1)).why


def test_a_column_that_came_later_is_null_in_older_files(path):
    more = pa.table({"day": [date(2026, 1, 3)], "note": ["x"]})
    write_deltalake(path, more, mode="append", schema_mode="merge", partition_by=["day"])
    found = narrowed(path, Condition("note", "!=", "y"))
    assert short(found) == [("", 0, 0), ("append", 1, 0)]


def test_rows_that_are_copied_beside_a_column_that_came_later_are_those_of_before(tmp_path):
    path = f"{tmp_path}/orders"
    write_deltalake(path, pa.table({"id": pa.array(range(100), pa.int64()), "region": ["eu"] * 100}))
    table = DeltaTable(path)
    table.alter.add_columns([Field("note", "string"), Field("amount", "double")])
    table = DeltaTable(path)
    table.update(updates={"note": "'x'"}, predicate="id = 5")
    table.update(updates={"id": "id + 1000"}, predicate="id < 3")
    more = pa.table({"id": pa.array([7, 200], pa.int64()), "region": ["eu", "eu"], "note": ["y", "z"]})
    merge = table.merge(more, "s.id = t.id", source_alias="s", target_alias="t")
    merge.when_matched_update({"note": "s.note"}).when_not_matched_insert(
        {"id": "s.id", "region": "s.region"}
    ).execute()
    table.delete("id = 9")
    expected = [("update", 1, 0), ("update", 3, 0), ("merge", 2, 0), ("delete", 0, 1)]
    assert short(narrowed(path, EU, after=1)) == expected
    forget_metrics(path)
    assert short(narrowed(path, EU, after=1)) == expected, "by the rows alone"


def forget_metrics(path):
    """The log no longer says how many rows commits have changed."""
    for file in Path(path, "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        for action in actions:
            action.get("commitInfo", {}).pop("operationMetrics", None)
        file.write_text("".join(json.dumps(action) + "\n" for action in actions))


def test_no_more_rows_count_than_the_log_says_were_written(path):
    table = DeltaTable(path)
    table.update(updates={"ok": "true"}, predicate="id = 1")
    file = Path(path, "_delta_log", f"{1:020d}.json")
    file.write_text(file.read_text().replace('"num_updated_rows":1', '"num_updated_rows":0'))
    assert short(narrowed(path, EU, after=0)) == [("", 0, 0)]


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (Condition("nowhere", "=", 1), "no column 'nowhere'"),
        (Condition("at", "=", "noon"), "do not fit"),
        (Condition("region", "=", 1), "do not fit"),
        (Condition("tags", "=", "eu"), "do not fit"),
        (Condition("day", "=", "noon"), "cannot be compared"),
        (Condition("day", "<", 1), "cannot be compared"),
        (Condition("price", "=", "cheap"), "do not fit"),
    ],
)
def test_conditions_that_do_not_fit_the_table_are_told_of(path, condition, words):
    found = narrowed(path, condition)
    assert isinstance(found, TableTrouble), found
    assert found.kind == "unsuitable"
    assert words in found.why


def test_data_that_are_gone_are_told_of_and_not_counted_as_none(path):
    next(Path(path).rglob("*2026-01-01/*.parquet")).unlink()
    (commit,) = narrowed(path, EU, per="day")
    assert "deleted before they were counted" in commit.uncounted
    assert (commit.total.rows_added, commit.by["day"]["2026-01-01"].rows_added) == (None, None)
    assert commit.by["day"]["2026-01-02"].rows_added == 1, "of what is there it is known"
    assert short(narrowed(path, Condition("day", "=", "2026-01-02"))) == [("append", 1, 0)]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"deletionVector": {"cardinality": 1}}, "deletion vectors"),
        ({"path": "../else.parquet"}, "outside"),
        ({"path": "/etc/else.parquet"}, "outside"),
        ({"path": "s3://else/a.parquet"}, "outside"),
        ({"partitionValues": None}, "which partition"),
    ],
)
def test_files_that_cannot_be_counted_by_are_told_of(path, more, words):
    file = {"path": "a.parquet", "size": 1, "partitionValues": {"day": "2026-01-01"}, "dataChange": True} | more
    Path(path, "_delta_log", f"{1:020d}.json").write_text(json.dumps({"add": file}))
    (commit,) = narrowed(path, EU, per="day", after=0)
    assert (commit.total.rows_added, commit.operation) == (None, "append")
    assert words in commit.uncounted


def test_commits_that_a_trigger_does_not_count_are_not_read_for_its_conditions(path):
    file = {"path": "a.parquet", "partitionValues": {"day": "2026-01-01"}, "dataChange": True}
    remove, add = {"remove": file}, {"add": file | {"size": 1, "deletionVector": {"cardinality": 1}}}
    Path(path, "_delta_log", f"{1:020d}.json").write_text(json.dumps(remove) + "\n" + json.dumps(add))
    table = WatchedTable(path)
    commits = table.poll(FROM_START)
    appends = table.narrow(commits, OnTable("t", where=(EU,), operations=("append",)))
    assert [one.uncounted for one in appends] == ["", ""]


def test_a_table_must_be_looked_at_before_its_rows_are_counted(path):
    with pytest.raises(ArgumentError, match="not looked at"):
        WatchedTable(path).narrow([], OnTable("t", where=(EU,)))
