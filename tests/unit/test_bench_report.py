"""Numbers of the benchmarks: percentiles, records and tables."""

from __future__ import annotations

import json

import pytest

from scylla_spark.bench import machine, report
from scylla_spark.bench.run import main
from scylla_spark.errors import ArgumentError


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


def test_unknown_benchmark_is_refused_with_the_known_ones():
    with pytest.raises(ArgumentError, match="lateness, immediate, drain, single, enqueue, ingest, all"):
        main("fast", [])
