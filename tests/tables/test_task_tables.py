"""Lists of tasks and attempts in Python without a JVM: the rows of the API, the attempts of handles, and no more memory than needed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from datetime import UTC, datetime
from types import SimpleNamespace

import polars as pl
import pyarrow as pa
import pytest

from scylla_spark import Scheduler, Settings
from scylla_spark.api.tasks.lists import _listed
from scylla_spark.client.tasks.read_as_arrow import TaskTables
from scylla_spark.clock import from_us, now_us
from scylla_spark.core.tasks.filter import read_filter
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.state import attempts_of
from scylla_spark.errors import ArgumentError
from scylla_spark.io.delta import task_pages
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.delta.task_pages import TaskPages
from scylla_spark.schemas import ATTEMPT_LOGS, ATTEMPTS, COMPLETIONS, TASKS
from tests.support.delta_tables import append, at, fact, key_columns, make, task
from tests.support.open_tables import generated

NOW = at(12)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "tables")


@pytest.fixture
def filled(path):
    generated(path, 7)
    return path


def sched(path: str) -> Scheduler:
    return Scheduler(Settings(tables={"path": path}))


def keys_of(table: pa.Table) -> list[TaskKey]:
    columns = [table.column(name).to_pylist() for name in ("scheduled_time", "ordering_id", "uniqueness_key")]
    return [TaskKey.of(*row) for row in zip(*columns, strict=True)]


@pytest.mark.parametrize(
    "where", ["", "state:open", "state:failed,cancelled", "queue:default attempts:>0", "lane:nobody"]
)
def test_a_list_has_the_rows_of_the_api(filled, where):
    now = now_us()
    api = SimpleNamespace(handlers=SimpleNamespace(lacks=lambda queue, handler: False))
    expected = [
        _listed(api, row) for row in TaskPages(TableReader(filled)).page(read_filter(where, now), 10_000, now=now)
    ]
    table = TaskTables(TableReader(filled)).tasks(where, None, None, now).read_all()
    assert [str(key) for key in keys_of(table)] == [
        str(TaskKey.of(datetime.fromisoformat(row["scheduled_time"]), row["ordering_id"], row["uniqueness_key"]))
        for row in expected
    ]
    for name in ("state", "queue", "handler", "priority", "attempts", "cancel_requested", "error_class"):
        assert table.column(name).to_pylist() == [row[name] for row in expected], name
    for name in ("next_attempt_at", "enqueued_at", "ended_at"):
        found = [None if value is None else value.astimezone(UTC) for value in table.column(name).to_pylist()]
        assert found == [None if row[name] is None else datetime.fromisoformat(row[name]) for row in expected], name
    of_the_key = {"id", "schedule", "planned_at"}  # what its three columns say by themselves
    of_dispatchers = {"reason"}
    assert not expected or set(expected[0]) - set(table.column_names) == of_the_key | of_dispatchers


def test_a_list_of_nothing_has_the_same_columns(path):
    make(path)
    with sched(path) as empty:
        found = empty.list_tasks()
        assert (found.num_rows, empty.list_attempts().num_rows) == (0, 0)
    append(path, TASKS, [task(TaskKey(NOW, "o", "u"))])
    with sched(path) as one:
        assert one.list_tasks().schema == found.schema
        assert one.list_tasks("lane:nobody").schema == found.schema
        assert pl.from_arrow(one.list_tasks())["queue"].to_list() == ["default"]


def test_a_limit_bounds_the_rows_and_a_bad_one_or_a_bad_filter_is_refused_at_once(filled):
    with sched(filled) as one:
        every = one.list_tasks()
        assert one.list_tasks(limit=3) == every.slice(0, 3).combine_chunks() or one.list_tasks(limit=3).equals(
            every.slice(0, 3)
        )
        with pytest.raises(ArgumentError, match="Pass 1 or more"):
            one.stream_tasks(limit=0)
        with pytest.raises(ArgumentError, match="Did you mean queue") as error:
            one.stream_tasks("state:failed quue:mail")
        assert error.value.fields["position"] == 14


def test_a_stream_reads_some_at_a_time(path, monkeypatch):
    make(path)
    append(path, TASKS, [task(TaskKey(at(hour, minute), "o", "u")) for hour in range(4, 10) for minute in range(30)])
    monkeypatch.setattr(task_pages, "_FIRST_ROWS", 10)
    monkeypatch.setattr(task_pages, "_READ_ROWS", 40)
    read = []
    kept = TaskPages._hours
    monkeypatch.setattr(
        TaskPages,
        "_hours",
        lambda self, view, hours, *more: read.append(list(hours)) or kept(self, view, hours, *more),
    )
    with sched(path) as one:
        reader = one.stream_tasks()
        first = reader.read_next_batch()
        assert (first.num_rows > 0, len(read)) == (True, 1)
        rest = reader.read_all()
        assert first.num_rows + rest.num_rows == 180
        assert max(map(len, read)) <= 2


@pytest.mark.slow
def test_attempts_are_those_of_the_tables_one_row_each(filled):
    readers, now = TableReader(filled), now_us()
    tables = TaskTables(readers)
    found = tables.attempts("", None, now).read_all()
    by_key: dict[TaskKey, list[tuple[int, str]]] = {}
    for key, number, outcome in zip(
        keys_of(found), *(found.column(name).to_pylist() for name in ("attempt", "outcome")), strict=True
    ):
        by_key.setdefault(key, []).append((number, outcome))
    expected = {}
    for key in keys_of(tables.tasks("", None, None, now).read_all()):
        ended = readers.completion(key)
        facts = attempts_of([*readers.attempts(key), *([ended] if ended is not None else [])])
        if facts:
            expected[key] = [(one.attempt, one.outcome) for one in facts]
    assert expected
    assert by_key == expected


def test_an_attempt_is_told_of_by_what_says_most_of_it(path):
    make(path)
    one, two, three = (TaskKey(at(9), lane, "u") for lane in "abc")
    append(path, TASKS, [task(one), task(two), task(three)])
    later = from_us(at(9, 5))
    append(path, ATTEMPTS, [
        fact(one, 1, "started", 1), fact(one, 1, "failed", 2, error_class="KeyError", next_at=later), fact(one, 2, "started", 3),
        fact(two, 1, "failed", 4, next_at=later),
    ])  # fmt: skip
    append(path, COMPLETIONS, [
        fact(one, 2, "succeeded", 5, result='{"n": 1}'), fact(one, 2, "failed", 9), fact(two, 1, "cancelled", 6),
        fact(three, 0, "cancelled", 7),
    ])  # fmt: skip
    with sched(path) as site:
        rows = site.list_attempts().to_pylist()
        assert [(row["ordering_id"], row["attempt"], row["outcome"], row["error_class"], row["result"]) for row in rows] == [
            ("a", 1, "failed", "KeyError", None), ("a", 2, "succeeded", None, '{"n": 1}'), ("b", 1, "failed", None, None),
        ]  # fmt: skip
        assert [row["ordering_id"] for row in site.list_attempts("state:cancelled").to_pylist()] == ["b"]


def test_lines_stand_in_order_each_once_and_only_those_of_the_tasks_that_were_asked_for(path):
    make(path)
    one, two = (TaskKey(at(9), lane, "u") for lane in "ab")
    append(path, TASKS, [task(one), task(two)])
    written = [(one, 2, 1), (one, 1, 2), (one, 1, 2), (one, 1, 1), (two, 1, 1)]
    append(path, ATTEMPT_LOGS, [line(*place, offset) for offset, place in enumerate(written)])
    append(path, ATTEMPT_LOGS, [line(one, 2, 1, 9) | {"stream": "scheduler", "text": "[3 lines]"}])
    with sched(path) as site:
        rows = site.list_logs().to_pylist()
        assert [(row["ordering_id"], row["attempt"], row["seq"], row["text"]) for row in rows] == [
            ("a", 1, 1, "line 1"), ("a", 1, 2, "line 2"), ("a", 2, 1, "[3 lines]"), ("a", 2, 1, "line 1"), ("b", 1, 1, "line 1"),
        ]  # fmt: skip
        assert rows[0]["at"] == from_us(at(9))
        assert (rows[0]["epoch"], rows[0]["stream"], rows[0]["fields"]) == (7, "stdout", '{"n":1}')
        assert [row["ordering_id"] for row in site.list_logs("lane:b").to_pylist()] == ["b"]
        assert site.list_logs("lane:nobody").schema == site.list_logs(limit=1).schema


def line(key, attempt, seq, offset):
    return key_columns(key) | {
        "attempt": attempt, "epoch": 7, "seq": seq, "at": from_us(at(9)), "stream": "stdout", "text": f"line {seq}",
        "fields": '{"n":1}', "log_offset": offset,
    }  # fmt: skip


def test_where_no_lines_are_kept_the_list_is_empty(path):
    make(path)
    append(path, TASKS, [task(TaskKey(at(9), "a", "u"))])
    shutil.rmtree(f"{path}/{ATTEMPT_LOGS.name}")
    with sched(path) as site:
        assert site.list_logs().num_rows == 0


@pytest.mark.slow
def test_no_jvm_and_no_pyspark_is_needed(filled):
    code = f"""
import sys
from scylla_spark import Scheduler, Settings
with Scheduler(Settings(tables={{"path": {filled!r}}})) as sched:
    rows = sched.list_tasks("state:open,ended").num_rows, sched.list_attempts().num_rows
print(min(rows) > 0, [name for name in sys.modules if name.partition(".")[0] in ("pyspark", "py4j")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True []"
