"""Tables in a store that is slow or silent: reads come to an end in their time limit, and nobody else in the process waits for them."""

import time
from datetime import timedelta

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from scylla_spark.clock import now_us
from scylla_spark.core.plan.tables.changes import Cursor
from scylla_spark.core.plan.triggers.trigger import Condition, OnTable
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import UnreachableError
from scylla_spark.io.delta.log_place import LocalLog, StoreLog
from scylla_spark.io.delta.newest_commits import newest_commits
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.delta.watched.commit_follower import TableTrouble, WatchedTable
from scylla_spark.schemas import DEPLOYMENT, TASKS
from tests.support.delta_tables import append, make, task
from tests.support.slow_store import BUCKET, slow_store

LIMIT = timedelta(seconds=1)
ORDERS = f"s3://{BUCKET}/orders 1".replace(" ", "%20")
START = Cursor("", -1)
PATIENT = timedelta(seconds=120)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store") / "lake"
    rows = pa.table({"id": [1, 2, 3]})
    for _ in range(2):
        write_deltalake(f"{folder}/orders 1", rows, mode="append")
    make(f"{folder}/own")
    append(f"{folder}/own", TASKS, [task(TaskKey(now_us(), "lane", "u"))])
    with slow_store(folder) as store, pytest.MonkeyPatch.context() as patch:
        for name, value in store.environment.items():
            patch.setenv(name, value)
        yield store


@pytest.fixture(autouse=True)
def _quick_again(store):
    yield
    store.answer()


def own_tables(limit=PATIENT) -> TableReader:
    return TableReader(f"s3://{BUCKET}/own", limit)


def test_a_log_in_a_store_reads_like_one_in_a_folder(store, tmp_path_factory):
    found = StoreLog(ORDERS)
    folder = next(tmp_path_factory.getbasetemp().glob("store*/lake/orders 1"))
    local = LocalLog(str(folder))
    name = f"{1:020d}.json"
    assert sorted(found.names()) == sorted(name for name in local.names() if name.endswith(".json"))
    assert found.stamp(name).size == local.stamp(name).size
    assert found.stamp("nothing") is None
    with found.opened(name) as one, local.opened(name) as other:
        assert one.readlines() == other.readlines()
    with pytest.raises(FileNotFoundError):
        found.opened("nothing")
    assert StoreLog(f"s3://{BUCKET}/nothing").names() is None


def test_a_watched_table_in_a_slow_store_keeps_nobody_waiting(store):
    table, trigger = WatchedTable(ORDERS, PATIENT), OnTable("t", where=[Condition("id", ">", 1)])
    with store.asking():
        assert not isinstance(table.start(trigger), TableTrouble)
        commits = table.poll(START)
        assert [one.total.rows_added for one in table.narrow(commits[:1], trigger)] == [2]


@pytest.mark.parametrize(
    "read",
    [
        TableReader.stored,
        TableReader.marks,
        lambda tables: tables.exists(TASKS),
        lambda tables: tables.history(DEPLOYMENT, 2),
        lambda tables: tables.task(TaskKey(1, "a", "b")),
    ],
    ids=["stored", "marks", "exists", "history", "task"],
)
def test_own_tables_in_a_slow_store_keep_nobody_waiting(store, read):
    with store.asking():
        read(own_tables())


@pytest.mark.parametrize("silent", [".", r"\.parquet"], ids=["nothing answers", "data files do not answer"])
def test_a_read_of_a_silent_store_ends_in_its_time_limit(store, silent):
    tables, table = own_tables(LIMIT), WatchedTable(ORDERS, LIMIT)
    tables.stored()
    commits = table.poll(START)
    store.answer(silent)
    begun = time.monotonic()
    with pytest.raises(UnreachableError, match="cannot be reached"):
        tables.stored()
    found = table.narrow(commits, OnTable("t", where=[Condition("id", ">", 1)]))
    assert isinstance(found, TableTrouble)
    assert found.kind == "unreachable"
    assert time.monotonic() - begun < 90, "without a limit of ours each read takes three minutes"


def test_the_newest_commits_are_those_of_the_logs(store):
    rows = newest_commits(own_tables(), 3)
    of_tasks = [(row["version"], row["operation"], row["rows"]) for row in rows if row["table"] == "tasks"]
    assert of_tasks[0] == (1, "WRITE", 1)
