"""Watching tables that delta-rs writes: every commit once, whatever happens to the log, and little work where nothing happens."""

import json
import os
import shutil
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from scylla_spark.config.settings import Settings
from scylla_spark.core.plan.tables.changes import Cursor
from scylla_spark.core.plan.triggers.trigger import OnTable
from scylla_spark.errors import ArgumentError
from scylla_spark.io.delta.watched import commit_follower
from scylla_spark.io.delta.watched.commit_follower import TableTrouble, WatchedTable, located, watchable_places
from scylla_spark.table_place import TablePlaces

FROM_START = Cursor("", -1)


@pytest.fixture
def path(tmp_path):
    return f"{tmp_path}/orders"


def append(path, *ids, day="d1", mode="append", **more):
    rows = pa.table({"day": [day] * len(ids), "id": list(ids)}, schema=pa.schema([("day", "string"), ("id", "int64")]))
    write_deltalake(path, rows, mode=mode, partition_by=["day"], **more)


def log_file(path, version, ending="json"):
    return Path(path, "_delta_log", f"{version:020d}.{ending}")


def moved(cursor, commits):
    for commit in commits:
        cursor = cursor.after(commit)
    return cursor


def seen(table, cursor=FROM_START, **more):
    """Commits after a cursor, and the cursor behind them."""
    commits = table.poll(cursor, **more)
    assert isinstance(commits, list), commits
    return commits, moved(cursor, commits)


def short(commits):
    return [(one.version, one.operation, one.total.rows_added, one.total.rows_removed) for one in commits]


def trouble(table, cursor):
    found = table.poll(cursor)
    assert isinstance(found, TableTrouble), found
    return found


