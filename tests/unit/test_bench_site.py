"""What the benchmarks set, and what they count in the tables."""

from __future__ import annotations

import pytest

from scylla_spark.config.settings import Settings
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.schemas import DEFERRED, TASKS
from scylla_spark_tools.bench.deployment_under_test import Options, files_in, stored_tasks
from tests.support.delta_tables import append, at, make, task


@pytest.fixture
def settings(tmp_path):
    make(f"{tmp_path}/tables")
    return Settings(_env_file=None, data_dir=tmp_path)


@pytest.mark.slow
def test_a_task_that_stands_in_both_tables_counts_once(settings):
    keys = [TaskKey(at(10), f"{prefix}-{n}", "u") for prefix in ("near", "far") for n in range(3)]
    append(settings.tables_path, TASKS, [task(key) for key in keys[:4]])
    append(settings.tables_path, DEFERRED, [task(key) for key in keys[3:]])
    assert stored_tasks(settings) == 6
    assert stored_tasks(settings, "far-") == 3


def test_files_are_counted_per_table(settings):
    append(settings.tables_path, TASKS, [task(TaskKey(at(hour), "a", "u")) for hour in (1, 2)])
    assert files_in(settings)["tasks"] == 2


def test_what_a_benchmark_needs_stands_beside_what_the_user_sets():
    options = Options(changes={"queues": {"default": {"rate": 5}}, "ingest": {"near": "1h"}})
    assert options.needing("queues", other={"paused": True}).changes == {
        "queues": {"other": {"paused": True}, "default": {"rate": 5}},
        "ingest": {"near": "1h"},
    }
    assert options.needing("ingest", near="3h", grace="2h").changes["ingest"] == {"near": "1h", "grace": "2h"}
    assert Options().needing("ingest", near="3h").changes == {"ingest": {"near": "3h"}}
