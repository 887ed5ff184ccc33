"""The due scan of Spark and the one without a JVM give the same rows, cut the same lanes, and leave the same lanes out."""

import os
import random

import pytest

from scylla_spark.config.settings import Settings
from scylla_spark.core.tables.progress import Mark
from scylla_spark.services.dispatch.reader_scan import ReaderScan
from scylla_spark.services.dispatch.spark_scan import SparkScan
from tests.support.delta_tables import at, make
from tests.support.open_tables import NOW, generated

SEEDS = range(int(os.environ.get("SCAN_SEEDS", "4")))  # with four, each of the things in `met` happens in two of them
SCANS = 3  # of each seed: other windows, depths and budgets


def settings(folder, rng):
    queues = {name: {} for name in rng.sample(["default", "mail", "paused"], rng.randint(0, 2))} | {
        "paused": {"paused": True}
    }
    dispatch = {"lane_depth": rng.choice([1, 2, 5, 200]), "scan_budget": rng.choice([1, 8, 25, 10_000])}
    return Settings(data_dir=folder, tables={"path": str(folder / "tables")}, queues=queues, dispatch=dispatch)


def outcome(scan, marks, window, ended):
    """What a scan gave, in an order of its own."""
    found = scan.read(marks, *window, NOW, ended)
    if found is None:
        return None
    return {
        number: (sorted(part.rows, key=lambda row: row.command.key), part.cuts, part.unloaded)
        for number, part in found.items()
    }


def lanes_in_order(found):
    """Whether the tasks of each lane come in key order."""
    for part in (found or {}).values():
        last = {}
        for row in part.rows:
            key = row.command.key
            if key.ordering_id in last and last[key.ordering_id] >= key:
                return False
            last[key.ordering_id] = key
    return True


def paths(found):
    """Which of the things that may happen to a scan did."""
    if found is None:
        return {"too much after an instant"}
    met = {"whole"} if not any(left for _, _, left in found.values()) else {"lanes left"}
    met |= {"cut"} if any(cuts for _, cuts, _ in found.values()) else set()
    for rows, _, _ in found.values():
        met |= {"cancelled" for row in rows if row.cancelled} | {"retried" for row in rows if row.attempt}
        met |= {"failed" for row in rows if row.error} | {"unique" for row in rows if row.command.unique}
        met |= {"updated" for row in rows if 0 <= row.first < row.command.offset}
        met |= {"far" for row in rows if row.command.key.time_us >= at(14)}
        met |= {"without data" for row in rows if row.command.handler is None and row.cancelled}
    return met


@pytest.fixture(scope="module")
def met():
    """All that happened in any scan of this module."""
    found = set()
    yield found
    assert found == {
        "too much after an instant",
        "whole",
        "lanes left",
        "cut",
        "cancelled",
        "retried",
        "failed",
        "unique",
        "updated",
        "far",
        "without data",
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_both_scans_of_generated_tables_give_the_same(spark, tmp_path, met, seed):
    rng = random.Random(seed)
    made = generated(str(tmp_path / "tables"), seed)
    for _ in range(SCANS):
        chosen = settings(tmp_path, rng)
        marks = {number: made.marks[number] for number in rng.sample(range(4), rng.choice([2, 4, 4]))}
        window = (rng.choice([None, None, at(10), at(12, 29)]), rng.choice([at(12, 59), at(15, 30)]))
        most_bytes, ended = rng.choice([1, 5_000, 1 << 40]), rng.choice([0, 0, 2])
        reader = ReaderScan(chosen, most_bytes=most_bytes)
        ours = outcome(reader, marks, window, ended)
        theirs = outcome(SparkScan(spark, chosen, most_bytes=most_bytes), marks, window, ended)
        assert ours == theirs, (chosen.dispatch, marks, window, most_bytes, ended)
        assert lanes_in_order(reader.read(marks, *window, NOW, ended))
        met |= paths(theirs)


def test_both_scans_of_empty_tables_find_nothing(spark, tmp_path):
    make(str(tmp_path / "tables"))
    chosen = settings(tmp_path, random.Random(0))
    for scan in (ReaderScan(chosen), SparkScan(spark, chosen)):
        assert scan.read({0: Mark(1), 3: Mark(1)}, None, at(23), NOW, 0) == {}
