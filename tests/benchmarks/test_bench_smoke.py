"""Every benchmark in small, through the command line; run with `pytest -m benchmark tests/benchmarks`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scylla_spark_tools.bench.report import LATENCY, RATE, SECONDS

pytestmark = pytest.mark.benchmark

SMALL = {
    "lateness": (["--seconds", "5", "--warm", "100"], LATENCY),
    "immediate": (["--seconds", "5"], LATENCY),
    "drain": (["--tasks", "5000", "--lanes", "100"], (*RATE, "recorded_seconds")),
    "single": (["--tasks", "100"], RATE),
    "enqueue": (["--tasks", "20000"], RATE),
    "ingest": (["--tasks", "20000"], RATE),
    "limits": (["--tasks", "3000", "--lanes", "100"], (*RATE, "cost_percent")),
    "pending": (["--tasks", "5000", "--seconds", "3", "--warm", "100"], (*LATENCY, "rss_mb", "pending", "held")),
    "stuck": (["--seconds", "3", "--warm", "100"], (*LATENCY, "blocked_lanes")),
    "spread": (["--tasks", "1000", "--lanes", "50"], SECONDS),
    "recover": (["--tasks", "5000"], (*SECONDS, "ready_seconds", "all_seconds")),
    "start": (["--tasks", "1"], (*SECONDS, "restart_ratio", "dispatcher_seconds", "cpu_seconds")),
    "onlookers": (
        ["--seconds", "3", "--warm", "100", "--stored", "5000", "--turns", "1"],
        (*LATENCY, "one_screen_cores", "screens_cores", "api_ratio"),
    ),
    "neighbours": (
        ["--seconds", "3", "--warm", "100", "--turns", "1"],
        (*LATENCY, "leased", "sync_p50_ms", "sync_ratio"),
    ),
    "dashboard": (["--tasks", "5000"], (*LATENCY, "screens", "worst_p99_ms", "heat_map_first_ms", "first_paint_ms")),
    "logs": (["--seconds", "3", "--warm", "100", "--turns", "1"], (*LATENCY, "lines", "dropped", "missing")),
    "watched": (["--tasks", "3"], LATENCY),
    "async": (["--tasks", "500"], (*SECONDS, "child_mb", "children")),
    "sandbox": (["--tasks", "5"], LATENCY),
    "spark": (
        ["--seconds", "3", "--warm", "100", "--tasks", "1000", "--turns", "1"],
        (*LATENCY, "local_p99_ms", "drain_ratio", "pool_drain_ratio", "workers_mb"),
    ),
    "soak": (["--seconds", "6", "--warm", "100"], (*LATENCY, "memory_mb_first", "files_last")),
}


@pytest.fixture(autouse=True)
def _only_when_asked_for(request: pytest.FixtureRequest) -> None:
    if request.config.option.markexpr != "benchmark":
        pytest.skip("benchmarks run with -m benchmark only")


@pytest.mark.parametrize("name", SMALL)
def test_benchmark_gives_its_fields_and_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    arguments, fields = SMALL[name]
    command = [
        str(Path(sys.executable).with_name("scylla-spark")),
        "bench",
        name,
        "-o",
        "json",
        "--data",
        str(tmp_path),
    ]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = done.stdout.splitlines()
    record = json.loads(line)
    assert set(fields) <= set(record)
    assert (record["bench"], record["lost"], record.get("early", 0), record.get("violations", 0)) == (name, 0, 0, 0)
    assert record.get("pending_lost", 0) == 0
    assert record["ratio"] > 0
    assert list(tmp_path.iterdir()) == []
