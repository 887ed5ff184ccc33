"""Numbers of the benchmarks: percentiles, records and tables."""

from __future__ import annotations

import importlib
import json
import os
import subprocess

import pytest

from scylla_spark.errors import ArgumentError
from scylla_spark_tools.bench import machine, report
from scylla_spark_tools.bench.cases import soak
from scylla_spark_tools.bench.deployment_under_test import Options
from scylla_spark_tools.bench.run import BENCHES, main
from scylla_spark_tools.bench.steady_load import Load


@pytest.mark.parametrize(
    ("share", "expected"), [(0, 1), (0.01, 1), (0.011, 2), (0.5, 50), (0.95, 95), (0.99, 99), (0.991, 100), (1, 100)]
)
def test_percentile_is_the_nearest_rank(share, expected):
    assert report.percentile(list(range(1, 101)), share) == expected


def test_percentile_of_one_value_is_that_value():
    assert {report.percentile([7], share) for share in (0, 0.5, 0.99, 1)} == {7}


def test_percentile_of_nothing_is_zero():
    assert report.percentile([], 0.99) == 0


def test_latency_record_has_every_field_and_counts_what_did_not_start_as_lost():
    record = report.latency("lateness", [3_000, 1_000, 2_000], [500, 1_000], sent=5, early=0, cpu_cores=0.7)
    assert set(report.LATENCY) <= set(record)
    assert (record["count"], record["lost"], record["p50_ms"], record["max_ms"]) == (3, 2, 2.0, 3.0)
    assert (record["floor"], record["ratio"]) == (0.5, 4.0)


def test_latency_record_of_a_run_without_starts_has_no_ratio_of_nothing():
    record = report.latency("lateness", [], [], sent=5, early=0, cpu_cores=0.0)
    assert (record["lost"], record["p99_ms"], record["ratio"]) == (5, 0.0, None)


def test_rate_record_has_every_field_and_compares_with_the_floor():
    record = report.rate("drain", 100, 2.0, 200.0, violations=1, lost=3, recorded_seconds=4.5)
    assert set(report.RATE) <= set(record)
    assert (record["rate_per_s"], record["ratio"], record["violations"], record["lost"]) == (50.0, 0.25, 1, 3)
    assert record["recorded_seconds"] == 4.5


def test_compared_record_takes_the_p99_of_the_same_load_without_the_burden_as_floor():
    record = report.compared("stuck", [4_000, 2_000], [1_000, 2_000], sent=2, early=0, cpu_cores=0.5, blocked_lanes=9)
    assert set(report.LATENCY) <= set(record)
    assert (record["p99_ms"], record["floor"], record["ratio"]) == (4.0, 2.0, 2.0)
    assert (record["p50_ms"], record["floor_p50_ms"], record["p50_ratio"], record["blocked_lanes"]) == (
        2.0,
        1.0,
        2.0,
        9,
    )


def test_seconds_record_has_every_field_and_compares_with_the_floor():
    record = report.seconds("recover", 10, 3.0, 2.0, violations=0, lost=1, ready_seconds=2.5)
    assert set(report.SECONDS) <= set(record)
    assert (record["seconds"], record["ratio"], record["lost"]) == (3.0, 1.5, 1)
    assert "recover" in report.table([record])
    assert "ready_seconds 2.5" in report.details(record)


def test_records_are_json():
    record = report.rate("drain", 1, 0.0, 0.0, violations=0, lost=0, recorded_seconds=None)
    assert json.loads(json.dumps(record))["rate_per_s"] == 0.0


def test_table_keeps_to_its_width_and_names_what_failed():
    records = [
        report.latency("immediate", [1_234_567_890] * 2, [1], sent=1_000_000, early=0, cpu_cores=1.999),
        report.rate("enqueue", 1_000_000, 1.0, 2e6, violations=0, lost=0),
        {"bench": "drain", "error": "ended with exit code 1"},
    ]
    text = report.table(records)
    assert all(len(line) <= report.WIDTH for line in text.splitlines())
    assert "1,000,000" in text
    assert text.endswith("drain: ended with exit code 1")


def test_details_show_what_the_table_leaves_out():
    text = report.details(report.rate("drain", 1, 1.0, 1.0, violations=0, lost=0, recorded_seconds=4.5))
    assert "recorded_seconds 4.5" in text
    assert "violations" not in text


def test_cpu_seconds_are_told_per_part_and_helpers_left_out():
    before = {"driver": 1.0, "jvm": 2.0}
    assert machine.used(before, {"driver": 1.5, "jvm": 2.0, "children": 0.25}) == {
        "children": 0.25, "driver": 0.5, "jvm": 0.0,
    }  # fmt: skip


def test_memory_and_descendants_are_those_of_this_process_and_its_children():
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            assert machine.memory_mb(os.getpid())["driver"] > 10
            assert {os.getpid(), child.pid} <= set(machine.descendants(os.getpid()))
            assert child.pid not in machine.descendants(1 << 30)
            assert machine.living([child.pid]) == [child.pid]
        finally:
            child.kill()
    assert machine.living([child.pid]) == []


def test_load_is_as_asked_for_and_its_warm_up_comes_on_top():
    load = Load.of(Options(), rate=100, seconds=30)
    assert (load.count, load.period_us, load.lanes, load.warm, load.total) == (3_000, 10_000, 1_000, 1_000, 4_000)
    load = Load.of(Options(seconds=5, rate=50, lanes=7, warm=0), rate=100, seconds=30)
    assert (load.count, load.period_us, load.lanes, load.total) == (250, 20_000, 7, 250)


def test_sixths_of_a_run_hold_every_value_once():
    sixths = soak.parts(list(range(20)))
    assert [len(part) for part in sixths] == [3, 3, 3, 3, 3, 5]
    assert [value for part in sixths for value in part] == list(range(20))


def test_unknown_benchmark_is_refused_with_the_known_ones():
    with pytest.raises(ArgumentError, match=r"lateness, immediate, drain, single, enqueue, ingest, limits, .*, all"):
        main("fast", [])


def test_help_lists_every_benchmark_and_what_it_measures(capsys):
    assert main("--help", []) == 0
    told = capsys.readouterr().out
    assert [line.split()[0] for line in told.splitlines()[2:]] == [*BENCHES, "all"]


def test_every_benchmark_has_a_module_that_runs_it():
    for name in BENCHES:
        assert callable(importlib.import_module(f"scylla_spark_tools.bench.cases.{name}").run)
