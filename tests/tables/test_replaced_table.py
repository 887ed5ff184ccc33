"""Tables of which every write replaces all rows are written without a JVM, one version per write."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from scylla_spark.clock import from_us
from scylla_spark.core.records.fact import Fence
from scylla_spark.core.tables.progress import Mark
from scylla_spark.errors import ConflictError, UnreachableError
from scylla_spark.io.delta.new_tables import delta_schema
from scylla_spark.io.delta.replaced_table import ReplacedTable
from scylla_spark.io.delta.rows import progress_row
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.schemas import PROGRESS
from tests.support.delta_tables import make


@pytest.fixture
def readers(tmp_path):
    make(f"{tmp_path}/tables")
    return TableReader(f"{tmp_path}/tables")


def row(topic, mark, updated_us=0):
    return progress_row(topic, 0, mark) | {"updated_at": from_us(updated_us)}


def test_a_write_replaces_all_rows_and_is_read_back_as_it_was(readers):
    table = ReplacedTable(readers, PROGRESS)
    table.replace([row("tasks", Mark(tasks_offset=9))])
    mark = Mark(tasks_offset=7, folded_until_us=3_600_000_000, closed_hour=1, open_hours=(0, 5), appended_us=1_000_001)
    end = Mark(outcomes_offset=3, fence=Fence(4, "n"), resigned=False)
    table.replace([row("tasks", mark), row("outcomes", end)])
    assert readers.marks() == {("tasks", 0): mark, ("outcomes", 0): end}


def test_a_table_whose_columns_are_in_another_order_is_written_all_the_same(tmp_path):
    schema = pa.schema(list(reversed(pa.schema(delta_schema(PROGRESS).to_arrow()))))
    write_deltalake(f"{tmp_path}/progress", schema.empty_table())
    readers, mark = TableReader(str(tmp_path)), Mark(tasks_offset=9, closed_hour=2, open_hours=(1,))
    ReplacedTable(readers, PROGRESS).replace([row("tasks", mark)])
    assert readers.marks()["tasks", 0] == mark


def test_every_write_is_one_version_also_where_two_threads_write_and_files_are_removed(readers):
    table, before = ReplacedTable(readers, PROGRESS), readers.history(PROGRESS, 1)[0]["version"]
    begin = threading.Barrier(3)

    def write(topic):
        begin.wait()
        for _ in range(5):
            table.replace([row(topic, Mark())])

    def clean():
        begin.wait()
        table.vacuum()

    with ThreadPoolExecutor(3) as threads:
        for work in [threads.submit(write, "tasks"), threads.submit(write, "outcomes"), threads.submit(clean)]:
            work.result()
    assert readers.history(PROGRESS, 1)[0]["version"] == before + 10
    assert len(readers.marks()) == 1


def test_a_place_that_cannot_be_reached_is_an_error_of_ours(readers, monkeypatch):
    def fails(*_, **__):
        raise OSError("no route to the store")

    monkeypatch.setattr("deltalake.write_deltalake", fails)
    with pytest.raises(UnreachableError, match="no route to the store"):
        ReplacedTable(readers, PROGRESS).replace([])


def test_a_writer_that_another_one_has_overtaken_makes_no_mark_fall(readers):
    frozen, other = ReplacedTable(readers, PROGRESS), ReplacedTable(TableReader(readers.path), PROGRESS)
    frozen.replace([row("tasks", Mark(tasks_offset=1))])
    other.replace([row("tasks", Mark(tasks_offset=9))])
    with pytest.raises(ConflictError, match="Another process has written the table 'progress'"):
        frozen.replace([row("tasks", Mark(tasks_offset=2))])
    other.vacuum()
    other.replace([row("tasks", Mark(tasks_offset=10))])
    assert readers.marks()["tasks", 0].tasks_offset == 10


def test_no_replaced_file_outlives_its_retention_also_if_no_checkpoint_names_it(readers):
    place, table = f"{readers.path}/progress", ReplacedTable(readers, PROGRESS)
    properties = {"delta.checkpointInterval": "2", "delta.deletedFileRetentionDuration": "interval 0 seconds"}
    DeltaTable(place).alter.set_table_properties(properties)
    for offset in range(7):
        table.replace([row("tasks", Mark(tasks_offset=offset))])
    table.vacuum()
    assert [str(file) for file in Path(place).glob("*.parquet")] == [
        f.removeprefix("file://") for f in DeltaTable(place).file_uris()
    ]
    assert readers.marks()["tasks", 0].tasks_offset == 6
