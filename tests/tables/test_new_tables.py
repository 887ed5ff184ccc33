"""Tables are made without a JVM, by any number of processes at once, and checked against the settings."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scylla_spark.config.settings import Settings
from scylla_spark.core.tasks.key import HOUR_US
from scylla_spark.errors import ConfigError, ConflictError
from scylla_spark.io.delta.deployment_record import deployment, stored_rows
from scylla_spark.io.delta.new_tables import _make, ensure_tables, fold_target_us
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.schemas import DEPLOYMENT, PROGRESS, TABLES, VERSION
from tests.support.delta_tables import append

NOW = 1_795_000_000_000_000
TOPIC_IDS = {"tasks": "t", "outcomes": "o"}


def settings(folder, **changes):
    return Settings(data_dir=folder, partitions=4, **changes)


def made(folder, **changes):
    return ensure_tables(settings(folder, **changes), TOPIC_IDS, now=NOW)


def versions(folder):
    readers = TableReader(settings(folder).tables_path)
    return {table.name: readers.size(table)["version"] for table in TABLES}


def test_new_tables_are_there_at_once_with_progress_and_what_is_fixed(tmp_path):
    stored = made(tmp_path)
    readers = TableReader(settings(tmp_path).tables_path)
    assert stored == readers.stored()
    assert (stored["partitions"], stored["schema_version"], stored["topic_ids"]) == (4, VERSION, TOPIC_IDS)
    marks = readers.marks()
    assert set(marks) == {("tasks", number) for number in range(4)}
    assert {mark.folded_until_us for mark in marks.values()} == {fold_target_us(settings(tmp_path), NOW)}
    assert {mark.tasks_offset for mark in marks.values()} == {0}
    for table in TABLES:
        assert readers.columns(table) == set(table.names)
        assert table in (PROGRESS, DEPLOYMENT) or readers.frame(table).collect().is_empty()


def test_the_border_of_what_is_far_is_a_full_hour_at_least_as_far_ahead_as_near(tmp_path):
    near = settings(tmp_path, ingest={"near": "90m"})
    for now in (NOW // HOUR_US * HOUR_US, NOW // HOUR_US * HOUR_US + 1):
        target = fold_target_us(near, now)
        assert target % HOUR_US == 0
        assert 0 <= target - now - HOUR_US * 3 // 2 < HOUR_US


def test_a_repeat_changes_nothing(tmp_path):
    first = made(tmp_path)
    before = versions(tmp_path)
    assert ensure_tables(settings(tmp_path), TOPIC_IDS, now=NOW + HOUR_US) == first
    assert versions(tmp_path) == before == {table.name: 0 for table in TABLES}


def test_what_a_crash_left_out_is_made_by_the_next_start(tmp_path, monkeypatch):
    from scylla_spark.io.delta import new_tables

    with monkeypatch.context() as patch:
        patch.setattr(new_tables, "TABLES", TABLES[:3])
        with pytest.raises(Exception, match="no tables"):
            made(tmp_path)
    assert made(tmp_path)["partitions"] == 4
    assert versions(tmp_path) == {table.name: 0 for table in TABLES}


@pytest.mark.slow
def test_of_many_that_make_the_tables_at_once_one_does(tmp_path):
    def one(_number):
        return made(tmp_path)

    with ThreadPoolExecutor(8) as pool:
        (stored,) = {str(found) for found in pool.map(one, range(8))}
    assert "'partitions': 4" in stored
    assert versions(tmp_path) == {table.name: 0 for table in TABLES}
    assert TableReader(settings(tmp_path).tables_path).size(DEPLOYMENT)["rows"] == 6


@pytest.mark.parametrize(
    ("changes", "topics", "told"),
    [
        ({"partitions": 5}, TOPIC_IDS, "made with 4 partitions; the settings say 5"),
        ({}, TOPIC_IDS | {"tasks": "other"}, "Topic 'tasks' is not the one"),
        ({"ingest": {"grace": "1h"}}, TOPIC_IDS, "made with grace_ms = 10000"),
    ],
)
def test_settings_that_contradict_the_tables_are_refused(tmp_path, changes, topics, told):
    made(tmp_path)
    before = versions(tmp_path)
    with pytest.raises(ConfigError, match=told):
        ensure_tables(Settings(**({"data_dir": tmp_path, "partitions": 4} | changes)), topics, now=NOW)
    assert versions(tmp_path) == before


def test_a_deployment_without_rows_is_not_taken_for_made(tmp_path):
    append(settings(tmp_path).tables_path, DEPLOYMENT, [])
    with pytest.raises(ConflictError, match="half made"):
        made(tmp_path)


@pytest.mark.slow
def test_making_tables_loads_no_pyspark(tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\nfrom scylla_spark.config.settings import Settings\n"
        "from scylla_spark.io.delta.new_tables import ensure_tables\n"
        f"ensure_tables(Settings(data_dir=Path(sys.argv[1])), {TOPIC_IDS}, now={NOW})\nprint('pyspark' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2],
        env=dict(os.environ),
    )  # fmt: skip
    assert done.stdout.split() == ["False"]


@pytest.mark.parametrize("name", ["completions", "progress", "tasks", "audit", "fires"])
def test_a_table_that_was_lost_is_not_made_anew(tmp_path, name):
    made(tmp_path)
    found = next(folder for folder in (tmp_path / "tables").iterdir() if folder.name.startswith(name))
    shutil.rmtree(found)
    with pytest.raises(ConfigError, match=f"{found.name} are gone"):
        made(tmp_path)
    assert not found.exists()


def test_tables_that_came_after_the_stored_version_are_made(tmp_path):
    made(tmp_path)
    shutil.rmtree(tmp_path / "tables" / "deployment")
    old = {name: value for name, value in deployment(settings(tmp_path), TOPIC_IDS).items() if name != "schema_version"}
    _make(TableReader(f"{tmp_path}/tables"), DEPLOYMENT, stored_rows(old))
    shutil.rmtree(tmp_path / "tables" / "fires")
    made(tmp_path)
    assert (tmp_path / "tables" / "fires" / "_delta_log").is_dir()
    shutil.rmtree(tmp_path / "tables" / "completions")
    with pytest.raises(ConfigError, match="completions"):
        made(tmp_path)
