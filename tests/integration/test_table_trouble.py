"""What becomes of a watched table that vanishes, is rewound or replaced: a row says so once, and what is there now fires."""

import shutil

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from scylla_spark.config.settings import Settings
from scylla_spark.services.plan.table_watcher import TableWatcher
from tests.support.planner_harness import PlannerHarness


@pytest.fixture
def path(tmp_path):
    return tmp_path / "orders"


@pytest.fixture
def watched(path, tmp_path):
    """A schedule that watches a table of two versions, and has begun after the second."""
    append(path)
    append(path)
    plan, watcher = PlannerHarness(), TableWatcher(Settings(_env_file=None, data_dir=tmp_path))
    plan.put("s", {"kind": "table", "table": str(path)}, overlap="allow_all", payload={"to": "{{ table.to_version }}"})
    look(plan, watcher)
    assert plan.verdicts() == []
    return plan, watcher


def append(path, **more):
    write_deltalake(str(path), pa.table({"id": [1]}), mode="append", **more)


def look(plan, watcher, times=3):
    """Looks at the table, and tells the planner."""
    for _ in range(times):
        for place, wanted in plan.planner.watched().items():
            assert watcher._takes_turn(place)
            watcher._look_guarded(place, wanted)
        watcher.exchange(plan.planner, plan.now)
        plan.turn()


def launched(plan):
    return [record["taskData"]["to"] for record in plan.sent]


def troubles(plan):
    return [fire["why"].split(":")[0] for fire in plan.fires if fire["verdict"] == "trouble"]


def test_a_table_that_vanishes_and_comes_back_goes_on_where_it_was(watched, path):
    plan, watcher = watched
    aside = path.with_name("aside")
    path.rename(aside)
    look(plan, watcher)
    assert troubles(plan) == ["vanished"], "it is told of once, however often somebody looks"
    aside.rename(path)
    append(path)
    look(plan, watcher)
    assert plan.verdicts() == ["trouble", "launched"]
    assert launched(plan) == [2]


def test_a_table_that_another_one_replaces_counts_from_its_first_version(watched, path):
    plan, watcher = watched
    shutil.rmtree(path)
    append(path)
    look(plan, watcher)
    assert plan.verdicts() == ["trouble", "launched"]
    assert troubles(plan) == ["replaced"]
    assert launched(plan) == [0]
    assert plan.planner.state.entries["s"].tables[0].table_id == str(DeltaTable(str(path)).metadata().id)
    append(path)
    look(plan, watcher)
    assert launched(plan) == [0, 1]


def test_a_table_that_was_rewound_goes_on_after_what_is_left_of_it(watched, path):
    plan, watcher = watched
    append(path)
    look(plan, watcher)
    for version in (1, 2):
        (path / "_delta_log" / f"{version:020d}.json").unlink()
    look(plan, watcher)
    assert plan.verdicts() == ["launched", "trouble"]
    assert troubles(plan) == ["rewound"]
    assert plan.planner.state.entries["s"].tables[0].version == 0
    append(path)
    look(plan, watcher)
    assert launched(plan) == [2, 1]
