"""A benchmark that ships: one JSON object on stdout, a floor of the same run, and nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from scylla_spark_tools.bench.report import LATENCY


def test_lateness_gives_one_json_object_with_its_floor_and_leaves_nothing_behind(tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("scylla-spark"))
    arguments = ["--seconds", "5", "--warm", "100", "-o", "json", "--data", str(tmp_path)]
    process = subprocess.Popen(
        [program, "bench", "lateness", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    told, log = process.communicate(timeout=400)
    assert process.returncode == 0, log[-3000:]
    (line,) = told.splitlines()
    record = json.loads(line)
    assert set(LATENCY) <= set(record)
    assert (record["bench"], record["count"], record["lost"], record["early"]) == ("lateness", 500, 0, 0)
    assert 0 < record["p50_ms"] <= record["p95_ms"] <= record["p99_ms"] <= record["max_ms"]
    assert record["floor"] > 0
    assert record["cpu_cores"] > 0
    assert list(tmp_path.iterdir()) == []
    assert _processes_on(tmp_path) == []


def _processes_on(folder: Path) -> list[str]:
    """Command lines of processes that work on a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().decode(errors="replace")
            place = os.readlink(process / "cwd")
        except OSError:
            continue
        if str(folder) in line or place.startswith(str(folder)):
            found.append(line)
    return found