def write_all_kinds(path):
    """One commit of every kind, and what should be made of each."""
    append(path, 1, 2, 3)
    append(path, 4, day="d2")
    table = DeltaTable(path)
    table.delete("id = 1")
    table.update(updates={"id": "id + 100"}, predicate="id = 2")
    more = pa.table({"day": ["d1", "d3"], "id": pa.array([3, 7], pa.int64())})
    merge = table.merge(more, "s.id = t.id", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    append(path, 8)
    table = DeltaTable(path)
    table.optimize.compact()
    table.optimize.z_order(["id"])
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 1 day"})
    table.restore(5)
    append(path, 9, 10, mode="overwrite", predicate="day = 'd1'")
    append(path, 11, mode="overwrite")
    table = DeltaTable(path)
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    table.delete()
    return ["append", "append", "delete", "update", "merge", "append", "", "", "", "overwrite", "overwrite", "overwrite",
            "", "", "delete"]  # fmt: skip


@pytest.mark.promise
def test_every_kind_of_commit_is_seen_once_and_counted_as_history_counts_it(path):
    expected = write_all_kinds(path)
    table = WatchedTable(path)
    commits, cursor = seen(table, by=["day"])
    assert [one.operation for one in commits] == expected
    assert [one.version for one in commits] == list(range(len(expected)))
    history = {one["version"]: one.get("operationMetrics", {}) for one in DeltaTable(path).history()}
    for one in commits:
        said = history[one.version]
        for name in ("num_added_rows", "num_updated_rows"):
            assert one.total.rows_added == said.get(name, one.total.rows_added), one
        if one.operation == "delete":
            assert one.total.rows_removed == said["num_deleted_rows"]
        if one.operation == "merge":
            changed = said["num_target_rows_inserted"] + said["num_target_rows_updated"]
            assert one.total.rows_added == changed == 2
    assert {day: count.rows_added for day, count in commits[0].by["day"].items()} == {"d1": 3}
    assert seen(table, cursor) == ([], cursor)


def test_reading_in_portions_gives_the_same_commits(path):
    write_all_kinds(path)
    whole, _ = seen(WatchedTable(path), by=["day"])
    table, cursor, parts = WatchedTable(path), FROM_START, []
    while commits := table.poll(cursor, ["day"], 2):
        assert len(commits) <= 2
        parts += commits
        cursor = moved(cursor, commits)
    assert parts == whole


def test_a_place_that_cannot_be_reached_is_a_trouble():
    found = trouble(WatchedTable("nowhere://orders"), FROM_START)
    assert found.kind == "unreachable"


def test_a_log_that_may_not_be_read_is_a_trouble(path):
    append(path, 1)
    _, cursor = seen(table := WatchedTable(path))
    log_file(path, 1).mkdir()  # reading it fails, even for root
    assert trouble(table, cursor).kind == "unreachable"
    log_file(path, 1).rmdir()
    append(path, 2)
    assert short(seen(table, cursor)[0]) == [(1, "append", 1, 0)]


def test_a_quiet_table_is_not_listed(path, monkeypatch):
    append(path, 1)
    _, cursor = seen(table := WatchedTable(path))
    monkeypatch.setattr(os, "listdir", lambda _: pytest.fail("listed"))
    assert seen(table, cursor) == ([], cursor)
    append(path, 2)
    commits, cursor = seen(table, cursor)
    assert short(commits) == [(1, "append", 1, 0)]
    assert seen(table, cursor) == ([], cursor)


# -- where to begin -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "version"), [("now", 2), ("earliest", -1), (1, 1), (0, 0)])
def test_a_trigger_begins_where_it_says(path, start, version):
    for number in range(3):
        append(path, number)
    table = WatchedTable(path)
    cursor = table.start(OnTable("t", start=start, per="day"))
    assert cursor == Cursor(str(DeltaTable(path).metadata().id), version)
    append(path, 3)
    assert [one.version for one in seen(table, cursor)[0]] == list(range(version + 1, 4))


def test_a_trigger_cannot_start_after_a_version_that_is_still_to_come(path):
    append(path, 1)
    with pytest.raises(ArgumentError, match="has no version 7"):
        WatchedTable(path).start(OnTable("t", start=7))


def test_partitions_need_a_partition_column(path):
    append(path, 1)
    table = WatchedTable(path)
    with pytest.raises(ArgumentError, match="is partitioned by day, not by id"):
        table.start(OnTable("t", per="id"))
    found = table.poll(FROM_START, ["id"])
    assert isinstance(found, TableTrouble)
    assert found.kind == "unsuitable"


def test_a_table_that_is_still_to_come_counts_from_its_first_version(path):
    table = WatchedTable(path)
    found = table.start(OnTable("t"))
    assert (found.kind, found.resume) == ("missing", FROM_START)
    assert trouble(table, found.resume).kind == "missing"
    Path(path).mkdir()
    assert trouble(table, found.resume).kind == "missing"
    append(path, 1)
    commits, cursor = seen(table, found.resume)
    assert short(commits) == [(0, "append", 1, 0)]
    assert cursor.table_id == str(DeltaTable(path).metadata().id)


def test_a_path_that_is_a_file_holds_no_table(path):
    Path(path).write_text("x")
    assert WatchedTable(path).start(OnTable("t")).kind == "missing"
    assert trouble(WatchedTable(path), FROM_START).kind == "missing"


@pytest.mark.parametrize(
    ("table", "place"),
    [
        ("/a/b", "/a/b"),
        ("file:/a/b/", "/a/b"),
        ("file:///a/b%20c", "/a/b c"),
        ("s3://bucket/a/", "s3://bucket/a"),
        ("main.sales.orders", "/lake/orders"),
    ],
)
def test_paths_uris_and_known_names_are_located(table, place):
    assert located(table, TablePlaces({"main.sales.orders": "file:/lake/orders"}, ("/data/tables",))) == place


@pytest.mark.parametrize("table", ["orders", "main.sales.refunds", "./orders"])
def test_an_unknown_name_is_refused_with_what_to_do(table):
    with pytest.raises(ArgumentError, match=r"plan\.tables"):
        located(table, TablePlaces({"main.sales.orders": "/lake/orders"}))


@pytest.mark.parametrize(
    "table", ["/data/tables/completions", "file:///data/tables/tasks/", "/data/x/../tables", "ours"]
)
def test_a_table_of_the_deployment_itself_is_refused(table):
    with pytest.raises(ArgumentError, match="one of the deployment's own"):
        located(table, TablePlaces({"ours": "/data/tables/fires"}, ("/data/tables",)))


def test_links_lead_neither_to_own_tables_nor_out_of_allowed_places(tmp_path):
    for name in ("own", "lake", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "own")
    (tmp_path / "lake" / "ours").symlink_to(tmp_path / "data")
    (tmp_path / "lake" / "out").symlink_to(tmp_path / "elsewhere")
    lake = str(tmp_path / "lake")
    settings = Settings(
        _env_file=None, data_dir=tmp_path, tables={"path": str(tmp_path / "data")}, plan={"allowed_places": [lake]}
    )
    places = watchable_places(settings)
    assert located(f"{lake}/orders", places) == f"{lake}/orders"
    for inside in ("lake/ours/tasks", "own/tasks", "data/tasks"):
        with pytest.raises(ArgumentError, match="one of the deployment's own"):
            located(f"{tmp_path}/{inside}", places)
    with pytest.raises(ArgumentError, match="not in a place that triggers may watch"):
        located(f"{lake}/out/orders", places)


def test_an_error_of_the_store_is_told_in_one_line(path, monkeypatch):
    def fail(log):
        raise OSError("\x1b[31mGeneric error\x1b[0m:\n  timed out.\n")

    monkeypatch.setattr(commit_follower, "listing", fail)
    for found in (WatchedTable(path).start(OnTable(path)), trouble(WatchedTable(path), FROM_START)):
        assert (found.kind, found.why) == ("unreachable", f"The table {path} cannot be read: Generic error: timed out.")


# -- what happens to logs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [True, False], ids=["by the same watcher", "after a restart"])
@pytest.mark.parametrize("versions", [1, 3, 9])
def test_another_table_in_the_same_place_is_not_taken_for_this_one(path, versions, again):
    for number in range(3):
        append(path, number)
    _, cursor = seen(table := WatchedTable(path))
    shutil.rmtree(path)
    for number in range(versions):
        append(path, number)
    found = trouble(table if again else WatchedTable(path), cursor)
    assert found.kind == "replaced"
    assert found.resume == Cursor(str(DeltaTable(path).metadata().id), -1)
    assert len(seen(table, found.resume)[0]) == versions


@pytest.mark.parametrize("cursor_at", [-1, 0])
def test_a_folder_that_is_removed_is_noticed_and_its_return_too(path, cursor_at):
    append(path, 1)
    table = WatchedTable(path)
    cursor = Cursor(str(DeltaTable(path).metadata().id), cursor_at)
    seen(table, cursor)
    Path(path).rename(f"{path}.away")
    assert trouble(table, cursor).kind == "vanished"
    assert trouble(WatchedTable(path), cursor).kind == "vanished"
    Path(f"{path}.away").rename(path)
    append(path, 2)
    assert seen(table, cursor)[0][-1].version == 1


def test_a_table_that_was_copied_back_goes_on(path):
    append(path, 1)
    _, cursor = seen(table := WatchedTable(path))
    shutil.copytree(path, f"{path}.copy", copy_function=shutil.copy)
    shutil.rmtree(path)
    Path(f"{path}.copy").rename(path)
    append(path, 2)
    assert short(seen(table, cursor)[0]) == [(1, "append", 1, 0)]


def test_a_log_with_fewer_versions_than_were_seen_is_a_trouble(path):
    for number in range(3):
        append(path, number)
    _, cursor = seen(table := WatchedTable(path))
    log_file(path, 2).unlink()
    found = trouble(table, cursor)
    assert (found.kind, found.resume) == ("rewound", cursor._replace(version=1))


@pytest.mark.parametrize("again", [True, False], ids=["by the same watcher", "after a restart"])
def test_commits_that_were_cleaned_up_are_a_gap_with_its_ends(path, again):
    append(path, 0)
    table = WatchedTable(path)
    _, cursor = seen(table)
    for number in range(1, 6):
        append(path, number)
    DeltaTable(path).create_checkpoint()
    append(path, 6)
    for version in range(5):
        log_file(path, version).unlink()
    table = table if again else WatchedTable(path)
    found = trouble(table, cursor)
    assert (found.kind, found.gap, found.resume) == ("truncated", (1, 4), cursor._replace(version=4))
    commits, cursor = seen(table, found.resume)
    assert short(commits) == [(5, "append", 1, 0), (6, "append", 1, 0)]
    assert seen(table, cursor) == ([], cursor)
    assert seen(WatchedTable(path), cursor) == ([], cursor)


def test_a_log_of_which_only_a_checkpoint_is_left_is_known_by_it(path):
    append(path, 0)
    append(path, 1)
    DeltaTable(path).create_checkpoint()
    _, cursor = seen(table := WatchedTable(path))
    for version in range(2):
        log_file(path, version).unlink()
    assert seen(table, cursor) == ([], cursor)
    assert WatchedTable(path).start(OnTable("t")) == cursor
    Path(path).rename(f"{path}.away")
    assert trouble(table, cursor).kind == "vanished"
    Path(f"{path}.away").rename(path)
    assert seen(table, cursor) == ([], cursor)
    log_file(path, 2).write_text(
        '{"add": {"size": 1, "stats": "{\\"numRecords\\": 1}"}}'
    )  # delta-rs needs the older ones
    assert short(seen(table, cursor)[0]) == [(2, "append", 1, 0)]


@pytest.mark.parametrize("content", [b"", b'{"add": {"path', b"\xff\x00", b"[]"])
def test_a_commit_that_is_half_written_is_told_of_and_read_later(path, content):
    append(path, 1)
    _, cursor = seen(table := WatchedTable(path))
    append(path, 2)
    append(path, 3)
    whole = log_file(path, 1).read_bytes()
    log_file(path, 1).write_bytes(content)
    found = trouble(table, cursor)
    assert found.kind == "unreadable"
    assert "version 1 " in found.why.lower()
    log_file(path, 1).write_bytes(whole)
    assert short(seen(table, cursor)[0]) == [(1, "append", 1, 0), (2, "append", 1, 0)]


def test_commits_before_an_unreadable_one_are_not_held_back(path):
    for number in range(3):
        append(path, number)
    log_file(path, 2).write_bytes(b"{")
    table = WatchedTable(path)
    commits, cursor = seen(table)
    assert [one.version for one in commits] == [0, 1]
    assert trouble(table, cursor).kind == "unreadable"


def test_a_damaged_checkpoint_does_not_matter_while_commits_are_there(path):
    append(path, 0)
    DeltaTable(path).create_checkpoint()
    append(path, 1)
    log_file(path, 0, "checkpoint.parquet").write_bytes(b"PAR1")
    assert len(seen(WatchedTable(path))[0]) == 2


def test_other_files_of_a_log_are_passed_over(path):
    append(path, 0)
    append(path, 1)
    folder = Path(path, "_delta_log")
    (folder / "00000000000000000000.00000000000000000001.compacted.json").write_text("{}")
    (folder / "_staged_commits").mkdir()
    (folder / ".00000000000000000002.json.tmp").write_text("{")
    (folder / "00000000000000000009.crc").write_text("{}")
    assert WatchedTable(path).start(OnTable("t")).version == 1


def test_a_huge_commit_is_read_in_little_memory(path):
    append(path, 0)
    _, cursor = seen(table := WatchedTable(path))
    stats = json.dumps({"numRecords": 2, "minValues": {"id": 1}, "maxValues": {"id": 2}, "nullCount": {"id": 0}})
    with log_file(path, 1).open("w") as file:
        file.write(json.dumps({"commitInfo": {"timestamp": 1, "operation": "WRITE"}}) + "\n")
        for number in range(30_000):
            values = {"path": f"f{number}", "partitionValues": {"day": f"d{number % 100}"}, "size": 3}
            file.write(json.dumps({"add": {**values, "dataChange": True, "stats": stats}}) + "\n")
    tracemalloc.start()
    (commit,), _ = seen(table, cursor, by=["day"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (commit.total.rows_added, commit.total.bytes_added) == (60_000, 90_000)
    assert len(commit.by["day"]) == 100
    assert peak < 2 * 2**20


def test_a_table_that_is_replaced_while_it_is_read_gives_no_commits_of_the_other(path, monkeypatch):
    for number in range(2):
        append(path, number)
    table = WatchedTable(path)
    start = seen(table, most=1)[1]
    read = commit_follower.read_commit

    def read_after_replacement(*given):
        if given[0] == 1 and not Path(f"{path}.old").exists():
            Path(path).rename(f"{path}.old")
            for number in range(2):
                append(path, number)
        return read(*given)

    monkeypatch.setattr(commit_follower, "read_commit", read_after_replacement)
    assert trouble(table, start).kind == "replaced"
